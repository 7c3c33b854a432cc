"""Events whose times cannot be true do not decide any figure, and are counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted import Program

from stagespan.trace import breakdown, device_use, read_trace
from stagespan.trace.analysis import Analysis, analyze
from stagespan.trace.read.view import TraceView
from stagespan.trace.remarks import ignored

Event = dict[str, Any]
Change = Callable[[list[Event]], None]
A_YEAR_US = 365 * 86_400 * 10**6
UNIX_US = 1_615_207_264_505_000


def steps(count: int = 10) -> list[Event]:
    """Return steps of 400 us with two kernels each, which take 150 us together."""
    program = Program()
    for number in range(count):
        begin = program.now
        program.operator("aten::linear", us=120)
        program.operator("aten::mean", us=30)
        program.wait()
        program.now = begin + 400
        program.event(f"ProfilerStep#{number}", "user_annotation", begin, program.now)
    return program.events


def kernels(events: list[Event]) -> list[Event]:
    return [each for each in events if each["cat"] == "kernel"]


def analysed(folder: Path, events: list[Event]) -> Analysis:
    path = folder / "trace.json"
    # NaN and Infinity are written as some profilers do.
    path.write_text(json.dumps({"traceEvents": events}))
    return analyze(read_trace(path))


def busy_us(analysis: Analysis) -> float:
    busy = analysis.to_dict()["device_use"]["busy_us"]
    assert isinstance(busy, float)
    return busy


def said(analysis: Analysis) -> str:
    return " ".join(ignored(analysis.trace))


def test_a_trace_without_faults_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": steps()}))
    trace = read_trace(path)
    analysis = analyze(trace)
    assert analysis.trace.events is trace.events
    assert (ignored(analysis.trace), busy_us(analysis)) == ([], 1_500)


@pytest.mark.parametrize("longer", [(4,), (4, 10), (0, 8, 16), (38,)])
def test_a_kernel_that_covers_later_ones_is_cut(longer: tuple[int, ...], tmp_path: Path) -> None:
    # GIVEN some of 40 kernels whose duration runs over later kernels of their stream
    events = steps(20)
    for at in longer:
        kernels(events)[at]["dur"] = 1_600
    analysis = analysed(tmp_path, events)
    # THEN they end at the latest where the next kernel begins
    assert 3_000 <= busy_us(analysis) <= 3_000 + 300 * len(longer)
    facts = analysis.to_dict()["trace"]
    (cause,) = facts["adjusted"]
    assert facts["adjusted"][cause] == len(longer)
    assert 1_000 * len(longer) < facts["ignored_us"][cause] < 1_600 * len(longer)
    assert analysis.to_dict()["steps"]["outliers"] == []
    assert f"{cause} ({len(longer)}, " in said(analysis)


def test_the_public_functions_do_the_same(tmp_path: Path) -> None:
    events = steps(20)
    kernels(events)[4]["dur"] = 1_600
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(path)
    # THEN neither contains the wrong time
    assert device_use(trace).busy_ns == breakdown(trace, "step").total_ns < 3_300_000
    assert max(trace.events.dur_ns) == 1_600_000


def test_a_kernel_is_left_out_if_even_the_next_one_begins_too_late(tmp_path: Path) -> None:
    # GIVEN steps with kernels of 15 us, in all but two of which the device's records were lost, and
    # a duration that spans the lost ones
    events = []
    for step in range(32):
        begin = 1_000 + step * 10_000
        place = {"ph": "X", "pid": 1, "tid": 1}
        events.append(
            place
            | {"name": f"ProfilerStep#{step}", "cat": "user_annotation", "ts": begin, "dur": 9_990}
        )
        call = {"name": "cudaGraphLaunch", "cat": "cuda_runtime", "ts": begin + 10, "dur": 50}
        events.append(place | call | {"args": {"correlation": step}})
        for number in range(50 if step in (0, 31) else 0):
            wrong = (step, number) == (0, 49)
            events.append(
                {
                    "ph": "X",
                    "name": "k",
                    "cat": "kernel",
                    "pid": 0,
                    "tid": 7,
                    "ts": begin + 100 + number * 20,
                    "dur": 317_000 if wrong else 15,
                    "args": {"correlation": step, "device": 0, "stream": 7},
                }
            )
    analysis = analysed(tmp_path, events)
    assert busy_us(analysis) == 99 * 15
    assert "device event that covers later events of its stream (1, 317 ms)" in said(analysis)
    found = analysis.to_dict()
    assert found["verdict"]["verdict"] == "cannot tell"
    assert "30 of the 32 steps have no device events" in found["verdict"]["sentence"]
    assert found["steps"]["steps_without_device_events"] == 30
    assert all(each.severity != "high" for each in analysis.findings())


def test_a_step_whose_records_were_lost_is_named(tmp_path: Path) -> None:
    events = steps()
    missing = kernels(events)[6:8]
    analysis = analysed(tmp_path, [each for each in events if each not in missing])
    verdict = analysis.to_dict()["verdict"]
    assert verdict["verdict"] == "host-bound"
    assert "1 of the 10 steps has no device events" in verdict["sentence"]


def unset(events: list[Event]) -> None:
    for each in kernels(events)[5:8]:
        each |= {"ts": 0, "dur": 0}


def unset_with_duration(events: list[Event]) -> None:
    kernels(events)[9]["ts"] = 0


def years_later(events: list[Event]) -> None:
    kernels(events)[3]["ts"] += 3 * A_YEAR_US


def years_before(events: list[Event]) -> None:
    next(each for each in events if each["cat"] == "cpu_op")["ts"] -= 20 * A_YEAR_US


@pytest.mark.parametrize("offset", [0, 4 * 3_600 * 10**6, UNIX_US])
@pytest.mark.parametrize("change", [unset, years_later, years_before])
def test_times_far_outside_of_all_others_are_left_out(
    change: Change, offset: int, tmp_path: Path
) -> None:
    # GIVEN a few events whose time was not set, or is years away
    events = steps()
    for each in events:
        each["ts"] += offset
    change(events)
    analysis = analysed(tmp_path, events)
    # THEN the trace is as long as its other events, and their number is given
    found = analysis.to_dict()
    assert found["trace"]["window_us"] == pytest.approx(4_000, abs=20)
    assert busy_us(analysis) > 1_300
    assert found["verdict"]["verdict"] == "host-bound"
    (count,) = found["trace"]["left_out"].values()
    assert count == (3 if change is unset else 1)
    assert "far outside of all others" in said(analysis)


def test_a_time_of_zero_with_a_duration_is_left_out(tmp_path: Path) -> None:
    # GIVEN a kernel with a duration whose begin was not set, in a trace that begins a minute later
    events = steps()
    for each in events:
        each["ts"] += 60 * 10**6
    unset_with_duration(events)
    analysis = analysed(tmp_path, events)
    assert analysis.to_dict()["trace"]["window_us"] == pytest.approx(4_000, abs=20)


def test_a_trace_that_begins_at_zero_is_whole(tmp_path: Path) -> None:
    events = [
        {**each, "ts": each["ts"] - 1_000 + (9_000_000 if at > 40 else 0)}
        for at, each in enumerate(sorted(steps(), key=lambda each: each["ts"]))
    ]
    assert events[0]["ts"] == 0
    analysis = analysed(tmp_path, events)
    assert (said(analysis), busy_us(analysis)) == ("", 1_500)


@pytest.mark.parametrize("wrong", [float("inf"), float("-inf"), float("nan"), -1, -4e9, None, "x"])
@pytest.mark.parametrize("at", [3, 18, 19])
def test_a_kernel_without_a_valid_duration_is_left_out(
    at: int, wrong: object, tmp_path: Path
) -> None:
    events = steps()
    was = kernels(events)[at]["dur"]
    kernels(events)[at]["dur"] = wrong
    analysis = analysed(tmp_path, events)
    # THEN it is not a kernel of 0 us, but unknown
    assert busy_us(analysis) == 1_500 - was
    assert analysis.to_dict()["kernels"]["kernels"] == 19
    assert said(analysis).startswith("Ignored: device event without a valid duration (1).")


@pytest.mark.parametrize("wrong", [float("inf"), -1, 9_223_372_036_854_775.807, 4e15])
def test_a_call_that_did_not_end_does_not_lengthen_the_trace(wrong: float, tmp_path: Path) -> None:
    # GIVEN an operator whose end was not recorded
    events = steps()
    [each for each in events if each["cat"] == "cpu_op"][-1]["dur"] = wrong
    analysis = analysed(tmp_path, events)
    # THEN the trace is as long as before, the operator is a part of it, and this is said
    assert analysis.to_dict()["trace"]["window_us"] == pytest.approx(4_000, abs=20)
    assert busy_us(analysis) == 1_500
    assert said(analysis).startswith("Ignored: ")


@pytest.mark.parametrize("base", [None, 2**62 - 1])
def test_durations_of_a_century_do_not_overflow(base: int | None, tmp_path: Path) -> None:
    # GIVEN operators and kernels whose durations are as long as 64 bits allow
    place = {"ph": "X", "name": "n", "dur": 2**62 // 1000 - 1, "pid": 1, "tid": 1}
    events: list[Event] = [place | {"cat": "cpu_op", "ts": at} for at in range(9)]
    events += [place | {"cat": "kernel", "ts": 20 * at, "tid": 7} for at in range(9)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": base}))
    analysis = analyze(read_trace(path))
    assert analysis.to_dict()["trace"]["window_us"] == 160
    assert "duration that ends far outside of all events, cut (9, " in said(analysis)


@pytest.mark.parametrize("overlap", [3, 9])
def test_neighbours_may_overlap_a_little(overlap: int, tmp_path: Path) -> None:
    # GIVEN kernels back to back that overlap the next one, as with programmatic dependent launches,
    # and an event without a length in one of them
    place = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {"stream": 7, "device": 0}}
    events = [
        place | {"name": f"k{at % 3}", "ts": 1_000 + 10 * at, "dur": 10 + overlap}
        for at in range(60)
    ]
    events.append(place | {"name": "empty", "ts": 1_042, "dur": 0})
    # WHEN the trace is analysed THEN nothing is wrong with it
    analysis = analysed(tmp_path, events)
    assert said(analysis) == ""
    assert busy_us(analysis) == 600 + overlap


def test_findings_that_rest_on_unknown_work_are_less_severe(tmp_path: Path) -> None:
    # GIVEN a device that waits for the host twice, for the same time
    def program() -> list[Event]:
        program = Program()
        for _ in range(2):
            program.operator(us=200)
            program.work(20_000)
        program.operator(us=200)
        return program.events

    (healthy,) = analysed(tmp_path, program()).findings()
    events = program()
    kernels(events)[0]["dur"] = -1
    analysis = analysed(tmp_path, events)
    (doubtful,) = [each for each in analysis.findings() if each.code == healthy.code]
    assert (healthy.severity, doubtful.severity) == ("high", "medium")
    assert "one grade less severe" in said(analysis)


# --- Ranges ---


def step_marks(count: int, overlap: float, length: float = 1_000) -> list[Event]:
    """Return steps that end a little after the next one begins, each with an operator."""
    events = []
    for at in range(count):
        place = {"ph": "X", "pid": 1, "tid": 1}
        begin = 1_000 + at * length
        mark = {"name": f"ProfilerStep#{at}", "cat": "user_annotation", "ts": begin}
        events.append(place | mark | {"dur": length + overlap})
        work = {"name": "aten::mm", "cat": "cpu_op", "ts": begin + 5, "dur": length - 50}
        events.append(place | work)
    return events


@pytest.mark.parametrize("overlap", [0.001, 0.5, 9.5])
def test_steps_that_overlap_a_little_are_all_steps(overlap: float, tmp_path: Path) -> None:
    # GIVEN ten steps, each of which ends a little after the next one begins
    analysis = analysed(tmp_path, step_marks(10, overlap))
    found = analysis.to_dict()["steps"]
    assert (found["count"], found["steps_left_out"]) == (10, 0)
    assert found["step_us"]["median"] == 1_000
    assert "range that overlaps another one a little, cut (9, " in said(analysis)


@pytest.mark.parametrize(("overlap", "length"), [(15, 10_000), (2, 100), (300, 1_000)])
def test_steps_that_overlap_more_are_counted(overlap: float, length: float, tmp_path: Path) -> None:
    # GIVEN steps that overlap by 10 us or more, or by more than 1 %
    analysis = analysed(tmp_path, step_marks(10, overlap, length))
    found = analysis.to_dict()["steps"]
    assert (found["count"], found["steps_left_out"]) == (5, 5)
    assert "5 marks overlap earlier ones and are skipped" in found["how"]


@pytest.mark.parametrize("excess", [0.001, 0.8])
def test_ranges_that_touch_are_siblings(excess: float, tmp_path: Path) -> None:
    # GIVEN ranges one after another in each step, each a little too long, and the last one ends
    # after its step
    program = Program()
    for number in range(5):
        begin = program.now
        for name in ("forward", "backward"):
            start = program.now
            program.operator(us=120)
            program.wait()
            program.event(name, "user_annotation", start, program.now + excess)
        program.event(f"iteration {number}", "user_annotation", begin, program.now)
    stages = analysed(tmp_path, program.events).to_dict()["stages"]["stages"]
    paths = {tuple(each["path"][-2:]) for each in stages}
    assert ("forward", "backward") not in paths
    for name in ("forward", "backward"):
        assert sum(each["device_us"] for each in stages if each["path"][-1] == name) == 600


# --- Names ---


@pytest.mark.parametrize("cat", ["kernel", "cpu_op", "user_annotation", "python_function"])
def test_a_name_of_megabytes_does_not_slow_down_the_analyses(cat: str, tmp_path: Path) -> None:
    events = steps()
    events.append(
        {"ph": "X", "cat": cat, "name": "n<" * 2_000_000, "pid": 9, "tid": 9, "ts": 1_500, "dur": 9}
    )
    analysis = analysed(tmp_path, events)
    assert max(map(len, analysis.trace.names)) <= 16_384
    assert "name of more than 16,384 characters" in said(analysis)


# --- Real traces ---


@pytest.mark.slow
def test_no_real_trace_is_changed(traces: Path, every_trace: list[Path]) -> None:
    # GIVEN public traces of many devices and versions, with small overlaps and whole microseconds
    paths = [*every_trace, *traces.glob("nccl_dlrm_8rank/*.json.gz")]
    paths += traces.glob("ascend_level1/*/*/trace_view.json*")
    for path in paths:
        trace = read_trace(path)
        # WHEN their plausibility is checked THEN they stay as they are
        view = TraceView.of(trace)
        assert view.events is trace.events, path.name
        assert (view.left_out, view.adjusted) == (trace.left_out, trace.adjusted), path.name
