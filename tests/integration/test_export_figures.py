"""Tests of the figures that exporters read from a process that runs."""

from __future__ import annotations

import bisect
import math
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from exporting import exporter, of, scraped
from hypothesis import given
from hypothesis import strategies as st
from recorded_process import started

from running import PROGRAMS, end, ended, ready, tell, until
from stagespan import _core, recording
from stagespan.export.figures import (
    BOUNDS_NS,
    BUCKETS,
    OTHER,
    AnyBuckets,
    Counts,
    Histogram,
    Names,
    ShownNames,
    figures_of,
    groups_of,
)
from stagespan.export.parts import Part
from stagespan.export.requests import Taker
from stagespan.export.totals import ReadProcess, Totals, resource_of
from stagespan.export.traces import Pending, Rules
from stagespan.recording import Recording

EXPORTED = PROGRAMS / "exported.py"


def read(copy: Recording, ns_per_tick: float | None = None) -> Counts:
    rate = copy.snapshot().ns_per_tick if ns_per_tick is None else ns_per_tick
    return figures_of(copy, rate, ShownNames(Names(200), Names(100), Names(200)))


def test_readings_of_a_busy_process_never_exceed_what_it_has_recorded(folder: Path) -> None:
    process = started(EXPORTED, "bursts")
    assert process.stdin is not None
    seen, rate = Counts({}, {}), None
    for burst in range(1, 4):
        process.stdin.write("go\n")
        process.stdin.flush()
        for _ in range(20):
            try:
                copy = recording.open(process.pid, spans=False)
            except Exception:  # it has not recorded yet
                continue
            rate = rate or copy.snapshot().ns_per_tick
            seen.raise_to(read(copy, rate))
        ready(process)
        last = read(recording.open(process.pid, spans=False), rate)
        final = last.durations["stage"]["s"]
        assert final.below[-1] == 20_000 * burst
        if "stage" in seen.durations:
            assert all(
                a <= b for a, b in zip(seen.durations["stage"]["s"].below, final.below, strict=True)
            )
        # THEN half of the spans are in each of the two buckets
        counts = [now - before for before, now in pairwise([0, *final.below])]
        assert sorted(counts)[-2:] == [10_000 * burst, 10_000 * burst]
    process.stdin.write("end\n")


def test_bounds_are_those_of_buckets_of_a_clock_in_nanoseconds() -> None:
    edges = _core.histogram_bounds()
    groups = groups_of(1.0)
    for i, bound in enumerate(BOUNDS_NS):
        after = edges.index(bound)
        assert (groups[after - 1], groups[after]) == (i, i + 1)
    assert edges[edges.index(1024) : edges.index(1 << 40) + 1 : 6] == list(BOUNDS_NS)


@given(st.lists(st.integers(-10, 1 << 50), max_size=40), st.sampled_from(["coarse", "fine"]))
def test_buckets_count_the_durations_below_each_bound(
    durations_ns: list[int], name: AnyBuckets
) -> None:
    buckets = BUCKETS[name]
    figures = Counts({}, {})
    for duration_ns in [0, *durations_ns]:
        figures.observe("stage", "s", duration_ns)
    below = buckets.below(figures.durations["stage"]["s"])
    expected = [sum(one < bound for one in durations_ns) for bound in buckets.bounds_ns]
    assert below == [1 + number for number in (*expected, len(durations_ns))]
    for duration_ns in durations_ns:
        counted = bisect.bisect_right(BOUNDS_NS, duration_ns)
        expected_bucket = bisect.bisect_right(buckets.bounds_ns, duration_ns)
        assert buckets.containing(counted) == expected_bucket


histograms = st.lists(
    st.integers(0, 10), min_size=len(BOUNDS_NS) + 1, max_size=len(BOUNDS_NS) + 1
).map(lambda counts: Histogram(list(accumulate(counts)), sum(counts)))
parts = st.dictionaries(st.sampled_from("abc"), histograms).map(
    lambda stages: Counts({"stage": stages}, {"work": {s: {"n": 1.5} for s in stages}})
)


@given(parts, parts)
def test_what_is_added_is_what_remains_without_the_earlier_part(a: Counts, b: Counts) -> None:
    both = Counts({}, {})
    both.add(a)
    both.add(b)
    rest = both.without(a)
    for family, stage, histogram in b.histograms():
        assert rest.durations[family][stage] == histogram
    # THEN the higher of a part and the whole is the whole
    a_then_both = Counts({}, {})
    a_then_both.raise_to(a)
    a_then_both.raise_to(both)
    assert dict(a_then_both.durations.get("stage", {})) == dict(both.durations.get("stage", {}))


def test_names_beyond_the_limit_are_counted_once() -> None:
    names = Names(2, ["a"])
    shown = [names.label(name) for name in ("b", "c", "a", "d", "c", "b")]
    assert shown == ["b", OTHER, "a", OTHER, OTHER, "b"]
    assert names.others == 2


def test_requests_with_answers_are_read_once_or_counted_as_missed(folder: Path) -> None:
    process = started(EXPORTED, "answered", STAGESPAN_REQUESTS="64")
    taker = Taker()
    found: Counter[str] = Counter()

    def take() -> None:
        ended = taker.ended(recording.open(process.pid), at_end=True)
        found.update(_core.ORIGINS[origin] for origin in ended["origin"].tolist())

    for _ in range(6):
        tell(process, "20 0")
        take()
        take()
    assert (found, taker.missed["requests_unread"]) == ({"root": 120, "return": 120}, 0)
    tell(process, "100 0")
    for _ in range(4):
        take()
    assert found["root"] + found["return"] == 240 + 64
    assert taker.missed["requests_unread"] == pytest.approx(200 - 64, abs=1)
    ended(process, 0, input="\n")


def test_a_request_that_goes_on_after_its_answer_is_counted(folder: Path) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    with exporter() as (_, port):
        process = started(EXPORTED, "answered", STAGESPAN_JOB="svc")
        process.communicate("1 2.5\n\n", timeout=30)
        counts = (
            "stagespan_handoff_duration_seconds_count",
            "stagespan_request_duration_seconds_count",
        )
        until(lambda: [of(scraped(port), one, service="svc") for one in counts] == [2, 1])


def test_a_recording_is_copied_again_when_something_was_recorded(folder: Path) -> None:
    process = started(EXPORTED, "idle")
    (path,) = folder.glob("*.stagespan")
    totals = Totals()
    with path.open("rb") as file:
        of_process = ReadProcess(Recording(str(path), everything=False), file.fileno())

        def read() -> Recording:
            copy = of_process.read(spans=False)
            totals.update(of_process, copy)
            return copy

        latest = read()
        steps = ("span", "work", "open", "close", "request", "enter", "chunk", "leave", "span")
        for step in steps:
            # WHEN nothing was recorded THEN the latest copy is that of now
            # A request counts as ended after a moment.
            until(lambda: read().shares_copy_with(read()))
            latest = read()
            again = read()
            assert again.shares_copy_with(latest)
            assert latest.read_ns is not None
            assert again.read_ns is not None
            assert again.read_ns > latest.read_ns
            tell(process, step)
            assert not read().shares_copy_with(latest), step
        until(lambda: read().shares_copy_with(read()))
        group = of_process.group
        figures = totals.sums([of_process])[group]
        assert figures.durations["stage"]["decode"].below[-1] == 4
        assert figures.durations["request"]["default\0ok"].below[-1] == 2
        assert figures.amounts["work"]["decode"] == {"tokens": 1}
        end(process)
        assert read().has_gone


def test_a_process_with_more_requests_is_read_sooner(folder: Path) -> None:
    process = started(EXPORTED, "numbers_of_requests")

    tell(process, 1)
    (path,) = folder.glob("*.stagespan")
    totals = Totals(Pending(Rules()))
    with path.open("rb") as file:
        of_process = ReadProcess(Recording(str(path), everything=False), file.fileno())

        def pause_s(number: int) -> float:
            tell(process, number)
            totals.update(of_process, of_process.read(spans=True))
            return of_process.longest_pause_s

        pause_s(1)
        many, few = pause_s(3000), pause_s(1)
        assert 0 < many < few < math.inf
        # THEN without requests, it is not due for their sake
        until(lambda: pause_s(0) == math.inf)


def test_a_process_that_fills_half_of_its_ring_is_read_at_once(folder: Path) -> None:
    process = started(EXPORTED, "numbers_of_requests", STAGESPAN_RING_SPANS="4096")
    tell(process, 1)
    (path,) = folder.glob("*.stagespan")
    totals = Totals(Pending(Rules()))
    reader, writer = os.pipe()
    with path.open("rb") as file, open(reader, "rb"), open(writer, "wb"):
        of_process = ReadProcess(Recording(str(path), everything=False), file.fileno())

        def is_due(longest_s: float = 0) -> bool:
            return _core.recording_wait(reader, longest_s, [of_process.rings], [])

        for spans, is_filling in ((2000, False), (2100, True), (100, False)):
            totals.update(of_process, of_process.read(spans=True))
            assert not is_due()
            tell(process, spans)
            assert is_due() == is_filling
        # THEN it is also read if that happens while it is waited for, and a signal ends the wait
        waiting = threading.Thread(target=tell, args=(process, 3500))
        waiting.start()
        assert is_due(600)
        waiting.join()
        totals.update(of_process, of_process.read(spans=True))
        os.write(writer, b".")
        assert not is_due(600)


def test_a_new_recording_ends_the_wait_for_others(folder: Path) -> None:
    first = started(EXPORTED, "numbers_of_requests")
    tell(first, 1)
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "wb"), ThreadPoolExecutor() as executor:
        waiting = executor.submit(_core.recording_wait, reader, 60, [], [str(folder)])
        until(lambda: waiting.running())
        tell(started(EXPORTED, "numbers_of_requests"), 1)
        assert not waiting.result(30)


def test_parts_wait_for_a_request_that_goes_on_for_long(folder: Path) -> None:
    process = started(EXPORTED, "request_that_goes_on", STAGESPAN_RECORDING="keep")

    def parts() -> list[Part]:
        found = []
        for path in sorted(folder.glob("*.stagespan")):
            copy = recording.open(path)
            ended = Taker().ended(copy, at_end=True)
            found += Taker().parts(copy, resource_of(copy), ended) or ()
        return found

    requests = Pending(Rules(one_in=0, failed=True))
    (of_worker,) = parts()
    trace = np.array(of_worker.of.traces, "u8")
    requests.add([of_worker])
    assert requests.complete([trace], of_worker.end_ns + 600 * 10**9) == []
    process.communicate("\n\n", timeout=30)
    both = parts()
    requests.add([one for one in both if one.is_root])
    ((*chosen,),) = requests.complete((), time.time_ns())
    assert [one.segment["status"] for one in chosen] == ["ok", "error"]
    requests = Pending(Rules())
    requests.add([of_worker])
    assert requests.complete((), of_worker.end_ns + 5 * 10**9) == []
    assert requests.complete((), of_worker.end_ns + 15 * 10**9) == [[of_worker]]
    many = of_worker.of.only([0] * 10_100)
    many.segments["trace_high"], many.segments["trace_low"] = 0, np.arange(1, 10_101)
    requests.add(many)
    found = requests.complete([np.array(many.traces, "u8")], of_worker.end_ns)
    assert [one.of.traces[one.at][1] for (one,) in found] == [*range(1, 101)]
    assert requests.lost == 0
