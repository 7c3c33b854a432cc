"""Greenlets: each has its own spans and requests, whatever others do between its turns."""

from __future__ import annotations

import contextvars
import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recording import assert_closed, in_child, lost, only, parents, recorded

from running import PROGRAMS, in_threads
from stagespan import _core, current_request, request, span
from stagespan.contexts.requests import figures_of, finished_requests

SWITCHING = PROGRAMS / "switching.py"

greenlet: Any = pytest.importorskip("greenlet")
pytestmark = pytest.mark.usefixtures("fresh")


def switch() -> None:
    """Switch back to the greenlet that drives this one."""
    greenlet.getcurrent().parent.switch()


def take_turns(*works: Callable[[], object], seed: int = 0) -> None:
    """Run each in its own greenlet, in turns, in a random order."""
    chance = random.Random(seed)
    alive = [greenlet.greenlet(work) for work in works]
    while alive:
        chance.choice(alive).switch()
        alive = [one for one in alive if not one.dead]


def job(name: str) -> None:
    """Time a stage with three steps, with a switch inside each."""
    with span(f"job {name}"):
        switch()
        for _ in range(3):
            with span(f"step {name}"):
                switch()
        switch()


def expect_own_steps(names: list[str], parent: str | None) -> None:
    """Check each job's parent, and that its steps are its own."""
    found = parents()
    for name in names:
        assert found[f"job {name}"] == {parent}
        assert found[f"step {name}"] == {f"job {name}"}
        assert len(recorded(f"step {name}")) == 3


@pytest.mark.parametrize("seed", range(5))
def test_greenlets_that_take_turns_are_not_each_others_parents(seed: int) -> None:
    names = [str(i) for i in range(20)]

    take_turns(*(lambda name=name: job(name) for name in names), seed=seed)

    expect_own_steps(names, None)
    assert lost() == {}
    assert_closed()


def test_a_greenlet_belongs_to_what_is_open_where_it_was_created() -> None:
    def creates() -> None:
        with span("creates"):
            take_turns(lambda: job("inner 1"), lambda: job("inner 2"))

    with span("outer"):
        take_turns(lambda: job("1"), lambda: job("2"), creates)
    take_turns(lambda: job("later"))

    expect_own_steps(["1", "2"], "outer")
    expect_own_steps(["inner 1", "inner 2"], "creates")
    expect_own_steps(["later"], None)
    assert parents()["creates"] == {"outer"}
    assert_closed()


def test_time_of_greenlets_is_not_charged_twice() -> None:
    with span("outer"):
        take_turns(lambda: job("1"), lambda: job("2"))
        with span("own child"):
            pass
    stages = _core.snapshot().stages()
    assert stages["outer"].children_ns == stages["own child"].total_ns
    assert_closed()


@pytest.mark.parametrize("seed", range(5))
def test_each_greenlet_has_its_own_request(seed: int) -> None:
    def serve(name: str) -> None:
        with request(name) as mine:
            switch()
            assert current_request() is mine
            job(name)
            assert current_request() is mine
        assert current_request() is None
        with span(f"after {name}"):
            switch()

    names = [f"r{i}" for i in range(10)]

    take_turns(*(lambda name=name: serve(name) for name in names), seed=seed)

    for finished in finished_requests()[-10:]:
        figures = figures_of(finished)
        assert figures.complete
        stages = {name: count for name, count, *_ in figures.stages}
        assert stages == {f"job {finished['id']}": 1, f"step {finished['id']}": 3}
    for name in names:
        assert only(f"after {name}").request == 0
    assert lost() == {}


def test_a_greenlet_takes_the_request_of_its_creator() -> None:
    def work() -> None:
        assert current_request() is current
        job("in a request")

    with request("r") as current:
        take_turns(work, lambda: job("in another greenlet"))

    for name in ("in a request", "in another greenlet"):
        assert {one.request for one in recorded(f"step {name}")} == {current.number}
    assert current_request() is None


def test_spans_of_the_main_greenlet_stay_its_own() -> None:
    suspended = greenlet.greenlet(lambda: job("suspended"))
    suspended.switch()
    suspended.switch()
    with span("main"):
        while not suspended.dead:
            with span("in main"):
                suspended.switch()

    expect_own_steps(["suspended"], None)
    assert parents()["in main"] == {"main"}
    assert lost() == {}


def test_the_first_span_of_a_thread_may_be_a_greenlets() -> None:
    def work() -> None:
        take_turns(lambda: job("1"), lambda: job("2"))
        with span("own"):
            take_turns(lambda: job("3"))

    in_threads(work)

    expect_own_steps(["1", "2"], None)
    expect_own_steps(["3"], "own")
    assert lost() == {}


def test_spans_left_open_over_switches_and_closed_in_any_order() -> None:
    def work(name: str) -> None:
        first, second = span(f"first {name}"), span(f"second {name}")
        first.__enter__()
        switch()
        second.__enter__()
        switch()
        first.__exit__(None, None, None)
        switch()
        second.__exit__(None, None, None)

    take_turns(*(lambda name=name: work(name) for name in "abc"), seed=3)

    for name in "abc":
        assert parents()[f"second {name}"] == {f"first {name}"}
    assert lost() == {}
    assert_closed()


def test_a_greenlet_that_is_killed_ends_its_spans() -> None:
    killed, dropped = (greenlet.greenlet(lambda n=n: job(n)) for n in ("killed", "dropped"))
    for one in (killed, dropped):
        one.switch()
        one.switch()
    with span("main"):
        killed.throw()
        del dropped, one
        gc.collect()
    for name in ("killed", "dropped"):
        assert only(f"job {name}").parent == 0
        assert only(f"step {name}").parent == only(f"job {name}").id
    assert _core.open_spans() == []
    assert lost() == {}


def test_a_greenlet_that_raises() -> None:
    def work() -> None:
        with span("raises"):
            switch()
            raise KeyError

    one = greenlet.greenlet(work)
    one.switch()

    with span("main"), pytest.raises(KeyError):
        one.switch()

    assert only("raises").failed
    assert only("raises").parent == 0
    assert not only("main").failed


def test_greenlets_with_their_own_context() -> None:
    def in_copy(name: str) -> Callable[[], object]:
        copied = contextvars.copy_context()
        return lambda: copied.run(job, name)

    with span("outer"):
        works = [in_copy("1"), in_copy("2")]
        take_turns(*works)

    expect_own_steps(["1", "2"], "outer")
    assert lost() == {}


def test_two_greenlets_that_share_a_context_are_one() -> None:
    def work() -> None:
        with span("shared"):
            pass

    one = greenlet.greenlet(work)

    with span("outer"):
        one.gr_context = greenlet.getcurrent().gr_context
        one.switch()
    # THEN its time is part of the time of the waiting code
    assert parents()["shared"] == {"outer"}
    stages = _core.snapshot().stages()
    assert stages["outer"].children_ns == stages["shared"].total_ns


def test_nothing_of_a_greenlet_is_kept() -> None:
    class Marker:
        """An object that a greenlet's context refers to."""

    markers = []
    variable: contextvars.ContextVar[Marker] = contextvars.ContextVar("marker")

    def work() -> None:
        marker = Marker()
        variable.set(marker)
        markers.append(greenlet.getcurrent().gr_context)
        job("many")

    for _ in range(5):
        take_turns(*[work] * 10)
    import sys

    assert {sys.getrefcount(markers[i]) for i in range(len(markers))} == {2}


# --- gevent ---------------------------------------------------------------------------------------


def test_gevent(tmp_path: Path) -> None:
    pytest.importorskip("gevent")
    output = in_child((SWITCHING, "gevent_jobs"), tmp_path)

    assert output == [
        "True",
        "True {None}",
        "True 22",
        "{'spawns'} ['spawned', 'spawns']",
        "{}",
    ]


def test_greenlets_run_while_the_background_thread_waits(tmp_path: Path) -> None:
    pytest.importorskip("gevent")
    # GIVEN a program in which gevent makes all threads greenlets, also that of stagespan
    output = in_child((SWITCHING, "gevent_lines"), tmp_path)

    assert sum(line.startswith("[Profile] stage cost ") for line in output) == 3
    assert output[-1] == "end"


@pytest.mark.full
def test_a_stage_of_two_greenlets_is_profiled(tmp_path: Path) -> None:
    pytest.importorskip("gevent")
    pytest.importorskip("torch")
    in_child((SWITCHING, "gevent_profile"), tmp_path)

    assert list(tmp_path.rglob("stream_trace.json.gz"))


def test_greenlet_that_is_imported_late(tmp_path: Path) -> None:
    output = in_child((SWITCHING, "greenlet_that_is_imported_late"), tmp_path)
    assert output == ["[('a', 0), ('b', 0), ('early', 0)]"]
