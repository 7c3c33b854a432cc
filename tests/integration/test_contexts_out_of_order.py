"""Contexts that are left late, in another thread or never, with switches in between."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
from recording import assert_closed, count, counts, lost, only, parents, recorded

import stagespan
from running import in_threads, until
from stagespan import ProfilingContext, ProfilingContext4Debug, _core, span

pytestmark = pytest.mark.usefixtures("fresh")

Make = Callable[[str], _core.Span]


# --- switches in the middle -----------------------------------------------------------------------


def test_disabled_in_the_middle(make: Make) -> None:
    with make("begun on"):
        stagespan.disable()
        with make("begun off"):
            stagespan.enable()
            with make("begun on again"):
                pass
    # THEN each block keeps the state in which it began, and blocks that were off are not parents
    assert counts("begun on", "begun off", "begun on again") == [1, 0, 1]
    assert parents() == {"begun on": {None}, "begun on again": {"begun on"}}
    assert lost() == {}
    assert_closed()


def test_one_object_across_switches(make: Make) -> None:
    context = make("one object")

    with context:
        stagespan.disable()
        with context:
            with context:
                pass
            stagespan.enable()
            with context:
                pass

    assert [span.depth for span in recorded("one object")] == [0, 1]
    assert lost() == {}


def test_debug_mode_switched_in_the_middle() -> None:
    debug = ProfilingContext4Debug
    # WHEN debug mode is switched off inside one block, and on inside another
    stagespan.set_debug(True)
    with debug("begun in debug mode"):
        stagespan.set_debug(False)
        with debug("begun without"):
            stagespan.set_debug(True)
            with debug("begun in it again"):
                pass

    assert counts("begun in debug mode", "begun without", "begun in it again") == [1, 0, 1]
    assert parents()["begun in it again"] == {"begun in debug mode"}
    assert only("begun in debug mode").flags & _core.FLAG_DEBUG


def test_left_out_of_order_across_switches() -> None:
    first, second, third = span("first"), span("second"), span("third")
    first.__enter__()
    stagespan.disable()
    second.__enter__()
    stagespan.enable()
    third.__enter__()
    for context in (first, second, third):
        context.__exit__(None, None, None)

    assert counts("first", "second", "third") == [1, 0, 1]
    assert parents()["third"] == {"first"}
    assert lost() == {}
    assert_closed()


def test_contexts_that_are_off_time_nothing_and_pass_everything() -> None:
    stagespan.disable()

    with span("off") as context, ProfilingContext("off"), pytest.raises(KeyError), context:
        raise KeyError

    assert count("off") == 0
    assert recorded() == []


# --- out of order ---------------------------------------------------------------------------------


def test_left_in_another_order_than_entered() -> None:
    # GIVEN a span with two nested ones, of which the first ends first
    outer, first, second = span("outer"), span("first"), span("second")
    with outer:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        with span("in second"):
            pass
        second.__exit__(None, None, None)
        with span("after both"):
            pass
    # THEN the second is still the first one's child, and the following spans are right
    assert parents() == {
        "outer": {None},
        "first": {"outer"},
        "second": {"first"},
        "in second": {"second"},
        "after both": {"outer"},
    }
    assert _core.snapshot().stages()["second"].parents.keys() == {"first"}
    assert lost() == {}
    assert_closed()


def test_many_left_in_the_order_in_which_they_were_entered() -> None:
    # GIVEN a chain of spans that is closed from its start, with time in each step
    with span("around"):
        chain = [span(f"link {i}") for i in range(20)]
        for link in chain:
            link.__enter__()
            sum(range(2000))
        for link in chain:
            link.__exit__(None, None, None)
            sum(range(2000))
    # THEN shared time is not counted twice
    assert_closed()
    assert lost() == {}


def test_left_without_having_been_entered(make: Make) -> None:
    context = make("never entered")
    context.__exit__(None, None, None)
    with context:
        pass
    context.__exit__(None, None, None)
    # THEN it is counted, and no other span was closed instead
    assert count("never entered") == 1
    assert lost() == {"unmatched": 2}


def test_entered_and_dropped(make: Make) -> None:
    # GIVEN a span that is entered inside another one, and never left
    with make("outer"):
        make("thrown away").__enter__()
        gc.collect()
        with make("inner"):
            pass
    # THEN it is counted, and no longer shown as open
    assert lost() == {"abandoned": 1}
    assert parents() == {"outer": {None}, "inner": {"outer"}}
    assert _core.open_spans() == []


# --- across threads -------------------------------------------------------------------------------


def test_entered_in_one_thread_and_left_in_another(make: Make) -> None:
    context = make("handed over")
    context.__enter__()
    in_threads(lambda: context.__exit__(None, None, None))
    assert _core.open_spans() == []
    with make("next"):
        pass
    assert count("handed over") == 1
    assert parents()["next"] == {None}
    assert lost() == {}


@pytest.mark.parametrize("inner", [False, True], ids=["innermost", "with another in it"])
def test_left_in_another_thread_and_then_here_as_well(make: Make, inner: bool) -> None:
    contexts, within = [make("left twice")], make("within")
    contexts[0].__enter__()
    if inner:
        within.__enter__()
    in_threads(lambda: contexts[0].__exit__(None, None, None))
    entered, leave = threading.Event(), threading.Event()

    def enter_again() -> None:
        with contexts[0]:
            entered.set()
            leave.wait(20)

    thread = threading.Thread(target=enter_again)
    thread.start()
    assert entered.wait(20)
    contexts[0].__exit__(None, None, None)
    assert count("left twice") == 1
    assert lost() == {"unmatched": 1}
    assert [one["stage"] for one in _core.open_spans()].count("left twice") == 1
    leave.set()
    thread.join()
    if inner:
        within.__exit__(None, None, None)
    assert count("left twice") == 2
    with make("next"):
        pass
    assert parents()["next"] == {None}
    contexts.clear()
    assert lost() == {"unmatched": 1}
    assert _core.open_spans() == []


def test_dropped_in_another_thread() -> None:
    # GIVEN a context entered here, whose last reference is dropped in another thread
    contexts = [span("elsewhere")]
    contexts[0].__enter__()

    in_threads(contexts.clear)
    with span("elsewhere"):
        pass
    # THEN a new object, which may have the old one's address, is not confused with it
    assert lost() == {"abandoned": 1}
    assert [span.depth for span in recorded("elsewhere")] == [0]
    assert _core.open_spans() == []


def test_a_thread_that_ends_inside_of_a_span() -> None:
    context = span("thread ended")
    in_threads(context.__enter__)
    until(lambda: _core.open_spans() == [])
    assert lost() == {"abandoned": 1}
    assert count("thread ended") == 0
