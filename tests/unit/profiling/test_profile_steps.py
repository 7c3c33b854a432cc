"""Profiling some steps of a loop: the recorded steps, and loops that end early."""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stagespan
from running import in_threads, ran
from stagespan import profile_steps
from stagespan.errors import SettingsError, StagespanError
from stagespan.profiling.bounds import THREAD_NAME
from stagespan.profiling.controller import open_window
from stagespan.trace import Trace, read_trace

Work = Callable[[], None]
Call = Callable[[Work], None]


def steps_of(path: Path) -> list[str]:
    trace: Trace = read_trace(path)
    names = {trace.names[code] for code in trace.events.name}
    return sorted(name for name in names if name.startswith("ProfilerStep#"))


def test_the_active_steps_of_each_cycle_are_recorded(work: Work, folder: Path) -> None:
    with profile_steps(wait=1, warmup=1, active=2, repeat=2, name="engine") as steps:
        for _ in range(10):
            with stagespan.span("work"):
                work()
            steps.step()

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
    content = json.loads(gzip.decompress(steps.traces[0].read_bytes()))
    assert content[option] == 1


def test_a_trace_with_stacks_has_few_calls_of_the_profiler_itself(work: Work, folder: Path) -> None:
    with profile_steps(wait=0, warmup=0, active=1, with_stack=True) as steps:
        work()
        steps.step()
    # THEN the calls that begin and end the recording are few, not one for each object in memory
    entries = json.loads(gzip.decompress(steps.traces[0].read_bytes()))["traceEvents"]
    calls = Counter(e["name"] for e in entries if e.get("cat") == "python_function")
    assert 10 <= calls.total() <= 1000, calls.most_common(5)


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


def test_a_running_profiler_is_not_affected(
    work: Work, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    with torch.profiler.profile() as theirs, profile_steps(wait=0, warmup=0, active=1) as steps:
        work()
        steps.step()
    assert "profiler of the application" in str(steps.skipped)
    # AND the log has the same sentence
    assert f"[Profiler] {steps.skipped}" in caplog.messages
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


def test_repeat_of_zero_is_answered_with_what_torch_means_by_it() -> None:
    with pytest.raises(SettingsError, match=r"'until the end' in torch\.profiler\.schedule"):
        profile_steps(repeat=0)
    with pytest.raises(SettingsError) as refused:
        profile_steps(active=0)
    assert "torch" not in str(refused.value)


@pytest.mark.parametrize("wrong", [{"wait": -1}, {"active": 0}, {"repeat": 0}, {"warmup": 1.5}])
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="must be a whole number of at least"):
        profile_steps(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": 5}, r"name=5\) must be a string"),
        ({"name": ""}, "must be a string with at least one character"),
        ({"output_dir": 5}, r"output_dir=5\) must be the path of a folder"),
    ],
)
def test_wrong_names_and_folders_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        profile_steps(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"max_seconds": -1}, {"max_bytes": 0}, {"max_seconds": "2"}, {"max_events": 0}],
)
def test_wrong_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="must be a number above 0"):
        profile_steps(**wrong)


def test_a_trace_that_ends_early_is_named(call: Call, work: Work, folder: Path) -> None:
    found: list[profile_steps] = []

    # GIVEN a window whose time limit is shorter than its three steps
    def loop() -> None:
        with profile_steps(wait=0, warmup=0, active=3, max_seconds=0.05) as steps:
            for _ in range(3):
                work()
                time.sleep(0.06)
                steps.step()
        found.append(steps)

    call(loop)

    (steps,) = found
    assert "ProfilerStep#2" not in steps_of(steps.traces[0])
    assert "0.05 seconds" in str(steps.skipped)


def test_a_step_with_more_events_than_the_limit_is_cut(
    call: Call, work: Work, folder: Path
) -> None:
    found: list[profile_steps] = []

    def loop() -> None:
        with profile_steps(wait=0, warmup=0, active=3, max_events=1_000) as steps:
            work()
            steps.step()
            until = time.monotonic() + 60
            while open_window() is not None and time.monotonic() < until:
                work()
            steps.step()
        found.append(steps)

    call(loop)

    # THEN the trace contains the first step, and a sentence says why it ends
    (steps,) = found
    assert steps_of(steps.traces[0])[0] == "ProfilerStep#0"
    assert "max_events is 1,000" in str(steps.skipped)


def test_a_warm_up_may_end_early(
    work: Work, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with profile_steps(wait=0, warmup=1, active=1, max_events=1_000) as steps:
        until = time.monotonic() + 60
        while open_window() is not None and time.monotonic() < until:
            work()
        steps.step()
        work()
        steps.step()
    # THEN the next one is recorded, and nothing is said
    assert steps_of(steps.traces[0]) == ["ProfilerStep#1"]
    assert steps.skipped is None
    assert not caplog.messages


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, r"pass all_threads=True\."),
        ({"profile_memory": True}, "all_threads=True without profile_memory"),
        ({"all_threads": True}, None),
    ],
)
def test_work_in_other_threads(
    options: dict[str, Any], advice: str | None, work: Work, folder: Path
) -> None:
    with profile_steps(wait=0, warmup=1, active=2, **options) as steps:
        for _ in range(3):
            in_threads(work)
            steps.step()
    # THEN it is recorded on request, and otherwise a sentence says what to do
    names = [event["name"] for event in _events(steps.traces[0])]
    assert names.count("aten::mm") == (0 if advice else 20)
    assert (steps.skipped is None) == (advice is None)
    if advice:
        assert re.search(f"the work ran in other threads, .*{advice}", str(steps.skipped))


def test_steps_without_any_work_of_torch_are_named(folder: Path) -> None:
    with profile_steps(wait=0, warmup=0, active=1, all_threads=True) as steps:
        steps.step()
    assert "no operators: the work ran in other processes, or without torch" in str(steps.skipped)


@pytest.mark.full
def test_the_profiler_starts_without_the_compiler_which_is_found_as_ever(tmp_path: Path) -> None:
    # GIVEN a new process with torch
    code = """
import sys, torch, stagespan
before = torch.__getattr__
with stagespan.profile_steps(wait=0, warmup=0, active=1) as steps:
    torch.ones(2) + 1
    steps.step()
assert steps.traces, steps.skipped
# THEN torch has not imported its compiler, and finds it where it is first used
assert "torch._inductor" not in sys.modules
assert torch.__getattr__ is before
assert torch._inductor.config.triton.cudagraphs is False
"""
    variables = {"STAGESPAN_OUTPUT_DIR": str(tmp_path)}
    ran([sys.executable, "-c", code], status=0, **variables)
    # AND it is imported if a variable asks for its graphs
    loaded = code.replace("not in sys.modules", "in sys.modules").replace("is False", "is True")
    ran([sys.executable, "-c", loaded], status=0, TORCHINDUCTOR_CUDAGRAPHS="1", **variables)


def _events(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_trace_can_be_unbounded(work: Work, folder: Path) -> None:
    with profile_steps(
        wait=0, warmup=0, active=1, max_seconds=math.inf, max_events=math.inf
    ) as steps:
        for thread in threading.enumerate():
            if thread.name == THREAD_NAME:
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
