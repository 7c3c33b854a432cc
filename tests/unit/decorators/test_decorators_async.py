"""Decorated coroutine functions behave as before."""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
from collections.abc import Callable, Generator
from typing import Any

import pytest
from decorating import debug, runs

from stagespan import _core
from stagespan.contexts.decorators import decorate


async def double(value: int) -> int:
    """Double."""
    await asyncio.sleep(0)
    return 2 * value


def test_kinds_of_methods_partials_and_objects_are_kept() -> None:
    # GIVEN objects that inspect recognises as coroutine functions although they are not functions
    class Model:
        async def method(self, value: int) -> int:
            return value + 1

        async def __call__(self, value: int) -> int:
            return value + 2

    timed: list[Any] = [
        decorate(debug("no functions"), Model().method),
        decorate(debug("no functions"), functools.partial(double, 3)),
        decorate(debug("no functions"), Model()),
    ]

    async def main() -> list[int]:
        return [await timed[0](1), await timed[1](), await timed[2](1)]

    assert inspect.iscoroutinefunction(timed[0])
    assert inspect.iscoroutinefunction(timed[1])
    assert inspect.iscoroutinefunction(timed[2])
    assert asyncio.run(main()) == [2, 6, 3]
    assert runs("no functions") == 3


def test_coroutines_run_in_every_way(context: Callable[[str], _core.Span]) -> None:
    stage = f"coroutine {context.__name__}"
    timed = decorate(context(stage), double)

    async def main() -> list[Any]:
        task = asyncio.create_task(timed(4))
        return [
            await timed(1),
            *await asyncio.gather(timed(2), timed(3)),
            await task,
            await asyncio.wait_for(timed(5), 10),
            await asyncio.shield(timed(6)),
        ]

    assert asyncio.run(main()) == [2, 4, 6, 8, 10, 12]
    assert runs(stage) == 6


def test_cancelled_coroutines_are_marked(context: Callable[[str], _core.Span]) -> None:
    stage = f"cancelled {context.__name__}"
    tidied: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            tidied.append(True)

    timed = decorate(context(stage), wait)

    async def main() -> None:
        task = asyncio.create_task(timed())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert tidied == [True]
    assert (runs(stage), _core.snapshot().stages()[stage].errors) == (1, 1)


def test_generator_based_coroutines_stay_awaitable() -> None:
    @types.coroutine
    def old_style() -> Generator[None, None, int]:
        yield
        return 8

    timed = decorate(debug("old style"), old_style)

    async def main() -> int:
        return await timed()

    assert asyncio.run(main()) == 8
    assert runs("old style") == 1
