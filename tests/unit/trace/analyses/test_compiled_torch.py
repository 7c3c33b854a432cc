"""torch.compile in traces written by torch itself: real programs with known faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled_programs import compiled_of

from stagespan.trace import read_trace
from stagespan.trace.analyses.compiled import Compiled

torch = pytest.importorskip("torch")


pytestmark = pytest.mark.usefixtures("compiler")


def profiled(folder: Path, function: Callable[[], object], with_stack: bool = False) -> Compiled:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, with_stack=with_stack) as profile:
        function()
    path = folder / "torch.json"
    profile.export_chrome_trace(str(path))
    return compiled_of(read_trace(path))


def with_breaks(value: Any) -> Any:
    value = value.sin()
    torch._dynamo.graph_break()
    value = value.cos()
    if value.sum().item() > 1e9:
        value = value + 1
    return value.tanh()


def test_graph_breaks(tmp_path: Path) -> None:
    function = torch.compile(with_breaks, backend="aot_eager")
    value = torch.ones(8, requires_grad=True)
    function(value)
    found = profiled(tmp_path, lambda: [function(value).sum().backward() for _ in range(3)])
    assert found.breaks is not None
    assert [each.count for each in found.breaks] == [3, 3]
    first = next(each for each in found.breaks if not each.operators)
    second = next(each for each in found.breaks if each.operators)
    assert first.after == second.before
    assert second.operators == {"aten::item": 3}
    assert found.frames.calls == 3
    # On a busy machine the graphs, which run aten operators, may be long enough for a finding too.
    finding = found.findings()[0]
    assert finding.code == "compiled.graph_break"
    assert (finding.numbers["breaks"], finding.numbers["calls"]) == (6, 3)
    # And each graph's backward pass belongs to its frame.
    assert (found.frames.backward_graphs, found.frames.linked) == (9, 9)
    assert [frame.backward_calls for frame in found.frames.frames] == [3, 3, 3]


def test_a_backend_without_graphs_does_not_show_what_is_between_them(tmp_path: Path) -> None:
    function = torch.compile(with_breaks, backend="eager")
    value = torch.ones(8)
    function(value)
    found = profiled(tmp_path, lambda: [function(value) for _ in range(3)])
    assert [(b.count, b.time_ns, b.operators) for b in found.breaks or []] == [(3, None, None)] * 2
    (finding,) = found.findings()
    assert finding.numbers == {"breaks": 6, "calls": 3}


def test_lines_of_graph_breaks(tmp_path: Path) -> None:
    function = torch.compile(with_breaks, backend="aot_eager")
    value = torch.ones(8, requires_grad=True)
    function(value)
    found = profiled(tmp_path, lambda: function(value), with_stack=True)
    first = with_breaks.__code__.co_firstlineno
    lines = [row["line"] for row in found.to_dict()["graph_breaks"]]
    assert [line.rpartition("/")[2] for line in lines] == [
        f"test_compiled_torch.py({first + offset}): with_breaks" for offset in (2, 4)
    ]


def test_breaks_are_as_many_as_torch_counts(tmp_path: Path) -> None:
    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(4)])

        def forward(self, value: Any) -> Any:
            value = self.layers[0](value)
            torch._dynamo.graph_break()
            value = self.layers[1](value)
            torch._dynamo.graph_break()
            value = self.layers[2](value)
            torch._dynamo.graph_break()
            return self.layers[3](value)

    torch._dynamo.utils.counters.clear()
    function = torch.compile(Model(), backend="aot_eager")
    value = torch.ones(8)
    function(value)
    counted = sum(torch._dynamo.utils.counters["graph_break"].values())
    found = profiled(tmp_path, lambda: function(value))
    assert found.breaks is not None
    assert sum(each.count for each in found.breaks) == counted == 3


def test_recompilations_in_the_window(tmp_path: Path) -> None:
    function = torch.compile(lambda x, n: (x * n).relu(), backend="eager", dynamic=False)
    found = profiled(tmp_path, lambda: [function(torch.ones(4), n) for n in (2, 3, 4)])
    assert found.compiling is not None
    assert [each.variant for each in found.compiling.compilations] == [0, 1, 2]
    (row,) = found.to_dict()["recompilations"]
    assert (row["times"], row["in_window"], len(row["variants_run"])) == (2, 2, 3)
    again = found.findings()[0]
    assert (again.code, again.numbers["compilations"]) == ("compiled.recompiled", 2)


def test_the_recompile_limit(tmp_path: Path) -> None:
    function = torch.compile(lambda x, n: (x * n).relu(), backend="eager", dynamic=False)

    def calls() -> None:
        for n in range(2, 8):
            function(torch.ones(4), n)

    with torch._dynamo.config.patch({"recompile_limit": 3}):
        first = profiled(tmp_path, calls)
        later = profiled(tmp_path, calls)
    # THEN two recompilations are counted, but not the refused one
    (row,) = first.to_dict()["recompilations"]
    assert (row["in_window"], row["before_window"]) == (2, 0)
    assert first.eager_calls == 3
    # AND of the later calls three ran eagerly
    assert later.to_dict()["eager_calls"] == 3
    for found in (first, later):
        (limit,) = (f for f in found.findings() if f.code == "compiled.recompile_limit")
        assert limit.severity == "medium"
        assert limit.numbers["calls"] == 6


def test_recompilations_before_the_window(tmp_path: Path) -> None:
    function = torch.compile(lambda x: x.sin(), backend="eager", dynamic=False)
    values = [torch.ones(4), torch.ones(5)]
    for value in values:
        function(value)
    found = profiled(tmp_path, lambda: [function(value) for value in values])
    (finding,) = found.findings()
    assert (finding.code, finding.numbers["variants"]) == ("compiled.variants", 2)


@pytest.mark.full
def test_inductor_compiles_and_runs(tmp_path: Path) -> None:
    function = torch.compile(lambda x: (x @ x).sin().relu())
    value = torch.ones(16, 16)
    with torch._inductor.config.patch(force_disable_caches=True):
        first = profiled(tmp_path, lambda: function(value))
    compiling = first.compiling
    assert compiling is not None
    assert {"dynamo", "autograd", "inductor", "kernels", "guards"} <= set(compiling.phases)
    assert sum(compiling.phases.values()) == compiling.time_ns
    assert compiling.time_ns > first.window_ns // 2
    (compilation,) = compiling.compilations
    (row,) = first.to_dict()["compile_time"]["compilations"]
    assert (compilation.variant, row["ran"]) == (0, True)
    assert [finding.severity for finding in first.findings()] == ["high"]
    later = profiled(tmp_path, lambda: [function(value) for _ in range(2)])
    # THEN each is one region and one graph, with the product left to a library, and no finding
    assert later.findings() == []
    assert later.breaks == []
    (frame,) = later.frames.frames
    assert (frame.calls, later.frames.forward_graphs) == (2, 2)
    assert {(work.of, work.name) for work in later.work} == {
        ("extern", "aten::mm"),
        ("inductor_cpp", "the graphs' own time"),
    }
