"""Contexts without a name, calls that are not valid, and `__enter__` by itself."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from recording import count, lost

import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, span

pytestmark = pytest.mark.usefixtures("fresh")

ALL = [span, ProfilingContext, ProfilingContext4Debug]
make_each = pytest.mark.parametrize("make", ALL, ids=lambda make: str(make.__name__))


def stages() -> dict[str, int]:
    """Return how often each stage has run, by the last part of its name."""
    found = _core.snapshot().stages()
    return {name.rpartition(">.")[2]: stage.count for name, stage in found.items()}


@make_each
@pytest.mark.parametrize("parentheses", [False, True])
def test_functions_and_methods(make: Any, parentheses: bool) -> None:
    stagespan.set_debug(True)
    decorator = make() if parentheses else make

    @decorator
    def plain(value: int) -> int:
        return value + 1

    class Model:
        @decorator
        def method(self) -> str:
            return "method"

        @classmethod
        @decorator
        def inside(cls) -> str:
            return cls.__name__

        @decorator
        @classmethod
        def outside(cls) -> str:
            return cls.__name__

        @staticmethod
        @decorator
        def static() -> str:
            return "static"

        @decorator
        async def coroutine(self) -> str:
            return "coroutine"

        @decorator
        def generator(self) -> Iterator[int]:
            yield from range(3)

        @decorator
        async def stream(self) -> AsyncIterator[int]:
            for number in range(3):
                yield number

        @property
        @decorator
        def size(self) -> int:
            return 7

    async def all_of(values: AsyncIterator[int]) -> list[int]:
        return [value async for value in values]

    model = Model()
    results = (
        plain(1),
        model.method(),
        Model.inside(),
        model.outside(),
        Model.static(),
        asyncio.run(model.coroutine()),
        list(model.generator()),
        asyncio.run(all_of(model.stream())),
        model.size,
    )

    assert results == (
        2,
        "method",
        "Model",
        "Model",
        "static",
        "coroutine",
        [0, 1, 2],
        [0, 1, 2],
        7,
    )
    methods = ("method", "inside", "outside", "static", "coroutine", "generator", "stream", "size")
    assert stages() == {"plain": 1, **{f"Model.{name}": 1 for name in methods}}
    assert plain.__qualname__.endswith("<locals>.plain")
    assert not lost().get("invalid_names")


@make_each
def test_other_callables(make: Any) -> None:
    # GIVEN callables that do not have a qualified name
    class Adder:
        def __call__(self, value: int) -> int:
            return value + 1

    def power(base: int, exponent: int) -> int:
        return int(base**exponent)

    stagespan.set_debug(True)
    results = (make(Adder())(1), make(functools.partial(power, exponent=2))(3), make(len)("four"))

    # THEN the name is that of the type, or of the function inside
    assert results == (2, 9, 4)
    assert stages() == {"Adder": 1, "power": 1, "len": 1}


def test_options_without_a_name() -> None:
    @ProfilingContext(reset_peak_memory=False, capture_memory=True)
    def first() -> int:
        return 1

    @span()
    def second() -> int:
        return 2

    assert (first(), second()) == (1, 2)
    assert stages() == {"first": 1, "second": 1}
    assert type(second) is type(test_options_without_a_name)


@make_each
def test_classes_and_properties_are_refused(make: Any) -> None:
    class Model:
        pass

    for decorator in (make, make()):
        with pytest.raises(TypeError, match=r"Model is a class, which a context cannot decorate"):
            decorator(Model)
        with pytest.raises(TypeError, match=r"property, which it cannot time: .* below @property"):
            decorator(property(lambda self: 1))
    with pytest.raises(TypeError, match=r"3, which cannot be called"):
        make()(3)
    with pytest.raises(TypeError, match=r"takes one function to decorate"):
        make()()


@make_each
def test_a_block_needs_a_name(make: Any) -> None:
    needs = rf"{make.__name__}\(\) needs a name to time a block: write `with {make.__name__}"
    with pytest.raises(TypeError, match=needs), make():
        pytest.fail("the block ran")

    async def block() -> None:
        async with make():
            pytest.fail("the block ran")

    with pytest.raises(TypeError, match=needs):
        asyncio.run(block())


@make_each
@pytest.mark.parametrize("arguments", [(), (1, 2), (1, 2, 3, 4)], ids=len)
def test_a_call_that_is_not_a_decoration(make: Any, arguments: tuple[int, ...]) -> None:
    stagespan.set_debug(True)
    context = make("called")
    with pytest.raises(TypeError, match=r"write `with \w+\('called'\):` around a block, or `@"):
        context(*arguments)
    with pytest.raises(TypeError):
        context(name="x")
    assert stagespan.open_spans() == []
    assert count("called") == 0


# --- `__enter__` of a span ------------------------------------------------------------------------


def test_enter_can_be_kept_and_called_again() -> None:
    context = span("kept")
    enter = context.__enter__

    for _ in range(3):
        assert enter() is context
        context.__exit__(None, None, None)

    assert count("kept") == 3
    with pytest.raises(TypeError, match="takes no arguments"):
        enter(1)  # type: ignore[call-arg]


def test_enter_keeps_its_span_alive() -> None:
    enters = [span("alone").__enter__, span("alone").__enter__]
    again = enters[0]
    spans = [enter() for enter in enters]
    with_enter = sys.getrefcount(spans[0])
    del enters, again
    without_enter = sys.getrefcount(spans[0])

    assert repr(spans[0]) == "span('alone')"
    assert without_enter == with_enter - 1
    for context in spans:
        context.__exit__(None, None, None)
        with context:
            pass
    assert count("alone") == 4


def test_enter_that_is_dropped() -> None:
    # WHEN many are bound and never called, for spans that are reused and for others
    shared = span("shared")
    before = sys.getrefcount(shared)
    for _ in range(1000):
        assert shared.__enter__ is not None
        assert callable(span("fresh").__enter__)
    after = sys.getrefcount(shared)

    assert after == before
    with shared, span("fresh"):
        pass
    assert stages() == {"shared": 1, "fresh": 1}


def test_a_span_that_only_its_enter_keeps_open() -> None:
    enter: Callable[[], object] = span("left").__enter__
    enter()
    assert [one["stage"] for one in stagespan.open_spans()] == ["left"]
    del enter
    # THEN the span is dropped, like any that nobody can leave
    assert stagespan.open_spans() == []
    assert lost()["abandoned"] == 1


def test_exit_stacks_and_other_objects() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(span("in a stack"))
    kind: Any = _core.Span
    context = span("by its type")
    assert kind.__enter__(context) is context
    kind.__exit__(context, None, None, None)

    assert stages() == {"in a stack": 1, "by its type": 1}
    for wrong in ((), (3,), ("x", None, None, None)):
        with pytest.raises(TypeError, match="a context of stagespan must be the first argument"):
            kind.__enter__(*wrong)
    with pytest.raises(TypeError, match="not an object of type 'int'"):
        vars(kind)["__enter__"].__get__(3)
