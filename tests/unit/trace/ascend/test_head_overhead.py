"""Head overhead of compiled calls: synthetic traces with exact results; no public one has them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from commands import checked
from synthetic_ascend import QUEUE, SyntheticAscend

from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analysis import analyze
from stagespan.trace.ascend import graph_mode as head_overhead
from stagespan.trace.ascend.graph_mode import HeadOverhead


def found_in(trace: Trace) -> HeadOverhead:
    return checked(head_overhead.analyze(trace), HeadOverhead)


def parts(tmp_path: Path, program: SyntheticAscend) -> dict[str, Any]:
    written: dict[str, Any] = found_in(program.trace(tmp_path)).to_dict()
    return written


def test_a_call_is_split_at_the_events_that_mark_its_parts(tmp_path: Path) -> None:
    # GIVEN a synthetic call: lookup 50, region 100, Python 200, C++ 80, run 150, after 30 µs
    program = SyntheticAscend()
    executed = program.call(1_000_000)
    program.kernel(
        "graph_Add", executed + 400_000, executed + 500_000, launched=(executed, executed + 9)
    )
    found = parts(tmp_path, program)
    assert found["totals"] == {
        "framework_us": 150.0,
        "framework_cache_lookup_us": 50.0,
        "framework_guards_us": 0.0,
        "torchair_us": 280.0,
        "torchair_python_us": 200.0,
        "torchair_cpp_us": 80.0,
        "ge_to_compiler_end_us": 180.0,
        "ge_execute_us": 150.0,
        "ge_to_first_operator_us": 400.0,
        "graph_replay_us": None,
        "unknown_us": 0.0,
    }
    assert found["medians"] == found["totals"]
    assert found["head_us"] == 150 + 280 + 400
    call = found["per_call"][0]
    assert (call["first_operator"], call["first_operator_by"]) == ("graph_Add", "launch")
    assert (call["region"], call["execute"]) == ("Torch-Compiled Region: 0/0", "ExecuteGraph")


@pytest.mark.parametrize(
    "compiler",
    ["npu_fx_compiler inference", "npu_fx_compiler_inference", "cache_compiler inference"],
)
@pytest.mark.parametrize("run", ["ExecuteGraph", "RunGraph", "RunGraphWithStreamAsync"])
def test_all_spellings_and_executors(compiler: str, run: str, tmp_path: Path) -> None:
    program = SyntheticAscend()
    program.call(0, compiler=compiler, run=run)
    found = parts(tmp_path, program)
    assert found["totals"]["torchair_us"] == 280.0
    assert found["totals"]["ge_to_compiler_end_us"] == 180.0
    assert found["per_call"][0]["execute"] == run


def test_conversions_of_inputs_are_named(tmp_path: Path) -> None:
    program = SyntheticAscend()
    program.call(0)
    python = 150_000
    for number in range(2):
        at = python + 10_000 + 20_000 * number
        program.host("aten::scalar_tensor", at, at + 15_000)
        program.host("aten::empty", at + 2_000, at + 8_000)
    program.host("aten::contiguous", python + 100_000, python + 170_000)
    program.host("aten::clone", python + 105_000, python + 165_000)
    program.host("aten::empty_like", python + 110_000, python + 120_000)
    program.host("AssembleInputs", python + 200_000 + 5_000, python + 200_000 + 25_000)
    program.host("aten::empty", python + 200_000 + 30_000, python + 200_000 + 35_000)
    found = parts(tmp_path, program)
    # THEN only the outermost conversions in Python are counted
    assert found["scalar_inputs"] == {"operators": 2, "time_us": 30.0}
    assert found["non_contiguous_inputs"] == {"operators": 1, "time_us": 70.0}
    assert found["other_events_us"] == {"AssembleInputs": 20.0}


def test_the_lookup_belongs_to_the_region_only_if_it_found_it(tmp_path: Path) -> None:
    program = SyntheticAscend()
    program.host("TorchDynamo Cache Lookup", 0, 40_000)
    program.host("aten::add", 50_000, 60_000)
    program.call(70_000, lookup=0)
    program.host("check_guards", 80_000, 95_000)
    program.host("TorchDynamo Cache Lookup", 100_000, 120_000)
    found = parts(tmp_path, program)
    assert found["totals"]["framework_us"] == 100.0
    assert found["totals"]["framework_cache_lookup_us"] == 20.0
    assert found["totals"]["framework_guards_us"] == 15.0


def test_missing_parts_are_unknown(tmp_path: Path) -> None:
    # GIVEN a call without region and lookup, without Run, without a graph's run
    program = SyntheticAscend()
    program.host("npu_fx_compiler inference", 0, 500_000)
    found = parts(tmp_path, program)
    assert found["totals"].pop("unknown_us") == found["head_us"] == 500.0
    assert set(found["totals"].values()) - {0.0} == {None}
    assert found["totals"]["framework_us"] is None
    assert found["totals"]["torchair_us"] is None
    program = SyntheticAscend()
    program.host("npu_fx_compiler inference", 0, 500_000)
    program.host("ExecuteGraph", 300_000, 450_000)
    found = parts(tmp_path, program)
    assert found["totals"]["torchair_us"] == 300.0
    assert found["totals"]["torchair_python_us"] is None
    assert found["totals"]["ge_to_first_operator_us"] is None
    # THEN without an operator on the device, the head is the whole call
    assert found["head_us"] == found["per_call"][0]["head_us"] == 500.0
    assert found["totals"]["unknown_us"] == 0.0
    note = found_in(program.trace(tmp_path)).tables()[0].note
    assert "TorchNpuGraphBase::Run is not in the trace" in note
    assert "the caller of the compiled graph is not in the trace" in note


def test_a_captured_graph_is_replayed_without_ge(tmp_path: Path) -> None:
    program = SyntheticAscend()
    program.host("Torch-Compiled Region: 0/0", 0, 600_000)
    program.host("npu_fx_compiler inference", 100_000, 500_000)
    program.host("acl_graph_replay", 180_000, 450_000)
    found = parts(tmp_path, program)
    assert found["totals"]["framework_us"] == 100.0
    assert found["totals"]["torchair_us"] == 80.0
    assert found["totals"]["graph_replay_us"] == 270.0
    assert found["totals"]["unknown_us"] == 50.0
    assert found["totals"]["ge_to_compiler_end_us"] is None
    assert "GE" not in found_in(program.trace(tmp_path)).tables()[0].note


def test_a_further_call_of_a_region_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    program = SyntheticAscend()
    program.host("Torch-Compiled Region: 0/0", 0, 900_000)
    for begin in (100_000, 500_000):
        program.host("npu_fx_compiler inference", begin, begin + 300_000)
        program.host("ExecuteGraph", begin + 50_000, begin + 200_000)
    found = parts(tmp_path, program)
    assert [call["framework_us"] for call in found["per_call"]] == [100.0, 100.0]
    assert found["totals"]["torchair_us"] == 100.0


def test_old_traces_without_regions(tmp_path: Path) -> None:
    program = SyntheticAscend()
    program.call(0, name="")
    found = parts(tmp_path, program)
    assert found["totals"]["framework_us"] == 150.0
    assert found["totals"]["framework_cache_lookup_us"] == 50.0


def test_the_first_operator_is_the_graphs_own(tmp_path: Path) -> None:
    program = SyntheticAscend()
    executed = program.call(1_000_000)
    program.kernel("eager_Mul", executed + 20_000, executed + 90_000, launched=(900_000, 950_000))
    program.kernel(
        "graph_Add", executed + 90_000, executed + 200_000, launched=(executed + 5, executed + 9)
    )
    found = parts(tmp_path, program)
    assert found["totals"]["ge_to_first_operator_us"] == 90.0
    program = SyntheticAscend(level=0)
    executed = program.call(1_000_000)
    program.kernel("graph_Add", executed + 70_000, executed + 200_000)
    found = parts(tmp_path, program)
    assert found["totals"]["ge_to_first_operator_us"] == 70.0
    assert found["per_call"][0]["first_operator_by"] == "time"


def test_an_operator_that_begins_with_the_graph_ends_the_head(tmp_path: Path) -> None:
    program = SyntheticAscend()
    executed = program.call(1_000_000)
    program.kernel("graph_Add", executed, executed + 200_000, launched=(executed, executed + 9))
    found = parts(tmp_path, program)
    assert found["totals"]["ge_to_first_operator_us"] == 0.0
    assert found["head_us"] == found["per_call"][0]["head_us"] == 150 + 280
    assert found["totals"]["unknown_us"] == 0.0


def test_a_graph_that_launches_later_on_another_thread(tmp_path: Path) -> None:
    program = SyntheticAscend()
    executed = program.call(1_000_000)
    later = executed + 300_000
    program.kernel("eager_Mul", executed + 9, executed + 99, launched=(900_000, 950_000))
    program.kernel("graph_Add", later + 50_000, later + 90_000, launched=(later, later + 9), tid=7)
    found = parts(tmp_path, program)
    # THEN it is the first one that was launched since, found by its time
    assert found["totals"]["ge_to_first_operator_us"] == 350.0
    assert found["per_call"][0]["first_operator_by"] == "time"


def test_calls_that_compiled_are_left_out(tmp_path: Path) -> None:
    # GIVEN a first call that compiles for a long time, and three that do not
    program = SyntheticAscend()
    program.call(0, python=90_000_000)
    program.host("TorchNpuGraphBase::Compile", 200_000, 80_000_000)
    for number in range(3):
        program.call(100_000_000 + number * 1_000_000)
    found = parts(tmp_path, program)
    assert (found["calls"], found["calls_that_compiled"], found["counted_calls"]) == (4, 1, 3)
    assert found["totals"]["torchair_python_us"] == 600.0
    assert found["medians"]["torchair_python_us"] == 200.0


def busy(program: SyntheticAscend, calls: int) -> None:
    """Calls while the device is always busy with work launched earlier."""
    for number in range(calls):
        executed = program.call(number * 1_000_000)
        end = number * 1_000_000 + 1_300_000
        program.kernel("graph_Add", end - 1_000_000, end, launched=(executed, executed + 9))


def test_a_head_hidden_by_the_device_is_not_a_finding(tmp_path: Path) -> None:
    program = SyntheticAscend()
    busy(program, 20)
    found = found_in(program.trace(tmp_path))
    assert found.findings() == []
    program = SyntheticAscend()
    for number in range(20):
        executed = program.call(number * 1_000_000, python=400_000)
        at = executed + 100_000
        program.kernel("graph_Add", at, at + 50_000, launched=(executed, executed + 9))
    found = found_in(program.trace(tmp_path))
    (finding,) = found.findings()
    assert finding.severity == "high"
    assert finding.numbers == {
        "calls": 20,
        "head_ns": 14_600_000,
        "idle_ns": 14_600_000,
        "idle_percent": pytest.approx(100 * 14.6 / 19.82),
        "framework_ns": 3_000_000,
        "python_ns": 8_000_000,
        "cpp_ns": 1_600_000,
        "ge_ns": 2_000_000,
    }
    assert finding.evidence[0].figure == 730_000
    assert finding.gain is not None
    assert (finding.gain.time_ns, finding.gain.at_most) == (14_600_000, True)


@pytest.mark.parametrize(
    ("marks", "split", "most"),
    [
        (
            {},
            {"unknown_ns": 12_000_000},
            "time that the trace does not separate. The events that would separate them are not",
        ),
        (
            {"TorchNpuGraphBase::Run": (500_000, 690_000)},
            {"python_ns": 8_000_000, "unknown_ns": 4_000_000},
            "TorchAir's Python. Pass fewer inputs",
        ),
        (
            {"acl_graph_replay": (200_000, 600_000)},
            {"torchair_ns": 2_000_000, "replay_ns": 8_000_000, "unknown_ns": 2_000_000},
            "the replay of captured graphs. Check what is copied",
        ),
        (
            {"TorchNpuGraphBase::Run": (200_000, 690_000), "ExecuteGraph": (250_000, 600_000)},
            {"python_ns": 2_000_000, "cpp_ns": 1_000_000, "ge_ns": 9_000_000},
            "GE. Check",
        ),
    ],
)
def test_parts_sum_to_the_heads(
    marks: dict[str, tuple[int, int]], split: dict[str, int], most: str, tmp_path: Path
) -> None:
    # GIVEN 20 calls of 150 µs of framework and 600 of compiler, in which some marks are missing
    program = SyntheticAscend()
    for at in range(0, 20_000_000, 1_000_000):
        program.host("TorchDynamo Cache Lookup", at, at + 50_000)
        program.host("Torch-Compiled Region: 0/0", at + 50_000, at + 750_000)
        program.host("npu_fx_compiler inference", at + 150_000, at + 750_000)
        for name, (begin, end) in marks.items():
            program.host(name, at + 50_000 + begin, at + 50_000 + end)
    found = found_in(program.trace(tmp_path))
    (finding,) = found.findings()
    assert finding.numbers == {
        "calls": 20,
        "head_ns": 15_000_000,
        "framework_ns": 3_000_000,
        **split,
    }
    assert 3_000_000 + sum(split.values()) == sum(call.head_ns for call in found.counted)
    # THEN the advice is about the largest part
    part, advice = most.split(". ")
    assert part in finding.sentence
    assert finding.action.startswith(advice)


def test_threads_do_not_mix(tmp_path: Path) -> None:
    program = SyntheticAscend()
    program.call(0)
    program.host("TorchNpuGraphBase::Run", 160_000, 170_000, tid=QUEUE)
    program.host("ExecuteGraph", 161_000, 169_000, tid=QUEUE)
    found = parts(tmp_path, program)
    assert found["totals"]["torchair_python_us"] == 200.0


def test_other_traces_are_not_analysed(tmp_path: Path) -> None:
    program = SyntheticAscend()
    program.kernel("Add", 0, 10)
    assert isinstance(head_overhead.analyze(program.trace(tmp_path)), Unavailable)
    assert "head_overhead" in analyze(program.trace(tmp_path)).results


def test_a_trace_of_torch_itself_has_the_expected_events(tmp_path: Path) -> None:
    # GIVEN a compiled function whose backend marks TorchAir's parts and takes known times in them
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch.profiler import ProfilerActivity, profile, record_function

    def backend(module: Any, _: Any) -> Any:
        def run(*args: Any) -> Any:
            with record_function("npu_fx_compiler inference"):
                time.sleep(0.002)
                args[0].t().contiguous()
                with record_function("TorchNpuGraphBase::Run"):
                    time.sleep(0.001)
                    with record_function("ExecuteGraph"):
                        time.sleep(0.003)
                return module.forward(*args)

        return run

    torch.compiler.reset()
    compiled = torch.compile(lambda x: x * 2 + 1, backend=backend)
    x = torch.randn(64, 32)
    compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            compiled(x)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = read_trace(tmp_path / "trace.json")
    found = analyze(trace).results["head_overhead"].to_dict()
    assert found["counted_calls"] == 3
    for call in found["per_call"]:
        assert call["region"].startswith("Torch-Compiled Region")
        assert 0 < call["framework_cache_lookup_us"] < call["framework_us"]
        assert call["torchair_python_us"] > 2000
        assert call["torchair_cpp_us"] > 1000
        assert call["ge_execute_us"] > 3000
        assert call["head_us"] == pytest.approx(
            call["framework_us"] + call["torchair_us"] + call["ge_to_compiler_end_us"]
        )
    assert found["non_contiguous_inputs"]["operators"] == 3


def test_the_verdict_blames_the_host_for_heads_whose_work_has_no_launch(tmp_path: Path) -> None:
    # GIVEN two calls of compiled graphs, each with an operator 4.2 ms after its start, of which no
    # launch is in the trace
    entries: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "Ascend Hardware"}}
    ]
    for begin in (1_000, 11_000):
        for name, at, length in (
            ("Torch-Compiled Region: 0/0", 0, 6_000),
            ("npu_fx_compiler inference", 500, 5_000),
            ("TorchNpuGraphBase::Run", 1_500, 3_500),
            ("ExecuteGraph", 2_000, 2_500),
        ):
            place = {"pid": 1, "tid": 1, "cat": "cpu_op"}
            entries.append({"ph": "X", "name": name, "ts": begin + at, "dur": length, **place})
        work = {"Task Type": "AI_VECTOR_CORE", "Stream Id": 3, "Task Id": begin}
        entries.append(
            {"ph": "X", "name": "SplitV", "ts": begin + 4_200, "dur": 300, "pid": 2, "tid": 3,
             "args": work}
        )  # fmt: skip
    path = tmp_path / "heads.json"
    path.write_text(json.dumps(entries))
    analysis = analyze(read_trace(path))
    (head,) = [each for each in analysis.findings() if each.code == "ascend.head_overhead"]
    assert head.numbers["idle_ns"] == 2 * 4_200_000
    written = analysis.to_dict()
    assert written["verdict"]["verdict"] == "host-bound"
    assert written["verdict"]["parts_us"]["host_work"] == 2 * 4_200
    assert [each.code for each in analysis.findings()].count("idle.host_work") == 0
