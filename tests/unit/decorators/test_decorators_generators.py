"""Decorated generators and async generators behave as before."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest
from decorating import debug, runs

import stagespan
from stagespan import _core
from stagespan.contexts.decorators import decorate


async def double(value: int) -> int:
    """Double."""
    await asyncio.sleep(0)
    return 2 * value


def generate(count: int) -> Generator[Any, Any, str]:
    """Yield what is sent, and errors that are thrown."""
    got: Any = count
    while got != "stop":
        try:
            got = yield got
        except KeyError as error:
            got = error
    return "returned"


async def generate_async(count: int) -> AsyncGenerator[Any, Any]:
    """Yield what is sent, and errors that are thrown."""
    got: Any = count
    while got != "stop":
        try:
            await asyncio.sleep(0)
            got = yield got
        except KeyError as error:
            got = error


def test_kinds_are_kept(context: Callable[[str], _core.Span]) -> None:
    for on in (True, False):
        stagespan.set_debug(on)
        coroutine = decorate(context("kinds"), double)
        generator = decorate(context("kinds"), generate)
        async_generator = decorate(context("kinds"), generate_async)

        assert inspect.iscoroutinefunction(coroutine)
        assert asyncio.iscoroutinefunction(coroutine)
        assert inspect.isgeneratorfunction(generator)
        assert inspect.isasyncgenfunction(async_generator)
        assert inspect.signature(coroutine) == inspect.signature(double)
        assert inspect.getsource(coroutine) == inspect.getsource(double)
        assert (coroutine.__name__, coroutine.__doc__) == ("double", "Double.")


def test_generators_are_delegated_to(context: Callable[[str], _core.Span]) -> None:
    stage = f"generator {context.__name__}"
    timed = decorate(context(stage), generate)
    error = KeyError("thrown")

    generator = timed(1)
    seen = [next(generator), generator.send(("a", 1)), generator.throw(error), next(generator)]
    with pytest.raises(StopIteration) as stopped:
        generator.send("stop")

    assert seen == [1, ("a", 1), error, None]
    assert stopped.value.value == "returned"
    assert runs(stage) == 1


def test_closing_a_generator_closes_the_function(context: Callable[[str], _core.Span]) -> None:
    stage = f"closed {context.__name__}"
    closed: list[str] = []

    def wait(name: str) -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            closed.append(name)

    timed = decorate(context(stage), wait)
    explicitly, dropped = timed("explicitly"), timed("dropped")
    next(explicitly)
    next(dropped)

    explicitly.close()
    del dropped

    # THEN their `finally` ran, and they are timed
    assert closed == ["explicitly", "dropped"]
    assert runs(stage) == 2


def test_a_generator_that_refuses_to_close(context: Callable[[str], _core.Span]) -> None:
    def stubborn() -> Generator[int, None, None]:
        for _ in range(2):  # the second time it lets itself be closed
            with contextlib.suppress(GeneratorExit):
                yield 1

    generator = decorate(context("stubborn"), stubborn)()
    next(generator)

    with pytest.raises(RuntimeError, match="generator ignored GeneratorExit"):
        generator.close()


def test_contextmanager_over_a_decorated_generator(context: Callable[[str], _core.Span]) -> None:
    def manage() -> Generator[int, None, None]:
        with contextlib.suppress(KeyError):
            yield 5

    managed = contextlib.contextmanager(decorate(context("managed"), manage))

    with managed() as value:
        raise KeyError(value)
    with pytest.raises(ValueError, match="other"), managed():
        raise ValueError("other")


def test_async_generators_are_delegated_to(context: Callable[[str], _core.Span]) -> None:
    stage = f"async generator {context.__name__}"
    timed = decorate(context(stage), generate_async)
    error = KeyError("thrown")

    async def main() -> list[Any]:
        generator = timed(1)
        seen = [
            await generator.__anext__(),
            await generator.asend("a"),
            await generator.asend(("a", "tuple")),
            await generator.athrow(error),
            await generator.__anext__(),
        ]
        with pytest.raises(StopAsyncIteration):
            await generator.asend("stop")
        with pytest.raises(StopAsyncIteration):
            await generator.__anext__()
        return seen

    # WHEN / THEN it received each of them
    assert asyncio.run(main()) == [1, "a", ("a", "tuple"), error, None]
    assert runs(stage) == 1


def test_async_for_break_and_aclose(context: Callable[[str], _core.Span]) -> None:
    # GIVEN an async generator that cleans up with an await
    stage = f"aclose {context.__name__}"
    closed: list[str] = []

    async def wait(name: str) -> AsyncGenerator[int, None]:
        try:
            for number in range(5):
                yield number
        finally:
            await asyncio.sleep(0)
            closed.append(name)

    timed = decorate(context(stage), wait)

    async def main() -> list[int]:
        seen = [number async for number in timed("to its end")]
        async with contextlib.aclosing(timed("early")) as early:
            async for number in early:
                if number == 2:
                    break
        unstarted = timed("never started")
        await unstarted.aclose()
        return seen

    # WHEN / THEN each one that was started cleaned up once, in time
    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
    assert closed == ["to its end", "early"]
    assert runs(stage) == 2


def test_errors_of_async_generators(context: Callable[[str], _core.Span]) -> None:
    async def recover() -> AsyncGenerator[str, None]:
        with contextlib.suppress(KeyError):
            yield "first"
        yield "second"
        raise ValueError("third")

    timed = decorate(context("async errors"), recover)

    async def main() -> ValueError:
        generator = timed()
        assert await generator.__anext__() == "first"
        assert await generator.athrow(KeyError("caught")) == "second"
        with pytest.raises(ValueError, match="third") as caught:
            await generator.__anext__()
        return caught.value

    error = asyncio.run(main())
    assert error.__context__ is None
    assert error.__cause__ is None


def test_an_error_raised_while_another_is_thrown_in(context: Callable[[str], _core.Span]) -> None:
    async def replace() -> AsyncGenerator[int, None]:
        with contextlib.suppress(KeyError):
            yield 1
        raise ValueError("unrelated")

    timed = decorate(context("unrelated"), replace)

    async def main(function: Callable[[], AsyncGenerator[int, None]]) -> BaseException | None:
        generator = function()
        await generator.__anext__()
        with pytest.raises(ValueError, match="unrelated") as caught:
            await generator.athrow(KeyError("caught"))
        return caught.value.__context__

    # WHEN / THEN the context of the error is the same as without decoration
    assert asyncio.run(main(timed)) is asyncio.run(main(replace)) is None


def test_async_generators_left_open_are_closed_with_the_loop(
    context: Callable[[str], _core.Span],
) -> None:
    closed: list[bool] = []

    async def wait() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            closed.append(True)

    timed = decorate(context("left open"), wait)
    kept: list[AsyncGenerator[int, None]] = []

    reported: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        kept.append(timed())
        await kept[0].__anext__()

    asyncio.run(main())

    assert closed == [True]
    assert reported == []


def test_switching_while_suspended() -> None:
    timed = decorate(debug("suspended"), double)
    timed_generator = decorate(debug("suspended"), generate)
    timed_async_generator = decorate(debug("suspended"), generate_async)

    async def main() -> list[Any]:
        task = asyncio.create_task(timed(3))
        generator = timed_generator(1)
        async_generator = timed_async_generator(1)
        started = [next(generator), await async_generator.__anext__()]

        stagespan.set_debug(False)

        return [*started, await task, generator.send(2), await async_generator.asend(3)]

    assert asyncio.run(main()) == [1, 1, 6, 2, 3]
