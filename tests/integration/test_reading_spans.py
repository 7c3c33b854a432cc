"""`spans()`: times that do not change, a cursor that reads each span once, and ids of requests."""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import in_child, lost, work

import stagespan
from running import PROGRAMS, ran, until
from stagespan import SpanCursor, _core, request, span
from stagespan._core import requests_known

TIMED = PROGRAMS / "timed.py"

pytestmark = pytest.mark.usefixtures("fresh")


def test_the_type_of_segments_does_not_refer_to_freed_memory() -> None:
    program = "from stagespan import _core; print(_core.segment_type()['number'])"
    # Python overwrites what it frees.
    ran([sys.executable, "-c", program], PYTHONMALLOC="debug", status=0)


# --- times ----------------------------------------------------------------------------------------


def test_a_spans_times_are_the_same_in_each_reading(tmp_path: Path) -> None:
    output = in_child((TIMED, "repeated_readings"), tmp_path)
    assert output == ["0 True", "True", "True"]


def test_totals_are_those_of_the_spans_but_for_rounding(tmp_path: Path) -> None:
    output = in_child((TIMED, "thousand_stages"), tmp_path)
    differences = [int(line) for line in output]
    assert len(differences) == 1000
    assert set(differences) <= {-1, 0, 1}


def test_open_spans_begin_when_their_records_do() -> None:
    with span("open"):
        time.sleep(0.01)
        (first,) = stagespan.open_spans()
        time.sleep(0.3)
        (second,) = stagespan.open_spans()

    (row,) = stagespan.spans()

    assert first["begin_ns"] == second["begin_ns"] == row["begin_ns"]


# --- each once ------------------------------------------------------------------------------------


def test_a_cursor_returns_each_span_once() -> None:
    cursor = SpanCursor()
    work("first")

    first = stagespan.spans(since=cursor)
    outer = span("outer")
    with outer:
        work("inner")
        second = stagespan.spans(since=cursor)
    third = stagespan.spans(since=cursor)
    # THEN a span is read after it has ended
    names = stagespan.stage_names()
    assert [[names[row["stage"]] for row in rows] for rows in (first, second, third)] == [
        ["first"],
        ["inner"],
        ["outer"],
    ]
    assert len(stagespan.spans(since=cursor)) == 0
    assert len(stagespan.spans()) == 3
    assert cursor.overwritten == 0


def test_each_reader_has_its_own_cursor() -> None:
    work("before")
    first, late = SpanCursor(), SpanCursor(from_now=True)

    work("after")

    assert len(stagespan.spans(since=first)) == 2
    assert len(stagespan.spans(since=late)) == 1
    assert len(stagespan.spans(since=first)) == 0


def test_overwritten_spans_are_counted() -> None:
    ring = _core.arena_info()["ring_spans"]
    cursor = SpanCursor()
    work("early")
    assert len(stagespan.spans(since=cursor)) == 1
    for _ in range(ring + 100):
        work("many")

    assert len(stagespan.spans(since=cursor)) == ring
    assert cursor.overwritten == 100
    work("gone")
    _core._reset()
    work("new")
    assert len(stagespan.spans(since=cursor)) == 1
    assert cursor.overwritten == 100


def test_since_takes_only_a_cursor() -> None:
    for wrong in (7, 1.5, "id"):
        with pytest.raises(TypeError, match="takes a SpanCursor"):
            stagespan.spans(since=wrong)  # type: ignore[arg-type]
    assert len(stagespan.spans(since=None)) == 0


def read_all(cursors: list[SpanCursor], pause_s: float, threads: int) -> list[list[int]]:
    """Read with each cursor while threads write; return the ids that each cursor read."""
    each, found = 30_000, [[] for _ in cursors]
    writers_left = threading.Semaphore(0)

    def write(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for i in range(each // 3):
                with span("outer"):
                    work("inner")
                work("other")
                if i % 500 == 0:
                    time.sleep(chance.random() * 0.002)
        finally:
            writers_left.release()

    def read(cursor: SpanCursor, ids: list[int], stop: threading.Event) -> None:
        while True:
            is_last = stop.is_set()
            ids.extend(stagespan.spans(since=cursor)["id"].tolist())
            if is_last:
                return
            time.sleep(pause_s)

    stop = threading.Event()
    readers = [
        threading.Thread(target=read, args=(cursor, ids, stop))
        for cursor, ids in zip(cursors, found, strict=True)
    ]
    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(threads)]
    for thread in (*readers, *writers):
        thread.start()
    for _ in writers:
        assert writers_left.acquire(timeout=120)
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    return found


def test_each_span_once_while_four_threads_write() -> None:
    quick, slow = SpanCursor(), SpanCursor()

    (quick_ids,) = read_all([quick], 0.0005, threads=4)
    written = 4 * 30_000
    # THEN none is read twice, and only overwritten ones are missing
    assert len(set(quick_ids)) == len(quick_ids)
    assert len(quick_ids) + quick.overwritten == written
    slow_ids = stagespan.spans(since=slow)["id"].tolist()
    assert len(slow_ids) + slow.overwritten == written
    assert slow.overwritten > 0


def test_two_threads_with_one_cursor() -> None:
    shared = SpanCursor()

    first, second = read_all([shared, shared], 0.0, threads=2)
    assert max(Counter([*first, *second]).values()) == 1
    assert len(first) + len(second) + shared.overwritten == 2 * 30_000


def test_a_forked_child_reads_its_own_spans(tmp_path: Path) -> None:
    output = in_child((TIMED, "cursor_of_a_child"), tmp_path)
    assert output == ["['childs'] 0", "1"]


# --- requests -------------------------------------------------------------------------------------


def test_spans_have_the_ids_of_their_requests() -> None:
    with request("first") as first:
        work("in the first")
        with request("second") as second:
            work("in the second")
            assert ids_of("in the second") == [("second", second.trace_id)]
        with stagespan.queued("in the queue"):
            pass
    work("in none")

    assert ids_of("in the first") == [("first", first.trace_id)]
    assert ids_of("in the second") == [("second", second.trace_id)]
    assert ids_of("in none") == [(None, None)]
    reported = stagespan.timing_report()["requests"][-2:]
    assert {(one["request_id"], one["trace_id"]) for one in reported} == {
        ("first", first.trace_id),
        ("second", second.trace_id),
    }
    found = stagespan.spans()
    (wait,) = found[found["kind"] == "queue"]
    assert (wait["request_id"], wait["request"]) == ("first", first.number)
    assert set(found["kind"]) == {"execution", "queue"}


def ids_of(stage: str) -> list[tuple[str | None, str | None]]:
    """Return the request and trace ids of the spans of a stage."""
    found = stagespan.spans()
    mine = found[found["stage"] == stagespan.stage_names().index(stage)]
    return list(zip(mine["request_id"], mine["trace_id"], strict=True))


def test_ids_of_requests_take_bounded_memory() -> None:
    with request("long") as long:
        for i in range(17_000):
            with request(f"r{i}"):
                pass
        work("in the long one")
        left_open = stagespan.begin("left open")
        trace_id = long.trace_id
        assert ids_of("in the long one") == [("long", trace_id)]
        assert len(requests_known()) <= 16_384 + 1024 + 1
    del long
    assert ids_of("in the long one") == [("long", trace_id)]
    assert [(one["request"], one["trace_id"]) for one in stagespan.open_spans()] == [
        ("long", trace_id)
    ]
    stagespan.end(left_open)


def test_open_spans_have_their_request() -> None:
    entered, leave = threading.Event(), threading.Event()

    def there() -> None:
        with request("there"), span("stuck"):
            entered.set()
            leave.wait(20)

    thread = threading.Thread(target=there)
    thread.start()
    entered.wait(20)
    with span("free"), request("here") as here, span("here"):
        token = stagespan.begin("token")

        found: dict[str, Any] = {
            one["stage"]: (one["request"], one["request_number"]) for one in stagespan.open_spans()
        }
        stagespan.end(token)
    leave.set()
    thread.join()

    assert found["free"] == (None, None)
    assert found["here"] == found["token"] == ("here", here.number)
    assert found["stuck"][0] == "there"
    assert lost() == {}


def test_log_records_have_their_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stagespan")

    with request("r"), stagespan.ProfilingContext("in a request"):
        pass
    with stagespan.ProfilingContext("in none"):
        pass
    until(stagespan.flush)

    found = {
        (record.stage, record.request)  # type: ignore[attr-defined]
        for record in caplog.records
        if hasattr(record, "stage")
    }
    assert found == {("in a request", "r"), ("in none", None)}
    seconds = [record.seconds for record in caplog.records if hasattr(record, "seconds")]
    assert len(seconds) == 2
    assert np.all(np.array(seconds) > 0)
