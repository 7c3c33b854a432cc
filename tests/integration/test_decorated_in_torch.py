"""torch.compile, jit, fx and export see a decorated function as they see the undecorated one."""

from __future__ import annotations

import functools
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from running import ran

torch = pytest.importorskip("torch", reason="torch is not installed")

from decorated_kinds import CONTEXTS, KINDS, SYNCHRONOUS, in_this_function, run  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import preloaded  # noqa: E402
import stagespan  # noqa: E402

PLAIN = in_this_function(CONTEXTS["none"]("none"))
DECORATED = {
    name: in_this_function(make("in torch")) for name, make in CONTEXTS.items() if name != "none"
}


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture(
    params=[
        "span",
        "debug",
        pytest.param("profiling", marks=pytest.mark.full),  # as spans
        pytest.param("debug off", marks=pytest.mark.full),
    ]
)
def context(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Each kind of context; the debug context while it is active and while it is not."""
    stagespan.set_debug(request.param == "debug")
    return CONTEXTS[request.param.partition(" ")[0]]


def compiled(function: Callable[..., Any], *calls: tuple[Any, ...], fullgraph: bool) -> Any:
    """Return the results of calls of a compiled function, and the number of its graphs."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    call = torch.compile(function, backend=counter, fullgraph=fullgraph)
    return [run(call, *arguments).tolist() for arguments in calls], counter.frame_count


ONES = (torch.ones(2),)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("kind", SYNCHRONOUS)
def test_the_function_itself_is_compiled(
    context: Callable[[str], Any], kind: str, fullgraph: bool
) -> None:
    decorated, plain = in_this_function(context("itself")).of(kind), PLAIN.of(kind)

    found = compiled(decorated, ONES, ONES, fullgraph=fullgraph)

    assert found == compiled(plain, ONES, ONES, fullgraph=fullgraph) == ([[2.0, 2.0]] * 2, 1)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("kind", [*SYNCHRONOUS, "generator"])
def test_its_caller_is_compiled(context: Callable[[str], Any], kind: str, fullgraph: bool) -> None:
    decorated, plain = in_this_function(context("called")).of(kind), PLAIN.of(kind)

    def caller_of(function: Callable[..., Any]) -> Callable[..., Any]:
        if kind == "generator":
            return lambda x: next(iter(function(x + 1))) - 1
        return lambda x: function(x + 1) - 1

    found = compiled(caller_of(decorated), ONES, ONES, fullgraph=fullgraph)

    expected = compiled(caller_of(plain), ONES, ONES, fullgraph=fullgraph)
    assert found == expected == ([[3.0, 3.0]] * 2, 1)


@pytest.mark.parametrize("kind", sorted({*KINDS} - {*SYNCHRONOUS}))
def test_suspending_functions_themselves_are_compiled(
    context: Callable[[str], Any], kind: str
) -> None:
    decorated, plain = in_this_function(context("suspended")).of(kind), PLAIN.of(kind)

    found = compiled(decorated, ONES, ONES, fullgraph=False)

    assert found == compiled(plain, ONES, ONES, fullgraph=False)


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), 3.0))

    def forward(self, x: Any) -> Any:
        return self.scaled(x) + 1

    def scaled(self, x: Any, *, factor: int = 2) -> Any:
        return x * self.weight * factor


class Outer(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x) * 2


def decorated_net(context: Callable[[str], Any]) -> Any:
    class DecoratedNet(Net):
        forward = context("forward")(Net.forward)
        scaled = context("scaled")(Net.scaled)

    return DecoratedNet()


def compile_in_place(module: Any, **options: Any) -> Any:
    module.compile(**options)
    return module


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("how", [torch.compile, compile_in_place])
def test_modules(
    context: Callable[[str], Any], how: Callable[..., Any], is_inside: bool, fullgraph: bool
) -> None:
    from torch._dynamo.testing import CompileCounter

    def use(net: Any) -> Any:
        torch._dynamo.reset()
        counter = CompileCounter()
        module = how(Outer(net) if is_inside else net, backend=counter, fullgraph=fullgraph)
        return module(torch.ones(2)).tolist(), counter.frame_count

    assert use(decorated_net(context)) == use(Net())


def test_a_graph_that_breaks_inside_breaks_as_often(context: Callable[[str], Any]) -> None:
    def breaking(x: Any) -> Any:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    def caller_of(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: function(x - 1) - 3

    decorated = context("breaking")(breaking)
    for use in (lambda function: function, caller_of):
        assert compiled(use(decorated), ONES, fullgraph=False) == compiled(
            use(breaking), ONES, fullgraph=False
        )


def test_functions_of_one_definition_are_compiled_once(context: Callable[[str], Any]) -> None:
    def make(decorate: Callable[[Any], Any]) -> Any:
        @decorate
        def inner(x: Any) -> Any:
            return x * 2

        return inner

    def caller(function: Any, x: Any) -> Any:
        return function(x) + 1

    def use(decorate: Callable[[Any], Any]) -> Any:
        from torch._dynamo.testing import CompileCounter

        torch._dynamo.reset()
        counter = CompileCounter()
        call = torch.compile(caller, backend=counter, fullgraph=True)
        return [call(make(decorate), torch.ones(1)).item() for _ in range(3)], counter.frame_count

    assert use(context("made again")) == use(lambda function: function) == ([3.0] * 3, 1)


def test_wrappers_of_decorated_functions(context: Callable[[str], Any]) -> None:
    @context("below")
    def below(x: Any) -> Any:
        return x * 2

    @functools.wraps(below)
    def above(*args: Any) -> Any:
        return below(*args) + 1

    assert compiled(above, ONES, fullgraph=True) == ([[3.0, 3.0]], 1)


def test_stacked_contexts(context: Callable[[str], Any]) -> None:
    def function(x: Any, *, scale: int = 2) -> Any:
        return x * scale

    decorated = context("above")(stagespan.span("between")(context("below")(function)))

    assert compiled(decorated, ONES, fullgraph=True) == ([[2.0, 2.0]], 1)
    assert compiled(lambda x: decorated(x) + 1, ONES, fullgraph=True) == ([[3.0, 3.0]], 1)


def test_a_compiled_function_that_is_decorated_is_timed() -> None:
    stagespan.set_debug()
    for kinds in DECORATED.values():
        before = stagespan.stats()["in torch"].count if "in torch" in stagespan.stats() else 0
        compiled(kinds.of("function"), ONES, ONES, fullgraph=True)

        assert stagespan.stats()["in torch"].count - before == 2


PROGRAM = """
    import stagespan
    {before}

    @stagespan.span("function")
    def function(x, *, factor=2):
        return x * factor

    def caller(x):
        return function(x + 1, factor=3) - 1

    {after}
    import torch
    from torch._dynamo.testing import CompileCounter

    for use in (function, caller):
        for fullgraph in (False, True):
            torch._dynamo.reset()
            counter = CompileCounter()
            call = torch.compile(use, backend=counter, fullgraph=fullgraph)
            print([call(torch.ones(1)).item() for _ in range(2)], counter.frame_count)
"""
EXPECTED = ["[2.0, 2.0] 1", "[2.0, 2.0] 1", "[5.0, 5.0] 1", "[5.0, 5.0] 1"]


def outcome_of(program: str, start: list[str]) -> list[str]:
    done = ran([*start, "-c", textwrap.dedent(program)], status=0)
    return done.stdout.splitlines()


@pytest.mark.slow
def test_decorated_before_torch_is_imported() -> None:
    program = PROGRAM.format(before="", after="import sys; assert 'torch' not in sys.modules")

    assert outcome_of(program, [sys.executable]) == EXPECTED


@pytest.mark.parametrize("dynamo", ["", "import torch._dynamo"])
def test_decorated_after_torch_is_imported(dynamo: str) -> None:
    program = PROGRAM.format(before=dynamo, after="")

    assert outcome_of(program, [*preloaded.python()]) == EXPECTED


def test_a_torch_without_the_hooks_captures_one_graph_too() -> None:
    without = """
    import torch._dynamo
    del torch._dynamo.substitute_in_graph
    """
    program = without + PROGRAM.format(before="", after="")

    # WHEN functions are decorated and compiled / THEN the graphs are the same
    assert outcome_of(program, [*preloaded.python()]) == EXPECTED


# --- jit, fx, export ------------------------------------------------------------------------------


def typed(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def test_jit_script(context: Callable[[str], Any]) -> None:
    decorated = context("scripted")(typed)

    def caller(x: torch.Tensor) -> torch.Tensor:
        return decorated(x, 3.0) + 1

    assert str(torch.jit.script(decorated).graph) == str(torch.jit.script(typed).graph)
    assert torch.jit.script(caller)(torch.ones(1)).item() == 4.0


def test_jit_script_of_a_module(context: Callable[[str], Any]) -> None:
    class Scripted(torch.nn.Module):  # type: ignore[misc,name-defined]
        @context("scripted forward")
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.doubled(x) + 1

        @context("scripted method")
        def doubled(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    assert torch.jit.script(Scripted())(torch.ones(2)).tolist() == [3.0, 3.0]


def test_jit_trace(context: Callable[[str], Any]) -> None:
    traced = torch.jit.trace(decorated_net(context), torch.ones(2))

    assert traced(torch.ones(2)).tolist() == [7.0, 7.0]


def nodes(traced: Any) -> list[tuple[str, str]]:
    return [(node.op, node.name) for node in traced.graph.nodes]


def test_fx(context: Callable[[str], Any]) -> None:
    trace = torch.fx.symbolic_trace

    assert nodes(trace(context("fx")(typed))) == nodes(trace(typed))
    assert nodes(trace(context("fx")(Net.scaled))) == nodes(trace(Net.scaled))
    assert nodes(trace(decorated_net(context))) == nodes(trace(Net()))


@pytest.mark.parametrize("strict", [False, True])
def test_export(context: Callable[[str], Any], strict: bool) -> None:
    def export(module: Any) -> Any:
        return torch.export.export(module, (torch.ones(2),), strict=strict)

    for module, plain in (
        (decorated_net(context), Net()),
        (Outer(decorated_net(context)), Outer(Net())),
    ):
        program = export(module)
        assert nodes(program) == nodes(export(plain))
        assert program.module()(torch.ones(2)).tolist() == plain(torch.ones(2)).tolist()


def test_transforms_and_checkpoints(context: Callable[[str], Any]) -> None:
    decorated = context("transformed")(typed)
    x = torch.ones(2, requires_grad=True)

    assert torch.func.vmap(decorated)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert torch.func.jacrev(decorated)(torch.ones(1)).tolist() == [[2.0]]
    torch.utils.checkpoint.checkpoint(decorated, x, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    x = torch.ones(2)
    assert nodes(make_fx(decorated)(x, 3.0)) == nodes(make_fx(typed)(x, 3.0))
