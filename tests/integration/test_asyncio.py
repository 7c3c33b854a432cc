"""Interleaved tasks: each span has its own time, and the parent in which its task was created."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import random
import sys
import threading

import pytest
from recording import assert_closed, count, lost, only, parents, recorded

from stagespan import span

pytestmark = pytest.mark.usefixtures("fresh")

MS = 1_000_000


# --- parents --------------------------------------------------------------------------------------


def test_a_thousand_tasks_with_nested_gather() -> None:
    # GIVEN tasks that take turns at random and create tasks themselves, with spans around all of it
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

    asyncio.run(main())
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
        # THEN it is not longer than its parent, which waited for it
        if one.parent:
            assert spans[one.parent].begin_ns <= one.begin_ns
            assert one.end_ns <= spans[one.parent].end_ns
            assert one.depth == spans[one.parent].depth + 1
    # AND each of the 2,000 leaves has exactly one span in it, and each task two leaves and an end
    children: dict[int, int] = {}
    for one in spans.values():
        children[one.parent] = children.get(one.parent, 0) + 1
    for one in spans.values():
        wanted = {"main": 1000, "task": 3, "leaf": 1, "in": 0, "end": 0}[one.stage.split()[0]]
        assert children.get(one.id, 0) == wanted, one
    assert lost() == {}
    assert_closed()


def test_interleaved_tasks_each_have_their_own_time() -> None:
    async def sleeper(name: str, delay_s: float) -> None:
        with span(name):
            await asyncio.sleep(delay_s)

    async def main() -> None:
        await asyncio.gather(*(sleeper(f"{ms} ms", ms / 1000) for ms in (20, 40, 60)))

    asyncio.run(main())
    # THEN each lasted at least as long as it slept, all began before any ended, and in order
    spans = {ms: only(f"{ms} ms") for ms in (20, 40, 60)}
    assert all(span.duration_ns >= ms * MS for ms, span in spans.items())
    assert max(span.begin_ns for span in spans.values()) < spans[20].end_ns
    assert spans[20].end_ns < spans[40].end_ns < spans[60].end_ns
    assert {span.parent for span in spans.values()} == {0}


def test_a_task_belongs_to_where_it_was_created() -> None:
    async def work() -> None:
        with span("work"):
            pass

    async def main() -> None:
        with span("a"):
            task = asyncio.create_task(work())
        with span("b"):
            await task

    asyncio.run(main())

    assert parents() == {"a": {None}, "b": {None}, "work": {"a"}}
    assert only("work").begin_ns > only("b").begin_ns


def test_a_task_outlives_the_span_that_it_was_created_in() -> None:
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

    asyncio.run(main())
    assert parents()["first half"] == {"creator"}
    assert parents()["second half"] == {"creator"}
    assert only("first half").end_ns > only("creator").end_ns
    assert_closed()


def test_tasks_created_one_by_another() -> None:
    async def link(depth: int) -> None:
        with span(f"link {depth}"):
            if depth < 20:
                await asyncio.create_task(link(depth + 1))

    asyncio.run(link(0))

    for depth in range(1, 21):
        assert parents()[f"link {depth}"] == {f"link {depth - 1}"}
        assert only(f"link {depth}").depth == depth


def test_the_loop_runs_inside_of_a_span() -> None:
    async def task() -> None:
        with span("task"):
            await asyncio.sleep(0)

    async def main() -> None:
        with span("main"):
            await asyncio.gather(task(), task())

    with span("program"):
        asyncio.run(main())
        with span("after the loop"):
            pass

    assert parents() == {
        "program": {None},
        "main": {"program"},
        "task": {"main"},
        "after the loop": {"program"},
    }


def test_a_loop_in_another_thread() -> None:
    async def task() -> int:
        with span("in the thread's loop"):
            await asyncio.sleep(0.001)
            return threading.get_native_id()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    with span("here"):
        futures = [asyncio.run_coroutine_threadsafe(task(), loop) for _ in range(20)]
        native_ids = {future.result() for future in futures}
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()

    assert {span.thread for span in recorded("in the thread's loop")} == native_ids
    assert count("in the thread's loop") == 20
    assert parents()["in the thread's loop"] == {"here"}


def test_callbacks_belong_to_where_they_were_scheduled() -> None:
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

    asyncio.run(main())

    assert count("callback") == 2
    assert parents()["callback"] == {"scheduled"}


def test_to_thread_and_run_in_executor() -> None:
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

    asyncio.run(main())
    assert parents()["to_thread"] == {"caller"}
    assert parents()["in to_thread"] == {"to_thread"}
    assert parents()["executor"] == {None}
    assert parents()["in executor"] == {"executor"}
    assert_closed()


def test_contexts_copied_by_hand() -> None:
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

    asyncio.run(main())

    assert parents()["in the copy"] == {"copied here"}
    assert parents()["back"] == {"runs here"}


def test_a_context_that_is_used_again_and_again() -> None:
    def work(name: str) -> None:
        with span(name):
            contextvars.copy_context().run(deeper)

    def deeper() -> None:
        with span("deeper"):
            pass

    copied = contextvars.copy_context()

    for i in range(3):
        with span(f"outer {i}"):
            copied.run(work, f"inner {i}")
    copied.run(work, "alone")

    for i in range(3):
        assert parents()[f"inner {i}"] == {f"outer {i}"}
    assert parents()["alone"] == {None}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Runner came with Python 3.11")
def test_a_runner_runs_everything_in_one_context() -> None:
    async def task(name: str) -> None:
        with span(name):
            pass

    async def main(i: int) -> None:
        await asyncio.create_task(task(f"before {i}"))
        with span(f"main {i}"):
            await asyncio.create_task(task(f"task {i}"))

    with asyncio.Runner() as runner:
        for i in range(3):
            with span(f"outer {i}"):
                runner.run(main(i))

    for i in range(3):
        assert parents()[f"before {i}"] == {f"outer {i}"}
        assert parents()[f"main {i}"] == {f"outer {i}"}
        assert parents()[f"task {i}"] == {f"main {i}"}


def test_contexts_entered_one_in_the_other() -> None:
    # GIVEN nested contexts in the code of one thread, without an event loop
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

    with span("outside"):
        one.run(outer)
        with span("outside again"):
            pass

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

    with pytest.raises(BaseException) as caught:
        asyncio.run(main())

    assert type(caught.value).__name__ == "ExceptionGroup"
    assert parents() == {"group": {None}, "cancelled": {"group"}, "fails": {"group"}}
    assert all(span.failed for span in recorded())
    assert lost() == {}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks() -> None:
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

    asyncio.run(main())

    assert parents()["at once"] == {"creator"}
    assert parents()["later"] == {"creator"}
    assert parents()["between"] == {"creator"}
    assert lost() == {}
