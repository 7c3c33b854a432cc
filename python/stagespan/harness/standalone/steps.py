"""Callables that run one iteration of a replay."""

from __future__ import annotations

import asyncio
import collections
import functools
import inspect
import types
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from stagespan.harness.standalone.fit import fit

UNFINISHED = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


class CallStep:
    """Calls a function, method or module with the inputs, up to its end."""

    def __init__(
        self, function: Any, inputs: Mapping[str, Any], optional: Collection[str] = ()
    ) -> None:
        self.function = function
        self.args, self.kwargs = fit(function, inputs, optional)

    def says(self) -> str:
        """Describe one iteration."""
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        named = getattr(function, "__qualname__", None) or type(function).__qualname__
        return f"one whole call of {named}"

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

    def __call__(self) -> Any:
        """Run it to its end; returns what it returned."""
        return drain(self.step_fn(self.stage, self.inputs))


def function_of(stage: Any) -> Any:
    """Return what a whole call of a stage calls: its ``process``, itself or its ``forward``."""
    if inspect.isroutine(stage) or isinstance(stage, type):
        return stage
    if callable(getattr(stage, "process", None)):
        return stage.process
    if callable(stage):  # also a torch module, so that its hooks run
        return stage
    found = getattr(stage, "forward", None)
    return found if callable(found) else None


def with_method(stage: Any, method: str | None) -> Any:
    """Return the stage's method of this name, or the stage if it calls this method itself."""
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
    if not isinstance(result, UNFINISHED):
        return result
    if inspect.iscoroutine(result):
        results: list[Any] = []
        _run_to_end(_await(result, results))
        return results[0]
    if inspect.isgenerator(result):
        collections.deque(result, maxlen=0)
    elif inspect.isasyncgen(result):
        _run_to_end(_drain_async(result))
    return result


def _run_to_end(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a loop of its own, also if a loop runs already, as in a notebook."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        asyncio.run(coroutine)
    finally:
        asyncio._set_running_loop(running)


async def _await(coroutine: Coroutine[Any, Any, Any], results: list[Any]) -> None:
    # The main task returns None, because asyncio.run calls repr() of its result, and repr() of a
    # tensor runs many operators.
    results.append(await coroutine)


async def _drain_async(generator: Any) -> None:
    async for _ in generator:
        pass
