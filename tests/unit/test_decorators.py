"""What a context makes of a function, and what stays as it was."""

from __future__ import annotations

import functools
import gc
import inspect
import marshal
import os
import pickle
import subprocess
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stagespan
from stagespan import _core, decorators
from stagespan.decorators import decorate

BEFORE_3_12 = sys.version_info < (3, 12)


def always(name: str) -> _core.Span:
    return _core.ProfilingContext(name)


def compile_safe(name: str) -> _core.Span:
    return _core.ProfilingContext(name, compile_safe=True)


def debug(name: str) -> _core.Span:
    return _core.ProfilingContext4Debug(name)


def runs(stage: str) -> int:
    stages = _core.snapshot().stages()
    return stages[stage].count if stage in stages else 0


def errors(stage: str) -> int:
    return _core.snapshot().stages()[stage].errors


@pytest.fixture(autouse=True)
def debug_mode() -> Iterator[None]:
    """Each test starts in debug mode and leaves it off."""
    stagespan.set_debug(True)
    yield
    stagespan.set_debug(False)


@pytest.fixture(params=[always, compile_safe, debug])
def context(request: pytest.FixtureRequest) -> Callable[[str], _core.Span]:
    return request.param  # type: ignore[no-any-return]


@debug("module level")
def at_module_level(value: int, /, factor: int = 2, *rest: int, more: int = 0, **named: int) -> int:
    """Multiply."""
    return value * factor + sum(rest) + more + sum(named.values())


at_module_level.label = "kept"  # type: ignore[attr-defined]


def test_calls_are_timed_and_results_pass_through(context: Callable[[str], _core.Span]) -> None:
    # GIVEN a function with every kind of parameter
    stage = f"all parameters {context.__name__}"

    def function(a: int, /, b: int, c: int = 3, *d: int, e: int, f: int = 6, **g: int) -> Any:
        return a, b, c, d, e, f, g

    timed = decorate(context(stage), function)

    # WHEN it is called in every way
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

    # WHEN the original is called through the other reference
    function()

    # THEN nothing was timed
    assert timed is not function
    assert runs(stage) == 0


def test_errors_pass_through_and_mark_the_span(context: Callable[[str], _core.Span]) -> None:
    # GIVEN a function that raises
    stage = f"raises {context.__name__}"
    error = KeyError("missing")

    def function() -> None:
        raise error

    timed = decorate(context(stage), function)

    # WHEN it is called
    with pytest.raises(KeyError) as caught:
        timed()

    # THEN the very same error arrives, unchained, and the span is marked
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert (runs(stage), errors(stage)) == (1, 1)


def test_wrong_arguments_raise_what_the_function_raises(
    context: Callable[[str], _core.Span],
) -> None:
    # GIVEN a function of one argument
    def function(value: int) -> int:
        return value

    timed = decorate(context("wrong arguments"), function)

    # WHEN it is called with none
    with pytest.raises(TypeError) as caught:
        timed()  # type: ignore[call-arg]

    # THEN the message is Python's own for the function
    with pytest.raises(TypeError) as expected:
        function()  # type: ignore[call-arg]
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("on", [False, True])
def test_debug_functions_stay_plain_functions(on: bool) -> None:
    # GIVEN a decorated function, off or on
    stagespan.set_debug(on)
    function = at_module_level

    # WHEN / THEN it shows what the original would show
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
    # GIVEN a function with an attribute, and its timed copy
    def function() -> None: ...

    function.before = 1  # type: ignore[attr-defined]
    timed = decorate(debug("attributes"), function)

    # WHEN the original gets another
    function.after = 2  # type: ignore[attr-defined]

    # THEN both have both
    assert (timed.before, timed.after) == (1, 2)  # type: ignore[attr-defined]


def test_switching_times_and_stops_timing() -> None:
    # GIVEN a function that was decorated while debug mode was off
    stagespan.set_debug(False)
    function = decorate(debug("switched"), lambda: 7)
    counts = []

    # WHEN debug mode is switched on and off, twice
    for on in (False, True, False, True, False):
        stagespan.set_debug(on)
        assert function() == 7
        counts.append(runs("switched"))

    # THEN it was timed while it was on, and only then
    assert counts == [0, 1, 1, 2, 2]


def test_off_means_the_very_code_of_the_original() -> None:
    # GIVEN a function whose timing was on and off again
    def original(value: int) -> int:
        return value

    function = decorate(debug("free when off"), original)
    function(1)

    # WHEN it is off
    stagespan.set_debug(False)

    # THEN there is nothing in it that could cost anything
    assert function.__code__ is original.__code__


def test_turning_the_recorder_off_stops_all_timing() -> None:
    # GIVEN functions of all kinds
    functions = {
        f"recorder {make.__name__}": decorate(make(f"recorder {make.__name__}"), lambda: 1)
        for make in (always, compile_safe, debug)
    }

    # WHEN the recorder is off, then on again
    stagespan.disable()
    try:
        assert [function() for function in functions.values()] == [1, 1, 1]
    finally:
        stagespan.enable()
    before = [runs(stage) for stage in functions]
    for function in functions.values():
        function()

    # THEN nothing was timed while it was off
    assert before == [0, 0, 0]
    assert [runs(stage) for stage in functions] == [1, 1, 1]


def test_defaults_changed_later_act(context: Callable[[str], _core.Span]) -> None:
    # GIVEN a timed plain function with defaults
    if BEFORE_3_12 and context is always:
        pytest.skip("always-on contexts give a C callable before 3.12")

    def function(a: int = 1, *, b: int = 2) -> tuple[int, int]:
        return a, b

    timed = decorate(context("defaults"), function)
    timed()

    # WHEN its defaults are changed
    timed.__defaults__ = (10,)
    timed.__kwdefaults__ = {"b": 20}

    # THEN they act, whether it is on or off
    assert timed() == (10, 20)
    stagespan.set_debug(False)
    assert timed() == (10, 20)


def test_closures_are_shared(context: Callable[[str], _core.Span]) -> None:
    # GIVEN a function that rebinds a variable of its surroundings
    total = 0

    def add(value: int) -> int:
        nonlocal total
        total += value
        return total

    timed = decorate(context("closure"), add)

    # WHEN both it and its surroundings change the variable
    timed(2)
    total += 5
    timed(1)
    add(1)

    # THEN they all mean the same one
    assert total == 9


def test_recursion_is_timed_at_every_level(context: Callable[[str], _core.Span]) -> None:
    # GIVEN a function that calls itself by name
    stage = f"recursion {context.__name__}"

    def descend(depth: int) -> int:
        return 0 if depth == 0 else 1 + timed(depth - 1)

    timed = decorate(context(stage), descend)

    # WHEN / THEN
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


def test_methods_of_every_kind() -> None:
    # GIVEN an object whose methods are decorated
    thing = Methods()
    stages = ["method", "mangled", "always method", "class method", "static method", "getter"]
    before = [runs(stage) for stage in stages]

    # WHEN they are called
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

    # THEN they behave as ever and are timed
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

    # WHEN they are called
    results = [
        timed["builtin"]([1, 2]),  # type: ignore[operator]
        timed["object"](1),  # type: ignore[operator]
        timed["bound"](1),  # type: ignore[operator]
        timed["partial"](3),  # type: ignore[operator]
    ]

    # THEN they are timed
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
def test_what_cannot_be_decorated_says_what_to_do(value: object, words: str) -> None:
    # GIVEN something that is no function / WHEN it is decorated / THEN one sentence says what to do
    with pytest.raises(TypeError, match=words) as caught:
        decorate(debug("refused"), value)
    assert "decorat" in str(caught.value)


def test_stacked_contexts_are_all_timed() -> None:
    # GIVEN a function under three contexts, one of them always on
    def function(value: int) -> int:
        return value + 1

    timed = function
    for span in (debug("lowest"), compile_safe("middle"), debug("highest")):
        timed = decorate(span, timed)

    # WHEN it is called with debug mode on, off and on again
    for on in (True, False, True):
        stagespan.set_debug(on)
        assert timed(1) == 2

    # THEN each is timed while it is active
    assert [runs(stage) for stage in ("lowest", "middle", "highest")] == [2, 3, 2]


def test_below_and_above_other_decorators() -> None:
    # GIVEN the order in which a stage is decorated: offload, context, and a wrapper below
    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapped

    def process(self: object, latents: int, *, steps: int = 2) -> int:
        """Denoise."""
        return latents * steps

    timed = wrapper(decorate(debug("between"), wrapper(process)))

    # WHEN it is called, on and off
    results = [timed(None, 2, steps=3)]
    stagespan.set_debug(False)
    results.append(timed(None, latents=2))

    # THEN it works, and still shows the innermost function's signature and documentation
    assert results == [6, 4]
    assert runs("between") == 1
    assert inspect.signature(timed) == inspect.signature(process)
    assert timed.__doc__ == "Denoise."
    assert inspect.unwrap(timed) is process


def test_functions_made_in_a_loop_are_freed() -> None:
    # GIVEN functions that are made and decorated over and over, one of which refers to itself
    def make(number: int) -> Callable[[int], int]:
        def countdown(n: int) -> int:
            return number if n == 0 else timed(n - 1)

        timed = decorate(debug("loop"), countdown)
        return timed

    made = [make(number) for number in range(20)]
    assert [function(1) for function in made] == list(range(20))
    watched = [weakref.ref(function) for function in made]
    gc.collect()
    registered = len(decorators._functions)

    # WHEN they are dropped
    made.clear()
    gc.collect()

    # THEN nothing keeps them
    assert [ref() for ref in watched if ref() is not None] == []
    assert len(decorators._functions) == registered - 20
    assert runs("loop") == 40


def test_the_target_of_a_trampoline_is_traced_to_its_function() -> None:
    # GIVEN two timed functions of the same code, each with a closure of its own
    def make(number: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def original(value: int = 5) -> int:
            return number + value

        return original, decorate(debug("traced"), original)

    pairs = [make(number) for number in range(2)]

    # WHEN the code and the closure are all that is known, as in a trampoline
    targets = [
        types.FunctionType(original.__code__, {}, "target", None, original.__closure__)
        for original, _ in pairs
    ]
    found = [decorators.decorated_function(target) for target in targets]

    # THEN the right function is found, for its signature and its attributes
    if BEFORE_3_12:
        assert found == [timed for _, timed in pairs]
    assert [decorators.decorated_function(timed) for _, timed in pairs] == [
        timed for _, timed in pairs
    ]
    assert decorators.decorated_function(len) is len

    # AND it is forgotten with the function
    found.clear()
    known = len(decorators._by_parts)
    pairs.clear()
    gc.collect()
    assert len(decorators._by_parts) == (known - 2 if BEFORE_3_12 else known)
    assert decorators.decorated_function(targets[0]) is targets[0]


def test_code_replaced_by_others_is_kept() -> None:
    # GIVEN a timed function whose code a reloader replaces while it is on
    function = decorate(debug("reloaded"), lambda: "old")
    function()
    replacement = (lambda: "new").__code__
    function.__code__ = replacement

    # WHEN debug mode goes off and on
    stagespan.set_debug(False)
    while_off = function.__code__
    stagespan.set_debug(True)

    # THEN the new code runs, timed
    assert while_off is replacement
    assert function() == "new"
    assert runs("reloaded") == 2


def test_tracebacks_name_the_function() -> None:
    # GIVEN a timed function that fails
    def failing(value: int) -> float:
        return 1 / value

    timed = decorate(debug("traceback"), failing)

    # WHEN it fails
    try:
        timed(0)
    except ZeroDivisionError as error:
        frames = traceback.extract_tb(error.__traceback__)

    # THEN the last line is the failing one, and all of them are in files that can be read
    assert frames[-1].line == "return 1 / value"
    assert {frame.name for frame in frames[1:]} == {"failing"}
    assert all(os.path.exists(frame.filename) for frame in frames)


def test_many_parameters() -> None:
    # GIVEN a function of 300 parameters, half of them keywords only
    first = ", ".join(f"p{i}" for i in range(150))
    second = ", ".join(f"k{i}" for i in range(150))
    namespace: dict[str, Any] = {}
    exec(f"def many({first}, *, {second}): return locals()", namespace)
    timed = decorate(debug("many"), namespace["many"])
    arguments = {f"p{i}": i for i in range(150)} | {f"k{i}": -i for i in range(150)}

    # WHEN / THEN
    assert timed(**arguments) == arguments
    assert timed(*range(150), **{f"k{i}": -i for i in range(150)}) == arguments
    assert runs("many") == 2


def test_parameters_may_have_any_name() -> None:
    # GIVEN names that a generated text could be tempted to use itself
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

    # WHEN it is called / THEN nothing is mixed up
    assert timed(1, 2, 3, 4, 5, 6, 7, 8, key=9) == (
        1, 2, 3, 4, 5, 6, 7, (8,), {"key": 9}, 21, 22,
    )  # fmt: skip
    with pytest.raises(StopIteration) as caught:
        timed_agen(1, 2, 3, 4, 5, 6, 7).__anext__().send(None)
    assert caught.value.value == (1, 2, 3, 4, 5, 6, 7, 21, 22, 23, 24)


def test_builtins_may_be_shadowed() -> None:
    # GIVEN a module that has its own idea of every name a trampoline could look up
    namespace: dict[str, Any] = {"BaseException": 1, "StopAsyncIteration": 2, "stagespan": 3}
    exec("async def agen():\n    yield 1\n    yield 2", namespace)
    timed = decorate(debug("shadowed"), namespace["agen"])

    # WHEN / THEN
    iterator = timed()
    for expected in (1, 2):
        with pytest.raises(StopIteration) as caught:
            iterator.__anext__().send(None)
        assert caught.value.value == expected
    with pytest.raises(StopAsyncIteration):
        iterator.__anext__().send(None)


@pytest.mark.parametrize("stage", ["quo'te\"s", "new\nline", "back\\slash", "{brace}", "%s", "é"])
def test_any_stage_name_can_decorate(stage: str) -> None:
    # GIVEN a name that would be hostile in a source text
    timed = decorate(debug(stage), lambda value: value)

    # WHEN / THEN
    assert timed(5) == 5
    assert runs(stage) == 1


def test_threads_decorate_and_switch_at_once() -> None:
    # GIVEN threads that decorate, call and drop functions while another switches
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                function = decorate(debug("contended"), lambda value: value * 2)
                assert [function(i) for i in range(10)] == [2 * i for i in range(10)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()

    # WHEN debug mode goes on and off
    for on in (True, False) * 50:
        stagespan.set_debug(on)
    stop.set()
    for thread in threads:
        thread.join()

    # THEN every call returned the right thing
    assert failures == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_can_decorate_and_switch() -> None:
    # GIVEN a process whose lock is held by another thread at the time of a fork
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with decorators._lock:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    # WHEN the child decorates and switches
    child = os.fork()
    if child == 0:
        status = 1
        try:
            stagespan.set_debug(False)
            function = decorate(debug("child"), lambda: 3)
            stagespan.set_debug(True)
            status = 0 if function() == 3 else 2
        finally:
            os._exit(status)
    release.set()
    holder.join()

    # THEN it does not wait for a thread that it does not have
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not BEFORE_3_12, reason="from 3.12 on the code is never replaced")
def test_code_that_travels_to_another_process() -> None:
    # GIVEN the code of a timed function, as those who pickle functions by value send it
    def travelling(value: int, *, factor: int) -> int:
        return value * factor

    timed = decorate(debug("travelling"), travelling)
    sent = marshal.dumps(timed.__code__)
    assert timed.__code__ is not travelling.__code__

    # WHEN another process makes a function of it, in debug mode and not
    program = f"""
import marshal, types
import stagespan
from stagespan import _core
function = types.FunctionType(marshal.loads({sent!r}), {{}})
print(function(2, factor=3))
stagespan.set_debug(True)
print(function(2, factor=3), _core.snapshot().stages()["travelling"].count)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    # THEN it works there, under the same context
    assert done.stdout.splitlines() == ["6", "6 1"], done.stderr
