"""Flame graphs of synthetic stacks and of torch's own; the times of every frame add up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import checked
from planted import Program
from real_traces import read_real

from click_runner import cli_runner
from stagespan.cli import command
from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import flame
from stagespan.trace.analyses.flame import Flame

US = 1_000
PYTHON = "python_function"


def flame_of(trace: Trace) -> Flame:
    found = checked(flame.analyze(trace), Flame)
    times_add_up(found.to_dict()["tree"])
    return found


def times_add_up(node: dict[str, Any]) -> None:
    """A frame's time is the sum of its own and that of the frames it called."""
    below = sum(round(child["total_us"] * 1000) for child in node["children"])
    assert round(node["total_us"] * 1000) == round(node["self_us"] * 1000) + below
    for child in node["children"]:
        times_add_up(child)


def stacks(found: Flame) -> dict[str, int]:
    lines = found.folded().splitlines()
    return {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in lines}


def planted(tmp_path: Path) -> Trace:
    program = Program()
    for _ in range(2):
        with program.within("train.py(1): main", PYTHON):
            program.work(5)
            with program.within("model.py(7): forward", PYTHON):
                program.operator(us=50)
                program.work(3)
            with program.within("model.py(7): forward", PYTHON):
                program.operator(us=50)
    program.thread = 200
    with program.within("wait.py(9): wait; for ever", PYTHON):
        program.work(100)
    program.thread = 300
    program.operator("aten::add", us=1)
    return program.trace(tmp_path)


def test_stacks_with_own_times(tmp_path: Path) -> None:
    # GIVEN two calls of one function that calls another twice, a thread that waits, and one
    # without stacks
    found = flame_of(planted(tmp_path))
    # THEN calls with the same stack are merged, and every self time is as computed by hand
    main = "thread 100;train.py(1): main"
    forward = f"{main};model.py(7): forward"
    assert stacks(found) == {
        main: 10,
        forward: 6,
        f"{forward};aten::mm": 40,
        f"{forward};aten::mm;cudaLaunchKernel": 20,
        "thread 200;wait.py(9): wait, for ever": 100,
    }
    # AND in the table, operators belong to the line that called them, and waiting threads are left
    # out
    (table,) = found.tables()
    assert found.number_of_tables() == 1
    assert [row[:2] for row in table.rows] == [
        ("model.py(7): forward", 66 * US),
        ("train.py(1): main", 10 * US),
    ]


def test_wrappers_belong_to_the_line_that_called_them(tmp_path: Path) -> None:
    program = Program()
    with (
        program.within("net.py(3): forward", PYTHON),
        program.within("torch/nn/modules/module.py(1): _call_impl", PYTHON),
        program.within("<built-in method relu>", PYTHON),
    ):
        program.operator("aten::relu")
    (table,) = flame_of(program.trace(tmp_path)).tables()
    assert [row[0] for row in table.rows] == ["net.py(3): forward"]


def test_the_stacks_of_old_profilers(write_trace: Callable[..., Path]) -> None:
    def operator(name: str, begin: int, dur: int, stack: str) -> dict[str, Any]:
        return {
            "ph": "X", "cat": "Operator", "name": name, "pid": 1, "tid": 1, "ts": begin,
            "dur": dur, "args": {"Call stack": stack},
        }  # fmt: skip

    stack = "nn.py(5): linear;main.py(2): run"
    path = write_trace(
        [
            operator("aten::linear", 0, 100, stack),
            operator("aten::mm", 10, 60, stack),
            operator("aten::add", 200, 7, "main.py(2): run;"),
        ]
    )
    # WHEN the graph is built THEN own times are those of the operators
    found = flame_of(read_trace(path))
    assert found.source == "call_stack"
    assert stacks(found) == {
        "main.py(2): run;nn.py(5): linear;aten::linear": 40,
        "main.py(2): run;nn.py(5): linear;aten::mm": 60,
        "main.py(2): run;aten::add": 7,
    }


def test_short_frames_are_summed_up_if_there_are_very_many(tmp_path: Path) -> None:
    # GIVEN 3,000 functions, of which the last ones take the longest
    program = Program()
    with program.within("main.py(1): main", PYTHON):
        for number in range(3_000):
            with program.within(f"f.py({number}): f", PYTHON):
                program.work(1 + number // 1_000)
    found = flame_of(program.trace(tmp_path))
    # THEN the JSON contains some of them, and the others as one frame with their time
    written = found.to_dict()
    assert written["frames"] == 3_002
    (thread,) = written["tree"]["children"]
    (main,) = thread["children"]
    assert len(main["children"]) <= 1_501
    (rest,) = (child for child in main["children"] if child["name"].endswith(" more)"))
    assert written["total_us"] == 1_000 + 2_000 + 3_000
    left = int(rest["name"][1:].split()[0])
    assert left + len(main["children"]) - 1 == 3_000
    assert len(stacks(found)) == 3_000


def test_some_of_many_equally_long_frames_are_drawn(tmp_path: Path) -> None:
    program = Program()
    for line in range(2_000):
        with program.within(f"train.py({line}): f{line}", PYTHON):
            program.work(7)
    written = flame_of(program.trace(tmp_path)).to_dict()
    (thread,) = written["tree"]["children"]
    assert len(thread["children"]) == 1_500
    assert thread["children"][0]["name"] == "(501 more)"


def test_a_deep_recursion_is_cut_off_at_the_limit_of_json(tmp_path: Path) -> None:
    # GIVEN a function that calls itself 2,000 times
    program = Program()
    begin = program.now
    for depth in range(2_000):
        program.event(f"f.py({depth}): f", PYTHON, begin + depth, begin + 5_000 - depth)
    found = checked(flame.analyze(program.trace(tmp_path)), Flame)
    written = json.dumps(found.to_dict())
    # THEN deeper frames belong to the last frame in the JSON
    assert written.count('"children"') == 251
    assert found.to_dict()["total_us"] == 5_000
    # AND the folded stacks end at the same depth, with all the time
    lines = found.folded().splitlines()
    assert len(lines) == 249
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == 5_000


def test_a_trace_without_stacks_says_how_to_record_them(tmp_path: Path) -> None:
    program = Program()
    program.operator()
    found = flame.analyze(program.trace(tmp_path))
    assert isinstance(found, Unavailable)
    assert "with_stack=True" in found.reason


def test_the_command_writes_folded_stacks(tmp_path: Path) -> None:
    trace = planted(tmp_path)
    target = tmp_path / "new" / "stacks.txt"
    result = cli_runner().invoke(command, ["analyze", trace.path, "--flame", str(target)])
    assert result.exit_code == 0, result.output
    assert "thread 100;train.py(1): main 10\n" in target.read_text()
    # THEN for a trace without stacks there is one sentence, and no file
    without = tmp_path / "without.json"
    without.write_text(json.dumps([{"ph": "X", "name": "a", "ts": 1, "dur": 2, "cat": "cpu_op"}]))
    other = tmp_path / "other.txt"
    result = cli_runner().invoke(command, ["analyze", str(without), "--flame", str(other)])
    assert result.exit_code != 0
    assert "with_stack=True" in result.stderr
    assert not other.exists()


def test_times_of_real_traces_add_up(traces: Path) -> None:
    for path in sorted(traces.glob("*.json.gz")):
        found = flame.analyze(read_real(path))
        if not isinstance(found, Unavailable):
            times_add_up(found.to_dict()["tree"])
            assert found.tables()[0].rows
    # THEN the line that resizes images is the first
    owl = flame_of(read_real(traces / "rocm_mi300_owlv2.json.gz"))
    assert owl.tables()[0].rows[0][0] == "scipy/ndimage/_interpolation.py(739): zoom"


def test_torch_records_stacks(tmp_path: Path) -> None:
    # GIVEN a real program with a slow function
    torch = pytest.importorskip("torch")

    def slow_function_here() -> None:
        value = torch.ones(300, 300)
        for _ in range(20):
            value = value @ value

    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True
    ) as profile:
        slow_function_here()
    path = tmp_path / "torch.json"
    profile.export_chrome_trace(str(path))
    # WHEN the graph is built THEN the function is in it, with the operators that it called
    found = stacks(flame_of(read_trace(path)))
    assert any("slow_function_here" in stack and stack.endswith("aten::mm") for stack in found)
