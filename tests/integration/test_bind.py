"""What threads inherit: `bind`, `BoundExecutor`, `propagate_to_threads`, and copied contexts."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import multiprocessing.pool
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from recording import assert_closed, in_child, lost, only, parents, recorded

import stagespan
from running import PROGRAMS, in_threads
from stagespan import BoundExecutor, bind, current_request, propagate_to_threads, request, span

TIMED = PROGRAMS / "timed.py"

pytestmark = pytest.mark.usefixtures("fresh")


def work(name: str = "work") -> request | None:
    """Time one span with a child; return the request that it is in."""
    with span(name), span(f"child of {name}"):
        return current_request()


def expect(name: str, parent: str | None, number: int) -> None:
    """Check the parents and the request of a stage's spans."""
    found = parents()
    assert found[name] == {parent}
    assert found[f"child of {name}"] == {name}
    assert {one.request for one in recorded(name)} == {number}
    assert {one.request for one in recorded(f"child of {name}")} == {number}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool
        # Nothing of any request is left in its thread.
        assert pool.submit(work, "afterwards").result() is None
        expect("afterwards", None, 0)


# --- bind -----------------------------------------------------------------------------------------


def test_a_bound_function_runs_where_it_was_bound(pool: ThreadPoolExecutor) -> None:
    with request("r") as current, span("caller"):
        assert pool.submit(bind(work), "in a pool").result() is current
        in_threads(lambda: work("not bound"))
        in_threads(bind(lambda: work("in a thread")))

    expect("in a pool", "caller", current.number)
    expect("in a thread", "caller", current.number)
    expect("not bound", None, 0)
    assert lost() == {}
    assert_closed()


def test_a_bound_function_may_be_called_after_its_span_and_request(
    pool: ThreadPoolExecutor,
) -> None:
    with request("r") as current, span("caller"):
        bound = bind(work)
    with request("other"), span("other"):
        assert bound("here") is current
        work("other's own")
    with span("pool's"):
        pool.submit(bound, "there").result()

    expect("here", "caller", current.number)
    expect("there", "caller", current.number)
    assert parents()["other's own"] == {"other"}
    assert_closed()


def test_what_is_bound_outside_of_everything_belongs_to_nothing() -> None:
    bound = bind(work)

    with request("r"), span("outer"):
        assert bound() is None
        work("other")

    expect("work", None, 0)
    assert parents()["other"] == {"outer"}


def test_time_in_another_thread_is_not_charged_to_the_parent(pool: ThreadPoolExecutor) -> None:
    with span("caller"):
        pool.submit(bind(work)).result()
        bind(work)("here")

    assert stagespan._core.snapshot().stages()["caller"].children_ns == 0
    assert_closed()


def test_several_threads_at_once() -> None:
    # GIVEN a function that eight threads run at the same time
    barrier = threading.Barrier(8)

    def together() -> None:
        with span("together"):
            barrier.wait(20)
            work("inner")

    with request("r") as current, span("caller"):
        bound = bind(together)

    in_threads(*[bound] * 8)

    assert parents()["together"] == {"caller"}
    assert {one.request for one in recorded("inner")} == {current.number}
    assert parents()["inner"] == {"together"}


def test_bound_calls_in_each_other(pool: ThreadPoolExecutor) -> None:
    with request("outer") as outer, span("outer caller"):
        outer_bound = bind(lambda inner: (work("before"), inner("inner"), work("after")))
    with request("inner") as inner, span("inner caller"):
        inner_bound = bind(work)

    pool.submit(outer_bound, inner_bound).result()

    expect("before", "outer caller", outer.number)
    expect("inner", "inner caller", inner.number)
    expect("after", "outer caller", outer.number)


def test_a_bound_function_passes_on_its_own_span(pool: ThreadPoolExecutor) -> None:
    def hands_on() -> None:
        with span("hands on"):
            in_threads(bind(lambda: work("bound in it")))
            copied = contextvars.copy_context()
            in_threads(lambda: copied.run(work, "copied in it"))
        copied = contextvars.copy_context()
        in_threads(lambda: copied.run(work, "copied below it"))

    with request("r") as current, span("caller"):
        pool.submit(bind(hands_on)).result()

    expect("bound in it", "hands on", current.number)
    expect("copied in it", "hands on", current.number)
    expect("copied below it", "caller", current.number)


def test_a_bound_function_that_raises(pool: ThreadPoolExecutor) -> None:
    def fails() -> None:
        with span("fails"):
            raise KeyError

    with request("r") as current, span("caller"), pytest.raises(KeyError):
        pool.submit(bind(fails)).result()

    assert only("fails").failed
    assert only("fails").request == current.number
    assert lost() == {}


def test_spans_that_a_bound_function_leaves_open() -> None:
    left = span("left open")
    with span("binds"):
        bound = bind(lambda: (left.__enter__(), work("in it")))

    with span("calls"):
        bound()
        work("after it")
        left.__exit__(None, None, None)
        work("at last")

    assert parents()["left open"] == {"binds"}
    assert parents()["in it"] == {"left open"}
    assert parents()["at last"] == {"calls"}
    assert lost() == {}
    assert_closed()


def test_coroutine_functions() -> None:
    async def stage(name: str) -> request | None:
        with span(name):
            await asyncio.sleep(0.001)
            with span(f"child of {name}"):
                return current_request()

    async def main() -> None:
        with request("r") as current, span("binds"):
            bound = bind(stage)
        assert inspect.iscoroutinefunction(bound)
        with request("other"), span("awaits"):
            found = await asyncio.gather(bound("a"), bound("b"), stage("free"))
            assert found[:2] == [current, current]
            assert await bound("c") is current
            work("after")
        for name in "abc":
            expect(name, "binds", current.number)
        assert parents()["free"] == {"awaits"}
        assert parents()["after"] == {"awaits"}

    asyncio.run(main())

    assert lost() == {}


def test_a_bound_function_looks_like_the_function() -> None:
    def documented(a: int, b: str = "x") -> str:
        """What it does."""
        return b * a

    bound = bind(documented)

    assert (bound.__name__, bound.__doc__) == ("documented", "What it does.")
    assert inspect.signature(bound) == inspect.signature(documented)
    assert bound(2, b="y") == "yy"


def test_what_cannot_be_bound() -> None:
    def generates() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="takes a function, not 7"):
        bind(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="generator function"):
        bind(generates)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(bind(lambda: None))


def test_a_forked_child_runs_bound_functions_free(tmp_path: Path) -> None:
    # GIVEN a child process, which must not see its parent's spans
    output = in_child((TIMED, "bound_in_a_child"), tmp_path)

    assert output == ["None [(0, 0)]"]


# --- BoundExecutor --------------------------------------------------------------------------------


def test_an_executor_that_binds(pool: ThreadPoolExecutor) -> None:
    bound = BoundExecutor(pool)

    async def main() -> None:
        async with request("loop") as in_loop:
            with span("asks"):
                loop = asyncio.get_running_loop()
                assert await loop.run_in_executor(bound, work, "run in executor") is in_loop
        expect("run in executor", "asks", in_loop.number)

    with request("r") as current, span("submits"):
        assert bound.submit(work, "submitted").result() is current
        assert list(bound.map(work, ["mapped"])) == [current]
    asyncio.run(main())

    expect("submitted", "submits", current.number)
    expect("mapped", "submits", current.number)
    assert isinstance(bound, Executor)


def test_shutdown_reaches_the_other_executor() -> None:
    pool = ThreadPoolExecutor(1)

    with BoundExecutor(pool) as bound:
        future: Future[request | None] = bound.submit(work)

    assert future.done()
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(work)


def test_pools_of_processes_are_refused() -> None:
    with ProcessPoolExecutor(1) as pool, pytest.raises(TypeError, match="executor of threads"):
        BoundExecutor(pool)
    with pytest.raises(TypeError, match="not 'pool'"):
        BoundExecutor("pool")  # type: ignore[arg-type]


# --- propagate_to_threads -------------------------------------------------------------------------


ORIGINALS: dict[tuple[type, str], Any] = {
    (owner, name): vars(owner).get(name)
    for owner, names in (
        (threading.Thread, ("start", "run")),
        (ThreadPoolExecutor, ("submit", "map")),
        (
            multiprocessing.pool.ThreadPool,
            ("__init__", "apply_async", "map", "map_async", "starmap", "imap", "imap_unordered"),
        ),
    )
    for name in names
}


@pytest.fixture
def propagated() -> Iterator[None]:
    propagate_to_threads()
    yield
    propagate_to_threads(False)
    assert {key: vars(key[0]).get(key[1]) for key in ORIGINALS} == ORIGINALS


@pytest.mark.usefixtures("propagated")
def test_threads_carry_on_what_they_were_started_in() -> None:
    class Own(threading.Thread):
        def run(self) -> None:
            work("own run")

    with request("r") as current, span("starts"):
        threads = [
            threading.Thread(target=work, args=("target",)),
            Own(),
            threading.Timer(0.001, work, ("timer",)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    free = threading.Thread(target=work, args=("free",))
    free.start()
    free.join()

    for name in ("target", "own run", "timer"):
        expect(name, "starts", current.number)
    expect("free", None, 0)
    with pytest.raises(RuntimeError, match="only be started once"):
        threads[0].start()
    assert "run" not in vars(threads[0])


@pytest.mark.usefixtures("propagated")
def test_pools_carry_on_what_a_task_was_submitted_in() -> None:
    with request("first") as first, span("submits first"):
        pool = ThreadPoolExecutor(1)
        old = multiprocessing.pool.ThreadPool(1)
        assert pool.submit(work, "first").result() is first
        assert old.apply(work, ("old first",)) is first
    with request("second") as second, span("submits second"):
        assert pool.submit(work, "second").result() is second
        assert list(pool.map(work, ["mapped"])) == [second]
        assert old.map(work, ["old map"]) == [second]
        assert old.starmap(work, [("old starmap",)]) == [second]
        assert list(old.imap(work, ["old imap"])) == [second]
        assert list(old.imap_unordered(func=work, iterable=["old unordered"])) == [second]
        assert old.map_async(work, ["old async"]).get(20) == [second]
        assert old.apply_async(func=work, args=("old keyword",)).get(20) is second
    assert pool.submit(work, "free").result() is None
    assert old.apply(work, ("old free",)) is None
    pool.shutdown()
    old.terminate()
    old.join()

    for name in ("first", "old first"):
        expect(name, "submits first", first.number)
    second_ones = ["second", "mapped"]
    second_ones += [f"old {way}" for way in ("map", "starmap", "imap", "unordered", "async")]
    for name in (*second_ones, "old keyword"):
        expect(name, "submits second", second.number)
    expect("free", None, 0)
    expect("old free", None, 0)
    assert lost() == {}


@pytest.mark.usefixtures("propagated")
def test_a_loop_carries_on() -> None:
    async def main() -> None:
        async with request("r") as current:
            with span("asks"):
                loop = asyncio.get_running_loop()
                assert await loop.run_in_executor(None, work, "run in executor") is current
                assert await asyncio.to_thread(work, "to thread") is current
        expect("run in executor", "asks", current.number)
        expect("to thread", "asks", current.number)

    asyncio.run(main())

    assert lost() == {}


def test_switching_the_rule_on_and_off_again() -> None:
    propagate_to_threads()
    once = threading.Thread.start
    propagate_to_threads()
    assert threading.Thread.start is once

    propagate_to_threads(False)
    propagate_to_threads(False)
    assert {key: vars(key[0]).get(key[1]) for key in ORIGINALS} == ORIGINALS
    with request("r"):
        in_threads(lambda: work("off"))
    expect("off", None, 0)


def test_another_librarys_replacement_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    propagate_to_threads()
    ours = threading.Thread.start

    def theirs(self: threading.Thread) -> None:
        started.append(self.name)
        ours(self)

    monkeypatch.setattr(threading.Thread, "start", theirs)
    propagate_to_threads(False)
    with request("r") as current, span("starts"):
        in_threads(lambda: work("off"))
        propagate_to_threads()
        in_threads(lambda: work("on"))
    # THEN their replacement is called each time, and stagespan's follows the switch
    assert len(started) == 2
    expect("off", None, 0)
    expect("on", "starts", current.number)
    monkeypatch.undo()
    propagate_to_threads(False)
    assert {key: vars(key[0]).get(key[1]) for key in ORIGINALS} == ORIGINALS


def test_a_rule_that_cannot_be_installed_stays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a replacement that another library keeps, switched off
    propagate_to_threads()
    ours = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: ours(self))
    propagate_to_threads(False)
    monkeypatch.setitem(sys.modules, "multiprocessing.pool", None)
    with pytest.raises(ImportError):
        propagate_to_threads()
    with request("r"), span("starts"):
        in_threads(lambda: work("still off"))
    expect("still off", None, 0)
    monkeypatch.undo()
    propagate_to_threads()
    propagate_to_threads(False)
    assert {key: vars(key[0]).get(key[1]) for key in ORIGINALS} == ORIGINALS


def test_the_setting(tmp_path: Path) -> None:

    assert in_child((TIMED, "started_thread"), tmp_path) == ["False"]
    (tmp_path / "on").mkdir()
    from recording import python

    output = python(
        (TIMED, "started_thread"), tmp_path / "on", STAGESPAN_PROPAGATE_TO_THREADS="true"
    ).stdout

    assert output == "True\n"


# --- copied contexts ------------------------------------------------------------------------------


def test_a_copied_context_carries_the_innermost_span(pool: ThreadPoolExecutor) -> None:
    with span("outer"), span("inner"):
        pool.submit(contextvars.copy_context().run, work, "no request").result()
    with request("r") as current, span("outer"):
        with span("in request"):
            assert pool.submit(contextvars.copy_context().run, work, "copied").result() is current
        copied = contextvars.copy_context()
        in_threads(lambda: copied.run(work, "later"))

    expect("no request", "inner", 0)
    expect("copied", "in request", current.number)
    expect("later", "outer", current.number)
    assert lost() == {}


def test_a_copied_context_never_gets_into_another_request() -> None:
    numbers = []

    def serve() -> None:
        with span("around"):
            with request("first") as first, span("first"):
                copied = contextvars.copy_context()
            numbers.append(first.number)
            with request("second"), span("second"):
                in_threads(lambda: copied.run(work, "late"))

    in_threads(serve)

    expect("late", "around", numbers[0])


def test_two_spans_of_one_copy_have_one_parent() -> None:
    def twice(ready: threading.Event, go_on: threading.Event) -> None:
        work("once")
        ready.set()
        go_on.wait(20)
        work("twice")

    ready, go_on = threading.Event(), threading.Event()
    with span("copies"):
        copied = contextvars.copy_context()
        thread = threading.Thread(target=copied.run, args=(twice, ready, go_on))
        thread.start()
        ready.wait(20)
    with span("goes on"):
        go_on.set()
        thread.join()

    expect("once", "copies", 0)
    expect("twice", "copies", 0)


def test_an_empty_context_belongs_to_who_enters_it() -> None:
    async def main() -> None:
        with span("task"):
            contextvars.Context().run(work, "in a task")

    with span("main"):
        contextvars.Context().run(work, "in main")
    asyncio.run(main())
    in_threads(lambda: span("outer")(lambda: contextvars.Context().run(work, "in a thread"))())

    expect("in main", "main", 0)
    expect("in a task", "task", 0)
    expect("in a thread", "outer", 0)
    assert_closed()


# --- threads that run in a context of their own, as from Python 3.14 on ---------------------------


class OwnContextThread(threading.Thread):
    """Runs its target as Python 3.14 does."""

    def __init__(
        self, target: Callable[[], object], context: contextvars.Context | None = None
    ) -> None:
        super().__init__(target=target)
        self._context = context or contextvars.Context()

    def run(self) -> None:
        if sys.version_info >= (3, 14):  # it has entered the context already
            super().run()
        else:
            self._context.run(super().run)


def stored() -> list[object]:
    """What spans have stored in the current context: those of tasks do, for others to copy."""
    return [
        value
        for variable, value in contextvars.copy_context().items()
        if variable.name == "stagespan_innermost"
    ]


def run_own(target: Callable[[], object], context: contextvars.Context | None = None) -> None:
    thread = OwnContextThread(target, context)
    thread.start()
    thread.join()


def test_a_threads_own_context_is_not_a_tasks() -> None:
    seen: dict[str, list[object]] = {}

    def compare() -> None:
        with span("first"):
            pass
        seen["before"] = stored()
        with span("outer"):
            seen["inside"] = stored()
            contextvars.Context().run(work, "in an empty context")
            asyncio.run(main())
        seen["after"] = stored()

    async def main() -> None:
        with span("task"):
            seen["task"] = stored()
            await asyncio.gather(asyncio.to_thread(work, "there"), task(), task())

    async def task() -> None:
        with span("inner task"):
            await asyncio.sleep(0.001)

    run_own(compare)
    # THEN its spans store nothing as they open and close, where those of a task do
    assert seen["before"] == seen["inside"] == seen["after"]
    assert seen["task"] != seen["before"]
    expect("in an empty context", "outer", 0)
    assert parents()["task"] == {"outer"}
    assert parents()["inner task"] == parents()["there"] == {"task"}
    assert lost() == {}
    assert_closed()


def test_a_thread_that_is_given_a_context_carries_on() -> None:
    # GIVEN what Thread(context=copy_context()) does
    with request("r") as current, span("starts"):
        run_own(lambda: work("given"), contextvars.copy_context())
        run_own(lambda: work("not given"))

    expect("given", "starts", current.number)
    expect("not given", None, 0)


def test_tasks_of_a_thread_without_its_own_context_are_separate() -> None:
    def turns(name: str) -> Iterator[None]:
        with span(f"job {name}"):
            yield
            with span(f"step {name}"):
                yield

    def schedule() -> None:
        jobs = [(contextvars.Context(), turns(name)) for name in "ab"]
        for _ in range(3):
            for context, job in jobs:
                context.run(next, job, None)

    in_threads(schedule)

    for name in "ab":
        assert parents()[f"step {name}"] == {f"job {name}"}
        assert parents()[f"job {name}"] == {None}
    assert lost() == {}
