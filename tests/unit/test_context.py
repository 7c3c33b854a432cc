"""Hooks around a stage: their arguments, and what happens if they fail; requests; switches."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Iterator

import pytest
from hook_recorder import Recorder, steps

import stagespan
from running import in_threads, ran
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, span
from stagespan.contexts.context import MISSING, Call, register_hook

ALL_STEPS = [
    ("enter", "first"),
    ("enter", "second"),
    ("leave", "second"),
    ("leave", "first"),
    ("exit", "second"),
    ("exit", "first"),
]


# --- what hooks see -------------------------------------------------------------------------------


def test_a_block(hooks: tuple[Recorder, Recorder]) -> None:
    with ProfilingContext4Debug("hooked", False, capture_memory=True) as block:
        block.inputs(x=1)
        block.output("result")
        (during,) = hooks[0].calls
        assert during.inputs == {"x": 1}
    # THEN in order of registration, and then in reverse
    assert steps(hooks[0]) == ALL_STEPS
    assert hooks[0].log[0] == ("enter", "first", "hooked", (), {})
    assert hooks[0].log[-1] == ("exit", "first", "hooked", "result", None)
    # AND with all facts about the run
    assert (during.kind, during.function) == ("debug", None)
    assert (during.reset_peak_memory, during.capture_memory) == (False, True)


def test_times_and_id_are_those_of_the_span(hooks: tuple[Recorder, Recorder]) -> None:
    seen: list[tuple[int, int, int]] = []
    hooks[0].before["exit"] = lambda call: seen.append((call.span_id, call.begin_ns, call.end_ns))

    with ProfilingContext4Debug("hooked"):
        time.sleep(0.001)

    (row,) = _core.spans()
    ((span_id, begin_ns, end_ns),) = seen
    assert span_id == row["id"]
    # The clock is fitted again each time. The fits differ by less than a tenth of the span.
    assert abs(begin_ns - int(row["begin_ns"])) <= 100_000
    assert abs(end_ns - int(row["end_ns"])) <= 100_000


def test_hooks_are_not_part_of_the_time(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN hooks that take some time before the clock starts and after it has stopped
    seen: list[int] = []

    def enter(call: Call) -> None:
        time.sleep(0.01)
        seen.append(_core.now_ns())

    def leave(call: Call) -> None:
        seen.append(_core.now_ns())
        time.sleep(0.01)

    hooks[0].before.update(enter=enter, exit=leave)

    with ProfilingContext4Debug("hooked"):
        pass
    # THEN the span is between them, within the error of the clock's fits
    (row,) = _core.spans()
    entered_ns, left_ns = seen
    assert entered_ns - 1_000_000 <= row["begin_ns"] <= row["end_ns"] <= left_ns + 1_000_000


def test_leaving_is_part_of_the_time(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN a hook that waits for a device before the clock stops
    hooks[0].before["leave"] = lambda call: time.sleep(0.02)

    with ProfilingContext4Debug("hooked"):
        pass

    (row,) = _core.spans()
    assert row["end_ns"] - row["begin_ns"] >= 20_000_000


def test_a_function(hooks: tuple[Recorder, Recorder]) -> None:
    @ProfilingContext4Debug("hooked")
    def function(a: int, *rest: int, b: int = 0, **named: int) -> int:
        return a + b

    assert function(1, 2, b=3, c=4) == 4
    assert hooks[0].log[0] == ("enter", "first", "hooked", (1, 2), {"b": 3, "c": 4})
    assert hooks[0].log[-1] == ("exit", "first", "hooked", 4, None)
    (call,) = hooks[0].calls
    assert call.function is not None
    assert call.function.__name__ == "function"


def test_any_callable(hooks: tuple[Recorder, Recorder]) -> None:
    assert ProfilingContext4Debug("hooked")(max)(1, 5, 3, key=lambda value: -value) == 1

    _, _, _, args, kwargs = hooks[0].log[0]
    assert args == (1, 5, 3)
    assert list(kwargs) == ["key"]


def test_an_exception(hooks: tuple[Recorder, Recorder]) -> None:
    error = KeyError("unchanged")

    @ProfilingContext4Debug("hooked function")
    def function() -> None:
        raise error

    def block() -> None:
        with ProfilingContext4Debug("hooked block") as here:
            here.output("given before")
            raise error

    for fails in (function, block):
        with pytest.raises(KeyError) as caught:
            fails()
        assert caught.value is error
        assert error.__context__ is None
    # THEN the hooks get it; a result that was set before is kept
    exits = [entry for entry in hooks[0].log if entry[0] == "exit" and entry[1] == "first"]
    assert exits == [
        ("exit", "first", "hooked function", MISSING, error),
        ("exit", "first", "hooked block", "given before", error),
    ]


def test_coroutines_and_generators(hooks: tuple[Recorder, Recorder]) -> None:
    @ProfilingContext4Debug("hooked coroutine")
    async def coroutine(value: int) -> int:
        await asyncio.sleep(0)
        return 2 * value

    @ProfilingContext4Debug("hooked generator")
    def generator(n: int) -> Iterator[int]:
        yield from range(n)

    @ProfilingContext4Debug("hooked cancelled")
    async def cancelled() -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return 7
        return 0

    async def main() -> None:
        assert await coroutine(4) == 8
        task = asyncio.create_task(cancelled())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == 7

    asyncio.run(main())
    assert list(generator(3)) == [0, 1, 2]
    # THEN the arguments are there when the first turn begins, the result when the last one ends
    log = [entry for entry in hooks[0].log if entry[1] == "first" and entry[0] != "leave"]
    assert log == [
        ("enter", "first", "hooked coroutine", (4,), {}),
        ("exit", "first", "hooked coroutine", 8, None),
        ("enter", "first", "hooked cancelled", (), {}),
        ("exit", "first", "hooked cancelled", 7, None),
        ("enter", "first", "hooked generator", (3,), {}),
        ("exit", "first", "hooked generator", MISSING, None),
    ]


def test_arguments_and_results_are_released(hooks: tuple[Recorder, Recorder]) -> None:
    @ProfilingContext4Debug("hooked")
    def function(value: object) -> object:
        return value

    value = object()
    before = sys.getrefcount(value)
    function(value)

    (call,) = hooks[0].calls
    assert (call.args, call.kwargs, call.result, call.error) == ((), {}, MISSING, None)
    hooks[0].log.clear()
    assert sys.getrefcount(value) == before


def test_flags_of_hooks_are_in_the_record(hooks: tuple[Recorder, Recorder]) -> None:
    def flag(call: Call) -> None:
        call.flags |= _core.FLAG_FIRST_OF_SHAPE | 1 << 14

    hooks[0].before["exit"] = flag

    with ProfilingContext4Debug("hooked"):
        pass
    assert _core.spans()["flags"].tolist() == [_core.FLAG_DEBUG | _core.FLAG_FIRST_OF_SHAPE]


# --- when hooks run at all ------------------------------------------------------------------------


def test_only_hooks_that_want_a_run_are_called(hooks: tuple[Recorder, Recorder]) -> None:
    hooks[1].before["wants"] = lambda call: call.kind == "never"

    with ProfilingContext4Debug("hooked"), ProfilingContext4Debug("not asked for"):
        pass

    assert steps(hooks[0]) == [("enter", "first"), ("leave", "first"), ("exit", "first")]


def test_plain_spans_and_contexts_that_are_off_call_no_hook(
    hooks: tuple[Recorder, Recorder],
) -> None:
    with span("hooked"), ProfilingContext("hooked"):
        pass
    stagespan.set_debug(False)
    with ProfilingContext4Debug("hooked"):
        pass
    stagespan.set_debug(True)
    stagespan.disable()
    with ProfilingContext4Debug("hooked"):
        pass
    stagespan.enable()

    assert hooks[0].log == []


def test_switched_off_in_the_middle(hooks: tuple[Recorder, Recorder]) -> None:
    hooks[0].before["enter"] = lambda call: stagespan.set_debug(False)

    with ProfilingContext4Debug("hooked"):
        pass
    assert steps(hooks[0]) == ALL_STEPS
    assert len(_core.spans()) == 1


def test_profiled_stages_and_captured_memory_call_them(hooks: tuple[Recorder, Recorder]) -> None:
    stagespan.set_debug(False)
    _core.profiler_set_names(["hooked by name"])

    with ProfilingContext("hooked by name"), ProfilingContext("hooked not"):
        pass
    with ProfilingContext("hooked for memory", capture_memory=True):
        pass
    _core.profiler_set_names([])

    assert [call.stage for call in hooks[0].calls] == ["hooked by name", "hooked for memory"]


def test_a_hook_of_the_same_name_replaces_the_earlier(hooks: tuple[Recorder, Recorder]) -> None:
    other = Recorder("first", hooks[0].log)
    register_hook(other)

    with ProfilingContext4Debug("hooked"):
        pass
    assert (len(hooks[0].calls), len(other.calls)) == (0, 1)
    assert steps(hooks[0]) == ALL_STEPS


def test_nested_calls_have_separate_call_objects(hooks: tuple[Recorder, Recorder]) -> None:
    outer = ProfilingContext4Debug("hooked outer")
    with outer, ProfilingContext4Debug("hooked inner") as inner:
        inner.output(1)
        outer.output(2)

    exits = [(entry[2], entry[3]) for entry in hooks[0].log if entry[0] == "exit"]
    assert exits == [("hooked inner", 1)] * 2 + [("hooked outer", 2)] * 2


def test_left_in_another_thread(hooks: tuple[Recorder, Recorder]) -> None:
    block = ProfilingContext4Debug("hooked")
    block.__enter__()
    block.output("result")

    in_threads(functools.partial(block.__exit__, None, None, None))
    assert steps(hooks[0]) == ALL_STEPS
    assert hooks[0].log[-1] == ("exit", "first", "hooked", "result", None)


# --- switches -------------------------------------------------------------------------------------


def test_switches() -> None:
    # GIVEN a program, because a callback stays for good
    code = """
import stagespan
from stagespan.contexts import switches

seen = []
switches.on_switch(lambda: seen.append((stagespan.is_enabled(), stagespan.is_debug())))
stagespan.disable()
stagespan.set_debug(True)
stagespan.enable()
stagespan.set_debug(False)
print(seen)
"""

    done = ran([sys.executable, "-c", code])

    # THEN each callback is called after each switch, and once at the start
    seen = [(True, False), (False, False), (False, True), (True, True), (True, False)]
    assert done.stdout == f"{seen}\n", done.stderr


def test_a_program_that_is_switched_off_by_the_environment() -> None:
    code = """
import stagespan

def run():
    with stagespan.span("block"), stagespan.ProfilingContext("context"):
        pass

run()
stagespan.flush()
print(stagespan.is_enabled(), len(stagespan.stats()), len(stagespan.spans()))
stagespan.enable()
run()
stagespan.flush()
print(stagespan.is_enabled(), {name: each.count for name, each in stagespan.stats().items()})
"""

    done = ran([sys.executable, "-c", code], STAGESPAN_ENABLED="false")

    assert done.stdout.splitlines() == ["False 0 0", "True {'block': 1, 'context': 1}"], done.stderr
