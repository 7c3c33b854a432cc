"""Requests and spans that end in another context or thread than the one in which they began."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest
from recording import assert_closed, count, lost, only, work

import stagespan
from running import in_threads
from stagespan import current_request, request, span
from stagespan._core import requests_known

pytestmark = pytest.mark.usefixtures("fresh")


def values() -> Iterator[int]:
    """Yield inside of a request and a span."""
    with request("generator"), span("generator"):
        yield 1
        yield 2


def started() -> Generator[int, None, None]:
    """Return a generator that waits inside of its request."""
    generator = values()
    next(generator)
    assert isinstance(generator, Generator)
    return generator


class _Cycle:
    """Refers to itself, so that only a garbage collection frees it."""

    def __init__(self, content: object) -> None:
        self.me = self
        self.content = content


def close_directly(generators: list[Generator[int, None, None]]) -> None:
    generators.pop().close()


def close_in_a_copied_context(generators: list[Generator[int, None, None]]) -> None:
    contextvars.copy_context().run(generators.pop().close)


def close_in_nested_contexts(generators: list[Generator[int, None, None]]) -> None:
    outer, inner = contextvars.copy_context(), contextvars.copy_context()
    outer.run(inner.run, generators.pop().close)


def close_in_an_empty_context(generators: list[Generator[int, None, None]]) -> None:
    contextvars.Context().run(generators.pop().close)


def close_in_another_thread(generators: list[Generator[int, None, None]]) -> None:
    in_threads(generators.pop().close)


def close_in_a_thread_with_the_context(generators: list[Generator[int, None, None]]) -> None:
    context = contextvars.copy_context()
    in_threads(lambda: context.run(generators.pop().close))


def drop(generators: list[Generator[int, None, None]]) -> None:
    generators.pop()


def collect(generators: list[Generator[int, None, None]]) -> None:
    _Cycle(generators.pop())
    gc.collect()


def collect_in_a_copied_context(generators: list[Generator[int, None, None]]) -> None:
    _Cycle(generators.pop())
    contextvars.copy_context().run(gc.collect)


def collect_in_another_thread(generators: list[Generator[int, None, None]]) -> None:
    _Cycle(generators.pop())
    in_threads(gc.collect)


def finish_in_a_copied_context(generators: list[Generator[int, None, None]]) -> None:
    contextvars.copy_context().run(list, generators.pop())


WAYS = [
    close_directly,
    close_in_a_copied_context,
    close_in_nested_contexts,
    close_in_an_empty_context,
    close_in_another_thread,
    close_in_a_thread_with_the_context,
    drop,
    collect,
    collect_in_a_copied_context,
    collect_in_another_thread,
    finish_in_a_copied_context,
]


def run_directly(function: Callable[[], None]) -> None:
    function()


def run_in_a_copied_context(function: Callable[[], None]) -> None:
    contextvars.copy_context().run(function)


def run_in_a_task(function: Callable[[], None]) -> None:
    async def main() -> None:
        function()

    asyncio.run(main())


def run_in_a_thread(function: Callable[[], None]) -> None:
    in_threads(function)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "run", [run_directly, run_in_a_copied_context, run_in_a_task, run_in_a_thread]
)
@pytest.mark.parametrize("outer", [None, "outer"])
def test_a_generator_that_ends_elsewhere_leaves_nothing_behind(
    way: Callable[[list[Generator[int, None, None]]], None],
    run: Callable[[Callable[[], None]], None],
    outer: str | None,
) -> None:
    def consume() -> None:
        before = current_request()
        generator = [started()]
        way(generator)
        copied = contextvars.copy_context()
        assert copied.run(current_request) is before
        copied.run(work, "in a copy")
        assert current_request() is before
        work("afterwards")

    if outer is None:
        run(consume)
    else:

        def inside() -> None:
            with request(outer), span("around"):
                consume()

        run(inside)

    numbers = {text: number for number, (text, _) in sorted(requests_known().items())}
    around = only("around").id if outer else 0
    for stage in ("in a copy", "afterwards"):
        assert only(stage).request == numbers.get(outer or "", 0), stage
        assert only(stage).parent == around, stage
    assert count("generator") == 1
    assert current_request() is None
    assert lost() == {}
    work("open another")  # threads drop spans that others ended when they open the next one
    assert_closed()


async def _settle() -> None:
    """Let the loop close generators that were dropped."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_an_async_generator_that_is_dropped_leaves_nothing_behind() -> None:
    seen: list[object] = []

    async def generate() -> AsyncIterator[int]:
        try:
            async with request("generator"):
                with span("generator"):
                    yield 1
                    yield 2
        finally:
            seen.append(current_request())

    async def see(name: str) -> None:
        seen.append(current_request())
        work(name)

    async def main() -> None:
        async for _ in generate():
            break
        await _settle()
        await asyncio.create_task(see("new task"))
        await asyncio.to_thread(work, "thread")
        await see("consumer")
        async with request("outer") as outer:
            async for _ in generate():
                break
            await _settle()
            inside.append(outer.number)
            assert current_request() is outer
            await asyncio.create_task(see("new task of outer"))

    inside: list[int] = []
    asyncio.run(main())

    assert [one if one is None else getattr(one, "id", one) for one in seen] == [
        *(None, None, None),
        *("outer", "outer"),
    ]
    for stage in ("new task", "thread", "consumer"):
        assert (only(stage).request, only(stage).parent) == (0, 0), stage
    assert only("new task of outer").request == inside[0]
    assert lost() == {}
    assert_closed()


def test_requests_of_one_context_may_end_in_any_order() -> None:
    generators = [started() for _ in range(4)]
    last = current_request()
    for generator in (generators[1], generators[0], generators[2]):
        generator.close()
        assert current_request() is last
    work("in the last")
    generators[3].close()
    work("afterwards")
    assert last is not None
    assert only("in the last").request == last.number
    assert current_request() is None
    assert only("afterwards").request == 0
    assert lost() == {}


@pytest.mark.parametrize("is_in_a_task", [False, True])
def test_a_bound_coroutine_that_is_closed_elsewhere(is_in_a_task: bool) -> None:
    class Forever:
        def __await__(self) -> Iterator[None]:
            while True:
                yield

    async def wait() -> None:
        with span("waits"):
            await Forever()

    def advance() -> None:
        with request("own") as own, span("own"):
            # GIVEN a coroutine that waits with the request and span that it took along
            coroutine = bound()
            coroutine.send(None)
            assert current_request() is carried
            contextvars.copy_context().run(coroutine.close)
            assert current_request() is own
            contextvars.copy_context().run(work, "in a copy")
            work("afterwards")

    with request("carried") as carried, span("carried"):
        bound: Callable[[], Any] = stagespan.bind(wait)

    async def main() -> None:
        advance()

    if is_in_a_task:
        asyncio.run(main())
    else:
        advance()

    for stage in ("in a copy", "afterwards"):
        assert only(stage).parent == only("own").id, stage
        assert only(stage).request == only("own").request, stage
    assert only("waits").parent == only("carried").id
    assert current_request() is None
    assert_closed()


def test_a_task_that_was_created_inside_keeps_its_request() -> None:
    async def main() -> None:
        async def late() -> None:
            await closed.wait()
            seen.append(current_request())
            work("late")

        async def generate() -> AsyncIterator[int]:
            async with request("generator") as own:
                tasks.append(asyncio.create_task(late()))
                numbers.append(own.number)
                yield 1

        closed = asyncio.Event()
        generator = generate()
        await anext(generator)
        await asyncio.create_task(generator.aclose())
        assert current_request() is None
        closed.set()
        await tasks[0]

    tasks: list[asyncio.Task[None]] = []
    numbers: list[int] = []
    seen: list[request | None] = []
    asyncio.run(main())

    assert [one and one.id for one in seen] == ["generator"]
    assert only("late").request == numbers[0]


def test_a_request_outlives_the_thread_in_which_it_began() -> None:
    kept: list[Generator[int, None, None]] = []
    in_threads(lambda: kept.append(started()))
    with request("own") as own:
        kept.pop().close()
        assert current_request() is own
        work("inside")
    assert only("inside").request == own.number
    assert current_request() is None


def test_a_request_that_is_never_left_goes_with_its_thread() -> None:
    def enter_only() -> None:
        request("abandoned").__enter__()
        work("abandoned")

    for _ in range(3):
        in_threads(enter_only)
    gc.collect()
    work("afterwards")
    assert only("afterwards").request == 0
    assert lost() == {}


def test_threads_that_close_each_others_generators() -> None:
    started_in: list[Generator[int, None, None]] = [started()]
    threads = 4

    def pass_on(number: int) -> None:
        with request(f"thread {number}") as own:
            mine = started()
            started_in.pop().close()
            started_in.append(mine)
            inside = current_request()
            assert inside is not None
            assert inside is not own
            assert inside.id == "generator"

    for number in range(threads):
        in_threads(lambda number=number: pass_on(number))  # type: ignore[misc]
    started_in.pop().close()
    # THEN nothing of them is left here
    assert current_request() is None
    work("afterwards")
    assert (only("afterwards").request, only("afterwards").parent) == (0, 0)
