"""Profiling some steps of a loop: the recorded steps, and loops that end early."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
import time
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
def test_the_content_of_a_trace_can_be_chosen(option: str, work: Work, folder: Path) -> None:
    chosen: dict[str, Any] = {option: True}
    with profile_steps(wait=0, warmup=0, active=1, **chosen) as steps:
        work()
        steps.step()
    import gzip

    content = json.loads(gzip.decompress(steps.traces[0].read_bytes()))
    assert content[option] == 1


def test_a_loop_that_ends_while_it_is_recorded_keeps_its_trace(work: Work, folder: Path) -> None:
    with profile_steps(wait=1, warmup=1, active=5) as steps:
        for _ in range(4):
            work()
            steps.step()
    assert steps_of(steps.traces[0])[:2] == ["ProfilerStep#2", "ProfilerStep#3"]
    assert steps.skipped == "profile_steps: the loop ended after 2 of 5 steps to record."


@pytest.mark.parametrize("steps_run", [0, 1, 2])
def test_a_loop_that_ends_before_gives_a_warning(
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


def test_a_running_profiler_is_not_affected(work: Work, folder: Path) -> None:
    import torch

    with torch.profiler.profile() as theirs, profile_steps(wait=0, warmup=0, active=1) as steps:
        work()
        steps.step()
    assert "profiler of the application" in str(steps.skipped)
    # AND the advice is for profile_steps, not for stages in ENABLE_PROFILER_NAMES
    assert str(steps.skipped).endswith("Stop it, or remove profile_steps.")
    assert "stage" not in str(steps.skipped)
    assert steps.traces == []
    assert theirs.key_averages()


def test_the_loop_continues_and_an_error_passes_through(work: Work, folder: Path) -> None:
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


@pytest.mark.parametrize("wrong", [{"max_seconds": -1}, {"max_bytes": 0}, {"max_seconds": "2"}])
def test_wrong_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="must be a number above 0"):
        profile_steps(**wrong)


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_trace_that_ends_early_is_named(in_thread: bool, work: Work, folder: Path) -> None:
    found: list[profile_steps] = []

    # GIVEN a window whose time limit is shorter than its three steps
    def loop() -> None:
        with profile_steps(wait=0, warmup=0, active=3, max_seconds=0.05) as steps:
            for _ in range(3):
                work()
                time.sleep(0.06)
                steps.step()
        found.append(steps)

    if in_thread:
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()
    else:
        loop()

    # THEN its trace lacks the last step, and a sentence says so
    (steps,) = found
    assert "ProfilerStep#2" not in steps_of(steps.traces[0])
    assert "0.05 s" in str(steps.skipped)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_trace_can_be_unbounded(work: Work, folder: Path) -> None:
    with profile_steps(wait=0, warmup=0, active=1, max_seconds=math.inf) as steps:
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()  # it has ended if it could not wait for so long
        work()
        steps.step()

    assert steps_of(steps.traces[0]) == ["ProfilerStep#0"]


def test_a_trace_that_is_too_large_is_named_in_one_sentence(work: Work, folder: Path) -> None:
    with profile_steps(wait=0, warmup=0, active=1, max_bytes=10) as steps:
        work()
        steps.step()

    assert steps.traces == []
    assert "1e-05 MB" in str(steps.skipped)
    assert not str(steps.skipped).endswith("..")


def test_a_step_outside_is_refused() -> None:
    with pytest.raises(StagespanError, match="outside of"):
        profile_steps().step()


# --- named stages -------------------------------------------------------------------------------


def products(folder: Path, stage: str) -> int:
    table = json.loads((folder / f"{stage}_breakdown.json").read_text())
    return int({row["name"]: row["count"] for row in table["top_kernels"]}["aten::mm"])


def runs_of(stage: str, count: int, work: Work) -> None:
    """The n-th run works n times, so that a file shows which run it is from."""
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


def test_one_trace_can_hold_several_runs(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN six runs, each with more work than the previous one, and one trace for three runs
    monkeypatch.setenv("STAGESPAN_PROFILER_SKIP", "1")
    monkeypatch.setenv("STAGESPAN_PROFILER_RUNS", "3")
    monkeypatch.setenv("STAGESPAN_PROFILER_ONE_TRACE", "true")
    enable_profiler_for_names("loop")

    # WHEN they run
    runs_of("loop", 6, work)

    # THEN the files are of the second to the fourth run
    assert products(folder, "loop") == 20 + 30 + 40
    trace = read_trace(folder / "loop_trace.json.gz")
    assert [trace.names[code] for code in trace.events.name].count("loop") == 3
    table = json.loads((folder / "loop_breakdown.json").read_text())
    assert table["runs"] == 3


def test_one_trace_of_a_program_that_ends_before_is_written(tmp_path: Path) -> None:
    program = (
        "import torch, stagespan\n"
        "for number in range(2):\n"
        "    with stagespan.ProfilingContext('loop'):\n"
        "        torch.ones(4, 4) @ torch.ones(4, 4)\n"
    )
    settings = {"RUNS": "5", "ONE_TRACE": "true", "NAMES": "loop"}
    environment = {f"STAGESPAN_PROFILER_{name}": value for name, value in settings.items()}

    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment, "STAGESPAN_OUTPUT_DIR": str(tmp_path)},
        check=True,
        timeout=120,
    )

    assert products(tmp_path, "loop") == 2
    assert json.loads((tmp_path / "loop_breakdown.json").read_text())["runs"] == 2


def test_a_stage_that_is_named_again_is_profiled_again(work: Work, folder: Path) -> None:
    enable_profiler_for_names("loop")
    runs_of("loop", 3, work)
    enable_profiler_for_names("loop")
    with ProfilingContext("loop"):
        for _ in range(7):
            work()
    assert products(folder, "loop") == 70


def test_a_stage_that_is_named_again_ends_its_trace_of_several_runs(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a trace that lacks one of its runs
    monkeypatch.setenv("STAGESPAN_PROFILER_RUNS", "2")
    monkeypatch.setenv("STAGESPAN_PROFILER_ONE_TRACE", "true")
    enable_profiler_for_names("loop")
    runs_of("loop", 1, work)

    # WHEN the stage is named again, and runs
    enable_profiler_for_names("loop")
    runs_of("loop", 3, work)

    # THEN the files are of the next two runs
    assert products(folder, "loop") == 10 + 20


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_trace_of_several_runs_contains_none_after_its_end(
    in_thread: bool, work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a window that may be open for less time than its two runs take
    monkeypatch.setattr("stagespan.profiling.profiled.MAX_SECONDS", 0.05)
    monkeypatch.setenv("STAGESPAN_PROFILER_RUNS", "2")
    monkeypatch.setenv("STAGESPAN_PROFILER_ONE_TRACE", "true")
    enable_profiler_for_names("loop")
    found: list[tuple[int, int]] = []

    def loop() -> None:
        for _ in range(2):
            runs_of("loop", 1, work)
            time.sleep(0.06)
        table = json.loads((folder / "loop_breakdown.json").read_text())
        found.append((products(folder, "loop"), table["runs"]))

    # WHEN the second run begins after its end
    if in_thread:
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()
    else:
        loop()

    # THEN the files are of one run; on a busy machine, of its beginning
    ((count, runs),) = found
    assert count <= 10
    assert runs == 1


# --- launches without kernels -------------------------------------------------------------------


def a_trace(folder: Path, *events: dict[str, Any]) -> Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return read_trace(path)


LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7}


def test_launches_without_kernels_are_reported_with_the_likely_reason(tmp_path: Path) -> None:
    launches = [{**LAUNCH, "ts": at, "dur": 2} for at in (1, 5, 9)]
    sentence = missing_kernels(a_trace(tmp_path, *launches), CUDA)
    assert sentence is not None
    assert sentence.startswith("it contains 3 launches of kernels but no kernel; ")
    assert "CUPTI" in sentence


def test_a_whole_trace_and_one_of_a_cpu_are_fine(tmp_path: Path) -> None:
    whole = a_trace(tmp_path, {**LAUNCH, "ts": 1, "dur": 2}, {**KERNEL, "ts": 4, "dur": 9})
    assert missing_kernels(whole, CUDA) is None
    assert missing_kernels(a_trace(tmp_path, {**LAUNCH, "ts": 1, "dur": 2}), CPU) is None
