"""Timed async generators: turns, ends, and the tasks that share them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from recording import assert_closed, count, lost, only, parents, recorded

from stagespan import _core, span

pytestmark = pytest.mark.usefixtures("fresh")

MS = 1_000_000


def test_async_generators_in_tasks_that_take_turns() -> None:
    @span("generates")
    async def generate(n: int) -> AsyncIterator[int]:
        for i in range(n):
            with span("step"):
                await asyncio.sleep(0)
            yield i

    async def consume(n: int) -> int:
        total = 0
        with span("consumer"):
            async for value in generate(n):
                with span("uses"):
                    await asyncio.sleep(0)
                    total += value
        return total

    async def main() -> list[int]:
        return await asyncio.gather(*(consume(n) for n in range(20)))

    assert asyncio.run(main()) == [sum(range(n)) for n in range(20)]

    assert parents() == {
        "consumer": {None},
        "generates": {"consumer"},
        "step": {"generates"},
        "uses": {"consumer"},
    }
    assert count("generates") == 20
    assert only_flags("generates") == {_core.FLAG_ASYNC | _core.FLAG_GENERATOR}
    assert_closed()


def only_flags(stage: str) -> set[int]:
    """Return the flags of the spans of a stage."""
    return {span.flags for span in recorded(stage)}


def test_an_async_generator_left_early_ends_soon() -> None:
    @span("left early")
    async def generate() -> AsyncIterator[int]:
        for i in range(10):
            yield i

    async def main() -> list[dict[str, object]]:
        async for value in generate():
            if value == 2:
                break
        for _ in range(5):  # the loop closes it in a separate task
            await asyncio.sleep(0)
        return _core.open_spans()

    still_open = asyncio.run(main())

    assert still_open == []
    assert not only("left early").failed


def test_an_async_generator_ends_when_it_is_closed() -> None:
    @span("closed")
    async def generate() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0.01)

    async def main() -> object:
        kept = generate()
        await kept.__anext__()
        await kept.aclose()  # type: ignore[attr-defined]
        assert _core.open_spans() == []
        return kept

    kept = asyncio.run(main())

    closed = only("closed")
    assert kept is not None
    assert not closed.failed
    assert closed.duration_ns >= 9 * MS
    assert closed.suspended_ns > 0


def test_steps_of_an_async_generator_that_overlap_are_refused() -> None:
    @span("one step at a time")
    async def generate() -> AsyncIterator[int]:
        await asyncio.sleep(0.01)
        yield 1
        yield 2

    async def main() -> list[int]:
        source = generate()
        first = asyncio.ensure_future(source.__anext__())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already running"):
            await source.__anext__()
        return [await first, *[value async for value in source]]

    # THEN the generator continues, and its span lasts until its end
    assert asyncio.run(main()) == [1, 2]
    assert not only("one step at a time").failed
    assert lost() == {}


def test_an_async_generator_shared_by_tasks() -> None:
    @contextlib.asynccontextmanager
    async def resource() -> AsyncIterator[str]:
        async with span("resource"):
            yield "value"

    async def main() -> None:
        manager = resource()
        with span("enters"):
            await asyncio.create_task(manager.__aenter__())
        with span("leaves"):
            await asyncio.create_task(manager.__aexit__(None, None, None))
        with span("afterwards"):
            pass

    asyncio.run(main())

    assert parents() == {
        "enters": {None},
        "resource": {"enters"},
        "leaves": {None},
        "afterwards": {None},
    }
    assert lost() == {}
    assert_closed()
