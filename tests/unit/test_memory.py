"""Peaks of contexts that nest and overlap on one counter, and snapshots.

An accelerator's allocator is stood in for by a small one of plain numbers (`Allocator`), so that
every peak is known exactly; the CPU's figures are the real ones.
"""

from __future__ import annotations

import functools
import gc
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stagespan
from properties import examples
from running import in_threads, ran
from stagespan import ProfilingContext, _core
from stagespan.device import memory, platforms
from stagespan.device.memory import MemoryHook, PeakWatch
from stagespan.device.platforms import DeviceMemory, Platform

GB = 1 << 30
FOLDER = str(Path(__file__).parent)


class Allocator(Platform):
    """A device whose memory is two numbers, with a single peak counter like real allocators."""

    name = device_type = "cuda"

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self.resets = 0

    def in_use(self) -> bool:
        return True

    def allocate(self, size: int) -> None:
        self.now = max(self.now + size, 0)
        self.peak = max(self.peak, self.now)

    def device_memory(self, device: int | None = None) -> DeviceMemory:
        return DeviceMemory(self.now, 2 * self.now, self.peak, 2 * self.peak)

    def reset_peak_memory(self, device: int | None = None) -> bool:
        self.peak = self.now
        self.resets += 1
        return True


def stage_memory(stage: str) -> dict[str, Any] | None:
    return memory.stages_memory().get(stage)


def a_call(stage: str = "stage", *, reset: bool = True, capture: bool = False) -> Any:
    return SimpleNamespace(
        stage=stage,
        reset_peak_memory=reset,
        capture_memory=capture,
        begin_ns=7,
        state={},
    )


@pytest.fixture(autouse=True)
def fresh() -> None:
    memory.reset()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    """An accelerator in use."""
    allocator = Allocator()
    monkeypatch.setattr(platforms, "loaded_platform", lambda: allocator)
    monkeypatch.setattr(memory, "_watch", PeakWatch())
    return allocator


# --- peaks --------------------------------------------------------------------------------------


def test_an_inner_reset_does_not_take_the_outer_peak() -> None:
    device, watch = Allocator(), PeakWatch()
    outer = watch.enter(device, reset=True)
    device.allocate(10)
    device.allocate(-8)
    # WHEN an inner one resets the counter and reaches 5
    inner = watch.enter(device, reset=True)
    device.allocate(3)
    assert outer is not None
    assert inner is not None
    seen_inside = watch.exit(inner)
    seen_outside = watch.exit(outer)
    assert seen_inside == DeviceMemory(5, 10, 5, 10)
    assert seen_outside == DeviceMemory(5, 10, 10, 20)


def test_without_reset_the_peak_is_the_process_s() -> None:
    device, watch = Allocator(), PeakWatch()
    device.allocate(10)
    device.allocate(-10)
    first = watch.enter(device, reset=True)
    assert first is not None
    watch.exit(first)
    resets = device.resets
    second = watch.enter(device, reset=False)
    device.allocate(1)
    assert second is not None
    seen = watch.exit(second)
    # THEN its figure is cumulative, and nothing was reset
    assert seen is not None
    assert seen.peak_allocated == 10
    assert device.resets == resets


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(-50, 50)),
        st.tuples(st.just("enter"), st.booleans()),
        st.tuples(st.just("exit"), st.integers(0, 5)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=examples(300))
def test_every_context_reports_its_true_peak_however_they_overlap(
    steps: list[tuple[str, Any]],
) -> None:
    device, watch = Allocator(), PeakWatch()
    history = [0]
    entered: list[tuple[Any, int]] = []
    for step, value in steps:
        if step == "allocate":
            device.allocate(value)
            history.append(device.now)
        elif step == "enter":
            entered.append((watch.enter(device, reset=value), len(history) - 1 if value else 0))
        elif entered:
            context, begin = entered.pop(value % len(entered))
            seen = watch.exit(context)
            # THEN its peak is the highest size between its own two ends
            assert seen is not None
            assert seen.peak_allocated == max(history[begin:])
            assert seen.allocated == device.now


def test_devices_do_not_mix() -> None:
    class Two(Allocator):
        def __init__(self) -> None:
            super().__init__()
            self.index = 0
            self.parts = [Allocator(), Allocator()]

        def current_device(self) -> int:
            return self.index

        def device_memory(self, device: int | None = None) -> DeviceMemory:
            return self.parts[self.index if device is None else device].device_memory()

        def reset_peak_memory(self, device: int | None = None) -> bool:
            return self.parts[self.index if device is None else device].reset_peak_memory()

    both, watch = Two(), PeakWatch()
    first = watch.enter(both, reset=True)
    both.parts[0].allocate(10)
    both.index = 1
    second = watch.enter(both, reset=True)
    both.parts[1].allocate(3)
    assert first is not None
    assert second is not None
    seen = [watch.exit(first), watch.exit(second)]

    assert [m.peak_allocated for m in seen if m is not None] == [10, 3]


def test_an_unused_device_is_not_watched() -> None:
    assert PeakWatch().enter(Platform(), reset=True) is None


# --- the hook -----------------------------------------------------------------------------------


def test_the_hook_reports_the_highest_peak_of_all_runs(device: Allocator) -> None:
    hook = MemoryHook()
    for size in (3 * GB, GB):
        call = a_call()
        assert hook.wants(call)
        hook.enter(call)
        device.allocate(size)
        hook.leave(call)
        hook.exit(call)
        # THEN each run's own peak is available for its log line
        assert call.peak_bytes == size
        device.allocate(-size)
    assert stage_memory("stage") == {
        "peak_allocated_mb": 3 * 1024.0,
        "peak_reserved_mb": 6 * 1024.0,
        "allocated_mb": 1024.0,
        "reserved_mb": 2048.0,
        "peak_rss_mb": None,
    }


def test_capture_memory_takes_a_snapshot_before_and_after(device: Allocator) -> None:
    hook, call = MemoryHook(), a_call(capture=True)
    device.allocate(GB)

    hook.enter(call)
    device.allocate(GB)
    hook.exit(call)

    found = stage_memory("stage")
    assert found is not None
    (run,) = found["runs"]
    assert (run["before"]["allocated_mb"], run["after"]["allocated_mb"]) == (1024.0, 2048.0)
    assert run["begin_ns"] == 7
    assert run["before"]["rss_mb"] > 0


def test_on_a_cpu_only_capture_memory_needs_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "loaded_platform", Platform)
    hook = MemoryHook()
    assert not hook.wants(a_call())
    call = a_call(capture=True)
    assert hook.wants(call)

    hook.enter(call)
    hook.exit(call)
    # THEN figures that a CPU does not have are null, the others are there
    found = stage_memory("stage")
    assert found is not None
    assert found["peak_allocated_mb"] is None
    assert found["runs"][0]["after"]["allocated_mb"] is None
    assert found["runs"][0]["after"]["rss_mb"] > 0
    assert not hasattr(call, "peak_bytes")


def test_runs_and_stages_are_bounded(device: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MOST_STAGES", 2)
    hook = MemoryHook()

    for stage in ("a", "b", "c"):
        for _ in range(20):
            call = a_call(stage, capture=True)
            hook.enter(call)
            hook.exit(call)

    assert stage_memory("c") is None
    found = stage_memory("a")
    assert found is not None
    assert len(found["runs"]) == 16


# --- what was noted -----------------------------------------------------------------------------


def test_named_snapshots_are_kept_in_order() -> None:
    taken = memory.memory_snapshot("loaded")
    memory.memory_snapshot("warm")

    assert taken["rss_bytes"] > 0
    first, second = memory.snapshots()
    assert (first["name"], second["name"]) == ("loaded", "warm")
    assert first["time_ns"] <= second["time_ns"]
    assert first["rss_mb"] == pytest.approx(taken["rss_bytes"] / 2**20, abs=0.001)

    memory.reset()

    assert memory.snapshots() == []


def test_rss_of_a_stage_is_that_of_the_process_and_is_reset_with_a_report() -> None:
    # GIVEN a run whose log line is not yet written
    with ProfilingContext("stage"):
        pass
    found = stage_memory("stage")
    assert found is not None
    assert found["peak_rss_mb"] == pytest.approx(platforms.peak_resident_bytes() / 2**20, rel=0.02)
    assert found["allocated_mb"] is None

    memory.reset()

    assert stage_memory("stage") is None


def test_the_peak_of_a_process_is_not_that_of_the_larger_one_that_started_it() -> None:
    # GIVEN a process that has once used 300 MB, and a child of it that uses less and then 500 MB
    program = Path(__file__).parents[1] / "programs" / "peak_of_a_child.py"

    printed = ran([sys.executable, program], status=0).stdout

    first_mb, snapshot_mb, grown_mb = map(float, printed.split())
    assert 1 < first_mb < 200
    assert 1 < snapshot_mb < 200
    assert 500 < grown_mb < 700


def test_a_stage_without_measurement_has_no_memory() -> None:
    assert stage_memory("never") is None


def test_threads_may_take_snapshots_at_once(device: Allocator) -> None:
    hook = MemoryHook()
    failures: list[BaseException] = []

    def work(stage: str) -> None:
        try:
            for _ in range(300):
                call = a_call(stage)
                hook.enter(call)
                memory.memory_snapshot(stage)
                hook.exit(call)
        except BaseException as error:
            failures.append(error)

    in_threads(*(functools.partial(work, f"t{i}") for i in range(4)))
    assert failures == []
    assert len(memory.snapshots()) == 1000


# --- through the contexts -------------------------------------------------------------------------


@pytest.fixture
def hooked(device: Allocator) -> Iterator[Allocator]:
    """An accelerator in use that every context reads, as after torch has initialised one."""
    _core.memory_set_hook(True)
    yield device
    _core.memory_set_hook(False)


def test_the_line_and_the_report_of_an_accelerator(
    hooked: Allocator, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN an outer context whose peak is before its inner one's
    stagespan.flush()
    _core._reset()
    caplog.set_level("INFO", logger="stagespan")

    with ProfilingContext("outer"):
        hooked.allocate(int(4.5 * GB))
        hooked.allocate(-4 * GB)
        with ProfilingContext("inner"):
            hooked.allocate(GB)
    stagespan.flush()
    assert [r.getMessage() for r in caplog.records if "Rank" in r.getMessage()] == [
        "Rank 0 - Function 'inner' Peak Memory: 1.50 GB",
        "Rank 0 - Function 'outer' Peak Memory: 4.50 GB",
    ]
    stages = stagespan.timing_report()["stages"]
    assert stages["outer"]["memory"]["peak_allocated_mb"] == 4.5 * 1024
    assert stages["inner"]["memory"]["peak_allocated_mb"] == 1.5 * 1024
    assert stages["outer"]["memory"]["peak_rss_mb"] is None


def test_a_context_that_raises_still_ends_its_watch(hooked: Allocator) -> None:
    with pytest.raises(KeyError), ProfilingContext("fails", reset_peak_memory=False):
        raise KeyError
    assert not [each for each in gc.get_objects() if type(each) is memory.OpenPeak]
    assert hooked.resets == 0


def test_contexts_read_memory_from_an_accelerator_s_first_use_on() -> None:
    code = """
        import sys, types, logging
        sys.path.insert(0, FOLDER)
        from fake_torch import NestedDevice, torch_with
        logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
        device = NestedDevice(initialized=False)
        torch = types.ModuleType("torch")
        torch.__dict__.update(vars(torch_with(cuda=device)))
        torch.cuda.current_device = lambda: 0
        import stagespan
        sys.modules["torch"] = torch
        with stagespan.ProfilingContext("before"):
            pass
        stagespan.flush()
        with stagespan.ProfilingContext("still before"):
            pass
        device.initialized = True
        for callback in device.queued:
            callback()
        with stagespan.ProfilingContext("after"):
            pass
    """
    done = ran(
        [sys.executable, "-c", textwrap.dedent(code).replace("FOLDER", repr(FOLDER))], status=0
    )
    peaks = [line for line in done.stdout.splitlines() if "Peak" in line]
    assert [line.split("'")[1] for line in peaks] == ["before", "still before", "after"]
    assert ["Peak RSS" in line for line in peaks] == [True, True, False]
    assert "Peak Memory: 0.00 GB" in peaks[2]
