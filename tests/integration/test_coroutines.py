"""Timed coroutine functions, and what remains after tasks."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import time
import weakref
from collections.abc import Callable

import pytest
from recording import assert_closed, count, lost, only, parents, recorded

import stagespan
from running import until
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, span

pytestmark = pytest.mark.usefixtures("fresh")

MS = 1_000_000


# --- timed coroutine functions --------------------------------------------------------------------


def test_a_coroutine_that_sleeps_is_suspended() -> None:
    waited_ns = 0

    @span("sleeps")
    async def sleeps(woken: asyncio.Event) -> None:
        await woken.wait()

    async def main() -> None:
        nonlocal waited_ns
        woken = asyncio.Event()
        task = asyncio.create_task(sleeps(woken))
        await asyncio.sleep(0)
        began_ns = time.perf_counter_ns()
        await asyncio.sleep(0.05)
        waited_ns = time.perf_counter_ns() - began_ns
        woken.set()
        await task

    asyncio.run(main())
    # THEN its wall time includes the whole wait, which does not count as running
    sleeping = only("sleeps")
    assert waited_ns > 45 * MS
    assert sleeping.duration_ns >= sleeping.suspended_ns >= waited_ns
    assert sleeping.flags & _core.FLAG_ASYNC


def test_a_coroutine_that_computes_is_not() -> None:
    @span("works")
    async def works() -> None:
        for _ in range(2):
            until = time.perf_counter() + 0.02
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0)

    asyncio.run(works())

    working = only("works")
    assert working.duration_ns - working.suspended_ns >= 39 * MS


def test_a_timed_coroutine_is_the_parent_of_what_runs_in_it() -> None:
    @span("inner")
    async def inner() -> int:
        with span("block"):
            await asyncio.sleep(0.001)
        return 1

    @span("outer")
    async def outer() -> int:
        first = await inner()
        task = asyncio.create_task(inner())
        with span("waits"):
            return first + await task

    assert asyncio.run(outer()) == 2

    assert parents() == {
        "outer": {None},
        "inner": {"outer"},
        "block": {"inner"},
        "waits": {"outer"},
    }
    assert_closed()


def test_all_of_an_awaited_coroutine_is_charged_to_its_parent() -> None:
    # GIVEN a timed coroutine that sleeps, awaited in a span; one awaited in a timed coroutine
    @span("sleeps")
    async def sleeps() -> None:
        await asyncio.sleep(0.02)

    @span("awaits")
    async def awaits() -> None:
        await sleeps()

    async def main() -> None:
        with span("block"):
            await sleeps()
        await awaits()

    asyncio.run(main())
    stages = _core.snapshot().stages()
    for parent, child in zip(("block", "awaits"), recorded("sleeps"), strict=True):
        assert child.duration_ns >= 19 * MS
        assert child.suspended_ns <= stages[parent].children_ns <= child.duration_ns + 1
    assert_closed()


def test_coroutines_driven_by_hand_in_turns() -> None:
    # GIVEN two coroutines that one span drives in turns, so that their times overlap
    @span("driven")
    async def driven() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            time.sleep(0.001)

    with span("driver"):
        waiting = [driven(), driven(), driven()]
        while waiting:
            for coroutine in tuple(waiting):
                try:
                    coroutine.send(None)
                except StopIteration:
                    waiting.remove(coroutine)
    # THEN together they do not exceed their parent
    assert parents()["driven"] == {"driver"}
    assert count("driven") == 3
    assert_closed()


@pytest.mark.parametrize("kind", [span, ProfilingContext, ProfilingContext4Debug])
def test_wait_for_cancels(kind: Callable[[str], _core.Span]) -> None:
    # GIVEN coroutines that are cancelled while they run, before they begin, and after they ended
    stagespan.set_debug(True)

    @kind("cancelled")
    async def sleeps(delay_s: float) -> str:
        try:
            await asyncio.sleep(delay_s)
        finally:
            with span("cleans up"):
                pass
        return "done"

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sleeps(60), 0.01)
        task = asyncio.create_task(sleeps(60))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(sleeps(0), 60) == "done"

    asyncio.run(main())
    # THEN a coroutine that never began has no span; a cancelled one is marked
    assert [span.failed for span in recorded("cancelled")] == [True, False]
    assert parents()["cleans up"] == {"cancelled"}
    assert lost() == {}


def test_cancelled_and_continuing() -> None:
    @span("goes on")
    async def goes_on() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "handled"
        return "slept"

    async def main() -> str:
        task = asyncio.create_task(goes_on())
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert asyncio.run(main()) == "handled"
    assert not only("goes on").failed


def test_asyncio_recognises_a_coroutine_object() -> None:
    @span("coroutine")
    async def work(value: int) -> int:
        await asyncio.sleep(0)
        return value

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        shielded = asyncio.shield(work(3))
        threadsafe = asyncio.to_thread(
            lambda: asyncio.run_coroutine_threadsafe(work(4), loop).result()
        )
        as_completed = [await next(asyncio.as_completed([work(5)]))]
        return [
            await work(0),
            *await asyncio.gather(work(1), asyncio.ensure_future(work(2)), shielded, threadsafe),
            *as_completed,
        ]

    assert asyncio.run(main()) == [0, 1, 2, 3, 4, 5]
    assert asyncio.run(work(6)) == 6
    assert asyncio.iscoroutinefunction(work)
    assert count("coroutine") == 7


def test_a_coroutine_that_is_never_awaited(recwarn: pytest.WarningsRecorder) -> None:
    @span("never awaited")
    async def never() -> None:
        pass

    never()
    gc.collect()
    # THEN Python warns, as it would without the span, and nothing was timed
    assert [str(warning.message) for warning in recwarn] == [
        f"coroutine '{never.__qualname__}' was never awaited"
    ]
    assert count("never awaited") == 0


def test_a_coroutine_awaited_twice() -> None:
    @span("twice")
    async def once() -> int:
        await asyncio.sleep(0.001)
        return 1

    async def main() -> None:
        coroutine = once()
        assert await coroutine == 1
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            await coroutine
        coroutine = once()
        first = asyncio.create_task(coroutine)
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already"):
            await coroutine
        assert await first == 1

    asyncio.run(main())

    assert [span.failed for span in recorded("twice")] == [False, False]
    assert lost() == {}


# --- what tasks leave behind ----------------------------------------------------------------------


class _Kept:
    """An object in a context variable."""


def test_nothing_of_a_task_is_kept_when_it_has_ended() -> None:
    variable: contextvars.ContextVar[_Kept] = contextvars.ContextVar("variable")
    kept: list[weakref.ref[_Kept]] = []

    async def work(how: str) -> None:
        value = _Kept()
        kept.append(weakref.ref(value))
        variable.set(value)
        with span(how):
            await asyncio.sleep(0 if how == "ends" else 60)

    async def ends() -> None:
        with span("afterwards"):
            await asyncio.sleep(0)

    async def main() -> None:
        tasks = [asyncio.create_task(work(how)) for how in ("ends", "cancelled", "given up")]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        await asyncio.gather(*tasks[:2], return_exceptions=True)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of a pending task that is destroyed
    loop.run_until_complete(main())
    loop.close()
    del loop
    gc.collect()
    asyncio.run(ends())

    assert [reference() for reference in kept] == [None, None, None]
    assert _core.open_spans() == []
    assert lost() == {}
    assert parents()["afterwards"] == {None}


def test_abandoned_tasks_free_their_frames() -> None:
    async def waits() -> None:
        with span("given up"):
            await asyncio.Event().wait()

    async def main() -> None:
        for _ in range(200):
            tasks = [asyncio.ensure_future(waits()) for _ in range(100)]
            await asyncio.sleep(0)
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            tasks.clear()
            task = None
            gc.collect(1)

    asyncio.run(main())
    gc.collect()
    until(lambda: count("given up") == 20_000)
    assert lost().keys() <= {"overwritten"}
    with span("afterwards"):
        assert [span["stage"] for span in _core.open_spans()] == ["afterwards"]
