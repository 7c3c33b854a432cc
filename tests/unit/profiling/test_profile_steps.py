"""Profiling some steps of a loop: which are recorded, and what happens to loops that end early."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stagespan
from stagespan import ProfilingContext, enable_profiler_for_names, profile_steps
from stagespan.device_table import CPU, CUDA
from stagespan.errors import SettingsError, StagespanError
from stagespan.profiling.kernels import missing_kernels
from stagespan.trace import Trace, read_trace

Work = Callable[[], None]


def steps_of(path: Path) -> list[str]:
    trace: Trace = read_trace(path)
    names = {trace.names[code] for code in trace.events.name}
    return sorted(name for name in names if name.startswith("ProfilerStep#"))


def test_the_active_steps_of_each_cycle_are_recorded(work: Work, folder: Path) -> None:
    # WHEN a loop of ten steps runs under two cycles of four
    with profile_steps(wait=1, warmup=1, active=2, repeat=2, name="engine") as steps:
        for _ in range(10):
            with stagespan.span("work"):
                work()
            steps.step()

    # THEN each cycle has a trace of its two steps, with the spans in them
    names = ["engine_trace.json.gz", "engine_cycle2_trace.json.gz"]
    assert [path.name for path in steps.traces] == names
    assert steps_of(folder / names[0]) == ["ProfilerStep#2", "ProfilerStep#3"]
    assert steps_of(folder / names[1]) == ["ProfilerStep#6", "ProfilerStep#7"]
    trace = read_trace(folder / names[0])
    assert [trace.names[code] for code in trace.events.name].count("work") == 2
    assert steps.skipped is None


def test_neither_waiting_nor_warm_up_is_needed(work: Work, folder: Path) -> None:
    with profile_steps(wait=0, warmup=0, active=1) as steps:
        for _ in range(3):
            work()
            steps.step()
    assert steps_of(steps.traces[0]) == ["ProfilerStep#0"]


@pytest.mark.parametrize("option", ["record_shapes", "profile_memory", "with_stack"])
def test_what_a_trace_holds_can_be_chosen(option: str, work: Work, folder: Path) -> None:
    chosen: dict[str, Any] = {option: True}
    with profile_steps(wait=0, warmup=0, active=1, **chosen) as steps:
        work()
        steps.step()
    import gzip

    content = json.loads(gzip.decompress(steps.traces[0].read_bytes()))
    assert content[option] == 1


def test_a_loop_that_ends_while_it_is_recorded_leaves_what_there_is(
    work: Work, folder: Path
) -> None:
    with profile_steps(wait=1, warmup=1, active=5) as steps:
        for _ in range(4):
            work()
            steps.step()
    assert steps_of(steps.traces[0])[:2] == ["ProfilerStep#2", "ProfilerStep#3"]
    assert steps.skipped == "profile_steps: the loop ended after 2 of 5 steps to record."


@pytest.mark.parametrize("steps_run", [0, 1, 2])
def test_a_loop_that_ends_before_is_told(
    steps_run: int, work: Work, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with profile_steps(wait=2, warmup=1, active=1) as steps:
        for _ in range(steps_run):
            work()
            steps.step()
    assert steps.traces == []
    # THEN the reason names the steps that were run, and the first one that would have been recorded
    assert re.findall(r"\d+", str(steps.skipped)) == [str(steps_run), "3"]
    assert f"[Profiler] {steps.skipped}" in caplog.messages


def test_a_running_profiler_is_left_alone(work: Work, folder: Path) -> None:
    import torch

    with torch.profiler.profile() as theirs, profile_steps(wait=0, warmup=0, active=1) as steps:
        work()
        steps.step()
    assert "profiler of the application" in str(steps.skipped)
    assert steps.traces == []
    assert theirs.key_averages()


def test_the_loop_goes_on_and_an_error_passes_through(work: Work, folder: Path) -> None:
    def loop() -> None:
        with profile_steps(wait=0, warmup=0, active=2) as steps:
            work()
            steps.step()
            raise KeyError

    with pytest.raises(KeyError):
        loop()
    # and the next profiler can run
    with profile_steps(wait=0, warmup=0, active=1, name="next") as steps:
        work()
        steps.step()
    assert len(steps.traces) == 1


@pytest.mark.parametrize("wrong", [{"wait": -1}, {"active": 0}, {"repeat": 0}, {"warmup": 1.5}])
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="must be a whole number of at least"):
        profile_steps(**wrong)


def test_a_step_outside_is_refused() -> None:
    with pytest.raises(StagespanError, match="outside of"):
        profile_steps().step()


# --- named stages -------------------------------------------------------------------------------


def products(folder: Path, stage: str) -> int:
    table = json.loads((folder / f"{stage}_breakdown.json").read_text())
    return int({row["name"]: row["count"] for row in table["top_kernels"]}["aten::mm"])


def runs_of(stage: str, count: int, work: Work) -> None:
    """The n-th run works n times, so that a file tells which run it is of."""
    for number in range(1, count + 1):
        with ProfilingContext(stage):
            for _ in range(number):
                work()


@pytest.fixture(autouse=True)
def _no_stage_has_run() -> None:
    from stagespan import context
    from stagespan.profiling.profiled import ProfiledHook

    context.register_hook(ProfiledHook())


def test_the_files_show_a_warm_run(work: Work, folder: Path) -> None:
    enable_profiler_for_names("loop")
    runs_of("loop", 4, work)
    assert products(folder, "loop") == 20


def test_runs_can_be_skipped(work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESPAN_PROFILER_SKIP", "2")
    monkeypatch.setenv("STAGESPAN_PROFILER_RUNS", "1")
    enable_profiler_for_names("loop")
    runs_of("loop", 4, work)
    assert products(folder, "loop") == 30


def test_a_stage_that_is_named_again_is_profiled_again(work: Work, folder: Path) -> None:
    enable_profiler_for_names("loop")
    runs_of("loop", 3, work)
    enable_profiler_for_names("loop")
    with ProfilingContext("loop"):
        for _ in range(7):
            work()
    assert products(folder, "loop") == 70


# --- launches without kernels -------------------------------------------------------------------


def a_trace(folder: Path, *events: dict[str, Any]) -> Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return read_trace(path)


LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}


def test_launches_without_kernels_are_told_with_the_likely_reason(tmp_path: Path) -> None:
    launches = [{**LAUNCH, "ts": at, "dur": 2} for at in (1, 5, 9)]
    sentence = missing_kernels(a_trace(tmp_path, *launches), CUDA)
    assert sentence is not None
    assert sentence.startswith("it holds 3 launches of kernels but no kernel; ")
    assert "CUPTI" in sentence


def test_a_whole_trace_and_one_of_a_cpu_are_fine(tmp_path: Path) -> None:
    whole = a_trace(tmp_path, {**LAUNCH, "ts": 1, "dur": 2}, {**KERNEL, "ts": 4, "dur": 9})
    assert missing_kernels(whole, CUDA) is None
    assert missing_kernels(a_trace(tmp_path, {**LAUNCH, "ts": 1, "dur": 2}), CPU) is None
