"""What a decorator changes in a function, and what it does not."""

from __future__ import annotations

import functools
import gc
import inspect
import pickle
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from decorating import always, debug, errors, runs

import stagespan
from stagespan import _core
from stagespan.contexts.decorators import decorate


@debug("module level")
def at_module_level(value: int, /, factor: int = 2, *rest: int, more: int = 0, **named: int) -> int:
    """Multiply."""
    return value * factor + sum(rest) + more + sum(named.values())


at_module_level.label = "kept"  # type: ignore[attr-defined]


def test_calls_are_timed_and_results_pass_through(context: Callable[[str], _core.Span]) -> None:
    stage = f"all parameters {context.__name__}"

    def function(a: int, /, b: int, c: int = 3, *d: int, e: int, f: int = 6, **g: int) -> Any:
        return a, b, c, d, e, f, g

    timed = decorate(context(stage), function)

    results = [timed(1, 2, e=5), timed(1, b=2, e=5, z=9), timed(1, 2, 4, 7, 8, e=5, f=0)]

    # THEN every call returned what the function returns, and was timed once
    assert results == [
        (1, 2, 3, (), 5, 6, {}),
        (1, 2, 3, (), 5, 6, {"z": 9}),
        (1, 2, 4, (7, 8), 5, 0, {}),
    ]
    assert runs(stage) == 3


def test_the_original_stays_untimed(context: Callable[[str], _core.Span]) -> None:
    # GIVEN a function and its timed copy
    stage = f"original {context.__name__}"

    def function() -> int:
        return 1

    timed = decorate(context(stage), function)

    function()

    assert timed is not function
    assert runs(stage) == 0


def test_errors_pass_through_and_mark_the_span(context: Callable[[str], _core.Span]) -> None:
    stage = f"raises {context.__name__}"
    error = KeyError("missing")

    def function() -> None:
        raise error

    timed = decorate(context(stage), function)

    with pytest.raises(KeyError) as caught:
        timed()

    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert (runs(stage), errors(stage)) == (1, 1)


def test_wrong_arguments_raise_what_the_function_raises(
    context: Callable[[str], _core.Span],
) -> None:
    def function(value: int) -> int:
        return value

    timed = decorate(context("wrong arguments"), function)

    with pytest.raises(TypeError) as caught:
        timed()  # type: ignore[call-arg]

    with pytest.raises(TypeError) as expected:
        function()  # type: ignore[call-arg]
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("on", [False, True])
def test_debug_functions_stay_plain_functions(on: bool) -> None:
    stagespan.set_debug(on)
    function = at_module_level

    # WHEN / THEN it looks like the original
    assert type(function) is types.FunctionType
    assert function.__name__ == function.__qualname__ == "at_module_level"
    assert function.__module__ == __name__
    assert function.__doc__ == "Multiply."
    assert function.__annotations__["value"] == "int"
    assert function.label == "kept"
    assert str(inspect.signature(function)) == (
        "(value: 'int', /, factor: 'int' = 2, *rest: 'int', more: 'int' = 0, **named: 'int')"
        " -> 'int'"
    )
    assert inspect.getsource(function).startswith('@debug("module level")')
    assert pickle.loads(pickle.dumps(function)) is function
    assert not hasattr(function, "__wrapped__")
    assert function(2, 3, 1, more=1, other=1) == 9


def test_attributes_are_shared_with_the_original() -> None:
    def function() -> None: ...

    function.before = 1  # type: ignore[attr-defined]
    timed = decorate(debug("attributes"), function)

    function.after = 2  # type: ignore[attr-defined]

    assert (timed.before, timed.after) == (1, 2)  # type: ignore[attr-defined]


def test_defaults_that_are_changed_later_are_used(context: Callable[[str], _core.Span]) -> None:
    def function(a: int = 1, *, b: int = 2) -> tuple[int, int]:
        return a, b

    timed = decorate(context("defaults"), function)
    timed()

    timed.__defaults__ = (10,)
    timed.__kwdefaults__ = {"b": 20}

    assert timed() == (10, 20)
    stagespan.set_debug(False)
    assert timed() == (10, 20)


def test_closures_are_shared(context: Callable[[str], _core.Span]) -> None:
    # GIVEN a function that assigns a variable of the enclosing function
    total = 0

    def add(value: int) -> int:
        nonlocal total
        total += value
        return total

    timed = decorate(context("closure"), add)

    timed(2)
    total += 5
    timed(1)
    add(1)

    assert total == 9


def test_recursion_is_timed_at_every_level(context: Callable[[str], _core.Span]) -> None:
    stage = f"recursion {context.__name__}"

    def descend(depth: int) -> int:
        return 0 if depth == 0 else 1 + timed(depth - 1)

    timed = decorate(context(stage), descend)

    assert timed(9) == 9
    assert runs(stage) == 10


class Base:
    def who(self) -> str:
        return "base"


class Methods(Base):
    @debug("method")
    def who(self) -> str:
        return f"{super().who()} of {__class__.__name__}"  # type: ignore[name-defined]

    @debug("mangled")
    def mangled(self, __value: int, *, __other: int = 1) -> int:
        return __value + __other

    @always("always method")
    def always(self) -> Base:
        return self

    @debug("class method")
    @classmethod
    def of_class(cls) -> type:
        return cls

    @debug("static method")
    @staticmethod
    def of_none(value: int) -> int:
        return value

    @property
    @debug("getter")
    def getter(self) -> int:
        return 4

    @debug("partial method")
    def add(self, a: int, b: int) -> int:
        return a + b

    add_one = functools.partialmethod(add, 1)


@pytest.mark.parametrize("kind", [stagespan.span, always, debug])
def test_a_getter_is_timed_each_time(kind: Any) -> None:
    class Thing:
        @property
        @kind("timed getter")
        def size(self) -> int:
            return 3

    # WHEN the same line reads it many times, so that the interpreter can specialise it
    thing, before = Thing(), runs("timed getter")
    assert sum(thing.size for _ in range(100)) == 300

    assert runs("timed getter") == before + 100


@pytest.mark.parametrize("stacked", [1, 3])
def test_a_function_with_one_parameter_is_timed_by_each_way_to_call_it(stacked: int) -> None:
    def original(value: int = 5) -> int:
        return value + 1

    timed = original
    for _ in range(stacked):
        timed = stagespan.span("one parameter")(timed)

    before = runs("one parameter")
    results = [
        timed(1),
        timed(value=2),
        timed(),
        timed(*[3]),
        *map(timed, [6]),
    ]
    timed.__defaults__ = (7,)
    results.append(timed())

    assert results == [2, 3, 6, 4, 7, 8]
    assert runs("one parameter") == before + 6 * stacked

    timed.__defaults__ = None
    for arguments in ((), (1, 2)):
        with pytest.raises(TypeError, match="original"):
            timed(*arguments)


def test_a_recursive_function_with_one_parameter_is_freed() -> None:
    def made() -> weakref.ref[Any]:
        @stagespan.span("recursive")
        def count(left: int) -> int:
            return count(left - 1) + 1 if left else 0

        before = runs("recursive")
        assert count(9) == 9
        assert runs("recursive") == before + 10
        return weakref.ref(count)

    reference = made()

    gc.collect()

    assert reference() is None


def test_methods_of_every_kind() -> None:
    thing = Methods()
    stages = ["method", "mangled", "always method", "class method", "static method", "getter"]
    before = [runs(stage) for stage in stages]

    results = [
        thing.who(),
        Methods.who(thing),
        thing.mangled(1),
        thing.always(),
        thing.of_class(),
        Methods.of_class(),
        thing.of_none(3),
        Methods.of_none(3),
        thing.getter,
        thing.add_one(2),
    ]

    assert results == [
        "base of Methods", "base of Methods", 2, thing, Methods, Methods, 3, 3, 4, 3,
    ]  # fmt: skip
    assert [runs(s) - b for s, b in zip(stages, before, strict=True)] == [2, 1, 1, 2, 2, 1]
    assert isinstance(vars(Methods)["of_class"], classmethod)
    assert isinstance(vars(Methods)["of_none"], staticmethod)


def test_other_callables() -> None:
    # GIVEN callables that are not plain functions
    class Model:
        def __call__(self, value: int) -> int:
            return value + 1

        def method(self, value: int) -> int:
            return value + 2

    def function(a: int, b: int = 0) -> int:
        return a - b

    timed = {
        "builtin": decorate(debug("builtin"), len),
        "object": decorate(debug("object"), Model()),
        "bound": decorate(debug("bound"), Model().method),
        "partial": decorate(debug("partial"), functools.partial(function, b=1)),
    }

    results = [
        timed["builtin"]([1, 2]),  # type: ignore[operator]
        timed["object"](1),  # type: ignore[operator]
        timed["bound"](1),  # type: ignore[operator]
        timed["partial"](3),  # type: ignore[operator]
    ]

    assert results == [2, 2, 3, 2]
    assert [runs(stage) for stage in timed] == [1, 1, 1, 1]
    assert isinstance(timed["bound"], types.MethodType)
    assert isinstance(timed["partial"], functools.partial)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Base, "Base is a class"),
        (property(lambda self: 1), "below @property"),
        (functools.cached_property(lambda self: 1), "below @cached_property"),
        (3, "cannot be called"),
    ],
)
def test_decorating_other_objects_raises_an_error_with_advice(value: object, words: str) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        decorate(debug("refused"), value)
    assert "decorat" in str(caught.value)


def test_below_and_above_other_decorators() -> None:
    # GIVEN the usual order of decorators on a stage: offload, context, and a wrapper below
    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapped

    def process(self: object, latents: int, *, steps: int = 2) -> int:
        """Denoise."""
        return latents * steps

    timed = wrapper(decorate(debug("between others"), wrapper(process)))

    results = [timed(None, 2, steps=3)]
    stagespan.set_debug(False)
    results.append(timed(None, latents=2))

    # THEN it works, and has the innermost function's signature and documentation
    assert results == [6, 4]
    assert runs("between others") == 1
    assert inspect.signature(timed) == inspect.signature(process)
    assert timed.__doc__ == "Denoise."
    assert inspect.unwrap(timed) is process


def test_contexts_that_are_stacked_on_a_method(context: Callable[[str], _core.Span]) -> None:
    inner, outer = f"inner {context.__name__}", f"outer {context.__name__}"

    class Model:
        @context(outer)
        @stagespan.span(inner)
        def step(self, x: int) -> tuple[Any, int]:
            return self, x

    model = Model()
    assert model.step(1) == (model, 1)
    assert Model.step(model, x=2) == (model, 2)
    assert (runs(inner), runs(outer)) == (2, 2)


class Bindable:
    """A callable with its own `__get__`, like those of some libraries."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        return arguments


@pytest.mark.parametrize(
    ("make", "is_bound"),
    [
        (lambda: functools.lru_cache(lambda *arguments: arguments), True),
        (Bindable, True),
        (lambda: max, False),
    ],
    ids=["like a function", "in its own way", "not at all"],
)
def test_a_callable_in_a_class_is_bound_as_it_would_be_untimed(
    make: Callable[[], Any], is_bound: bool
) -> None:
    stage = f"bound callable {is_bound} {make!r}"
    untimed = make()

    class Model:
        method = decorate(stagespan.span(stage), untimed)

    model = Model()

    results = [model.method(1, 2), Model.method(1, 2)]

    assert results == [(model, 1, 2), (1, 2)] if is_bound else [2, 2]
    assert runs(stage) == 2
