"""What one iteration of a replay runs. Needs no stagespan: the harness's scripts hold this text."""

from __future__ import annotations

import asyncio
import collections
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from stagespan.signature.fit import fit


class CallStep:
    """Calls a function, method or module with the inputs, whole."""

    def __init__(
        self, function: Any, inputs: Mapping[str, Any], optional: Collection[str] = ()
    ) -> None:
        self.function = function
        self.args, self.kwargs = fit(function, inputs, optional)

    def says(self) -> str:
        """What one iteration is."""
        named = getattr(self.function, "__qualname__", None) or type(self.function).__qualname__
        return f"one whole call of {named}"

    def reset(self) -> None:
        """Nothing to put back."""

    def __call__(self) -> Any:
        """Run it to its end, coroutines and generators too; returns what it returned."""
        return drain(self.function(*self.args, **self.kwargs))


class FunctionStep:
    """Calls a user's ``step_fn(stage, inputs)``."""

    def __init__(
        self, step_fn: Callable[[Any, dict[str, Any]], Any], stage: Any, inputs: dict[str, Any]
    ) -> None:
        self.step_fn = step_fn
        self.stage = stage
        self.inputs = inputs

    def reset(self) -> None:
        """Nothing to put back."""

    def __call__(self) -> Any:
        """Run it to its end; returns what it returned."""
        return drain(self.step_fn(self.stage, self.inputs))


def function_of(stage: Any) -> Any:
    """What a whole call of a stage calls: its ``process``, itself, its ``forward``, or None."""
    if inspect.isroutine(stage) or isinstance(stage, type):
        return stage
    if callable(getattr(stage, "process", None)):
        return stage.process
    if callable(stage):  # a torch module too: its hooks belong to the call
        return stage
    found = getattr(stage, "forward", None)
    return found if callable(found) else None


def with_method(stage: Any, method: str | None) -> Any:
    """The stage's method of this name, if that is not what is called anyway; else the stage."""
    if method is None or inspect.isroutine(stage) or isinstance(stage, type):
        return stage
    if method == "forward" or (method == "__call__" and hasattr(stage, "_modules")):
        method = "__call__" if hasattr(stage, "_modules") else method
        if not callable(getattr(stage, "process", None)):
            return stage
    found = getattr(stage, method, None)
    return found if callable(found) and method != "process" else stage


def drain(result: Any) -> Any:
    """Run a coroutine or generator to its end."""
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    if inspect.isgenerator(result):
        collections.deque(result, maxlen=0)
    elif inspect.isasyncgen(result):
        asyncio.run(_drain_async(result))
    return result


async def _drain_async(generator: Any) -> None:
    async for _ in generator:
        pass
