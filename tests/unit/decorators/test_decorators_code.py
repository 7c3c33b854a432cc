"""The code of a decorated function: names, lifetime, tracebacks, pickling."""

from __future__ import annotations

import gc
import marshal
import os
import sys
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from decorating import INTERCEPTS_CALLS, debug, runs

import stagespan
from running import ran
from stagespan.contexts import decorators
from stagespan.contexts.decorators import decorate


def test_functions_made_in_a_loop_are_freed() -> None:
    # GIVEN functions that are created and decorated repeatedly, one of which refers to itself
    def make(number: int) -> Callable[[int], int]:
        def countdown(n: int) -> int:
            return number if n == 0 else timed(n - 1)

        timed = decorate(debug("loop"), countdown)
        return timed

    made = [make(number) for number in range(20)]
    assert [function(1) for function in made] == list(range(20))
    watched = [weakref.ref(function) for function in made]

    made.clear()
    gc.collect()

    assert [ref() for ref in watched if ref() is not None] == []
    assert runs("loop") == 40


def test_the_target_of_a_trampoline_is_traced_to_its_function() -> None:
    # The code of functions that can be `__init__` is also replaced on Python 3.13 and later.
    is_replaced = not INTERCEPTS_CALLS or sys.version_info >= (3, 13)

    # GIVEN two timed functions with the same code, each with its own closure
    def make(number: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def original(value: int = 5) -> int:
            return number + value

        return original, decorate(debug("traced"), original)

    pairs = [make(number) for number in range(2)]

    targets = [
        types.FunctionType(original.__code__, {}, "target", None, original.__closure__)
        for original, _ in pairs
    ]
    found = [decorators.decorated_function(target) for target in targets]

    if is_replaced:
        assert found == [timed for _, timed in pairs]
    assert [decorators.decorated_function(timed) for _, timed in pairs] == [
        timed for _, timed in pairs
    ]
    assert decorators.decorated_function(len) is len

    found.clear()
    known = len(decorators._by_parts)
    pairs.clear()
    gc.collect()
    assert len(decorators._by_parts) == (known - 2 if is_replaced else known)
    assert decorators.decorated_function(targets[0]) is targets[0]


def test_code_replaced_by_others_is_kept() -> None:
    function = decorate(debug("reloaded"), lambda: "old")
    function()
    replacement = (lambda: "new").__code__
    function.__code__ = replacement

    stagespan.set_debug(False)
    while_off = function.__code__
    stagespan.set_debug(True)

    assert while_off is replacement
    assert function() == "new"
    assert runs("reloaded") == 2


def test_tracebacks_name_the_function() -> None:
    def failing(value: int) -> float:
        return 1 / value

    timed = decorate(debug("traceback"), failing)

    try:
        timed(0)
    except ZeroDivisionError as error:
        frames = traceback.extract_tb(error.__traceback__)

    assert frames[-1].line == "return 1 / value"
    assert {frame.name for frame in frames[1:]} == {"failing"}
    assert all(os.path.exists(frame.filename) for frame in frames)


def test_many_parameters() -> None:
    # GIVEN a function with 300 parameters, half of them keyword-only
    first = ", ".join(f"p{i}" for i in range(150))
    second = ", ".join(f"k{i}" for i in range(150))
    namespace: dict[str, Any] = {}
    exec(f"def many({first}, *, {second}): return locals()", namespace)
    timed = decorate(debug("many"), namespace["many"])
    arguments = {f"p{i}": i for i in range(150)} | {f"k{i}": -i for i in range(150)}

    assert timed(**arguments) == arguments
    assert timed(*range(150), **{f"k{i}": -i for i in range(150)}) == arguments
    assert runs("many") == 2


def test_parameters_may_have_any_name() -> None:
    # GIVEN names that generated code might use itself
    source = """
def outer(run, _run, exhausted, caught):
    async def agen(target, _target, here, _here, value, source, error):
        yield target, _target, here, _here, value, source, error, run, _run, exhausted, caught
    def function(self, target, outer, function, here, _target, __here, *args, **kwargs):
        return self, target, outer, function, here, _target, __here, args, kwargs, run, _run
    return agen, function
"""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    agen, function = namespace["outer"](21, 22, 23, 24)
    timed = decorate(debug("names"), function)
    timed_agen = decorate(debug("names"), agen)

    assert timed(1, 2, 3, 4, 5, 6, 7, 8, key=9) == (
        1, 2, 3, 4, 5, 6, 7, (8,), {"key": 9}, 21, 22,
    )  # fmt: skip
    with pytest.raises(StopIteration) as caught:
        timed_agen(1, 2, 3, 4, 5, 6, 7).__anext__().send(None)
    assert caught.value.value == (1, 2, 3, 4, 5, 6, 7, 21, 22, 23, 24)


@pytest.mark.parametrize("names", [("class", "a b"), ("self", "self "), ("0", ".1")])
def test_parameters_may_have_names_that_source_text_cannot_use(
    context: Callable[[str], Any], names: tuple[str, str]
) -> None:
    # GIVEN functions whose code another tool has made, with free variables in any order
    first, second = names
    x, y = 5, 6

    def replace(function: Any) -> Any:
        code = function.__code__
        code = code.replace(
            co_varnames=(*names, *code.co_varnames[2:]),
            co_freevars=tuple(f"{name}!" for name in reversed(code.co_freevars)),
        )
        return types.FunctionType(code, globals(), "made", None, function.__closure__)

    def function(a: int, *, b: int) -> tuple[int, ...]:
        return a, b, x, y

    def generator(a: int, *, b: int) -> Any:
        yield a, b, x, y

    async def coroutine(a: int, *, b: int) -> tuple[int, ...]:
        return a, b, x, y

    stage = f"odd names {context.__name__} {first}"
    timed = [decorate(context(stage), replace(f)) for f in (function, generator, coroutine)]

    assert [type(f) for f in timed] == [types.FunctionType] * 3
    assert timed[0](1, **{second: 2}) == (1, 2, 5, 6)
    assert list(timed[1](**{first: 1, second: 2})) == [(1, 2, 5, 6)]
    with pytest.raises(StopIteration) as stopped:
        timed[2](1, **{second: 2}).send(None)
    assert stopped.value.value == (1, 2, 5, 6)
    assert runs(stage) == 3


def test_frames_between_caller_and_function(context: Callable[[str], Any]) -> None:
    # GIVEN a function that looks at its callers, as `warnings` does with a stack level
    def function() -> tuple[str, ...]:
        frame, names = sys._getframe(), []
        while frame.f_code is not here and frame.f_back is not None:
            names.append(f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno}")
            frame = frame.f_back
        return tuple(names)

    here = sys._getframe().f_code
    timed = decorate(context("frames"), function)

    # THEN there is one more frame on 3.11, at the place of the function, and none elsewhere
    own = f"{__file__}:{function.__code__.co_firstlineno}"
    assert function() == (own,)
    assert timed() == ((own,) if INTERCEPTS_CALLS else (own, own))


def test_builtins_may_be_shadowed() -> None:
    # GIVEN a module that redefines every name that a trampoline could look up
    namespace: dict[str, Any] = {"BaseException": 1, "StopAsyncIteration": 2, "stagespan": 3}
    exec("async def agen():\n    yield 1\n    yield 2", namespace)
    timed = decorate(debug("shadowed"), namespace["agen"])

    iterator = timed()
    for expected in (1, 2):
        with pytest.raises(StopIteration) as caught:
            iterator.__anext__().send(None)
        assert caught.value.value == expected
    with pytest.raises(StopAsyncIteration):
        iterator.__anext__().send(None)


@pytest.mark.parametrize("stage", ["quo'te\"s", "new\nline", "back\\slash", "{brace}", "%s", "é"])
def test_any_stage_name_can_decorate(stage: str) -> None:
    # GIVEN a name that would be harmful in source text
    timed = decorate(debug(stage), lambda value: value)

    assert timed(5) == 5
    assert runs(stage) == 1


@pytest.mark.skipif(INTERCEPTS_CALLS, reason="the code is replaced on Python 3.11 only")
def test_code_that_is_sent_to_another_process() -> None:
    # GIVEN the code of a timed function, as libraries that pickle functions by value send it
    def travelling(value: int, *, factor: int) -> int:
        return value * factor

    timed = decorate(debug("travelling"), travelling)
    sent = marshal.dumps(timed.__code__)
    assert timed.__code__ is not travelling.__code__

    # WHEN another process creates a function from it, in debug mode and not
    program = f"""
import marshal, types
import stagespan
from stagespan import _core
function = types.FunctionType(marshal.loads({sent!r}), {{}})
print(function(2, factor=3))
stagespan.set_debug(True)
print(function(2, factor=3), _core.snapshot().stages()["travelling"].count)
"""
    done = ran([sys.executable, "-c", program])

    assert done.stdout.splitlines() == ["6", "6 1"], done.stderr
