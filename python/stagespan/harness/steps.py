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


def drain(result: Any) -> Any:
    """Run a coroutine or generator, which does nothing until somebody does, to its end."""
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
