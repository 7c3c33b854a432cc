"""Functions of all kinds, undecorated and under each context, for `test_decorated_in_libraries`.

Other processes import this module, so it needs only Python and stagespan.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import stagespan

CONTEXTS: dict[str, Callable[[str], Any]] = {
    "none": lambda name: lambda function: function,
    "span": stagespan.span,
    "profiling": stagespan.ProfilingContext,
    "debug": stagespan.ProfilingContext4Debug,
}


@dataclass(frozen=True)
class Kinds:
    """One function of each kind under one context, whose name is that of all stages."""

    functions: dict[str, Callable[..., Any]]
    model: type
    """The class of the methods."""

    def of(self, kind: str) -> Callable[..., Any]:
        """Return the function of a kind; methods are bound to a new object."""
        if kind == "method":
            bound: Callable[..., Any] = self.model(2).method
            return bound
        if kind in ("static", "class"):
            return getattr(self.model, f"{kind}_method")  # type: ignore[no-any-return]
        return self.functions[kind]


def in_this_function(context: Any) -> Kinds:
    """Decorate functions that are found under no name, with free variables."""
    two = 2

    @context
    def function(x: Any, shift: int = 0, *rest: Any, scale: int = two, **named: Any) -> Any:
        """Twice x."""
        return x * scale + shift

    @context
    async def coroutine(x: Any) -> Any:
        return x * two

    @context
    def generator(x: Any) -> Iterator[Any]:
        yield x * two

    @context
    async def async_generator(x: Any) -> AsyncIterator[Any]:
        yield x * two

    @context
    def nested(x: Any) -> Any:
        def inner() -> Any:
            return x * two

        return inner()

    class Model:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        @context
        def method(self, x: Any) -> Any:
            return x * self.factor

        @staticmethod
        @context
        def static_method(x: Any) -> Any:
            return x * two

        @classmethod
        @context
        def class_method(cls, x: Any) -> Any:
            return x * cls(two).factor

    return Kinds(
        {
            "function": function,
            "coroutine": coroutine,
            "generator": generator,
            "async_generator": async_generator,
            "nested": nested,
        },
        Model,
    )


SYNCHRONOUS = ("function", "nested", "method", "static", "class")
SUSPENDING = ("coroutine", "generator", "async_generator")
KINDS = SYNCHRONOUS + SUSPENDING


def run(function: Callable[..., Any], x: Any) -> Any:
    """Call a function of any kind, and return its result or the one value that it yields."""
    result = function(x)
    if inspect.isasyncgen(result):
        result = result.__anext__()
    elif inspect.isgenerator(result):
        return next(result)
    if not inspect.isawaitable(result):
        return result
    try:
        result.__await__().send(None)
    except StopIteration as stopped:
        return stopped.value
    raise AssertionError("it waits for something")


def run_and_count(function: Callable[..., Any], x: Any) -> tuple[Any, int]:
    """Return the result, and how many spans have been finished in this process meanwhile."""
    before = sum(stage.count for stage in stagespan.stats().values())
    result = run(function, x)
    return result, sum(stage.count for stage in stagespan.stats().values()) - before


# Found by their names, as a worker process of `multiprocessing` finds them.


@stagespan.span("by name")
def by_name(x: int) -> int:
    return x * 2


@stagespan.span("by name")
async def coroutine_by_name(x: int) -> int:
    return x * 2


@stagespan.span("by name")
def generator_by_name(x: int) -> Iterator[int]:
    yield x * 2


@stagespan.span("by name")
async def async_generator_by_name(x: int) -> AsyncIterator[int]:
    yield x * 2


class ByName:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @stagespan.span("by name")
    def method(self, x: int) -> int:
        return x * self.factor

    @staticmethod
    @stagespan.span("by name")
    def static_method(x: int) -> int:
        return x * 2

    @classmethod
    @stagespan.span("by name")
    def class_method(cls, x: int) -> int:
        return x * cls(2).factor


def all_by_name() -> list[Callable[..., Any]]:
    """Return a function of each kind that can be pickled by its name."""
    return [
        *(by_name, coroutine_by_name, generator_by_name, async_generator_by_name),
        *(ByName(2).method, ByName.static_method, ByName.class_method),
    ]
