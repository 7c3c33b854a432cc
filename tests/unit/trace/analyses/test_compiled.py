"""torch.compile in synthetic traces: breaks, recompilations, compiling and graphs, exact times."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiled_programs import (
    GRAPH,
    PARTS,
    backward,
    compilation,
    compiled_of,
    graph,
    of,
    region,
)
from planted import Program

from stagespan.pages.result import Unavailable
from stagespan.pages.terminal import one_liners
from stagespan.trace.analyses import compiled
from stagespan.trace.analysis import analyze


def test_a_function_compiled_in_one_piece_has_no_finding(tmp_path: Path) -> None:
    program = Program()
    for _ in range(3):
        with region(program), program.within(GRAPH, "user_annotation"):
            program.work(100)
            with program.within("aten::mm"):
                program.work(50)
    found, findings = of(program, tmp_path)
    assert (found["regions"], found["calls"], found["graph_breaks"]) == (3, 3, [])
    assert found["frames"] == [
        {
            "frame": "0",
            "function": None,
            "variants": {"0": 3},
            "calls": 3,
            "time_us": 3 * 152,
            "graph_us": 3 * 150,
            "backward_calls": 0,
            "backward_us": 0,
        }
    ]
    assert found["recompilations"] == []
    assert found["compile_time"] is None
    assert found["cache_lookups"] == {"count": 3, "time_us": 6}
    assert [(row["of"], row["name"], row["host_us"]) for row in found["in_graphs"]] == [
        ("inductor_cpp", "the graphs' own time", 300),
        ("extern", "aten::mm", 150),
    ]
    assert findings == []


def test_graph_breaks_and_the_operators_between(tmp_path: Path) -> None:
    # GIVEN four calls that break twice: 0 continues in 1 after item(), and 1 in 2
    program = Program()
    for _ in range(4):
        with region(program, ": 0/0"):
            graph(program)
            with program.within("aten::item"):
                program.work(1)
                with program.within("aten::_local_scalar_dense"):
                    program.work(6)
            with program.within("aten::view"):
                program.work(1)
            with region(program, ": 1/0"):
                graph(program)
                with region(program, ": 2/0"):
                    graph(program)
    found, findings = of(program, tmp_path)
    assert found["graph_breaks"] == [
        {
            "before": "0",
            "after": "1",
            "line": None,
            "count": 4,
            "time_us": 4 * (7 + 1 + 2),
            "operators": {"aten::item": 4},
            "called": {},
        },
        {
            "before": "1",
            "after": "2",
            "line": None,
            "count": 4,
            "time_us": 4 * 2,
            "operators": {},
            "called": {},
        },
    ]
    assert (found["regions"], found["calls"]) == (12, 4)
    # Each frame's own time, without the frames that it calls.
    assert {row["frame"]: row["time_us"] for row in found["frames"]} == {
        "0": 4 * (2 + 40 + 8 + 2),
        "1": 4 * (2 + 40 + 2),
        "2": 4 * (2 + 40),
    }
    (finding,) = findings
    assert (finding.code, finding.severity) == ("compiled.graph_break", "medium")
    whole = sum(row["time_us"] for row in found["frames"])
    assert finding.numbers == {
        "breaks": 8,
        "calls": 4,
        "time_ns": 48_000,
        "percent": pytest.approx(100 * 48 / whole),
    }
    assert finding.evidence[0].event == "Torch-Compiled Region: 1/0"
    # THEN all of this time can be won, because no device is busy in it
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.others_ns) == (64_000, 16_000)


def test_the_line_counts_all_graph_breaks(tmp_path: Path) -> None:
    # GIVEN 60 frames with a break each, more than the lists contain
    program = Program()
    for number in range(60):
        with region(program, f": {2 * number}/0"):
            graph(program)
            with region(program, f": {2 * number + 1}/0"):
                graph(program)
    found = compiled_of(program.trace(tmp_path))
    (finding,) = found.findings()
    assert finding.numbers["breaks"] == 60
    assert "60 graph breaks" in found.line()
    assert len(found.to_dict()["graph_breaks"]) == 50


def test_a_frame_that_is_called_at_a_break_does_not_count_as_a_break(tmp_path: Path) -> None:
    # GIVEN a module whose part breaks: the part runs as frames 1 and 2, and the whole as 3
    program = Program()
    for _ in range(2):
        with region(program, ": 0/0"):
            graph(program)
            with region(program, ": 1/0"):
                graph(program)
                with region(program, ": 2/0"):
                    graph(program)
            with region(program, ": 3/0"):
                graph(program)
    found, (finding,) = of(program, tmp_path)
    assert [
        (row["before"], row["after"], row["count"], row["time_us"], row["called"])
        for row in found["graph_breaks"]
    ] == [("0", "3", 2, 2 * (2 + 2), {"1": 2}), ("1", "2", 2, 2 * 2, {})]
    assert (finding.numbers["breaks"], finding.numbers["calls"]) == (4, 2)


def test_a_frame_without_tensors_has_no_graph_but_its_time_is_known(tmp_path: Path) -> None:
    program = Program()
    with region(program, ": 0/0"):
        graph(program)
        with region(program, ": 1/0"):
            program.work(30)
            with region(program, ": 2/0"):
                graph(program)
    found, _ = of(program, tmp_path)
    assert [each["time_us"] for each in found["graph_breaks"]] == [2, 33]
    assert [each["operators"] for each in found["graph_breaks"]] == [{}, {}]


def test_lines_of_breaks_if_the_trace_has_python_stacks(tmp_path: Path) -> None:
    program = Program()
    with region(program, ": 0/0"), program.within("model.py(3): forward", "python_function"):
        graph(program)
        name = "model.py(5): torch_dynamo_resume_in_forward_at_5"
        with region(program, ": 1/0"), program.within(name, "python_function"):
            graph(program)
    found, (finding,) = of(program, tmp_path)
    assert found["graph_breaks"][0]["line"] == "model.py(5): forward"
    assert {row["frame"]: row["function"] for row in found["frames"]} == {
        "0": "model.py(3): forward",
        "1": "model.py(5): forward",
    }
    assert "model.py(5): forward" in finding.text


def test_numbers_of_variants_with_too_many_digits(tmp_path: Path) -> None:
    program = Program()
    compilation(program, "0/" + "1" * 5_000, PARTS, nested=True)
    with region(program, ": 0/" + "1" * 5_000):
        graph(program)
    found, _ = of(program, tmp_path)
    assert found["frames"][0]["frame"] is None
    assert found["compile_time"]["compilations"][0]["id"] is None


def test_regions_without_numbers_of_older_versions(tmp_path: Path) -> None:
    program = Program()
    with region(program, ""):
        graph(program)
        with region(program, ""):
            graph(program)
    found, findings = of(program, tmp_path)
    assert [(b["before"], b["after"], b["count"]) for b in found["graph_breaks"]] == [("?", "?", 1)]
    assert found["frames"][0]["frame"] is None
    assert findings[0].code == "compiled.graph_break"
    assert (findings[0].numbers["breaks"], findings[0].numbers["calls"]) == (1, 1)


def test_separate_functions_and_one_within_a_graph_are_not_breaks(tmp_path: Path) -> None:
    program = Program()
    with region(program, ": 0/0"):
        graph(program)
    with (
        region(program, ": 1/0"),
        program.within(GRAPH),
        program.within("my::operator"),
        region(program, ": 2/0"),
    ):
        graph(program)
    found, findings = of(program, tmp_path)
    assert found["graph_breaks"] == []
    assert findings == []


@pytest.mark.parametrize("nested", [True, False], ids=["today", "torch 2.3"])
def test_compiling_by_phase_and_recompilations(nested: bool, tmp_path: Path) -> None:
    program = Program()
    for variant in (0, 1):
        compilation(program, f"0/{variant}", PARTS, nested)
        with region(program, f": 0/{variant}"):
            graph(program)
    found, findings = of(program, tmp_path)
    time = found["compile_time"]
    assert time["time_us"] == 2 * 5_651
    assert time["phases_us"] == {
        "kernels": 10_000,
        "inductor": 600,
        "autograd": 400,
        "dynamo": 202,
        "guards": 100,
    }
    assert time["steps"][0] == {"step": "async_compile.wait", "self_us": 10_000, "count": 2}
    assert [(c["id"], c["recompilation"], c["ran"]) for c in time["compilations"]] == [
        ("0/0", False, True),
        ("0/1", True, True),
    ]
    single = 5_650 if nested else 5_651
    assert found["recompilations"] == [
        {
            "frame": "0",
            "times": 1,
            "in_window": 1,
            "before_window": 0,
            "compiled": ["0/1"],
            "time_us": single,
            "variants_run": ["0/0", "0/1"],
        }
    ]
    again, first = findings
    assert (again.code, first.code) == ("compiled.recompiled", "compiled.in_window")
    assert (again.severity, first.severity) == ("high", "high")
    assert (again.numbers["frames"], again.numbers["compilations"]) == (1, 1)
    assert again.numbers["time_ns"] == single * 1_000
    assert first.numbers["frames"] == 1
    assert first.numbers["time_ns"] == (2 * 5_651 - single) * 1_000
    assert again.gain is not None
    assert first.gain is not None
    # Beside a compiler, a host does its other work slower.
    won, other_won = (each.time_ns - each.others_ns for each in (again.gain, first.gain))
    assert won == again.numbers["time_ns"]
    assert again.gain.others_ns == won // 3
    assert first.numbers["time_ns"] - other_won in (0, 2_000)
    assert first.numbers["longest_phase_ns"] == 5_000_000
    # Operators that ran during compilation are not work of the program.
    assert [row["name"] for row in found["in_graphs"]] == ["the graphs' own time"]
    assert sum(row["time_us"] for row in found["frames"]) == 2 * 42


def test_a_frame_that_is_compiled_within_a_call_does_not_lengthen_it(tmp_path: Path) -> None:
    program = Program()
    with region(program, ": 0/0"):
        graph(program)
        compilation(program, "1/0", {"bytecode_tracing": 1_000})
        with region(program, ": 1/0"):
            graph(program)
    found, _ = of(program, tmp_path)
    assert found["graph_breaks"][0]["time_us"] == 2
    assert {row["frame"]: row["time_us"] for row in found["frames"]} == {"0": 44, "1": 42}
    assert found["recompilations"] == []


def test_a_frame_that_dynamo_skipped(tmp_path: Path) -> None:
    program = Program()
    compilation(program, "3/0", {"bytecode_tracing": 1_000})
    found, _ = of(program, tmp_path)
    (row,) = found["compile_time"]["compilations"]
    assert (row["id"], row["ran"]) == ("3/0", False)


def test_variants_from_before_the_window(tmp_path: Path) -> None:
    program = Program()
    for frame in (": 0/0", ": 0/2", ": 0/0", ": 1/1"):
        with region(program, frame):
            graph(program)
    found, findings = of(program, tmp_path)
    # THEN both were compiled more than once; alternating variants are reported
    assert [(r["frame"], r["times"], r["in_window"]) for r in found["recompilations"]] == [
        ("0", 2, 0),
        ("1", 1, 0),
    ]
    assert [(r["before_window"], r["variants_run"]) for r in found["recompilations"]] == [
        (2, ["0/0", "0/2"]),
        (1, ["1/1"]),
    ]
    (finding,) = findings
    assert finding.code == "compiled.variants"
    assert [each.event[-3:] for each in finding.evidence] == ["0/0", "0/2"]


def test_recompilations_are_counted_one_by_one(tmp_path: Path) -> None:
    program = Program()
    for frame in ("0/2", "0/3", "0/4", "1/0"):
        compilation(program, frame, PARTS)
        with region(program, f": {frame}"):
            graph(program)
    trace = program.trace(tmp_path)
    found, findings = of(program, tmp_path)
    (row,) = found["recompilations"]
    assert (row["times"], row["in_window"], row["before_window"]) == (4, 3, 2 - 1)
    assert [finding.code for finding in findings] == ["compiled.recompiled", "compiled.in_window"]
    line = dict(one_liners(analyze(trace, ["compiled"])))["Compiled"]
    assert line == "4 forward graphs, 3 recompilations, 1 recompilation before the trace"


def test_calls_that_ran_eagerly_because_the_limit_was_reached(tmp_path: Path) -> None:
    # GIVEN calls that match one of two variants, and twice as many that match none and run eagerly
    program = Program()
    for number in range(6):
        if number % 3 == 0:
            with region(program, f": 0/{number // 3 + 6}"):
                graph(program)
        else:
            with program.within("TorchDynamo Cache Lookup"):
                program.work(30)
            with program.within("aten::sin"):
                program.work(20)
    found, findings = of(program, tmp_path)
    assert found["eager_calls"] == 4
    (limit,) = (each for each in findings if each.code == "compiled.recompile_limit")
    assert limit.severity == "medium"
    assert [each.figure for each in limit.evidence] == [30_000, 30_000]


def test_a_compilation_that_dynamo_refused_is_not_counted(tmp_path: Path) -> None:
    program = Program()
    for variant in (6, 7):
        compilation(program, f"0/{variant}", PARTS)
        with region(program, f": 0/{variant}"):
            graph(program)
    with program.within("TorchDynamo Cache Lookup"):
        program.work(3)
    begin = program.now
    program.event("dynamo_data: compile_id=0/8", "user_annotation", begin, begin + 0.5)
    with program.within("dynamo"), program.within("_compile.compile_inner (dynamo_timed)"):
        program.work(40)
    with program.within("aten::sin"):
        program.work(20)
    found, findings = of(program, tmp_path)
    (row,) = found["recompilations"]
    assert (row["in_window"], row["compiled"]) == (2, ["0/6", "0/7"])
    assert [each["refused"] for each in found["compile_time"]["compilations"]] == [
        False,
        False,
        True,
    ]
    assert found["eager_calls"] == 1
    assert "compiled.recompile_limit" in {finding.code for finding in findings}


def test_a_backward_graph_belongs_to_its_frame(tmp_path: Path) -> None:
    program = Program()
    backward(program)
    found, findings = of(program, tmp_path)
    assert found["graphs"] == {"forward": 1, "backward": 1, "backward_linked": 1}
    (frame,) = found["frames"]
    assert (frame["frame"], frame["graph_us"]) == ("0", 45)
    assert (frame["backward_calls"], frame["backward_us"]) == (1, 63)
    assert findings == []


def test_graphs_without_regions_say_nothing_about_breaks(tmp_path: Path) -> None:
    program = Program()
    for _ in range(2):
        with program.within("CompiledFunction"):
            program.work(10)
    found, findings = of(program, tmp_path)
    assert found["regions"] is found["calls"] is found["graph_breaks"] is None
    assert found["frames"][0]["calls"] == 2
    assert findings == []


def test_nothing_of_torch_compile(tmp_path: Path) -> None:
    program = Program()
    program.operator()
    assert isinstance(compiled.analyze(program.trace(tmp_path)), Unavailable)
