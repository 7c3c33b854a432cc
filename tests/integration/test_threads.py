"""Threads: exact statistics, counted losses, complete records, memory that does not grow."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from recording import assert_closed, count, lost, only, recorded

import stagespan
from running import in_threads, until
from stagespan import _core, span

pytestmark = pytest.mark.usefixtures("fresh")


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    # From the page tables: the kernel's counters in statm may be wrong by megabytes on many cores.
    with open("/proc/self/smaps_rollup") as rollup:
        (line,) = (line for line in rollup if line.startswith("Rss:"))
    return int(line.split()[1]) * 1024


def run_all(works: list[Callable[[], object]]) -> None:
    """Run each in its own thread, all at once; raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    in_threads(*(functools.partial(guarded, work) for work in works))
    if errors:
        raise errors[0]


# --- a million spans from each of eight threads, with a reader ------------------------------------

THREADS, BLOCKS = 8, 100_000


def blocks(name: str, times: int = BLOCKS) -> None:
    """Time 10 x ``times`` spans, some of them nested, some of them failing."""
    shared = span("shared")
    for _ in range(times):
        with span(name):
            with shared:
                pass
            with shared:
                pass
            with shared, shared:
                pass
        with span("fresh"):
            pass
        with span("fresh"), shared:
            pass
        with span("fresh"):
            pass
        with span("fresh"):
            pass


class Reader:
    """Reads everything repeatedly, and checks it."""

    def __init__(self) -> None:
        self.rounds = 0
        self.stop = threading.Event()
        self.known = {f"own {i}" for i in range(THREADS)} | {"shared", "fresh"}
        self.counts: dict[str, int] = {}

    def check_spans(self) -> None:
        rows, names = _core.spans(), _core.stage_names()
        # A torn record would have an impossible stage, time or id.
        assert {names[i] for i in np.unique(rows["stage"])} <= self.known
        assert (rows["end_ns"] >= rows["begin_ns"]).all()
        assert (rows["end_ns"] - rows["begin_ns"] < 10**11).all()
        assert (np.diff(rows["begin_ns"]) >= 0).all()
        assert len(np.unique(rows["id"])) == len(rows)
        assert (rows["id"] != 0).all()
        assert (rows["id"] != rows["parent"]).all()
        assert ((rows["parent"] == 0) == (rows["depth"] == 0)).all()
        assert (rows["depth"] <= 2).all()
        assert (rows["suspended_ns"] == 0).all()
        assert (rows["flags"] == 0).all()

    def check_statistics(self) -> None:
        for name, stage in _core.snapshot().stages().items():
            assert name in self.known
            assert stage.count >= self.counts.get(name, 0), "counts never go back"
            self.counts[name] = stage.count
        for one in _core.open_spans():
            assert one["stage"] in self.known
            assert one["depth"] <= 2

    def __call__(self) -> None:
        while not self.stop.is_set():
            self.check_spans()
            self.check_statistics()
            self.rounds += 1


def test_a_million_spans_each_while_a_reader_runs() -> None:
    def run_beside(reader: Reader, times: int) -> None:
        def work() -> None:
            try:
                run_all([lambda i=i: blocks(f"own {i}", times) for i in range(THREADS)])
            finally:
                reader.stop.set()

        run_all([reader, work])

    run_beside(Reader(), BLOCKS // 20)  # what threads and readers need, whatever they record
    _core._reset()
    before = rss_bytes()
    reader = Reader()
    run_beside(reader, BLOCKS)
    assert reader.rounds > 0
    # THEN statistics are exact
    stages = _core.snapshot().stages()
    assert {name: stage.count for name, stage in stages.items()} == {
        **{f"own {i}": BLOCKS for i in range(THREADS)},
        "shared": 5 * BLOCKS * THREADS,
        "fresh": 4 * BLOCKS * THREADS,
    }
    named = {f"own {i}" for i in range(THREADS)} | {"shared", "fresh"}
    assert stages["shared"].parents.keys() - {"(several)"} <= named
    assert_closed()
    held = len(_core.spans())
    assert lost() == {"overwritten": 10 * BLOCKS * THREADS - held}
    assert held == THREADS * _core.arena_info()["ring_spans"]
    # AND memory has not grown with the spans
    assert rss_bytes() - before < 30 * 2**20


# --- many threads ---------------------------------------------------------------------------------


def test_more_threads_at_once_than_there_are_slots() -> None:
    threads, spans = 300, 20
    alive = threading.Barrier(threads)

    def work() -> None:
        with span("crowded"):
            alive.wait()
        for _ in range(spans - 1):
            with span("crowded"):
                pass
        alive.wait()

    run_all([work] * threads)
    assert count("crowded") == threads * spans
    records = len(recorded("crowded"))
    assert records + lost().get("threads", 0) + lost().get("overwritten", 0) == threads * spans
    assert lost()["threads"] >= (threads - 256) * spans
    assert_closed()
    _core._reset()
    until(has_room)


def has_room() -> bool:
    """Return whether a new thread gets a ring. Threads that ended return theirs a little later."""
    _core._reset()
    run_all([lambda: span("later").__enter__().__exit__(None, None, None)])
    return len(recorded("later")) == 1


def test_threads_that_come_and_go() -> None:
    # GIVEN far more threads than slots, a few at a time
    def work() -> None:
        for _ in range(3):
            with span("comes and goes"):
                pass

    for _ in range(200):
        run_all([work] * 5)

    assert count("comes and goes") == 3000
    spans = recorded()
    assert len({span.id for span in spans}) == len(spans)
    until(lambda: _core.arena_info()["thread_slots"] <= 256)
    assert_closed()


def test_many_stages_in_many_threads() -> None:
    stages, threads = 400, 32

    def work() -> None:
        for i in range(stages):
            with span(f"many {i}"):
                pass

    run_all([work] * threads)
    # THEN figures in shared blocks are exact too
    found = _core.snapshot().stages()
    assert all(found[f"many {i}"].count == threads for i in range(stages))
    assert_closed()


# --- one thread's state is not another's ----------------------------------------------------------


def test_threads_have_no_parents_in_each_other() -> None:
    inside, outside = threading.Event(), threading.Event()

    def work() -> None:
        with span("other thread"):
            inside.set()
            outside.wait()

    thread = threading.Thread(target=work)

    with span("this thread"):
        thread.start()
        inside.wait()
        with span("in this thread"):
            pass
    outside.set()
    thread.join()

    assert only("other thread").parent == 0
    assert only("in this thread").parent == only("this thread").id
    assert only("other thread").thread != only("this thread").thread


def test_open_spans_of_all_threads() -> None:
    ready, done = threading.Barrier(4), threading.Event()

    def work(name: str) -> None:
        with span(name), span("inner"):
            ready.wait()
            done.wait()

    threads = [threading.Thread(target=work, args=(f"outer {i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    ready.wait()

    found = _core.open_spans()
    done.set()
    for thread in threads:
        thread.join()
    by_thread = {
        key: list(rows) for key, rows in itertools.groupby(found, lambda row: row["thread"])
    }
    assert len(by_thread) == 3
    for outer, inner in by_thread.values():
        assert outer["stage"].startswith("outer ")
        assert (inner["stage"], inner["parent"], inner["depth"]) == ("inner", outer["id"], 1)
        assert outer["elapsed_ns"] >= inner["elapsed_ns"] > 0
    assert _core.open_spans() == []


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Let the threads take turns ten times as often as usual, so that more orders occur."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 10)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_switching_while_threads_time() -> None:
    stop = threading.Event()

    def work() -> None:
        timed = span("timed")(lambda: None)
        while not stop.is_set():
            with span("outer"), span("inner"):
                timed()

    def switch() -> None:
        try:
            for i in range(100):
                stagespan.disable()
                stagespan.set_debug(i % 2 == 0)
                stagespan.enable()
                stop.wait(0.001)
        finally:
            stop.set()

    run_all([work, work, work, switch])
    # THEN begins and ends stayed paired
    assert lost().keys() <= {"overwritten"}
    assert _core.open_spans() == []
    assert_closed()


@pytest.mark.usefixtures("frequent_switches")
def test_resetting_while_threads_time() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with span("outer"), span("inner"):
                pass

    def reset() -> None:
        try:
            for _ in range(100):
                _core._reset()
                _core.snapshot()
                stop.wait(0.0005)
        finally:
            stop.set()

    run_all([work, work, work, reset])
    _core._reset()
    run_all([lambda: span("last").__enter__().__exit__(None, None, None)] * 3)

    assert {name: stage.count for name, stage in _core.snapshot().stages().items()} == {"last": 3}
    assert lost() == {}
