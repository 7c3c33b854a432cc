"""Messages that wait while their receiver works for others, with the processes' own stamps."""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulled_tasks
import pytest
import slow_messages
from recorded_process import recordings_in

from running import ran
from stagespan import recording
from stagespan.recording.reading import Recording
from stagespan.recording.timelines import Hop, Timeline, timelines

CLOCK_ERROR_NS = 20_000
"""What the conversion of clocks may add to a boundary."""
Stamps = dict[str, dict[str, Any]]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of recordings that are kept."""
    path = Path(tempfile.mkdtemp(prefix="stagespan-test-", dir="/dev/shm"))
    monkeypatch.setenv("STAGESPAN_RECORDING_DIR", str(path))
    monkeypatch.setenv("STAGESPAN_RECORDING", "keep")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _run(program: Any, folder: Path, *arguments: object) -> tuple[Stamps, list[Recording]]:
    """Run a program to its end, and return its stamps and the recordings of its processes."""
    done = ran(
        [sys.executable, program.__file__, *map(str, arguments)],
        status=0,
        STAGESPAN_RING_SPANS="8192",
    )
    stamps = json.loads(done.stdout.splitlines()[-1])
    return stamps, [recording.open(one.path) for one in recordings_in(folder)]


def _hop(timeline: Timeline, queue: str) -> Hop:
    (found,) = (hop for hop in timeline.hops if hop.queue == queue)
    return found


def _is_between(ns: int | None, later: list[int], earlier: list[int]) -> bool:
    """Whether a time is that between two calls with these stamps."""
    least, most = later[0] - earlier[1], later[1] - earlier[0]
    return ns is not None and least - CLOCK_ERROR_NS <= ns <= most + CLOCK_ERROR_NS


def _check_live_figures(recordings: list[Recording], found: list[Timeline], queue: str) -> None:
    """The processes have counted what the timelines show."""
    hops = [_hop(one, queue) for one in found if not one.id.startswith("other")]
    for kind, of_hops in (
        ("handoff", [hop.hand_off_ns for hop in hops]),
        ("queue", [hop.queue_ns for hop in hops]),
    ):
        counted = [one.stats(kind=kind).get(queue) for one in recordings]  # type: ignore[arg-type]
        stages = [one for one in counted if one is not None]
        assert sum(one.count for one in stages) == len(hops)
        assert math.isclose(
            sum(one.total_ns for one in stages),
            sum(ns or 0 for ns in of_hops),
            abs_tol=CLOCK_ERROR_NS * len(hops),
        )


@pytest.mark.parametrize(("workers", "count"), [(1, 20), (8, 40)])
def test_tasks_of_a_pull_queue_wait_behind_others(folder: Path, workers: int, count: int) -> None:
    # GIVEN workers that take their next task when they have done the one before
    stamps, recordings = _run(pulled_tasks, folder, workers, count)
    # WHEN
    found = timelines(recordings)
    # THEN the time up to the end of the task before is queue, and the time after it hand-off
    assert {one.id for one in found} == set(stamps)
    by_worker: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for one in stamps.values():
        by_worker[one["pid"]].append(one)
    behind = 0
    for timeline in found:
        own = stamps[timeline.id]
        hop = _hop(timeline, "tasks")
        earlier = [
            one["ended"] for one in by_worker[own["pid"]] if one["ended"][1] <= own["extracted"][0]
        ]
        assert sum(timeline.where.values()) == timeline.total_ns
        assert timeline.causes == []
        if earlier:
            behind += 1
            assert _is_between(hop.behind_others_ns, max(earlier), own["sent"])
            assert _is_between(hop.hand_off_ns, own["extracted"], max(earlier))
        else:
            assert hop.behind_others_ns == 0
            assert _is_between(hop.hand_off_ns, own["extracted"], own["sent"])
        assert timeline.where["queue", "tasks"] == pytest.approx(hop.queue_ns, abs=CLOCK_ERROR_NS)
    assert behind == count - workers
    least_ns = (count // workers - 1) * int(pulled_tasks.WORK_S * 1e9)
    assert max(one.where["queue", "tasks"] for one in found) >= least_ns
    _check_live_figures(recordings, found, "tasks")


@pytest.mark.parametrize("receiver", ["idle", "busy"])
def test_a_slow_sender_is_a_hand_off(folder: Path, receiver: str) -> None:
    # GIVEN an event loop in which tasks of other requests begin and end, but do not block it
    stamps, recordings = _run(slow_messages, folder, receiver)
    found = [one for one in timelines(recordings) if one.id in stamps]
    assert len(found) == slow_messages.MESSAGES
    for timeline in found:
        hop, own = _hop(timeline, "slow"), stamps[timeline.id]
        assert (own["ended"] is None) == (receiver == "idle")
        assert hop.behind_others_ns == 0
        assert _is_between(hop.hand_off_ns, own["extracted"], own["sent"])
        assert sum(timeline.where.values()) == timeline.total_ns
        assert timeline.where["handoff", "slow"] >= slow_messages.SLOW_S * 1e9
    _check_live_figures(recordings, found, "slow")


def test_code_that_blocks_an_event_loop_is_work_for_others(folder: Path) -> None:
    stamps, recordings = _run(slow_messages, folder, "blocked")
    found = [one for one in timelines(recordings) if one.id in stamps]
    assert len(found) == slow_messages.MESSAGES
    behind = 0
    for timeline in found:
        hop, own = _hop(timeline, "slow"), stamps[timeline.id]
        assert sum(timeline.where.values()) == timeline.total_ns
        if own["ended"] is None or own["ended"][0] <= own["sent"][1]:
            continue  # the loop was not blocked since then
        behind += 1
        assert _is_between(hop.behind_others_ns, own["ended"], own["sent"])
        assert _is_between(hop.hand_off_ns, own["extracted"], own["ended"])
    assert behind > 0
    _check_live_figures(recordings, found, "slow")
