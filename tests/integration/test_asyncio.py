"""Interleaved tasks: each span has its own time and the parent that its task was created in."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import gc
import random
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable

import pytest
from recording import assert_closed, count, eventually, lost, only, parents, recorded

import stagespan
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, span

pytestmark = pytest.mark.usefixtures("fresh")

MS = 1_000_000


# --- parents --------------------------------------------------------------------------------------


def test_a_thousand_tasks_with_nested_gather() -> None:
    # GIVEN tasks that take turns at random, each with tasks of its own, and spans around all of it
    random_turns = random.Random(1)

    async def leaf(i: int, j: int) -> None:
        with span(f"leaf {i % 50}"):
            await asyncio.sleep(random_turns.random() * 0.005)
            with span("in leaf"):
                await asyncio.sleep(0)

    async def task(i: int) -> None:
        with span(f"task {i % 50}"):
            await asyncio.sleep(random_turns.random() * 0.005)
            await asyncio.gather(leaf(i, 0), leaf(i, 1))
            with span(f"end of task {i % 50}"):
                await asyncio.sleep(0)

    async def main() -> None:
        with span("main"):
            await asyncio.gather(*(task(i) for i in range(1000)))

    # WHEN
    asyncio.run(main())
    # THEN every span is there, under the parent that its code says
    spans = {span.id: span for span in recorded()}
    assert len(spans) == 1 + 1000 * (1 + 2 * 2 + 1)
    for one in spans.values():
        parent = spans[one.parent].stage if one.parent else None
        kind, _, number = one.stage.partition(" ")
        expected = {
            "main": {None},
            "task": {"main"},
            "leaf": {f"task {number}"},
            "in": {parent if parent and parent.startswith("leaf") else "a leaf"},
            "end": {f"task {number.removeprefix('of task ')}"},
        }
        assert parent in expected[kind], one
        # AND no longer than its parent, which waited for it
        if one.parent:
            assert spans[one.parent].begin_ns <= one.begin_ns
            assert one.end_ns <= spans[one.parent].end_ns
            assert one.depth == spans[one.parent].depth + 1
    # AND each of the 2,000 leaves has exactly one span in it, each task two leaves and an end
    children: dict[int, int] = {}
    for one in spans.values():
        children[one.parent] = children.get(one.parent, 0) + 1
    for one in spans.values():
        wanted = {"main": 1000, "task": 3, "leaf": 1, "in": 0, "end": 0}[one.stage.split()[0]]
        assert children.get(one.id, 0) == wanted, one
    assert lost() == {}
    assert_closed()


def test_interleaved_tasks_each_have_their_own_time() -> None:
    # GIVEN tasks that overlap and sleep for different times
    async def sleeper(name: str, delay_s: float) -> None:
        with span(name):
            await asyncio.sleep(delay_s)

    async def main() -> None:
        await asyncio.gather(*(sleeper(f"{ms} ms", ms / 1000) for ms in (60, 20, 40)))

    # WHEN
    asyncio.run(main())
    # THEN each lasted at least as long as it slept, all began before any ended, and in order
    spans = {ms: only(f"{ms} ms") for ms in (20, 40, 60)}
    assert all(span.duration_ns >= ms * MS for ms, span in spans.items())
    assert max(span.begin_ns for span in spans.values()) < spans[20].end_ns
    assert spans[20].end_ns < spans[40].end_ns < spans[60].end_ns
    assert {span.parent for span in spans.values()} == {0}


def test_a_task_belongs_to_where_it_was_created() -> None:
    # GIVEN a task that is created in one span, and has its first turn inside of another
    async def work() -> None:
        with span("work"):
            pass

    async def main() -> None:
        with span("a"):
            task = asyncio.create_task(work())
        with span("b"):
            await task

    # WHEN
    asyncio.run(main())
    # THEN
    assert parents() == {"a": {None}, "b": {None}, "work": {"a"}}
    assert only("work").begin_ns > only("b").begin_ns


def test_a_task_outlives_the_span_that_it_was_created_in() -> None:
    # GIVEN
    async def work(ended: asyncio.Event) -> None:
        with span("first half"):
            await ended.wait()
        with span("second half"):
            pass

    async def main() -> None:
        ended = asyncio.Event()
        with span("creator"):
            task = asyncio.create_task(work(ended))
            await asyncio.sleep(0)
        ended.set()
        with span("elsewhere"):
            await task

    # WHEN
    asyncio.run(main())
    # THEN it remains that span's child
    assert parents()["first half"] == {"creator"}
    assert parents()["second half"] == {"creator"}
    assert only("first half").end_ns > only("creator").end_ns
    assert_closed()


def test_tasks_created_one_by_another() -> None:
    # GIVEN a chain of tasks, each created inside of a span of the one before
    async def link(depth: int) -> None:
        with span(f"link {depth}"):
            if depth < 20:
                await asyncio.create_task(link(depth + 1))

    # WHEN
    asyncio.run(link(0))
    # THEN
    for depth in range(1, 21):
        assert parents()[f"link {depth}"] == {f"link {depth - 1}"}
        assert only(f"link {depth}").depth == depth


def test_the_loop_runs_inside_of_a_span() -> None:
    # GIVEN
    async def task() -> None:
        with span("task"):
            await asyncio.sleep(0)

    async def main() -> None:
        with span("main"):
            await asyncio.gather(task(), task())

    # WHEN
    with span("program"):
        asyncio.run(main())
        with span("after the loop"):
            pass
    # THEN
    assert parents() == {
        "program": {None},
        "main": {"program"},
        "task": {"main"},
        "after the loop": {"program"},
    }


def test_a_loop_in_another_thread() -> None:
    # GIVEN a loop in a thread, while this one is inside of a span
    async def task() -> int:
        with span("in the thread's loop"):
            await asyncio.sleep(0.001)
            return threading.get_native_id()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    # WHEN
    with span("here"):
        futures = [asyncio.run_coroutine_threadsafe(task(), loop) for _ in range(20)]
        native_ids = {future.result() for future in futures}
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    # THEN
    assert {span.thread for span in recorded("in the thread's loop")} == native_ids
    assert count("in the thread's loop") == 20
    assert parents()["in the thread's loop"] == {None}


def test_callbacks_belong_to_where_they_were_scheduled() -> None:
    # GIVEN
    def callback() -> None:
        with span("callback"):
            pass

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with span("scheduled"):
            loop.call_soon(callback)
            loop.call_later(0.001, callback)
        with span("waits"):
            await asyncio.sleep(0.02)

    # WHEN
    asyncio.run(main())
    # THEN
    assert count("callback") == 2
    assert parents()["callback"] == {"scheduled"}


def test_to_thread_and_run_in_executor() -> None:
    # GIVEN
    def work(name: str) -> None:
        with span(name), span(f"in {name}"):
            pass

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with span("caller"), concurrent.futures.ThreadPoolExecutor(1) as pool:
            await asyncio.gather(
                asyncio.to_thread(work, "to_thread"),
                loop.run_in_executor(pool, work, "executor"),
            )

    # WHEN
    asyncio.run(main())
    # THEN to_thread takes the context along, run_in_executor does not
    assert parents()["to_thread"] == {"caller"}
    assert parents()["in to_thread"] == {"to_thread"}
    assert parents()["executor"] == {None}
    assert parents()["in executor"] == {"executor"}
    assert_closed()


def test_contexts_copied_by_hand() -> None:
    # GIVEN a copy of a task's context from inside of a span
    def work() -> None:
        with span("in the copy"):
            pass

    async def main() -> None:
        with span("copied here"):
            copied = contextvars.copy_context()
        with span("runs here"):
            copied.run(work)
            with span("back"):
                pass
            copied.run(work)

    # WHEN
    asyncio.run(main())
    # THEN
    assert parents()["in the copy"] == {"copied here"}
    assert parents()["back"] == {"runs here"}


def test_a_context_that_is_used_again_and_again() -> None:
    # GIVEN a context that runs code inside of one span, and then inside of another
    def work(name: str) -> None:
        with span(name):
            contextvars.copy_context().run(deeper)

    def deeper() -> None:
        with span("deeper"):
            pass

    copied = contextvars.copy_context()
    # WHEN
    for i in range(3):
        with span(f"outer {i}"):
            copied.run(work, f"inner {i}")
    copied.run(work, "alone")
    # THEN
    for i in range(3):
        assert parents()[f"inner {i}"] == {f"outer {i}"}
    assert parents()["alone"] == {None}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Runner came with Python 3.11")
def test_a_runner_runs_everything_in_one_context() -> None:
    # GIVEN
    async def task(name: str) -> None:
        with span(name):
            pass

    async def main(i: int) -> None:
        await asyncio.create_task(task(f"before {i}"))
        with span(f"main {i}"):
            await asyncio.create_task(task(f"task {i}"))

    # WHEN
    with asyncio.Runner() as runner:
        for i in range(3):
            with span(f"outer {i}"):
                runner.run(main(i))
    # THEN
    for i in range(3):
        assert parents()[f"before {i}"] == {f"outer {i}"}
        assert parents()[f"main {i}"] == {f"outer {i}"}
        assert parents()[f"task {i}"] == {f"main {i}"}


def test_contexts_entered_one_in_the_other() -> None:
    # GIVEN contexts nested in the code of one thread, without any loop
    one, two = contextvars.copy_context(), contextvars.copy_context()

    def innermost() -> None:
        with span("innermost"):
            pass

    def inner() -> None:
        with span("in two"):
            one_more = contextvars.copy_context()
            one_more.run(innermost)

    def outer() -> None:
        with span("in one"):
            two.run(inner)
            with span("in one again"):
                pass

    # WHEN
    with span("outside"):
        one.run(outer)
        with span("outside again"):
            pass
    # THEN
    assert parents() == {
        "outside": {None},
        "in one": {"outside"},
        "in two": {"outside"},
        "innermost": {"in two"},
        "in one again": {"in one"},
        "outside again": {"outside"},
    }
    assert lost() == {}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TaskGroup came with Python 3.11")
def test_task_groups() -> None:
    # GIVEN a group in which one task fails and the others are cancelled
    async def waits() -> None:
        with span("cancelled"):
            await asyncio.sleep(60)

    async def fails() -> None:
        with span("fails"):
            await asyncio.sleep(0.001)
            raise KeyError

    async def main() -> None:
        with span("group"):
            async with asyncio.TaskGroup() as group:
                for work in (waits(), waits(), fails()):
                    group.create_task(work)

    # WHEN
    with pytest.raises(BaseException) as caught:
        asyncio.run(main())
    # THEN
    assert type(caught.value).__name__ == "ExceptionGroup"
    assert parents() == {"group": {None}, "cancelled": {"group"}, "fails": {"group"}}
    assert all(span.failed for span in recorded())
    assert lost() == {}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks() -> None:
    # GIVEN tasks that run at once where they are created
    async def work(name: str, delay_s: float | None) -> None:
        with span(name):
            if delay_s is not None:
                await asyncio.sleep(delay_s)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        with span("creator"):
            done = asyncio.create_task(work("at once", None))
            waits = asyncio.create_task(work("later", 0.001))
            with span("between"):
                pass
        with span("elsewhere"):
            await asyncio.gather(done, waits)

    # WHEN
    asyncio.run(main())
    # THEN
    assert parents()["at once"] == {"creator"}
    assert parents()["later"] == {"creator"}
    assert parents()["between"] == {"creator"}
    assert lost() == {}


# --- timed coroutine functions --------------------------------------------------------------------


def test_a_coroutine_that_sleeps_is_suspended() -> None:
    # GIVEN
    @span("sleeps")
    async def sleeps() -> None:
        await asyncio.sleep(0.05)

    # WHEN
    asyncio.run(sleeps())
    # THEN its wall time holds the sleep, and it ran for almost none of it
    sleeping = only("sleeps")
    assert sleeping.duration_ns >= 50 * MS
    assert sleeping.duration_ns - sleeping.suspended_ns < sleeping.duration_ns // 2
    assert sleeping.suspended_ns >= 49 * MS
    assert sleeping.flags & _core.FLAG_ASYNC


def test_a_coroutine_that_computes_is_not() -> None:
    # GIVEN a coroutine that works, gives others a turn, and works
    @span("works")
    async def works() -> None:
        for _ in range(2):
            until = time.perf_counter() + 0.02
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0)

    # WHEN
    asyncio.run(works())
    # THEN
    working = only("works")
    assert working.duration_ns - working.suspended_ns >= 39 * MS


def test_a_timed_coroutine_is_the_parent_of_what_runs_in_it() -> None:
    # GIVEN
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

    # WHEN
    assert asyncio.run(outer()) == 2
    # THEN
    assert parents() == {
        "outer": {None},
        "inner": {"outer"},
        "block": {"inner"},
        "waits": {"outer"},
    }
    assert_closed()


def test_who_awaits_a_coroutine_waits_for_all_of_it() -> None:
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

    # WHEN
    asyncio.run(main())
    # THEN the sleep is the child's, and hardly anything is left unattributed
    stages = _core.snapshot().stages()
    for parent in ("block", "awaits"):
        assert stages[parent].children_ns >= 19 * MS
        assert stages[parent].children_ns >= 0.9 * stages[parent].total_ns
    assert_closed()


def test_coroutines_driven_by_hand_in_turns() -> None:
    # GIVEN two coroutines that one span drives in turns, so that their times overlap
    @span("driven")
    async def driven() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            time.sleep(0.001)

    # WHEN
    with span("driver"):
        waiting = [driven(), driven(), driven()]
        while waiting:
            for coroutine in tuple(waiting):
                try:
                    coroutine.send(None)
                except StopIteration:
                    waiting.remove(coroutine)
    # THEN together they are still no more than their parent
    assert parents()["driven"] == {"driver"}
    assert count("driven") == 3
    assert_closed()


@pytest.mark.parametrize("kind", [span, ProfilingContext, ProfilingContext4Debug])
def test_wait_for_cancels(kind: Callable[[str], _core.Span]) -> None:
    # GIVEN coroutines that are cancelled in the middle, before they begin, and when they are done
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

    # WHEN
    asyncio.run(main())
    # THEN what never began is no span; what was cancelled is marked
    assert [span.failed for span in recorded("cancelled")] == [True, False]
    assert parents()["cleans up"] == {"cancelled"}
    assert lost() == {}


def test_cancelled_and_going_on() -> None:
    # GIVEN a coroutine that handles its cancellation
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

    # WHEN / THEN
    assert asyncio.run(main()) == "handled"
    assert not only("goes on").failed


def test_a_coroutine_object_is_what_asyncio_takes_for_one() -> None:
    # GIVEN
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

    # WHEN / THEN
    assert asyncio.run(main()) == [0, 1, 2, 3, 4, 5]
    assert asyncio.run(work(6)) == 6
    assert asyncio.iscoroutinefunction(work)
    assert count("coroutine") == 7


def test_a_coroutine_that_is_never_awaited(recwarn: pytest.WarningsRecorder) -> None:
    # GIVEN
    @span("never awaited")
    async def never() -> None:
        pass

    # WHEN
    never()
    gc.collect()
    # THEN Python says so, as it would without the span, and nothing was timed
    assert [str(warning.message) for warning in recwarn] == [
        f"coroutine '{never.__qualname__}' was never awaited"
    ]
    assert count("never awaited") == 0


def test_a_coroutine_awaited_twice() -> None:
    # GIVEN
    @span("twice")
    async def once() -> int:
        await asyncio.sleep(0.001)
        return 1

    async def main() -> None:
        coroutine = once()
        assert await coroutine == 1
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            await coroutine
        # AND a second await while the first one is under way is refused, and harms it not
        coroutine = once()
        first = asyncio.create_task(coroutine)
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already"):
            await coroutine
        assert await first == 1

    # WHEN
    asyncio.run(main())
    # THEN
    assert [span.failed for span in recorded("twice")] == [False, False]
    assert lost() == {}


# --- async generators -----------------------------------------------------------------------------


def test_async_generators_in_tasks_that_take_turns() -> None:
    # GIVEN tasks that each consume an async generator, itself with spans and awaits
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

    # WHEN
    assert asyncio.run(main()) == [sum(range(n)) for n in range(20)]
    # THEN
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
    """The flags that the spans of a stage have."""
    return {span.flags for span in recorded(stage)}


def test_an_async_generator_left_early_ends_soon() -> None:
    # GIVEN
    @span("left early")
    async def generate() -> AsyncIterator[int]:
        for i in range(10):
            yield i

    async def main() -> list[dict[str, object]]:
        async for value in generate():
            if value == 2:
                break
        for _ in range(5):  # the loop closes it in a task of its own
            await asyncio.sleep(0)
        return _core.open_spans()

    # WHEN
    still_open = asyncio.run(main())
    # THEN
    assert still_open == []
    assert not only("left early").failed


def test_an_async_generator_that_is_closed_ends_when_it_is() -> None:
    # GIVEN a generator that somebody keeps after he has closed it
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

    # WHEN
    kept = asyncio.run(main())
    # THEN
    closed = only("closed")
    assert kept is not None
    assert not closed.failed
    assert closed.suspended_ns >= 9 * MS


def test_steps_of_an_async_generator_that_overlap_are_refused() -> None:
    # GIVEN a generator that waits in a step
    @span("one step at a time")
    async def generate() -> AsyncIterator[int]:
        await asyncio.sleep(0.01)
        yield 1
        yield 2

    async def main() -> list[int]:
        source = generate()
        first = asyncio.ensure_future(source.__anext__())
        await asyncio.sleep(0)
        # WHEN another step is asked for meanwhile
        with pytest.raises(RuntimeError, match="already running"):
            await source.__anext__()
        return [await first, *[value async for value in source]]

    # THEN the generator goes on, and its span lasts until its end
    assert asyncio.run(main()) == [1, 2]
    assert not only("one step at a time").failed
    assert lost() == {}


def test_an_async_generator_shared_by_tasks() -> None:
    # GIVEN an async context manager that is entered in one task and left in another
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

    # WHEN
    asyncio.run(main())
    # THEN
    assert parents() == {
        "enters": {None},
        "resource": {"enters"},
        "leaves": {None},
        "afterwards": {None},
    }
    assert lost() == {}
    assert_closed()


# --- what tasks leave behind ----------------------------------------------------------------------


class _Kept:
    """Something that a context variable holds."""


def test_nothing_of_a_task_is_kept_when_it_has_ended() -> None:
    # GIVEN tasks with an object in their contexts; some end well, some are cancelled, some given up
    variable: contextvars.ContextVar[_Kept] = contextvars.ContextVar("variable")
    kept: list[weakref.ref[_Kept]] = []

    async def work(how: str) -> None:
        value = _Kept()
        kept.append(weakref.ref(value))
        variable.set(value)
        with span(how):
            await asyncio.sleep(0 if how == "ends" else 60)

    async def main() -> None:
        tasks = [asyncio.create_task(work(how)) for how in ("ends", "cancelled", "given up")]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        await asyncio.gather(*tasks[:2], return_exceptions=True)

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of a pending task that goes
    loop.run_until_complete(main())
    loop.close()
    del loop
    gc.collect()
    # WHEN another span looks around
    with span("afterwards"):
        pass
    # THEN
    assert [reference() for reference in kept] == [None, None, None]
    assert _core.open_spans() == []
    assert lost() == {}
    assert parents()["afterwards"] == {None}


def test_many_tasks_that_are_given_up_cost_no_room() -> None:
    # GIVEN more tasks than a thread has frames for, given up inside of spans, a few at a time
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

    # WHEN
    asyncio.run(main())
    gc.collect()
    # THEN each is recorded, and there is room for the next
    assert eventually(lambda: count("given up") == 20_000)
    assert lost().keys() <= {"overwritten"}
    with span("afterwards"):
        assert [span["stage"] for span in _core.open_spans()] == ["afterwards"]
