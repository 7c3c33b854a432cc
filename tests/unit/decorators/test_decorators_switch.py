"""Debug mode and the recorder are switched while functions are decorated."""

from __future__ import annotations

import os
import threading

import pytest
from decorating import always, debug, plain, runs

import stagespan
from stagespan.contexts import decorators
from stagespan.contexts.decorators import decorate


def test_switching_times_and_stops_timing() -> None:
    stagespan.set_debug(False)
    function = decorate(debug("switched"), lambda: 7)
    counts = []

    for on in (False, True, False, True, False):
        stagespan.set_debug(on)
        assert function() == 7
        counts.append(runs("switched"))

    assert counts == [0, 1, 1, 2, 2]


def test_off_means_the_original_code() -> None:
    def original(value: int) -> int:
        return value

    function = decorate(debug("free when off"), original)
    function(1)

    stagespan.set_debug(False)

    # THEN nothing is left in it that could cost time
    assert function.__code__ is original.__code__


def test_turning_the_recorder_off_stops_all_timing() -> None:
    functions = {
        f"recorder {make.__name__}": decorate(make(f"recorder {make.__name__}"), lambda: 1)
        for make in (plain, always, debug)
    }

    stagespan.disable()
    try:
        assert [function() for function in functions.values()] == [1, 1, 1]
    finally:
        stagespan.enable()
    before = [runs(stage) for stage in functions]
    for function in functions.values():
        function()

    assert before == [0, 0, 0]
    assert [runs(stage) for stage in functions] == [1, 1, 1]


def test_stacked_contexts_are_all_timed() -> None:
    def function(value: int) -> int:
        return value + 1

    timed = function
    for span in (debug("lowest"), plain("middle"), debug("highest")):
        timed = decorate(span, timed)

    for on in (True, False, True):
        stagespan.set_debug(on)
        assert timed(1) == 2

    assert [runs(stage) for stage in ("lowest", "middle", "highest")] == [2, 3, 2]


def test_threads_decorate_and_switch_at_once() -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                function = decorate(debug("contended"), lambda value: value * 2)
                assert [function(i) for i in range(10)] == [2 * i for i in range(10)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()

    for on in (True, False) * 50:
        stagespan.set_debug(on)
    stop.set()
    for thread in threads:
        thread.join()

    # THEN every call returned the right value
    assert failures == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_can_decorate_and_switch() -> None:
    functions = [decorate(debug("parent"), lambda: 1) for _ in range(200)]
    stop = threading.Event()

    def switch() -> None:
        while not stop.is_set():
            decorators.follow_switches()

    holder = threading.Thread(target=switch)
    holder.start()

    child = os.fork()
    if child == 0:
        status = 1
        try:
            stagespan.set_debug(False)
            function = decorate(debug("child"), lambda: 3)
            stagespan.set_debug(True)
            status = 0 if function() == 3 else 2
        finally:
            os._exit(status)
    stop.set()
    holder.join()
    del functions

    # THEN it does not wait for a thread that does not exist in it
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
