"""Every way to time a stage times its device part; log lines, statistics and reports show it."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from standin import Standin

import stagespan
from stagespan import _core
from stagespan.process import run

MS = 1e6


def device_ms(stage: str) -> list[float]:
    assert stagespan.flush(30)
    spans = stagespan.spans()
    mine = spans[spans["stage"] == stagespan.stage_names().index(stage)]
    return [float(ns) / MS for ns in mine["device_elapsed_ns"]]


@pytest.fixture
def held(device: Standin) -> Iterator[Standin]:
    """Block the device until the test releases it, so that host delays do not count."""
    device.hold()
    yield device
    device.hold(False)


def test_decorated_functions(held: Standin) -> None:
    @stagespan.span("function")
    def function() -> str:
        held.kernel(4)
        return "done"

    class Stage:
        @stagespan.ProfilingContext("method")
        def run(self) -> None:
            held.kernel(5)

    assert function() == "done"
    Stage().run()
    held.hold(False)
    assert device_ms("function") == pytest.approx([4], rel=0.001)
    assert device_ms("method") == pytest.approx([5], rel=0.001)


def test_generators_and_coroutines(held: Standin) -> None:
    @stagespan.span("generator")
    def generator() -> Iterator[int]:
        for ms in (2, 3):
            held.kernel(ms)
            yield ms

    @stagespan.span("coroutine")
    async def coroutine() -> None:
        held.kernel(3)
        await asyncio.sleep(0)
        held.kernel(4)

    assert sum(generator()) == 5
    asyncio.run(coroutine())
    held.hold(False)
    assert device_ms("generator") == pytest.approx([5], rel=0.001)
    assert device_ms("coroutine") == pytest.approx([7], rel=0.001)


def test_tokens_and_what_raises(held: Standin) -> None:
    token = stagespan.begin("token")
    held.kernel(3)
    stagespan.end(token)

    @stagespan.span("raises")
    def failing() -> None:
        held.kernel(2)
        raise ValueError("as planned")

    with pytest.raises(ValueError, match="as planned"):
        failing()
    held.hold(False)
    assert device_ms("token") == pytest.approx([3], rel=0.001)
    assert device_ms("raises") == pytest.approx([2], rel=0.001)


def test_recorded_times_have_no_device_time(device: Standin) -> None:
    now_ns = _core.now_ns()
    stagespan.record("elsewhere", now_ns - 5, now_ns)
    assert np.isnan(device_ms("elsewhere")).all()


def test_the_log_line_contains_the_later_end(
    device: Standin, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "stagespan"):
        device.hold()
        with stagespan.ProfilingContext("later"):
            device.kernel(30)
        stagespan.flush(0.2)
        assert not [line for line in caplog.messages if "later" in line], "before it is complete"
        device.hold(False)
        assert stagespan.flush(30)
    (line,) = [line for line in caplog.messages if line.startswith("[Profile] later")]
    match = re.fullmatch(r"\[Profile\] later cost (\d+\.\d+) seconds", line)
    assert match
    span = stagespan.spans()[-1]
    host_ns = span["end_ns"] - span["begin_ns"]
    assert float(match[1]) >= 0.03
    assert float(match[1]) * 1e9 == pytest.approx(host_ns + span["device_tail_ns"], abs=2000)
    assert "Rank 0 - Function 'later' Peak Memory: 3.00 GB" in caplog.messages


def test_lines_keep_their_order(device: Standin, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "stagespan"):
        device.hold()
        for i in range(5):
            with stagespan.ProfilingContext(f"turn {i}"):
                device.kernel(5 - i)
        device.hold(False)
        assert stagespan.flush(30)
    lines = [line.split(" cost")[0] for line in caplog.messages if line.startswith("[Profile]")]
    assert lines == [f"[Profile] turn {i}" for i in range(5)]


def test_statistics(held: Standin) -> None:
    for ms in (2, 4, 6):
        with stagespan.span("stage"):
            held.kernel(ms)
    with stagespan.request("r"), stagespan.span("no work"):
        pass
    # Longer than the error with which a busy machine places the device's clock beside its own.
    time.sleep(0.05)
    held.hold(False)
    assert stagespan.flush(30)
    stage = stagespan.stats()["stage"]
    elapsed = stage.device_elapsed_ns
    assert elapsed is not None
    assert stage.device_queue_ns is not None
    assert stage.device_tail_ns is not None
    assert (elapsed.count, elapsed.min_ns, elapsed.max_ns) == (3, 2 * MS, 6 * MS)
    assert elapsed.total_ns == pytest.approx(12 * MS, rel=0.001)
    assert elapsed.p50_ns == pytest.approx(4 * MS, rel=0.03)
    # The later lines wait for the earlier one.
    assert stage.device_queue_ns.min_ns is not None
    assert stage.device_queue_ns.max_ns >= stage.device_queue_ns.min_ns > 0
    assert stage.device_tail_ns.count == 3
    assert "device mean ms" in str(stagespan.stats())
    # A window that is longer than the process's life has the same figures.
    window = stagespan.stats(window_s=600)["stage"]
    assert window.device_elapsed_ns is not None
    assert window.device_elapsed_ns.total_ns == pytest.approx(12 * MS, rel=0.001)


def test_a_window_from_the_rings(held: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a process that counts as older than the window, and has no snapshot of its beginning
    monkeypatch.setattr(run, "process_start_s", lambda pid: time.time() - 1000)
    with stagespan.span("ringed"):
        held.kernel(8)
    held.hold(False)
    assert stagespan.flush(30)
    found = stagespan.stats(window_s=300)
    assert not found.is_lifetime
    elapsed = found["ringed"].device_elapsed_ns
    assert elapsed is not None
    assert elapsed.mean_ns == pytest.approx(8 * MS, rel=0.001)


def test_the_report_and_its_file(held: Standin, tmp_path: Path) -> None:
    stagespan.reset_timing_registry()
    for ms in (10, 20):
        with stagespan.span("denoise"):
            held.kernel(ms)
    now_ns = _core.now_ns()
    stagespan.record("decode", now_ns - 10**6, now_ns)
    held.hold(False)
    path = stagespan.dump_timing_report(tmp_path / "timing.json")
    stages: dict[str, Any] = json.loads(path.read_bytes())["stages"]
    denoise = stages["denoise"]
    assert denoise["device_elapsed_ms"] == pytest.approx(30, rel=0.001)
    assert denoise["device_elapsed_mean_ms"] == pytest.approx(15, rel=0.001)
    assert denoise["device_runs"] == 2
    assert denoise["device_queue_ms"] > 0
    assert denoise["device_tail_ms"] > 0
    # The differences of host and device begins and ends are consistent.
    assert denoise["duration_ms"] + denoise["device_tail_ms"] == pytest.approx(
        denoise["device_queue_ms"] + denoise["device_elapsed_ms"], abs=0.01
    )
    unknown = {key: value for key, value in stages["decode"].items() if key.startswith("device_")}
    assert len(unknown) == 7
    assert set(unknown.values()) == {None}


def test_a_debug_context_waits_for_the_device(device: Standin) -> None:
    stagespan.set_debug(True)
    waits = device.counts()["waits"]
    with stagespan.ProfilingContext4Debug("debug"):
        device.kernel(25)
    # Its host time is the whole time, and the device does not end after it.
    assert device.counts()["waits"] >= waits + 2
    (ms,) = device_ms("debug")
    assert ms >= 25
    span = stagespan.spans()[-1]
    assert span["end_ns"] - span["begin_ns"] >= 25 * MS
    assert abs(span["device_tail_ns"]) < span["end_ns"] - span["begin_ns"]


def test_torchs_profiler_does_not_record_it(device: Standin) -> None:
    def operators() -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            device.hold()
            context.__enter__()
            torch.ones(4).sum()
            context.__exit__(None, None, None)
            device.hold(False)
        assert stagespan.flush(30)
        return sorted(event.name for event in profile.events())

    context: Any = stagespan.span("profiled")
    operators()
    with_spans = operators()
    _core.device_every(0)
    assert with_spans == operators()
