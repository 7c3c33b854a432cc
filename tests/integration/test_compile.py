"""torch.compile over decorated functions and over code with contexts inside: no graph breaks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import stagespan  # noqa: E402
from stagespan import _core  # noqa: E402

INTERCEPTS_CALLS = sys.version_info[:2] != (3, 11)


def runs(stage: str) -> int:
    stages = _core.snapshot().stages()
    return stages[stage].count if stage in stages else 0


class Compiled:
    """A function compiled as one graph, and how often it was compiled; a graph break raises."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        from torch._dynamo.testing import CompileCounter

        self._counter = CompileCounter()
        self._call = torch.compile(function, backend=self._counter, fullgraph=True, **options)

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    @property
    def count(self) -> int:
        return int(self._counter.frame_count)


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@_core.ProfilingContext4Debug("compiled function")
def scale(x: Any, factor: int = 2, *, shift: int = 0) -> Any:
    return x * factor + shift


class BaseStage(torch.nn.Module):  # type: ignore[misc,name-defined]
    def helper(self, x: Any) -> Any:
        return x + 1


class Stage(BaseStage):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    @_core.ProfilingContext4Debug("compiled forward")
    def forward(self, x: Any) -> Any:
        return self.helper(x) * self.weight

    @_core.ProfilingContext4Debug("compiled method")
    def helper(self, x: Any) -> Any:
        return super().helper(x) * 2


@pytest.mark.parametrize("on", [False, True])
def test_a_decorated_function_is_one_graph(on: bool) -> None:
    stagespan.set_debug(on)
    before = runs("compiled function")

    compiled = Compiled(scale)
    result = [compiled(torch.ones(2)), compiled(torch.ones(2))]

    assert [value.tolist() for value in result] == [[2.0, 2.0]] * 2
    assert compiled.count == 1
    assert runs("compiled function") - before == (2 if on else 0)


def test_switching_costs_at_most_one_compilation() -> None:
    # GIVEN a compiled caller of a function under a debug context
    compiled = Compiled(lambda x: scale(x, 3, shift=1) + 1)
    counts = []

    for on in (False, True, False, True, False, True):
        stagespan.set_debug(on)
        assert compiled(torch.ones(2)).tolist() == [5.0, 5.0]
        counts.append(compiled.count)

    # THEN it is compiled once more if the code is replaced, and otherwise not
    assert counts == ([1, 1, 1, 1, 1, 1] if INTERCEPTS_CALLS else [1, 2, 2, 2, 2, 2])


def test_switching_with_a_compiled_function_itself() -> None:
    compiled = Compiled(scale)
    counts = []

    for on in (False, True, False, True):
        stagespan.set_debug(on)
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
        counts.append(compiled.count)

    assert counts == [1, 1, 1, 1]


def test_other_functions_and_imports_cause_no_compilation() -> None:
    stagespan.set_debug(True)
    compiled = Compiled(lambda x: scale(x) + 1)
    compiled(torch.ones(2))

    for number in range(5):
        _core.ProfilingContext4Debug(f"other {number}")(lambda: 1)()
    sys.modules["stagespan_test_module"] = type(sys)("stagespan_test_module")
    del sys.modules["stagespan_test_module"]
    compiled(torch.ones(2))

    assert compiled.count == 1


def test_eager_and_compiled_calls_of_one_function() -> None:
    stagespan.set_debug(True)
    before = runs("compiled function")
    compiled = Compiled(scale)

    compiled(torch.ones(2))
    scale(torch.ones(2))
    compiled(torch.ones(2))

    assert runs("compiled function") - before == 3


@pytest.mark.parametrize("on", [False, True])
def test_what_runs_around_a_stage_is_not_compiled(on: bool) -> None:
    # GIVEN a decorated function between two graphs, and a compiler that records what it compiles
    stagespan.set_debug(on)
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    @_core.ProfilingContext4Debug("between graphs")
    def between(x: Any) -> Any:
        torch._dynamo.graph_break()
        return x * 2

    result = torch.compile(lambda x: between(x + 1) + 1, backend=backend)(torch.ones(2))

    assert result.tolist() == [5.0, 5.0]
    assert len(compiled) == 3


@pytest.mark.parametrize("on", [False, True])
def test_modules_with_decorated_methods(on: bool) -> None:
    stagespan.set_debug(on)
    stage = Stage()

    compiled = Compiled(stage)

    assert compiled(torch.ones(3)).tolist() == [4.0, 4.0, 4.0]
    assert compiled.count == 1


@pytest.mark.parametrize("on", [False, True])
def test_closures_and_generators(on: bool) -> None:
    # GIVEN decorated inner functions: a closure, and a generator
    stagespan.set_debug(on)

    def make(k: Any) -> Callable[[Any], Any]:
        @_core.ProfilingContext4Debug("compiled closure")
        def inner(x: Any) -> Any:
            return x * k

        @_core.ProfilingContext4Debug("compiled generator")
        def steps(x: Any, count: int) -> Iterator[Any]:
            for step in range(count):
                yield inner(x) + step

        return lambda x: sum(steps(x, 3))

    compiled = Compiled(make(torch.full((2,), 3.0)))

    assert compiled(torch.ones(2)).tolist() == [12.0, 12.0]
    assert compiled.count == 1


@pytest.mark.parametrize("on", [False, True])
def test_dynamic_shapes_stay_dynamic(on: bool) -> None:
    stagespan.set_debug(on)
    compiled = Compiled(lambda x: scale(x) + x.shape[0], dynamic=True)

    results = [compiled(torch.ones(length))[0].item() for length in (3, 5, 7, 11)]

    assert results == [5.0, 7.0, 9.0, 13.0]
    assert compiled.count == 1


@pytest.mark.parametrize("on", [False, True])
def test_telefusers_order_of_decorators(on: bool) -> None:
    # GIVEN a context above torch.inference_mode
    stagespan.set_debug(on)

    class Decoder:
        @_core.ProfilingContext4Debug("vae_decode")
        @torch.inference_mode()
        def process(self, latents: Any) -> Any:
            return latents * 2

    decoder = Decoder()
    before = runs("vae_decode")

    result = decoder.process(torch.ones(2, requires_grad=True))

    # THEN it is timed while debug mode is on, and is in inference mode
    assert result.is_inference()
    assert runs("vae_decode") - before == (1 if on else 0)
    compiled = Compiled(lambda x: decoder.process(x) * 1)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert compiled.count == 1


def nested_contexts(x: Any) -> Any:
    with _core.span("outer in graph") as outer:
        outer.add(tokens=3)
        with _core.ProfilingContext("inner in graph", reset_peak_memory=False) as inner:
            inner.add(tokens=x.shape[0], total=2.5)
            y = x + 1
        with _core.ProfilingContext4Debug("debug in graph") as third:
            third.inputs(x=x)
            y = y * 2
            third.output(y)
    return y


def contexts_in_a_loop(x: Any) -> Any:
    for step in range(3):
        with _core.span(f"step {step}"):
            x = x + 1
    return x * 1


def context_around_an_error(x: Any) -> Any:
    try:
        with _core.span("error in graph"):
            raise ValueError("expected")
    except ValueError:
        return x * 2 + 2


def context_in_inference_mode(x: Any) -> Any:
    with _core.span("inference in graph"), torch.inference_mode():
        return (x + 1) * 2


def context_that_is_kept(x: Any) -> Any:
    kept = _core.span("kept in graph")
    with kept:
        x = x + 1
    with kept:
        return x * 2


def tokens_and_records(x: Any) -> Any:
    token = _core.begin("token in graph")
    _core.record("record in graph", 1, 2, error=True)
    y = (x + 1) * 2
    _core.end(token, error=False)
    return y


def context_in_a_request(x: Any) -> Any:
    with stagespan.request("in graph", user="a"), stagespan.request(), _core.span("in request"):
        return (x + 1) * 2


def context_as_a_decorator(x: Any) -> Any:
    @_core.span("decorator in graph")
    def inner(y: Any) -> Any:
        return y + 1

    return inner(x) * 2


def context_in_a_generator(x: Any) -> Any:
    def inner() -> Iterator[Any]:
        with _core.span("generator in graph"):
            yield x + 1
            yield x + 1

    return sum(inner())


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (nested_contexts, 4.0),
        (contexts_in_a_loop, 4.0),
        (context_around_an_error, 4.0),
        (context_in_inference_mode, 4.0),
        (context_that_is_kept, 4.0),
        (tokens_and_records, 4.0),
        (context_in_a_request, 4.0),
        (context_as_a_decorator, 4.0),
        (context_in_a_generator, 4.0),
    ],
)
@pytest.mark.parametrize("on", [False, True])
def test_contexts_inside_a_graph(function: Callable[[Any], Any], expected: float, on: bool) -> None:
    stagespan.set_debug(on)
    names = set(_core.snapshot().stages())

    compiled = Compiled(function)
    results = [compiled(torch.ones(1)).item()]
    stagespan.set_debug(not on)
    results.append(compiled(torch.ones(1)).item())

    assert results == [expected, expected]
    assert compiled.count == 1
    assert set(_core.snapshot().stages()) == names


def test_contexts_inside_a_graph_with_any_length() -> None:
    compiled = Compiled(nested_contexts, dynamic=True)

    assert [compiled(torch.ones(length))[0].item() for length in (2, 5, 9)] == [4.0] * 3
    assert compiled.count == 1


def test_contexts_around_a_graph_are_timed() -> None:
    compiled = Compiled(lambda x: x + 1)

    with _core.span("around a graph"):
        compiled(torch.ones(2))

    assert runs("around a graph") == 1


def test_a_graph_that_breaks_inside_a_context_still_works() -> None:
    # GIVEN code that torch.compile cannot capture whole
    def broken(x: Any) -> Any:
        with _core.span("broken graph") as s:
            y = x + 1
            s.add(tokens=1)
            torch._dynamo.graph_break()
            return y * 2

    result = torch.compile(broken, backend="eager")(torch.ones(1))

    assert result.item() == 4.0


def test_export_sees_through_contexts_and_decorators() -> None:
    # GIVEN a module with a decorated forward and a context inside, in debug mode
    stagespan.set_debug(True)

    class Exported(torch.nn.Module):  # type: ignore[misc,name-defined]
        @_core.ProfilingContext4Debug("exported forward")
        def forward(self, x: Any) -> Any:
            with contextlib.ExitStack(), _core.span("exported block"):
                return scale(x)

    program = torch.export.export(Exported(), (torch.ones(2),), strict=True)

    assert program.module()(torch.ones(2)).tolist() == [2.0, 2.0]
