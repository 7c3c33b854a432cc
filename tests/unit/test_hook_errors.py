"""Hooks that fail, and modules that cannot be imported when they are needed."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import time
import weakref
from typing import Any

import pytest
from hook_recorder import Recorder, steps

from running import in_threads
from stagespan import ProfilingContext4Debug, _core
from stagespan.contexts import context
from stagespan.contexts.context import Call

# --- hooks that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["wants", "enter", "leave", "exit"])
def test_an_exception_in_a_hook_is_counted_and_reported_once(
    hooks: tuple[Recorder, Recorder],
    step: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(call: Call) -> None:
        raise ValueError(f"in {step}")

    hooks[0].before[step] = fail
    monkeypatch.setattr(context, "_warned", False)

    @ProfilingContext4Debug("hooked")
    def function() -> int:
        return 7

    with caplog.at_level(logging.WARNING, "stagespan"), ProfilingContext4Debug("hooked"):
        assert function() == 7
    # THEN the other hook and the code are not affected
    assert [name for _, name in steps(hooks[1])].count("second") == 6
    assert _core.lost()["hook_errors"] == 2
    (warning,) = caplog.records
    assert f"hook 'first' failed with ValueError: in {step}" in warning.getMessage()
    assert len(_core.spans()) == 2


def test_an_exception_in_a_hook_does_not_replace_that_of_the_code(
    hooks: tuple[Recorder, Recorder],
) -> None:
    def fail(call: Call) -> None:
        raise ValueError

    for step in ("leave", "exit"):
        hooks[0].before[step] = fail
    error = KeyError("of the code")

    with pytest.raises(KeyError) as caught, ProfilingContext4Debug("hooked"):
        raise error

    assert caught.value is error
    assert error.__context__ is None


def program() -> None:
    """Run a stage, and go on for some bytecodes, after which an interrupt is raised."""
    with ProfilingContext4Debug("hooked"):
        pass
    for _ in range(10):
        pass


@pytest.mark.parametrize("step", ["wants", "enter", "leave", "exit"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_hook_reaches_the_program(
    hooks: tuple[Recorder, Recorder], step: str, kind: type[BaseException]
) -> None:
    interrupt = kind(3)

    def interrupted(call: Call) -> None:
        raise interrupt

    hooks[0].before[step] = interrupted

    with pytest.raises(kind) as caught:
        program()
    assert caught.value is interrupt
    assert [name for _, name in steps(hooks[1]) if name == "second"] == ["second"] * 3
    assert _core.open_spans() == []
    assert _core.lost()["hook_errors"] == 0


def test_of_two_interrupts_in_hooks_the_first_is_raised(
    hooks: tuple[Recorder, Recorder],
) -> None:
    class Interrupt(KeyboardInterrupt):
        """An interrupt that can be referenced weakly."""

    made: list[weakref.ref[Interrupt]] = []

    def interrupted(call: Call) -> None:
        interrupt = Interrupt(len(made))
        made.append(weakref.ref(interrupt))
        raise interrupt

    for step in ("leave", "exit"):
        hooks[0].before[step] = interrupted

    caught: tuple[Any, ...] = ()

    try:
        program()
    except Interrupt as error:
        caught = error.args
    gc.collect()
    assert caught == (0,)
    assert [reference() for reference in made] == [None, None]


def test_a_signal_handler_that_raises_in_a_hook(hooks: tuple[Recorder, Recorder]) -> None:
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

    try:
        with pytest.raises(SystemExit) as caught:
            program()
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert caught.value.code == 4


def test_an_interrupt_in_a_hook_of_another_thread_reaches_that_thread(
    hooks: tuple[Recorder, Recorder],
) -> None:
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

    in_threads(program)

    assert seen == [SystemExit]


# --- modules that are imported when they are needed -----------------------------------------------


def test_a_lazy_module_is_imported_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "lazy_module_of_a_test.py").write_text("import builtins\nbuiltins.lazily += 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.lazily", 0, raising=False)

    context.lazy_hook("memory", "lazy_module_of_a_test")
    context.need("memory")
    sys.modules.pop("lazy_module_of_a_test")
    context.need("memory")

    import builtins

    assert builtins.lazily == 1  # type: ignore[attr-defined]


@pytest.mark.usefixtures("hooks")  # removes the hook afterwards
def test_a_lazy_class_becomes_one_hook_for_all_events(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "lazy_class_of_a_test.py").write_text(
        "class Lazy:\n    name, made, asked = 'lazy', [], []\n"
        "    def __init__(self):\n        self.made.append(self)\n"
        "    def wants(self, call):\n        self.asked.append(self)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for event in ("memory", "debug"):
        context.lazy_hook(event, "lazy_class_of_a_test:Lazy")
    assert "lazy_class_of_a_test" not in sys.modules

    context.need("memory")
    context.need("debug")
    with ProfilingContext4Debug("stage"):
        pass

    hook = sys.modules["lazy_class_of_a_test"].Lazy
    assert hook.asked == hook.made[:1]


def test_threads_wait_for_a_module_that_another_imports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "slow_module_of_a_test.py").write_text(
        "import time\ntime.sleep(0.1)\nready = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    context.lazy_hook("memory", "slow_module_of_a_test")
    ready: list[bool] = []

    def work() -> None:
        context.need("memory")
        ready.append(hasattr(sys.modules["slow_module_of_a_test"], "ready"))

    in_threads(*[work] * 4)

    assert ready == [True] * 4
    del sys.modules["slow_module_of_a_test"]
    context.need("memory")
    assert "slow_module_of_a_test" not in sys.modules


def test_a_module_that_cannot_be_imported_is_counted() -> None:
    context.lazy_hook("memory", "no_such_module_anywhere")
    _core._reset()

    context.need("memory")
    context.need("memory")

    assert _core.lost()["hook_errors"] == 1
