"""Spans on a real GPU compared with torch's own events: within 1 % or 2 us."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import stagespan
from device_spans import spans_of
from stagespan import _core

CYCLES = 20_000_000  # about 10 ms


def within(found_ns: float, truth_ms: float) -> bool:
    return abs(found_ns - truth_ms * 1e6) <= max(0.01 * truth_ms * 1e6, 2000)


class Truth:
    """torch's events around a span, on the same stream."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._events = [cuda.Event(enable_timing=True) for _ in range(2)]

    def __enter__(self) -> Truth:
        self._events[0].record()
        return self

    def __exit__(self, *_: object) -> None:
        self._events[1].record()

    def ms(self) -> float:
        self._cuda.synchronize()
        return float(self._events[0].elapsed_time(self._events[1]))


class Between:
    """A span between two pairs of torch's events on its stream, one outside and one inside of it.

    The span's own events take some time on the device, so neither pair alone shows its true time.
    """

    def __init__(self, cuda: Any, stage: str) -> None:
        self._outer, self._inner = Truth(cuda), Truth(cuda)
        self._span = stagespan.span(stage)

    def __enter__(self) -> Between:
        for context in (self._outer, self._span, self._inner):
            context.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for context in (self._inner, self._span, self._outer):
            context.__exit__(None, None, None)

    def is_consistent_with(self, found_ns: float) -> bool:
        """Return whether it lies between the two, with a tolerance of 1 % or 2 us."""
        inner_ms, outer_ms = self._inner.ms(), self._outer.ms()
        is_between = inner_ms * 1e6 <= found_ns <= outer_ms * 1e6
        return is_between or within(found_ns, inner_ms) or within(found_ns, outer_ms)


@pytest.mark.stand_in
@pytest.mark.parametrize("cycles", [10_000, 200_000, CYCLES, 10 * CYCLES])
def test_a_kernel(cuda: Any, cycles: int) -> None:
    # GIVEN queued work, so that nothing waits for the host
    cuda._sleep(CYCLES)
    with Between(cuda, f"kernel {cycles}") as truth:
        cuda._sleep(cycles)
    # THEN its time agrees with torch's events
    (span,) = spans_of(f"kernel {cycles}")
    assert truth.is_consistent_with(span["device_elapsed_ns"])


def test_its_position_on_the_hosts_timeline(cuda: Any) -> None:
    # GIVEN an idle device, so that a kernel begins when it is queued
    cuda.synchronize()
    with stagespan.span("placed"):
        cuda._sleep(CYCLES)
        cuda.synchronize()
    (span,) = spans_of("placed")
    assert span["device_queue_ns"] >= -20_000
    assert span["device_tail_ns"] <= 20_000
    assert _core.device_info()["base_error_ns"] <= 20_000


@pytest.mark.stand_in
def test_the_host_does_not_wait(cuda: Any) -> None:
    began = time.perf_counter()
    for _ in range(20):
        with stagespan.span("ahead"):
            cuda._sleep(CYCLES)
    host_s = time.perf_counter() - began
    found = spans_of("ahead")["device_elapsed_ns"]
    assert np.isfinite(found).all()
    assert host_s < found.sum() / 1e9


@pytest.mark.stand_in
def test_several_streams(cuda: Any) -> None:
    streams = [cuda.Stream() for _ in range(3)]
    truths: list[Between] = []
    for i, stream in enumerate(streams):
        with cuda.stream(stream):
            cuda._sleep(CYCLES)
            with Between(cuda, f"stream {i}") as truth:
                cuda._sleep((i + 1) * CYCLES)
            truths.append(truth)
    for i, truth in enumerate(truths):
        (span,) = spans_of(f"stream {i}")
        assert truth.is_consistent_with(span["device_elapsed_ns"])


@pytest.mark.stand_in
def test_threads(cuda: Any) -> None:
    truths: dict[int, list[Between]] = {}

    def work(i: int) -> None:
        truths[i] = []
        with cuda.stream(cuda.Stream()):
            for _ in range(20):
                with Between(cuda, f"thread {i}") as truth:
                    cuda._sleep(100_000)
                truths[i].append(truth)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        found = spans_of(f"thread {i}")["device_elapsed_ns"]
        assert len(found) == 20
        assert all(truth.is_consistent_with(ns) for truth, ns in zip(truths[i], found, strict=True))


@pytest.mark.stand_in
def test_a_thread_that_never_touched_the_device(cuda: Any) -> None:
    def work() -> None:
        with stagespan.span("host only"):
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(spans_of("host only")) == 1


@pytest.mark.stand_in
def test_every_device(cuda: Any) -> None:
    for i in range(cuda.device_count()):
        with cuda.device(i):
            cuda._sleep(CYCLES)
            with Between(cuda, f"device {i}") as truth:
                cuda._sleep(CYCLES)
            (span,) = spans_of(f"device {i}")
            assert truth.is_consistent_with(span["device_elapsed_ns"])


def test_a_capture_stays_valid_and_a_replay_is_timed(cuda: Any) -> None:
    import torch

    x = torch.zeros(1 << 20, device="cuda")
    for _ in range(50):
        with stagespan.span("pending"):
            x += 1
    graph = cuda.CUDAGraph()
    cuda.synchronize()
    with cuda.graph(graph):
        with stagespan.span("captured"):
            x += 1
        time.sleep(0.2)  # the resolver checks in the meantime
        x += 1
    x.zero_()
    with Truth(cuda) as truth, stagespan.span("replay"):
        graph.replay()
    truth_ms = truth.ms()
    assert float(x[0]) == 2
    (captured,) = spans_of("captured")
    assert np.isnan(captured["device_elapsed_ns"])
    assert captured["flags"] & _core.FLAG_CAPTURED
    (replay,) = spans_of("replay")
    assert within(replay["device_elapsed_ns"], truth_ms) or truth_ms < 0.05


def test_the_doctor_finds_no_failure(cuda: Any) -> None:
    from stagespan.cli import examine

    findings = examine.examine()
    assert examine.Checks(findings).works, [f for f in findings if f.state == "fails"]


def test_a_replay_overwrites_the_cache_and_knows_the_clock(cuda: Any) -> None:
    from stagespan.harness.standalone.replay import DeviceCache, cache_bytes, clock_mhz

    cache = DeviceCache("cuda:0")
    cache.flush()

    assert cache.bytes == cache_bytes("cuda:0") == cuda.get_device_properties(0).L2_cache_size
    assert clock_mhz("cuda:0") is None or clock_mhz("cuda:0") > 100


def test_the_replays_of_graphs_are_stages(cuda: Any) -> None:
    import torch

    graphs = {}
    for size in (1, 4):
        x = torch.zeros(size << 18, device="cuda")
        graphs[size] = cuda.CUDAGraph()
        cuda.synchronize()
        with cuda.graph(graphs[size]):
            x += 1

    timed = stagespan.graph_stages(graphs, "decode")
    timed[1].replay()
    timed[4].replay()
    cuda.synchronize()

    for stage in ("decode[1]", "decode[4]"):
        (span,) = spans_of(stage)
        assert span["device_elapsed_ns"] > 0


@pytest.mark.stand_in
def test_nested_spans_on_one_stream(cuda: Any, figures: Any) -> None:
    cuda._sleep(CYCLES)
    truths = []
    with Between(cuda, "outer") as outer:
        for _ in range(3):
            with Between(cuda, "middle") as middle:
                cuda._sleep(CYCLES // 4)
                with Between(cuda, "inner") as inner:
                    cuda._sleep(CYCLES // 4)
            truths.append((middle, inner))
    assert outer.is_consistent_with(spans_of("outer")["device_elapsed_ns"][0])
    middles, inners = (spans_of(name)["device_elapsed_ns"] for name in ("middle", "inner"))
    for (middle, inner), middle_ns, inner_ns in zip(truths, middles, inners, strict=True):
        assert middle.is_consistent_with(middle_ns)
        assert inner.is_consistent_with(inner_ns)
        assert inner_ns <= middle_ns
    figures(outer_ns=float(spans_of("outer")["device_elapsed_ns"][0]), middle_ns=middles.tolist())


@pytest.mark.stand_in
def test_spans_of_all_streams_that_run_at_once(cuda: Any, figures: Any) -> None:
    streams = [cuda.Stream() for _ in range(32)]
    for stream in streams:
        with cuda.stream(stream):
            cuda._sleep(CYCLES // 10)
    truths = []
    for i, stream in enumerate(streams):
        with cuda.stream(stream):
            with Between(cuda, f"one of many {i}") as truth:
                cuda._sleep(CYCLES // 10)
            truths.append(truth)
    # THEN none takes the time of another stream for its own
    found = [spans_of(f"one of many {i}")["device_elapsed_ns"][0] for i in range(32)]
    assert all(truth.is_consistent_with(ns) for truth, ns in zip(truths, found, strict=True))
    figures(shortest_ns=float(min(found)), longest_ns=float(max(found)))


@pytest.mark.stand_in
def test_100_000_pending_spans(cuda: Any, figures: Any) -> None:
    # GIVEN a device that is busy for longer than the spans take to be queued
    cuda._sleep(400 * CYCLES)
    began = time.perf_counter()
    for _ in range(100_000):
        with stagespan.span("pending"):
            pass
    host_s = time.perf_counter() - began
    resolver_s = time.process_time()
    cuda.synchronize()
    assert stagespan.flush(60)
    resolver_s = time.process_time() - resolver_s
    summary = stagespan.stats()["pending"]
    assert summary.count == 100_000
    timed = 0 if summary.device_elapsed_ns is None else summary.device_elapsed_ns.count
    without = sum(n for cause, n in stagespan.lost().items() if cause.startswith("device"))
    assert timed + without >= 100_000
    figures(
        timed=timed,
        without=without,
        host_ns_each=host_s * 1e4,
        cpu_ns_each_after_the_last=resolver_s * 1e4,
    )
