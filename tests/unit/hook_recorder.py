"""Hooks that record their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stagespan
from stagespan import _core
from stagespan.contexts import context
from stagespan.contexts.context import Call, register_hook

OURS = ("first", "second")


class Recorder:
    """A hook that records its calls, for stages whose name begins with "hooked"."""

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
    stagespan.set_debug(True)
    for event in ("debug", "profiled"):
        context.need(event)  # registers hooks that other tests need later
    before = dict(context._hooks)
    _core._reset()
    register_hook(first)
    register_hook(second)
    yield first, second
    context._hooks.clear()
    context._hooks.update(before)
    stagespan.set_debug(False)


def steps(hook: Recorder) -> list[tuple[str, str]]:
    """Return which step ran in which hook, in order."""
    return [(entry[0], entry[1]) for entry in hook.log]
