"""A span's device times compared with the work of the device: the same for every backend."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from standin import Standin

import stagespan
from device_spans import spans_of
from stagespan import _core

MS = 1e6


def position_error_ns() -> float:
    error = _core.device_info()["base_error_ns"]
    return 1000.0 if error is None else 1000.0 + error


def test_a_kernel_of_20_ms_reads_20_ms(device: Standin) -> None:
    # GIVEN a busy stream, so that the host is far ahead
    device.hold()
    with stagespan.span("kernel"):
        device.kernel(20)
    assert np.isnan(stagespan.spans()[-1]["device_elapsed_ns"]), "known before it can be"
    before_ns = time.time_ns()
    device.hold(False)
    after_ns = time.time_ns()
    (span,) = spans_of("kernel")
    assert span["device_elapsed_ns"] == pytest.approx(20 * MS, rel=0.01)
    # THEN it began when the stream continued, and ended that much later than the host
    slack = position_error_ns()
    began_ns = span["begin_ns"] + span["device_queue_ns"]
    assert before_ns - slack <= began_ns <= after_ns + slack
    ended_ns = span["end_ns"] + span["device_tail_ns"]
    assert ended_ns - began_ns == pytest.approx(span["device_elapsed_ns"], abs=1000)


def test_the_hot_path_never_waits(device: Standin) -> None:
    before = device.counts()
    # GIVEN a blocked stream
    device.hold()
    for _ in range(50):
        with stagespan.span("ahead"):
            device.kernel(0.1)
    # THEN they have ended on the host while nothing has run
    assert not stagespan.flush(0.2)
    assert stagespan.stats()["ahead"].count == 50
    assert stagespan.stats()["ahead"].device_elapsed_ns is None
    device.hold(False)
    assert len(spans_of("ahead")) == 50
    after = device.counts()
    for what in ("waits", "blocking_reads", "handles"):
        assert after[what] == before[what], what


def test_times_of_nested_spans_add_up(device: Standin) -> None:
    device.hold()
    with stagespan.span("outer"):
        device.kernel(2)
        for ms in (3, 5):
            with stagespan.span("inner"):
                device.kernel(ms)
        device.kernel(1)
    device.hold(False)
    (outer,) = spans_of("outer")
    inner = spans_of("inner")
    assert list(inner["device_elapsed_ns"]) == pytest.approx([3 * MS, 5 * MS], rel=0.001)
    assert outer["device_elapsed_ns"] == pytest.approx(11 * MS, rel=0.001)
    assert set(inner["parent"]) == {outer["id"]}


def test_interleaved_streams_do_not_mix(device: Standin) -> None:
    streams = [torch.Stream(f"{device.name}:0") for _ in range(2)]
    for stream in streams:
        with stream:
            device.hold()
    for _ in range(3):
        for i, stream in enumerate(streams):
            with stream, stagespan.span(f"stream {i}"):
                device.kernel(4 + 3 * i)
    for stream in reversed(streams):
        with stream:
            device.hold(False)
    for i in range(2):
        found = spans_of(f"stream {i}")["device_elapsed_ns"]
        assert list(found) == pytest.approx([(4 + 3 * i) * MS] * 3, rel=0.001)


def test_the_end_is_recorded_on_the_stream_of_the_beginning(device: Standin) -> None:
    other = torch.Stream(f"{device.name}:0")
    device.hold()
    context = stagespan.span("changing")
    context.__enter__()
    device.kernel(6)
    with other:  # current when the span ends, and with much work queued
        device.kernel(40)
        context.__exit__(None, None, None)
    device.hold(False)
    (span,) = spans_of("changing")
    assert span["device_elapsed_ns"] == pytest.approx(6 * MS, rel=0.001)


def test_a_second_device(device: Standin) -> None:
    module = torch.get_device_module(device.name)
    module.set_device(1)
    try:
        device.hold()
        with stagespan.span("second"):
            device.kernel(7)
        device.hold(False)
    finally:
        module.set_device(0)
    (span,) = spans_of("second")
    assert span["device_elapsed_ns"] == pytest.approx(7 * MS, rel=0.001)


def test_threads_have_separate_streams(device: Standin) -> None:
    barrier = threading.Barrier(4)

    def work(i: int) -> None:
        with torch.Stream(f"{device.name}:0"):
            device.hold()
            barrier.wait()
            for _ in range(5):
                with stagespan.span(f"thread {i}"):
                    device.kernel(1 + i)
            device.hold(False)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        found = spans_of(f"thread {i}")["device_elapsed_ns"]
        assert list(found) == pytest.approx([(1 + i) * MS] * 5, rel=0.001)


def test_events_are_pooled(device: Standin) -> None:
    created = device.counts()["created"]
    for _ in range(20):
        for _ in range(25):
            with stagespan.span("pooled"):
                device.kernel(0)
        assert stagespan.flush(20)
    assert np.isfinite(spans_of("pooled")["device_elapsed_ns"]).sum() == 500
    assert device.counts()["created"] - created <= 150


def test_an_empty_span_takes_no_device_time(device: Standin) -> None:
    device.hold()
    with stagespan.span("empty"):
        pass
    device.hold(False)
    (span,) = spans_of("empty")
    assert 0 <= span["device_elapsed_ns"] <= 1000


def test_a_sample_bounds_the_cost(device: Standin) -> None:
    stagespan.enable(device_every=4)
    records = device.counts()["records"]
    for _ in range(40):
        with stagespan.span("sampled"):
            device.kernel(0.2)
    # THEN 10 are timed, and the host's time is complete
    found = spans_of("sampled")["device_elapsed_ns"]
    assert np.isfinite(found).sum() == 10
    stage = stagespan.stats()["sampled"]
    assert stage.count == 40
    assert stage.device_elapsed_ns is not None
    assert stage.device_elapsed_ns.count == 10
    # AND two events are recorded for each of these; the base needs a few more
    assert 20 <= device.counts()["records"] - records <= 40
    # AND with 0 none is timed
    stagespan.enable(device_every=0)
    with stagespan.span("unsampled"):
        device.kernel(0.2)
    assert np.isnan(spans_of("unsampled")["device_elapsed_ns"]).all()


def test_ascends_runtime_is_used_if_it_is_loaded(device: Standin) -> None:
    calls = device.ascend_calls()
    with stagespan.span("read"):
        device.kernel(1)
    spans_of("read")
    if device.name == "npu" and device._ascend is not None:
        assert device.ascend_calls() > calls
    else:
        assert device.ascend_calls() == 0
