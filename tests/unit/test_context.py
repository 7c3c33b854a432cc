"""Hooks around a stage, what they see, what happens when they fail; requests; switches."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, context, span
from stagespan.context import MISSING, Call, register_hook

OURS = ("first", "second")


class Recorder:
    """A hook that writes down what happens, for stages whose name begins with "hooked"."""

    def __init__(self, name: str, log: list[tuple[Any, ...]]) -> None:
        self.name = name
        self.log = log
        self.calls: list[Call] = []
        self.before: dict[str, Callable[[Call], Any]] = {}

    def _do(self, step: str, call: Call, *seen: object) -> None:
        self.log.append((step, self.name, call.stage, *seen))
        self.before.get(step, lambda call: None)(call)

    def wants(self, call: Call) -> bool:
        if "wants" in self.before:
            return bool(self.before["wants"](call))
        return call.stage.startswith("hooked")

    def enter(self, call: Call) -> None:
        self.calls.append(call)
        self._do("enter", call, call.args, call.kwargs)

    def leave(self, call: Call) -> None:
        self._do("leave", call)

    def exit(self, call: Call) -> None:
        self._do("exit", call, call.result, call.error)


@pytest.fixture
def hooks() -> Iterator[tuple[Recorder, Recorder]]:
    """Two hooks and their common log, in debug mode."""
    log: list[tuple[Any, ...]] = []
    first, second = Recorder(OURS[0], log), Recorder(OURS[1], log)
    before = list(context._hooks)
    stagespan.set_debug(True)
    context.need("debug")
    _core.reset()
    register_hook(first)
    register_hook(second)
    yield first, second
    context._hooks[:] = before
    stagespan.set_debug(False)


def steps(hook: Recorder) -> list[tuple[str, str]]:
    """Which step ran in which hook, in order."""
    return [(entry[0], entry[1]) for entry in hook.log]


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
    # WHEN
    with ProfilingContext4Debug("hooked", False, capture_memory=True) as block:
        block.inputs(x=1)
        block.output("result")
        (during,) = hooks[0].calls
        assert during.inputs == {"x": 1}
    # THEN in order of registration, and then in reverse
    assert steps(hooks[0]) == ALL_STEPS
    assert hooks[0].log[0] == ("enter", "first", "hooked", (), {})
    assert hooks[0].log[-1] == ("exit", "first", "hooked", "result", None)
    # AND with all that there is to know
    assert (during.kind, during.function) == ("debug", None)
    assert (during.reset_peak_memory, during.capture_memory) == (False, True)


def test_times_and_id_are_those_of_the_span(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN
    seen: list[tuple[int, int, int]] = []
    hooks[0].before["exit"] = lambda call: seen.append((call.span_id, call.begin_ns, call.end_ns))
    # WHEN
    with ProfilingContext4Debug("hooked"):
        time.sleep(0.001)
    # THEN
    (row,) = _core.spans()
    ((span_id, begin_ns, end_ns),) = seen
    assert span_id == row["id"]
    # The clock is fitted anew each time, to well below a microsecond.
    assert abs(begin_ns - int(row["begin_ns"])) <= 1000
    assert abs(end_ns - int(row["end_ns"])) <= 1000


def test_hooks_are_not_part_of_the_time(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN hooks that take long before the clock starts and after it has stopped
    hooks[0].before.update(enter=lambda call: time.sleep(0.05), exit=lambda call: time.sleep(0.05))
    # WHEN
    with ProfilingContext4Debug("hooked"):
        pass
    # THEN
    (row,) = _core.spans()
    assert row["end_ns"] - row["begin_ns"] < 50_000_000


def test_leaving_is_part_of_the_time(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN a hook that waits for a device before the clock stops
    hooks[0].before["leave"] = lambda call: time.sleep(0.02)
    # WHEN
    with ProfilingContext4Debug("hooked"):
        pass
    # THEN
    (row,) = _core.spans()
    assert row["end_ns"] - row["begin_ns"] >= 20_000_000


def test_a_function(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN
    @ProfilingContext4Debug("hooked")
    def function(a: int, *rest: int, b: int = 0, **named: int) -> int:
        return a + b

    # WHEN
    assert function(1, 2, b=3, c=4) == 4
    # THEN the arguments are there as they were passed
    assert hooks[0].log[0] == ("enter", "first", "hooked", (1, 2), {"b": 3, "c": 4})
    assert hooks[0].log[-1] == ("exit", "first", "hooked", 4, None)
    (call,) = hooks[0].calls
    assert call.function is not None
    assert call.function.__name__ == "function"


def test_any_callable(hooks: tuple[Recorder, Recorder]) -> None:
    # WHEN a callable that is no function is called
    assert ProfilingContext4Debug("hooked")(max)(1, 5, 3, key=lambda value: -value) == 1
    # THEN
    _, _, _, args, kwargs = hooks[0].log[0]
    assert args == (1, 5, 3)
    assert list(kwargs) == ["key"]


def test_an_exception(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN
    error = KeyError("unchanged")

    @ProfilingContext4Debug("hooked function")
    def function() -> None:
        raise error

    def block() -> None:
        with ProfilingContext4Debug("hooked block") as here:
            here.output("given before")
            raise error

    # WHEN
    for fails in (function, block):
        with pytest.raises(KeyError) as caught:
            fails()
        assert caught.value is error
        assert error.__context__ is None
    # THEN the hooks see it; a result that was given before stays
    exits = [entry for entry in hooks[0].log if entry[0] == "exit" and entry[1] == "first"]
    assert exits == [
        ("exit", "first", "hooked function", MISSING, error),
        ("exit", "first", "hooked block", "given before", error),
    ]


def test_coroutines_and_generators(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN
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

    # WHEN
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


def test_what_a_stage_worked_on_is_let_go(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN
    @ProfilingContext4Debug("hooked")
    def function(value: object) -> object:
        return value

    # WHEN
    value = object()
    before = sys.getrefcount(value)
    function(value)
    # THEN
    (call,) = hooks[0].calls
    assert (call.args, call.kwargs, call.result, call.error) == ((), {}, MISSING, None)
    hooks[0].log.clear()
    assert sys.getrefcount(value) == before


def test_flags_of_hooks_are_in_the_record(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN
    def flag(call: Call) -> None:
        call.flags |= _core.FLAG_FIRST_OF_SHAPE | 1 << 14

    hooks[0].before["exit"] = flag
    # WHEN
    with ProfilingContext4Debug("hooked"):
        pass
    # THEN those that records have are there, others are not
    assert _core.spans()["flags"].tolist() == [_core.FLAG_DEBUG | _core.FLAG_FIRST_OF_SHAPE]


# --- when hooks run at all ------------------------------------------------------------------------


def test_only_those_who_want_take_part(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN
    hooks[1].before["wants"] = lambda call: call.kind == "never"
    # WHEN
    with ProfilingContext4Debug("hooked"), ProfilingContext4Debug("not asked for"):
        pass
    # THEN
    assert steps(hooks[0]) == [("enter", "first"), ("leave", "first"), ("exit", "first")]


def test_plain_spans_and_contexts_that_are_off_call_no_hook(
    hooks: tuple[Recorder, Recorder],
) -> None:
    # WHEN
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
    # THEN
    assert hooks[0].log == []


def test_switched_off_in_the_middle(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN a hook that switches debug mode off, in enter or in a block
    hooks[0].before["enter"] = lambda call: stagespan.set_debug(False)
    # WHEN
    with ProfilingContext4Debug("hooked"):
        pass
    # THEN who was entered is left
    assert steps(hooks[0]) == ALL_STEPS
    assert len(_core.spans()) == 1


def test_profiled_stages_and_captured_memory_call_them(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN
    stagespan.set_debug(False)
    _core.set_profiled_names(["hooked by name"])
    # WHEN
    with ProfilingContext("hooked by name"), ProfilingContext("hooked not"):
        pass
    with ProfilingContext("hooked for memory", capture_memory=True):
        pass
    _core.set_profiled_names([])
    # THEN
    assert [call.stage for call in hooks[0].calls] == ["hooked by name", "hooked for memory"]


def test_a_hook_of_the_same_name_replaces_the_earlier(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN
    other = Recorder("first", [])
    register_hook(other)
    # WHEN
    with ProfilingContext4Debug("hooked"):
        pass
    # THEN in its place
    assert [hook.name for hook in context._hooks[-2:]] == ["first", "second"]
    assert len(other.calls) == 1
    assert [name for _, name in steps(hooks[0])] == ["second"] * 3


def test_nested_calls_each_have_their_own(hooks: tuple[Recorder, Recorder]) -> None:
    # WHEN
    outer = ProfilingContext4Debug("hooked outer")
    with outer, ProfilingContext4Debug("hooked inner") as inner:
        inner.output(1)
        outer.output(2)
    # THEN
    exits = [(entry[2], entry[3]) for entry in hooks[0].log if entry[0] == "exit"]
    assert exits == [("hooked inner", 1)] * 2 + [("hooked outer", 2)] * 2


def test_left_in_another_thread(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN
    block = ProfilingContext4Debug("hooked")
    block.__enter__()
    block.output("result")
    # WHEN
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    # THEN the hooks are left as well
    assert steps(hooks[0]) == ALL_STEPS
    assert hooks[0].log[-1] == ("exit", "first", "hooked", "result", None)


# --- hooks that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["wants", "enter", "leave", "exit"])
def test_an_exception_in_a_hook_is_counted_and_told_once(
    hooks: tuple[Recorder, Recorder],
    step: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN
    def fail(call: Call) -> None:
        raise ValueError(f"in {step}")

    hooks[0].before[step] = fail
    monkeypatch.setattr(context, "_warned", False)

    @ProfilingContext4Debug("hooked")
    def function() -> int:
        return 7

    # WHEN
    with caplog.at_level(logging.WARNING, "stagespan"), ProfilingContext4Debug("hooked"):
        assert function() == 7
    # THEN the other hook and the code are as they were
    assert [name for _, name in steps(hooks[1])].count("second") == 6
    assert _core.lost()["hook_errors"] == 2
    (warning,) = caplog.records
    assert f"hook 'first' failed with ValueError: in {step}" in warning.getMessage()
    assert len(_core.spans()) == 2


def test_an_exception_in_a_hook_does_not_replace_that_of_the_code(
    hooks: tuple[Recorder, Recorder],
) -> None:
    # GIVEN
    def fail(call: Call) -> None:
        raise ValueError

    for step in ("leave", "exit"):
        hooks[0].before[step] = fail
    error = KeyError("of the code")
    # WHEN
    with pytest.raises(KeyError) as caught, ProfilingContext4Debug("hooked"):
        raise error
    # THEN
    assert caught.value is error
    assert error.__context__ is None


@pytest.mark.parametrize("step", ["wants", "enter", "leave", "exit"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_hook_reaches_the_program(
    hooks: tuple[Recorder, Recorder], step: str, kind: type[BaseException]
) -> None:
    # GIVEN an interrupt that arrives while a hook runs
    interrupt = kind(3)

    def interrupted(call: Call) -> None:
        raise interrupt

    hooks[0].before[step] = interrupted

    def program() -> None:
        with ProfilingContext4Debug("hooked"):
            pass
        for _ in range(10):
            pass

    # WHEN
    with pytest.raises(kind) as caught:
        program()
    # THEN it is the same, the other hook had its turns, and nothing is open
    assert caught.value is interrupt
    assert [name for _, name in steps(hooks[1]) if name == "second"] == ["second"] * 3
    assert _core.open_spans() == []
    assert _core.lost()["hook_errors"] == 0


def test_a_signal_handler_that_raises_in_a_hook(hooks: tuple[Recorder, Recorder]) -> None:
    # GIVEN a handler as services have it
    def handler(number: int, frame: object) -> None:
        sys.exit(4)

    def wait_for_signal(call: Call) -> None:
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(0.01)

    hooks[0].before["leave"] = wait_for_signal
    before = signal.signal(signal.SIGUSR1, handler)

    def program() -> None:
        ProfilingContext4Debug("hooked")(lambda: None)()
        for _ in range(10):
            pass

    # WHEN
    try:
        with pytest.raises(SystemExit) as caught:
            program()
    finally:
        signal.signal(signal.SIGUSR1, before)
    # THEN
    assert caught.value.code == 4


def test_an_interrupt_in_a_hook_of_another_thread_reaches_that_thread(
    hooks: tuple[Recorder, Recorder],
) -> None:
    # GIVEN
    def interrupted(call: Call) -> None:
        raise SystemExit

    hooks[0].before["enter"] = interrupted
    seen: list[type[BaseException]] = []

    def program() -> None:
        try:
            with ProfilingContext4Debug("hooked"):
                for _ in range(100):
                    time.sleep(0)
        except SystemExit as error:
            seen.append(type(error))

    # WHEN
    thread = threading.Thread(target=program)
    thread.start()
    thread.join()
    # THEN
    assert seen == [SystemExit]


# --- modules that are imported when they are needed -----------------------------------------------


def test_a_lazy_module_is_imported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    # GIVEN
    (tmp_path / "lazy_module_of_a_test.py").write_text("import builtins\nbuiltins.lazily += 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.lazily", 0, raising=False)
    monkeypatch.setitem(context._lazy, "memory", [])
    # WHEN
    context.lazy_hook("memory", "lazy_module_of_a_test")
    context.need("memory")
    sys.modules.pop("lazy_module_of_a_test")
    context.need("memory")
    # THEN
    import builtins

    assert builtins.lazily == 1  # type: ignore[attr-defined]


def test_threads_wait_for_a_module_that_another_imports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    # GIVEN a module that takes its time
    (tmp_path / "slow_module_of_a_test.py").write_text(
        "import time\ntime.sleep(0.1)\nready = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(context._lazy, "memory", ["slow_module_of_a_test"])
    ready: list[bool] = []

    def work() -> None:
        context.need("memory")
        ready.append(hasattr(sys.modules["slow_module_of_a_test"], "ready"))

    # WHEN
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # THEN
    assert ready == [True] * 4
    assert context._lazy["memory"] == []


def test_a_module_that_cannot_be_imported_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    monkeypatch.setitem(context._lazy, "memory", ["no_such_module_anywhere"])
    _core.reset()
    # WHEN
    context.need("memory")
    context.need("memory")
    # THEN
    assert _core.lost()["hook_errors"] == 1


# --- switches -------------------------------------------------------------------------------------


def test_switches() -> None:
    # GIVEN
    seen: list[tuple[bool, bool]] = []
    context.on_switch(lambda: seen.append((stagespan.is_enabled(), stagespan.is_debug())))
    # WHEN
    for switch in (
        stagespan.disable,
        lambda: stagespan.set_debug(True),
        stagespan.enable,
        lambda: stagespan.set_debug(False),
    ):
        switch()
    context._switched.pop()
    # THEN whoever asked is told after each, and once to begin with
    assert seen == [(True, False), (False, False), (False, True), (True, True), (True, False)]


def test_debug_mode_tells_those_who_listen() -> None:
    # GIVEN
    seen: list[bool] = []
    context.debug_switched.append(seen.append)
    # WHEN
    stagespan.set_debug()
    stagespan.set_debug(False)
    context.debug_switched.remove(seen.append)
    # THEN
    assert seen == [True, False]
