"""Device graphs: operators, modules and shapes of their kernels from traces of their capture."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import checked, fits, run
from hypothesis import given
from hypothesis import strategies as st
from planted import Program

from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import graph_captures, layers, rates
from stagespan.trace.analyses.graph_captures import Captures
from stagespan.trace.analyses.kernel_rows import KernelRows, kernel_rows
from stagespan.trace.analyses.layers import Layers
from stagespan.trace.analyses.rates import Rates
from stagespan.trace.analysis import analyze
from stagespan.trace.derived.captures import CapturedWork, captured_work
from stagespan.trace.json_schema import json_schema
from stagespan.trace.read.joining import joined
from stagespan.trace.read.view import TraceView

BF16 = "c10::BFloat16"
MI300X = {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992}


@dataclass(frozen=True)
class Op:
    """One call of an operator: what it launches, its inputs, and the module around it."""

    name: str
    kernel: str
    dims: list[list[int]]
    module: str = ""
    us: int = 20


def model(layers: int, batch: int = 32, kernel: str = "Cijk_A") -> list[Op]:
    """The operators of some equal layers."""
    found = []
    for layer in range(layers):
        block = f"nn.Module: Block_{layer}"
        found += [
            Op("aten::rms_norm", "norm_kernel", [[batch, 64]], block, 5),
            Op("aten::mm", kernel, [[batch, 64], [64, 256]], block, 40),
            Op("aten::silu", "elementwise_kernel_silu", [[batch, 256]], block, 6),
            Op("aten::mm", "Cijk_B", [[batch, 256], [256, 64]], block, 50),
        ]
    return found


@dataclass
class Recorded:
    """Builds a trace of captures and replays."""

    named: bool = True
    """Whether calls have the names of their kernels, as on ROCm."""
    program: Program = field(default_factory=Program)
    correlation: int = 1_000_000

    def call(self, name: str, **args: Any) -> None:
        self.correlation += 1
        begin, self.program.now = self.program.now, self.program.now + 5
        self.program.event(
            name, "cuda_runtime", begin, begin + 5, correlation=self.correlation, **args
        )

    def capture(self, ops: list[Op], around: str = "", marks: bool = True) -> Recorded:
        """Capture a graph: launches without work on the device."""
        program = self.program
        begin = program.now
        program.work(1)
        if marks:
            self.call("hipStreamBeginCapture")
        self._operators(ops, captured=True)
        if marks:
            self.call("hipStreamEndCapture")
        if around:
            program.event(around, "user_annotation", begin, program.now + 1)
        program.work(10)
        return self

    def eager(self, ops: list[Op], grid: list[int] | None = None) -> Recorded:
        """Run the operators directly."""
        self._operators(ops, captured=False, grid=grid)
        self.program.wait()
        return self

    def _operators(self, ops: list[Op], captured: bool, grid: list[int] | None = None) -> None:
        program = self.program
        modules: dict[str, int] = {}
        for op in ops:
            begin = program.now
            modules.setdefault(op.module, begin)
            program.work(2)
            args = {"kernel": op.kernel} if self.named else {}
            if captured:
                self.call("hipLaunchKernel", **args)
            else:
                program.launch(op.kernel, op.us)
                if grid is not None:
                    program.events[-1]["args"]["grid"] = grid
            types = [BF16] * len(op.dims)
            program.event(
                op.name,
                "cpu_op",
                begin,
                program.now,
                **{"Input Dims": op.dims, "Input type": types},
            )
            program.work(1)
            if op.module and op is [each for each in ops if each.module == op.module][-1]:
                program.event(op.module, "python_function", modules[op.module], program.now)

    def replay(
        self,
        ops: list[Op],
        around: str = "",
        order: Iterable[int] | None = None,
        grid: list[int] | None = None,
    ) -> Recorded:
        """Launch a graph; `order` is the order of its nodes on the device."""
        program = self.program
        begin = program.now
        program.work(10)
        self.call("hipGraphLaunch")
        at = max(program.now + 3, program.free.get(7, 0))
        for node in range(len(ops)) if order is None else order:
            op = ops[node]
            args: dict[str, Any] = {"device": 0, "stream": 7, "correlation": self.correlation}
            if order is not None:
                args["graph node id"] = 100 + node
            if grid is not None:
                args["grid"] = grid
            program.event(op.kernel, "kernel", at, at + op.us, **args)
            at += op.us + 1
        program.free[7] = at
        program.wait("hipStreamSynchronize")
        if around:
            program.event(around, "user_annotation", begin, program.now)
        return self

    def trace(self, folder: Path, name: str = "trace.json") -> Trace:
        path = folder / name
        content = {"traceEvents": self.program.events, "deviceProperties": [MI300X]}
        path.write_text(json.dumps(content))
        return read_trace(path)


def view(trace: Trace, *others: Trace) -> TraceView:
    found = TraceView.of(trace)
    return found.with_capture_traces(others) if others else found


def work_of(trace: Trace) -> CapturedWork:
    found = captured_work(trace)
    assert found is not None
    return found


def report_of(trace: Trace) -> Captures:
    found = graph_captures.analyze(trace)
    assert isinstance(found, Captures)
    fits(found.to_dict(), json_schema()["properties"]["captures"])
    return found


def operators_of_graphs(trace: Trace) -> Counter[tuple[str, str]]:
    """Count the operators and shapes of a trace's device events."""
    found = kernel_rows(trace)
    assert isinstance(found, KernelRows)
    names = [found.hosts.names[code] if code >= 0 else "" for code in found.operator.tolist()]
    shapes = [found.shapes[code] if code >= 0 else "" for code in found.shape.tolist()]
    return Counter(zip(names, shapes, strict=True))


def rates_of(trace: Trace) -> Rates:
    return checked(rates.analyze(trace), Rates)


@pytest.mark.parametrize("named", [True, False])
def test_replays_get_the_operators_and_shapes_of_their_capture(tmp_path: Path, named: bool) -> None:
    # GIVEN a graph of three layers that was launched four times, and a trace of its capture
    ops = model(3)
    replay = Recorded()
    for _ in range(4):
        replay.replay(ops)
    capture = Recorded(named=named).capture(ops, "capture_32_FULL").trace(tmp_path, "capture.json")
    trace = view(replay.trace(tmp_path), capture)
    report = report_of(trace)
    assert (report.launches, report.device_events, report.matched) == (4, 48, 48)
    assert report.with_shapes == 48
    assert report.graphs[0].source == "capture_32_FULL"
    assert operators_of_graphs(trace) == {
        ("aten::rms_norm", "32x64"): 12,
        ("aten::mm", "32x64, 64x256"): 12,
        ("aten::silu", "32x256"): 12,
        ("aten::mm", "32x256, 256x64"): 12,
    }
    found = {(each.operator, each.shape): each for each in rates_of(trace).by_shape}
    product = found["aten::mm", "32x64, 64x256"]
    flops = 2 * 32 * 64 * 256
    assert (product.calls, product.flops) == (12, 12 * flops)
    assert product.tflop_s == pytest.approx(flops / 40e-6 / 1e12)
    # THEN modules have the time of their kernels, per call that of one launch
    result = checked(layers.analyze(trace), Layers)
    block = result.longest[0]
    assert (block.path, block.instances, block.calls) == (("Block",), 3, 12)
    assert block.device_ns == 12 * 101_000
    assert block.call_ns.median == 101_000
    by_layer = rates_of(trace).by_layer
    assert by_layer is not None
    assert [(each.name, each.calls) for each in by_layer] == [("Block", 48)]


def test_without_a_capture_the_operators_are_unknown(tmp_path: Path) -> None:
    trace = view(Recorded().replay(model(3)).trace(tmp_path))
    assert operators_of_graphs(trace) == {("hipGraphLaunch", ""): 12}
    report = report_of(trace)
    assert (report.matched, report.graphs[0].source) == (0, None)
    assert report.line() == (
        "the operators of 12 device events of 1 graph launch are unknown: --capture reads a trace"
        " that was made while the graphs were captured"
    )


def test_the_capture_of_another_model_is_refused(tmp_path: Path) -> None:
    trace = Recorded().replay(model(3)).trace(tmp_path)
    other = Recorded().capture(model(3, kernel="Cijk_C")).trace(tmp_path, "other.json")
    longer = Recorded(named=False).capture(model(4)).trace(tmp_path, "longer.json")
    for capture, closest in ((other, 75), (longer, 0)):
        report = report_of(view(trace, capture))
        # THEN nothing is taken from them, and one sentence says so
        assert report.matched == 0
        assert report.line().endswith(
            f"the launches in the capture trace are at most {closest} % the same (at least 90 % are"
            " necessary), so it is of another model, size or version"
        )


def test_kernels_without_names_must_be_of_kinds_that_operators_launch(tmp_path: Path) -> None:
    ops = model(3)
    shifted = [*ops[1:], ops[0]]
    trace = Recorded().replay(ops).trace(tmp_path)
    capture = Recorded(named=False).capture(shifted).trace(tmp_path, "capture.json")
    assert report_of(view(trace, capture)).matched == 0


def test_a_size_is_chosen_by_the_annotations(tmp_path: Path) -> None:
    capture = Recorded()
    for size in (64, 32, 16):
        capture.capture(model(2, size), f"capture_{size}_FULL")
    replay = Recorded()
    for requests in (12, 32, 12):
        replay.replay(model(2), f"execute_{requests}_generation")
    trace = view(replay.trace(tmp_path), capture.trace(tmp_path, "capture.json"))
    # THEN each launch has the shapes of the smallest size that is large enough
    found = operators_of_graphs(trace)
    assert found["aten::silu", "16x256"] == 4
    assert found["aten::silu", "32x256"] == 2
    assert report_of(trace).with_shapes == 24


@pytest.mark.parametrize(
    ("around", "size"),
    [
        ("execute_12_context_0(sq0sk0)_generation_12(sq12sk900)", 16),
        ("execute_context_1(20)_generation_3(3)", 32),
        ("step[DECODE bs=30]", 32),
        ("step[EXTEND bs=1 toks=17]", 32),
        ("batch 16", 16),
        # This can be the number of the step.
        ("decode step 12", None),
    ],
)
def test_sizes_in_annotations_of_servers(tmp_path: Path, around: str, size: int | None) -> None:
    capture = Recorded()
    for each in (32, 16):
        capture.capture(model(1, each), f"capture_{each}_FULL")
    replay = Recorded().replay(model(1), around)
    trace = view(replay.trace(tmp_path), capture.trace(tmp_path, "capture.json"))
    shape = "" if size is None else f"{size}x256"
    assert operators_of_graphs(trace)["aten::silu", shape] == 1


def test_nested_calls_and_host_functions_are_no_launches_of_kernels(tmp_path: Path) -> None:
    recorded = Recorded(named=False).capture(model(2))
    events = recorded.program.events
    for each in [each for each in events if each["name"] == "hipLaunchKernel"]:
        inner = {**each, "name": "cuLaunchKernel", "cat": "cuda_driver", "ts": each["ts"] + 1}
        args = {"correlation": each["args"]["correlation"] + 10_000}
        events.append({**inner, "dur": 3, "args": args})
        host = {**each, "name": "cudaLaunchHostFunc", "ts": each["ts"] + 5, "dur": 0.5}
        events.append({**host, "args": {"correlation": args["correlation"] + 10_000}})
    capture = recorded.trace(tmp_path, "capture.json")
    trace = view(Recorded().replay(model(2)).trace(tmp_path), capture)
    assert operators_of_graphs(trace)["aten::silu", "32x256"] == 2


def test_shapes_of_an_unknown_size_stay_unknown(tmp_path: Path) -> None:
    capture = Recorded().capture(model(2, 32)).capture(model(2, 16))
    trace = view(
        Recorded().replay(model(2)).trace(tmp_path), capture.trace(tmp_path, "capture.json")
    )
    assert operators_of_graphs(trace)["aten::silu", ""] == 2
    report = report_of(trace)
    assert (report.matched, report.with_shapes) == (8, 0)
    assert "The shapes of 8 are unknown, because captures of several sizes fit" in report.line()
    assert rates_of(trace).by_shape == []
    small = Recorded().capture(model(2, 16), "capture_16").trace(tmp_path, "small.json")
    replay = Recorded().replay(model(2), "execute_32").trace(tmp_path, "large.json")
    assert report_of(view(replay, small)).with_shapes == 0


def test_equal_graphs_are_matched_in_order(tmp_path: Path) -> None:
    ops = model(3)
    parts = [ops[at : at + 4] for at in range(0, 12, 4)]
    capture, replay = Recorded(), Recorded()
    for part in parts:
        capture.capture(part, "capture_32_PIECEWISE")
    for _ in range(2):
        for part in parts:
            replay.replay(part, "execute_32")
    trace = view(replay.trace(tmp_path), capture.trace(tmp_path, "capture.json"))
    found = work_of(trace)
    assert found.has_operator.all()
    assert found.with_shapes.all()
    result = checked(layers.analyze(trace), Layers)
    assert (result.longest[0].instances, result.longest[0].calls) == (3, 6)
    assert result.longest[0].call_ns.max == 101_000


def test_nodes_are_in_the_order_of_their_ids(tmp_path: Path) -> None:
    ops = model(3)
    order = [1, 0, *range(2, 12)][::-1]
    trace = Recorded().replay(ops, order=order).trace(tmp_path)
    capture = Recorded(named=False).capture(ops).trace(tmp_path, "capture.json")
    found = operators_of_graphs(view(trace, capture))
    assert found["aten::mm", "32x64, 64x256"] == 3
    rows = kernel_rows(view(trace, capture))
    assert isinstance(rows, KernelRows)
    names = zip(rows.name.tolist(), rows.operator.tolist(), strict=True)
    pairs = {(rows.trace.names[a], rows.hosts.names[b]) for a, b in names}
    assert pairs == {(op.kernel, op.name) for op in ops}


def test_streams_of_a_graph_may_run_in_another_order(tmp_path: Path) -> None:
    ops = model(4)
    capture = Recorded().capture(ops).trace(tmp_path, "capture.json")
    mixed = [*ops[::2], *ops[1::2]]
    found = work_of(view(Recorded().replay(mixed).trace(tmp_path), capture))
    assert found.has_operator.all()


@pytest.mark.parametrize("marks", [True, False])
def test_the_capture_may_be_in_the_same_trace(tmp_path: Path, marks: bool) -> None:
    ops = model(2)
    recorded = Recorded().capture(ops, marks=marks).replay(ops).replay(ops)
    trace = view(recorded.trace(tmp_path))
    assert work_of(trace).has_operator.sum() == 16
    assert report_of(trace).graphs[0].source == "a capture"
    assert operators_of_graphs(trace)["aten::silu", "32x256"] == 4


def test_a_warm_up_run_may_be_in_the_same_trace(tmp_path: Path) -> None:
    # GIVEN a run of the same operators without a graph, twice
    ops = model(2)
    grid, other = [4, 1, 1], [8, 1, 1]
    recorded = Recorded(named=False).eager(ops, grid).eager(ops, grid).replay(ops, grid=grid)
    trace = view(recorded.trace(tmp_path))
    assert report_of(trace).graphs[0].source == "work outside of graphs"
    assert operators_of_graphs(trace)["aten::silu", "32x256"] == 6
    # THEN not if the grids of the kernels differ, as those of another batch size do
    changed = Recorded(named=False).eager(ops, grid).replay(ops, grid=other)
    assert report_of(view(changed.trace(tmp_path, "changed.json"))).matched == 0


def test_figures_about_time_do_not_change(tmp_path: Path) -> None:
    ops = model(2)
    trace = Recorded().replay(ops, "execute_32").replay(ops, "execute_32").trace(tmp_path)
    capture = Recorded().capture(ops, "capture_32").trace(tmp_path, "capture.json")
    without, with_it = analyze(trace).to_dict(), analyze(trace, captures=[capture]).to_dict()
    for name in ("trace", "device_use", "idle", "launches", "host", "steps", "critical_path"):
        assert without[name] == with_it[name]


@given(
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=30),
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=30),
)
def test_matched_kernels_have_the_same_names(
    tmp_path_factory: pytest.TempPathFactory, first: list[str], second: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("captures")
    graph, captured = ([Op(f"op::{k}", k, [[1]]) for k in names] for names in (first, second))
    trace = view(
        Recorded().replay([*graph, *graph]).trace(folder),
        Recorded().capture([*captured, *captured]).trace(folder, "capture.json"),
    )
    found = work_of(trace)
    hosts = found.operators
    rows = np.flatnonzero(trace.rows_of(["kernel"]))
    assert len(set(found.call[found.has_operator].tolist())) == found.has_operator.sum()
    for row, operator in zip(rows.tolist(), found.operator.tolist(), strict=True):
        if operator >= 0:
            name = hosts.names[hosts.events.name[operator]]
            assert name == f"op::{trace.names[trace.events.name[row]]}"
    if first == second:
        assert found.has_operator.all()


def _events_of(trace: Trace) -> list[tuple[Any, ...]]:
    """Name, category, duration and arguments of each event."""
    arguments: list[dict[str, Any]] = [{} for _ in range(len(trace.events))]
    for key in ("Input Dims", "correlation", "grid", "kernel", "mixed", "stream"):
        found = trace.argument(key)
        for at, row in enumerate(found.rows.tolist() if found else ()):
            assert found is not None
            arguments[row][key] = (
                found.texts[found.codes[at]] if found.numbers is None else str(found.numbers[at])
            )
    events = trace.events
    columns = (events.name.tolist(), events.category.tolist(), events.dur_ns.tolist(), arguments)
    return [
        (trace.names[name], trace.categories[category], dur, args)
        for name, category, dur, args in zip(*columns, strict=True)
    ]


def test_joined_traces_have_the_events_and_arguments_of_all(tmp_path: Path) -> None:
    first = Recorded().replay(model(1))
    first.program.event("a", "cpu_op", 0, 5, mixed=3, grid="none")
    second = Recorded().capture(model(1, 5)).eager(model(1), [1, 2, 3])
    second.program.event("b", "new", 0, 5, mixed="three")
    second.program.event("c", "new", 0, 5, mixed="3")
    traces = [first.trace(tmp_path, "1.json"), second.trace(tmp_path, "2.json")]
    both = joined(traces[0], [traces[1], traces[1]])
    expected = [each for trace in (*traces, traces[1]) for each in _events_of(trace)]
    assert _events_of(both) == expected


# --- real traces ---


@pytest.mark.parametrize("name", ["rocm_mi300_vllm_piecewise", "rocm_mi300_sglang_decode"])
def test_graphs_of_real_traces_match_a_capture_made_of_their_kernels(
    traces: Path, tmp_path: Path, name: str
) -> None:
    path = traces / f"{name}.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    launched = {
        each["args"]["correlation"]: each
        for each in events
        if each.get("cat") == "cuda_runtime" and "GraphLaunch" in each["name"]
    }
    capture = Recorded()
    count = 0
    for number in sorted(launched, key=lambda each: float(launched[each]["ts"])):
        work = [
            each
            for each in events
            if each.get("cat") == "kernel" and each["args"].get("correlation") == number
        ]
        work.sort(key=lambda each: float(each["ts"]))
        count += len(work)
        ops = [Op(f"op::{each['name']}", each["name"], [[7, 9]]) for each in work]
        capture.capture(ops)
    found = work_of(view(read_trace(path), capture.trace(tmp_path)))
    assert count == found.of_graph.sum() == found.has_operator.sum() == found.with_shapes.sum()
    trace = view(read_trace(path))
    assert work_of(trace).has_operator.sum() == 0


def test_the_capture_of_another_real_model_is_refused(traces: Path) -> None:
    trace = read_trace(traces / "rocm_mi300_sglang_decode.json.gz")
    other = read_trace(traces / "rocm_mi300_vllm_piecewise.json.gz")
    assert report_of(view(trace, other)).matched == 0


# --- the command ---


def test_the_command_reads_captures(tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    Recorded().replay(model(2)).trace(tmp_path)
    Recorded().capture(model(2)).trace(folder, "bs_32.json")
    Recorded().capture(model(3)).trace(folder, "bs_16.json")
    file, trace = folder / "bs_32.json", tmp_path / "trace.json"
    for capture in (["--capture", file], ["--capture", folder], ["--capture", file] * 2):
        code, out, _ = run(trace, *capture)
        assert code == 0
        assert "the operators of 100 % of 8 device events of 1 graph launch" in " ".join(
            out.split()
        )


def test_captures_that_cannot_be_used_are_refused_in_a_sentence(tmp_path: Path) -> None:
    Recorded().replay(model(2)).trace(tmp_path)
    trace, missing = tmp_path / "trace.json", tmp_path / "missing.json"
    code, _, err = run(trace, "--capture", missing)
    assert (code, "missing.json" in err) == (2, True)
    code, _, err = run(trace, "--against", trace, "--capture", trace)
    assert (code, "omit either" in err) == (2, True)
