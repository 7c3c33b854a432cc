"""The spans and requests of processes as slices on the tracks of one time line, in columns."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from stagespan import _core
from stagespan.live.span_kinds import KINDS, TITLES
from stagespan.recording import summary
from stagespan.recording.segments import name_of, texts
from stagespan.recording.source import RequestSource, with_open
from stagespan.recording.spans import OPEN_NS, kinds_of
from stagespan.recording.timelines import timelines

if TYPE_CHECKING:
    from numpy.typing import NDArray


BEYOND_IDS = 1 << 22
"""The first id of a track. Ids of processes and threads are smaller."""
CATEGORIES = ("user_annotation", "queue", "handoff", "remote", "request", "gpu_user_annotation")
"""By their codes in slices. Executions have that of torch's ranges, so that `stagespan analyze`
finds the stages."""
QUEUE, HANDOFF, REMOTE, REQUEST, OF_DEVICE = range(1, 6)
_OF_KINDS = np.array([CATEGORIES.index(kind) if kind in CATEGORIES else 0 for kind in KINDS])
"""The category of the spans of each kind."""
_OWNERS = {QUEUE: TITLES["queue"], HANDOFF: TITLES["handoff"], REMOTE: TITLES["remote"]}
"""What owns slices and is no thread, by category."""
_DAY_NS = 86_400 * 10**9
"""Times count from the start of a day, because microseconds since 1970 in a float have no ns."""
_SLICE = np.dtype(
    [
        *((name, "<i8") for name in ("begin_ns", "end_ns", "depth", "pid")),
        ("name", "<i8"),  # an index into `TimeLine.names`
        ("category", "<i8"),
        ("owner", "<i8"),  # the thread, or ~ an index into `TimeLine.owners`
        ("row", "<i8"),  # of the spans or segments of its process
    ]
)


class ProcessSlices:
    """The slices of one process, on the tracks that belong to it."""

    def __init__(self, recording: RequestSource, pid: int, shift_ns: int) -> None:
        self.recording = recording
        self.pid = pid
        self.shift_ns = shift_ns
        """What is added to its Unix times."""
        self.spans = with_open(recording)
        self.kinds = kinds_of(self.spans)
        self.segments = recording.segment_rows()
        self.names = recording.stage_names()
        self.owners: list[str] = []
        until_ns = recording.read_ns if recording.state == "alive" else recording.end_ns
        if until_ns is None:
            ends_ns = self.spans["end_ns"]
            latest_ns = np.where(ends_ns == OPEN_NS, self.spans["begin_ns"], ends_ns)
            until_ns = int(latest_ns.max()) if len(latest_ns) else recording.begin_ns
        self.until_ns = until_ns
        """When what is open ends: when the recording was read or last written."""
        parts = [self._of_spans(), self._of_device(), self._of_segments()]
        self.first_of_device, self.first_segment = np.cumsum(
            [len(part) for part in parts[:2]]
        ).tolist()
        """The indices in `slices` of the first one of the device, and of a segment."""
        self.slices = np.concatenate(parts)
        self.slices["begin_ns"] += shift_ns
        ends_ns = np.where(self.slices["end_ns"] == OPEN_NS, until_ns, self.slices["end_ns"])
        self.slices["end_ns"] = np.maximum(ends_ns + shift_ns, self.slices["begin_ns"])

    def _of_spans(self) -> NDArray[np.void]:
        spans, kinds = self.spans, self.kinds
        drawn = self.segments["number"]
        rows = np.flatnonzero((kinds != KINDS.index("remote")) | ~np.isin(spans["request"], drawn))
        slices = self._rows(spans, rows)
        slices["category"] = _OF_KINDS[kinds[rows]]
        for category, name in _OWNERS.items():
            of_category = slices["category"] == category
            for code in np.unique(slices["name"][of_category]).tolist():
                owner = self._owner(f"{name} {self.names[code]}")
                slices["owner"][of_category & (slices["name"] == code)] = owner
        return slices

    def _of_device(self) -> NDArray[np.void]:
        spans = self.spans
        is_run = np.isin(self.kinds, (KINDS.index("execution"), KINDS.index("batch")))
        is_known = ~np.isnan(spans["device_elapsed_ns"]) & ~np.isnan(spans["device_queue_ns"])
        slices = self._rows(spans, np.flatnonzero(is_run & is_known))
        of_device = spans[slices["row"]]
        slices["category"] = OF_DEVICE
        slices["pid"] += BEYOND_IDS
        slices["begin_ns"] += np.rint(of_device["device_queue_ns"]).astype(np.int64)
        elapsed_ns = np.rint(of_device["device_elapsed_ns"]).astype(np.int64)
        slices["end_ns"] = slices["begin_ns"] + np.maximum(elapsed_ns, 0)
        return slices

    def _rows(self, spans: NDArray[np.void], rows: NDArray[np.intp]) -> NDArray[np.void]:
        slices = np.zeros(len(rows), _SLICE)
        names = {"name": "stage", "owner": "thread"}
        for name in ("begin_ns", "end_ns", "depth", "name", "owner"):
            slices[name] = spans[names.get(name, name)][rows]
        slices["row"], slices["pid"] = rows, self.pid
        return slices

    def _of_segments(self) -> NDArray[np.void]:
        segments, unknown = self.segments, _core.UNKNOWN_NS
        is_entered = segments["begin_ns"] != unknown
        # What was not entered waits, or did when the process ended.
        is_shown = np.where(
            is_entered,
            segments["origin"] != _core.ORIGINS.index("return"),
            segments["received_ns"] != unknown,
        )
        rows = np.flatnonzero(is_shown & (segments["status"] != _core.STATUSES.index("unused")))
        slices = np.zeros(len(rows), _SLICE)
        columns = segments[["begin_ns", "received_ns", "end_ns", "queue"]][rows]
        is_request = is_entered[rows]
        slices["begin_ns"] = np.where(is_request, columns["begin_ns"], columns["received_ns"])
        is_open = (columns["end_ns"] == unknown) | (columns["end_ns"] == 0)
        slices["end_ns"] = np.where(is_open, OPEN_NS, columns["end_ns"])
        slices["name"] = len(self.names) + np.arange(len(rows))
        slices["category"] = np.where(is_request, REQUEST, QUEUE)
        slices["row"], slices["pid"] = rows, self.pid
        queues = [name_of(self.names, code) or "" for code in columns["queue"].tolist()]
        entered = is_request.tolist()
        slices["owner"] = [
            self._owner(_OWNERS[REMOTE] if is_one else f"{_OWNERS[QUEUE]} {queue}")
            for is_one, queue in zip(entered, queues, strict=True)
        ]
        ids = texts(segments["id"][rows])
        self.names += [
            id_ if is_one else queue
            for id_, is_one, queue in zip(ids, entered, queues, strict=True)
        ]
        return slices

    def _owner(self, name: str) -> int:
        if name not in self.owners:
            self.owners.append(name)
        return ~self.owners.index(name)


class TimeLine:
    """The slices of one or several processes, on one clock.

    There is a track for each thread, each queue, each kind of hand-off, and the requests of a
    process. Slices of a track that overlap, such as spans of asyncio tasks, get further tracks.
    """

    def __init__(self, recordings: Sequence[RequestSource]) -> None:
        self.processes = [
            ProcessSlices(one, pid, shift_ns)
            for one, pid, shift_ns in zip(
                recordings, _pids(recordings), _shifts(recordings), strict=True
            )
        ]
        self.names: list[str] = []
        self.owners: list[str] = []
        self.first_slices: list[int] = []
        """The index in `slices` of the first slice of each process."""
        parts: list[NDArray[np.void]] = []
        for process in self.processes:
            self.first_slices.append(sum(len(part) for part in parts))
            part = process.slices
            part["name"] += len(self.names)
            part["owner"] -= np.where(part["owner"] < 0, len(self.owners), 0)
            parts.append(part)
            self.names += process.names
            self.owners += process.owners
        self.slices = np.concatenate(parts) if len(parts) != 1 else parts[0]
        self.order = np.lexsort(
            (self.slices["depth"], -self.slices["end_ns"], self.slices["begin_ns"])
        )
        """The indices of slices by begin, and those that contain others before these."""
        least_ns = int(self.slices["begin_ns"].min()) if len(self.slices) else 0
        base_ns = least_ns or recordings[0].begin_ns
        self.base_ns = base_ns - base_ns % _DAY_NS
        """The Unix time from which the times of a file count."""
        self.tids = np.zeros(len(self.slices), np.int64)
        """The track of each slice."""
        self.track_names: dict[tuple[int, int], str] = {}
        """By process and track."""
        self._find_tracks()

    @cached_property
    def process_names(self) -> dict[int, str]:
        """The names of processes and of their devices."""
        names: dict[int, str] = {}
        hosts = {process.recording.host for process in self.processes}
        for process in self.processes:
            recording = process.recording
            label = recording.name
            label += "" if recording.rank is None else f", rank {recording.rank}"
            label += f", host {recording.host}" if len(hosts) > 1 else ""
            names[process.pid] = label
            if (process.slices["category"] == OF_DEVICE).any():
                names[process.pid + BEYOND_IDS] = f"device of {label}"
        return names

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The facts that identify the recordings."""
        distinct = {process.recording.identity: process.recording for process in self.processes}
        identities = [summary.identity(one).to_dict() for one in distinct.values()]
        return identities[0] if len(identities) == 1 else {"processes": identities}

    def _find_tracks(self) -> None:
        threads = {
            (pid, thread["thread"]): f"{thread['name'] or 'thread'} {thread['thread']}"
            for process in self.processes
            for pid in (process.pid, process.pid + BEYOND_IDS)
            for thread in process.recording.threads()
        }
        pids, of_pid = np.unique(self.slices["pid"][self.order], return_inverse=True)
        owners, of_owner = np.unique(self.slices["owner"][self.order], return_inverse=True)
        places, of_place = np.unique(of_pid * len(owners) + of_owner, return_inverse=True)
        by_place = np.argsort(of_place, kind="stable")
        ends = np.searchsorted(of_place[by_place], np.arange(1, len(places)))
        tracks = []
        # Without slices, there are no places, and `split` returns an empty part.
        for place, at in zip(places.tolist(), np.split(by_place, ends), strict=False):
            pid, owner = int(pids[place // len(owners)]), int(owners[place % len(owners)])
            rows = self.order[at]
            times = self.slices["begin_ns"][rows], self.slices["end_ns"][rows]
            track = _nested(*times) if owner >= 0 else _one_after_another(*times)
            label = (
                self.owners[~owner] if owner < 0 else threads.get((pid, owner), f"thread {owner}")
            )
            for number, first in enumerate(np.unique(track, return_index=True)[1].tolist()):
                tracks.append((at[first], pid, owner, number, label, rows[track == number]))
        tracks.sort(key=lambda one: int(one[0]))
        for count, (_, pid, owner, number, label, rows) in enumerate(tracks):
            tid = owner if owner >= 0 and number == 0 else BEYOND_IDS + count
            self.tids[rows] = tid
            self.track_names[pid, tid] = f"{label}, overlapping {number}" if number else label


def _nested(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the track of each slice of a thread: the first one in which it is after or inside all.

    The slices are ordered by begin, and those that contain others are before these.
    """
    tracks = np.zeros(len(begin_ns), np.int64)
    if _are_nested(begin_ns, end_ns):
        return tracks
    open_ends_ns: list[list[int]] = []  # by track, those of the slices that contain its latest one
    for i, (begin, end) in enumerate(zip(begin_ns.tolist(), end_ns.tolist(), strict=True)):
        track = 0
        for of_track in open_ends_ns:
            while of_track and of_track[-1] <= begin:
                of_track.pop()
            if not of_track or end <= of_track[-1]:
                break
            track += 1
        if track == len(open_ends_ns):
            open_ends_ns.append([])
        open_ends_ns[track].append(end)
        tracks[i] = track
    return tracks


def _are_nested(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> bool:
    """Return whether each slice ends before the end of every slice in which it begins."""
    if (end_ns[:-1] > begin_ns[1:])[end_ns[:-1] < end_ns[1:]].any():
        return False
    # Those that begin inside of a slice are the next ones, up to the first that begins after it.
    first, last = np.arange(1, len(begin_ns) + 1), np.searchsorted(begin_ns, end_ns)
    containing = np.flatnonzero(last > first)
    bounds = np.stack((first[containing], last[containing]), axis=1).ravel()
    latest_ns = np.maximum.reduceat(np.append(end_ns, 0), bounds)[::2] if len(bounds) else bounds
    return bool((latest_ns <= end_ns[containing]).all())


def _one_after_another(begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the track of each wait or request: the first one in which all earlier ones have ended.

    Those that overlap are not nested, even if one contains another.
    """
    tracks = np.zeros(len(begin_ns), np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for i, (begin, end) in enumerate(zip(begin_ns.tolist(), end_ns.tolist(), strict=True)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        tracks[i] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, int(tracks[i])))
    return tracks


def _pids(recordings: Sequence[RequestSource]) -> list[int]:
    """Return the process id of each recording; other numbers if different processes have one id.

    Those of other containers can. What is kept of one process may be several recordings.
    """
    by_identity: dict[str, int] = {}
    times: Counter[int] = Counter()
    for recording in recordings:
        if recording.identity not in by_identity:
            by_identity[recording.identity] = recording.pid + 2 * BEYOND_IDS * times[recording.pid]
            times[recording.pid] += 1
    return [by_identity[recording.identity] for recording in recordings]


def _shifts(recordings: Sequence[RequestSource]) -> list[int]:
    """Return what is added to the Unix times of each recording, so that all are on one time line.

    Each copy of a recording converts CLOCK_MONOTONIC by its own stamps of both clocks. Those of one
    clock get the same. Another clock is placed by the requests that cross to it, where they bound
    its offset, and else by its Unix time.
    """
    offsets_ns: dict[int, int] = {}
    for one in recordings:
        offsets_ns.setdefault(one.clock, one.unix_offset_ns)
    if len(offsets_ns) > 1:
        requests = timelines(recordings)
        clocks = [recording.clock for recording in requests.began_in()]
        roots = Counter(clocks)
        first = max(roots, key=lambda clock: roots[clock], default=0)
        errors_ns: dict[int, int] = {}
        of_first = requests.selected(clock == first for clock in clocks)
        for stretch in (stretch for one in of_first for stretch in one.segments):
            clock = stretch.recording.clock
            if clock == first or stretch.offset_ns is None:
                continue
            if stretch.error_ns < errors_ns.get(clock, stretch.error_ns + 1):
                errors_ns[clock] = stretch.error_ns
                offsets_ns[clock] = stretch.offset_ns + offsets_ns[first]
    return [offsets_ns[one.clock] - one.unix_offset_ns if one.clock else 0 for one in recordings]
