"""More open spans, tasks and requests at once than can be shown: nothing is lost but the view."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recording import Recorded, assert_closed, count, in_child, lost, recorded

import stagespan
from running import PROGRAMS, in_threads
from stagespan import _core, current_request, request, span

LITTLE_MEMORY = PROGRAMS / "little_memory.py"

pytestmark = pytest.mark.usefixtures("fresh")

TASKS = 17_500  # a thread shows at most 16,383 spans, or 8,191 tasks
SLEEP_S = 0.2


async def with_block() -> None:
    with span("work"):
        await asyncio.sleep(SLEEP_S)


@span("work")
async def decorated() -> None:
    await asyncio.sleep(SLEEP_S)


async def nested() -> None:
    with span("outer"), span("work"):
        await asyncio.sleep(SLEEP_S)


async def through_an_exit_stack() -> None:
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(span("work"))
        await asyncio.sleep(SLEEP_S)


async def in_a_request() -> None:
    async with request() as own:
        with span("work"):
            await asyncio.sleep(SLEEP_S)
            assert current_request() is own
        with span("second"):
            pass


@pytest.mark.parametrize(
    "job", [with_block, decorated, nested, through_an_exit_stack, in_a_request]
)
def test_all_tasks_are_timed(job: Callable[[], object]) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(job()) for _ in range(TASKS)]  # type: ignore[arg-type]
        await asyncio.gather(*tasks)
        assert current_request() is None
        with span("afterwards"):
            pass

    asyncio.run(main())

    figures = _core.snapshot().stages()["work"]
    assert figures.count == TASKS
    assert figures.min_ns >= SLEEP_S * 0.9e9
    assert "unmatched" not in lost()
    assert "abandoned" not in lost()
    assert _core.open_spans() == []
    (after,) = recorded("afterwards")
    assert (after.parent, after.request, after.depth) == (0, 0, 0)
    assert_closed()


def test_tasks_beyond_those_shown_keep_their_own_requests() -> None:
    seen: list[tuple[bool, str | None]] = []

    async def serve(number: int) -> None:
        async with request(f"r{number}") as own:
            with span("serve"):
                waiting.append(number)
                if len(waiting) == TASKS:
                    all_wait.set()
                await finish.wait()
                found = current_request()
                seen.append((found is own, None))

    async def unrelated() -> None:
        found = current_request()
        seen.append((found is None, found and found.id))
        with span("unrelated"):
            await asyncio.sleep(0)
        token = stagespan.begin("unrelated token")
        stagespan.end(token)

    async def main() -> None:
        tasks = [asyncio.create_task(serve(i)) for i in range(TASKS)]
        await all_wait.wait()
        with span("of main"):
            pass
        await asyncio.gather(*(asyncio.create_task(unrelated()) for _ in range(50)))
        spans.extend(one for one in recorded() if one.stage != "serve")
        # Those that end leave frames for others.
        finish.set()
        await asyncio.gather(*(asyncio.create_task(unrelated()) for _ in range(50)), *tasks)

    all_wait, finish = asyncio.Event(), asyncio.Event()
    waiting: list[int] = []
    spans: list[Recorded] = []
    asyncio.run(main())
    assert {is_right for is_right, _ in seen} == {True}, seen[:5]
    with span("outside"):
        pass
    spans.extend(one for one in recorded() if one.stage != "serve")
    assert {one.stage for one in spans} == {"of main", "unrelated", "unrelated token", "outside"}
    assert {(one.request, one.parent) for one in spans} == {(0, 0)}
    assert count("serve") == TASKS
    assert current_request() is None
    assert "unmatched" not in lost()


@pytest.mark.parametrize("in_which", ["the main thread", "another thread"])
def test_a_thread_with_many_open_requests_loses_no_span(in_which: str) -> None:
    requests = 17_000

    def enter(stack: contextlib.ExitStack, number: int) -> None:
        stack.enter_context(request(f"r{number}"))

    def work() -> None:
        held = [(contextvars.copy_context(), request(f"own {i}")) for i in range(requests)]
        for context, one in held:
            context.run(one.__enter__)
        with contextlib.ExitStack() as stack:
            for number in range(requests):
                enter(stack, number)
            for _ in range(5):
                with span("inside"):
                    pass
                held[-1][0].run(lambda: spanned("in the last context"))
        for context, one in held:
            context.run(one.__exit__)
        assert current_request() is None

    def spanned(name: str) -> None:
        with span(name):
            pass

    if in_which == "the main thread":
        work()
    else:
        in_threads(work)
    assert count("inside") == count("in the last context") == 5
    ids = {row["request"]: row["request_id"] for row in stagespan.spans()}
    (last,) = {span.request for span in recorded("inside")}
    assert ids[last] == f"r{requests - 1}"
    (last,) = {span.request for span in recorded("in the last context")}
    assert ids.get(last, f"own {requests - 1}") == f"own {requests - 1}"
    assert lost().keys() <= {"requests", "overwritten", "open_spans"}


def test_requests_that_the_recording_does_not_show_are_counted() -> None:
    before = lost().get("requests", 0)
    with contextlib.ExitStack() as stack:
        for number in range(6000):
            stack.enter_context(request(f"r{number}"))
        assert lost()["requests"] - before == 6000 - 4096
    at_end = lost()["requests"]
    for _ in range(6000):
        with request():
            pass
    assert lost()["requests"] == at_end


@pytest.mark.full
def test_generators_that_wait_inside_of_spans() -> None:
    def wait() -> Iterator[int]:
        with span("generator"):
            while True:
                yield 1

    held = [wait() for _ in range(TASKS)]
    for generator in held:
        next(generator)
    assert lost()["open_spans"] == TASKS - len(_core.open_spans())
    for generator in held[::2]:
        generator.close()  # type: ignore[attr-defined]
    with span("shown"):
        assert any(one["stage"] == "shown" for one in _core.open_spans())
    held.clear()
    gc.collect()
    assert count("generator") == TASKS
    assert _core.open_spans() == []


def test_threads_without_a_slot_time_all_spans() -> None:
    # GIVEN all 256 slots in use by threads that wait
    ready = threading.Barrier(300)
    done = threading.Event()

    def hold() -> None:
        with span("hold"):
            ready.wait()
            done.wait()

    threads = [threading.Thread(target=hold) for _ in range(299)]
    for thread in threads:
        thread.start()
    ready.wait()

    async def many() -> None:
        await asyncio.gather(*(asyncio.create_task(one()) for _ in range(2000)))

    async def one() -> None:
        with span("task"), span("nested"):
            await asyncio.sleep(0)

    try:
        for _ in range(2):
            in_threads(lambda: asyncio.run(many()))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert count("hold") == 299
    assert count("task") == count("nested") == 4000
    assert "unmatched" not in lost()
    assert "memory" not in lost()


def test_tasks_for_which_there_is_no_memory(tmp_path: Path) -> None:
    # GIVEN an arena that is as small as possible, because little address space was free
    found = in_child((LITTLE_MEMORY, "many_tasks"), tmp_path)
    # THEN those tasks lose their spans, but nobody gets the request of another task
    assert found == ["0 0 0", "True", "{0}"]
