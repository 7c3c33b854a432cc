"""Common parts of all pages: what is missing, what was ignored, and their width."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from planted import Program
from rich.console import Console

from stagespan.pages.amounts import in_words
from stagespan.pages.markdown import markdown
from stagespan.pages.result import Evidence, Finding, Unavailable
from stagespan.pages.terminal import print_blocks, print_page
from stagespan.trace import read_trace
from stagespan.trace.analysis import Analysis, analyze
from stagespan.trace.remarks import ignored


def a_trace(folder: Path) -> Analysis:
    program = Program()
    for _ in range(12):
        program.operator(us=20)
        with program.within("aten::item"):
            program.wait(tail=200)
    program.events += [
        {"ph": "M", "name": "process_sort_index", "pid": 100, "args": {"sort_index": 1}}
        for _ in range(3)
    ]
    return analyze(program.trace(folder))


def printed(analysis: Analysis) -> list[str]:
    text = io.StringIO()
    print_page(analysis, Console(file=text))
    return text.getvalue().splitlines()


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("140", 140), ("x", 100), ("7", 40)])
def test_a_piped_page_has_the_width_of_columns(
    columns: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = printed(a_trace(tmp_path))
    assert max(map(len, lines)) <= width
    if width >= 100:
        assert max(map(len, lines)) > width - 25


def test_no_line_of_a_page_has_trailing_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert [line for line in printed(a_trace(tmp_path)) if line != line.rstrip()] == []


def test_ignored_entries_are_listed_at_the_end(tmp_path: Path) -> None:
    analysis = a_trace(tmp_path)
    # THEN they are counted at the end, in plain words
    assert ignored(analysis.trace) == ["Ignored: metadata entry (3)."]
    assert printed(analysis)[-2] == "Ignored: metadata entry (3)."
    assert markdown(analysis).rstrip().endswith("Ignored: metadata entry (3).")


def test_ranks_merged_without_renumbering_are_named_as_the_reason(tmp_path: Path) -> None:
    # GIVEN a file with two ranks on two devices, of which the second made one launch more. Both
    # number their calls from 1.
    events = []
    for rank in range(2):
        program = Program()
        for _ in range(3 + rank):
            program.operator()
        for event in program.events:
            place = {"pid": 100 + rank}
            if event["cat"] == "kernel":
                place = {"pid": rank, "args": event["args"] | {"device": rank}}
            events.append(event | place)
    program.events = events
    analysis = analyze(program.trace(tmp_path))
    (said,) = ignored(analysis.trace)
    assert said.startswith("The launch of 6 device events is unknown, because calls of several")
    assert said in " ".join(printed(analysis))
    # THEN do not ask to record them
    assert "launches of device work" not in " ".join(analysis.missing())


def test_without_any_known_launch_the_shared_ids_are_the_reason(tmp_path: Path) -> None:
    events = []
    for rank in range(2):
        program = Program()
        program.operator()
        events += [e if e["cat"] == "kernel" else e | {"pid": 100 + rank} for e in program.events]
    program.events = events
    analysis = analyze(program.trace(tmp_path))
    launches = analysis.results["launches"]
    assert isinstance(launches, Unavailable)
    assert launches.code == "shared_correlations"
    assert "launches of device work" not in " ".join(analysis.missing())


@pytest.mark.parametrize("shift", [0, 5_000])
def test_two_ranks_with_the_same_process_number_are_recognised(shift: int, tmp_path: Path) -> None:
    # GIVEN a file into which two ranks wrote, each of which was process 100 in its container
    events = []
    for rank in range(2):
        program = Program(1_000 + rank * shift)
        for _ in range(3):
            program.operator()
        events += program.events
    program.events = events
    said = " ".join(ignored(analyze(program.trace(tmp_path)).trace))
    # THEN no kernel belongs to the call of the other rank, and the page says why
    assert "The launch of 6 device events is unknown, because calls of several" in said


def test_nested_calls_of_one_launch_are_one_call(tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        program.operator()
        runtime = next(e for e in reversed(program.events) if e["cat"] == "cuda_runtime")
        inner = runtime | {"name": "cuLaunchKernel", "cat": "cuda_driver", "dur": 3}
        program.events.append(inner | {"ts": runtime["ts"] + 1})
    assert ignored(analyze(program.trace(tmp_path)).trace) == []


def test_one_entry_is_in_the_singular(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text('[{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":9,"pid":1,"tid":1}]')
    assert analyze(read_trace(path)).summary() == "1 entry, 9.00 µs long"


def test_missing_parts_are_listed_with_how_to_record_them(tmp_path: Path) -> None:
    (said,) = a_trace(tmp_path).missing()
    assert said == (
        "Not in this trace: shapes of inputs (record_shapes=True), steps (the profiler marks them"
        " from the first active step of a schedule=...), stages (use record_function or"
        " stagespan.span), modules (with_stack=True), memory (profile_memory=True), Python stacks"
        " (with_stack=True)."
    )
    path = tmp_path / "host.json"
    path.write_text('[{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":9,"pid":1,"tid":1}]')
    (said,) = analyze(read_trace(path)).missing()
    # nothing shows that there is a device
    assert said.startswith("Not in this trace: shapes of inputs (record_shapes=True), steps (")


def test_singular_and_plural(tmp_path: Path) -> None:
    findings = [Finding("low", f"Finding {n}.", (Evidence("e", None, 1, "steps"),)) for n in "ab"]
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80, height=5, no_color=True)
    print_blocks([], [findings[0]] * 20 + [findings[1]], [], console)
    shown = text.getvalue().splitlines()
    assert "more finding" in shown[-1]
    assert in_words(1, "steps") == "1 step"
    assert in_words(2, "steps") == "2 steps"
