"""What each call and each event of a device had to wait for, as a graph of points in time.

The points of a window are its begin and end, and the begins and ends of the device's events and of
the calls that launched them or waited for them. An edge says that a point comes at least `lag_ns`
after another one:

    begin of a call   <- end of the thread's call before it, or of the thread that it waited for
    end of a call     <- its start; if it waited, also the end of the device's event
    begin of an event <- end of its launch (begin, if it began before that end); end of the event
                         before it on its stream; end of an event of another stream, if it began as
                         soon as that event had ended
    end of an event   <- its start

With the lags of the trace, each point's time is the latest of (time of a source + lag), which are
the times of the trace. With other lags, it is a prediction of the times of a changed program.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan import _core
from stagespan.trace.derived.device import launch_of, launches, streams
from stagespan.trace.derived.gaps import QUIET_NS, gaps, program_calls, waiting_calls
from stagespan.trace.derived.idle_causes import ALLOCATES
from stagespan.trace.derived.threads import TimeIndex, among, named, threads, threads_of, time_index
from stagespan.trace.read.groups import by_group, median, pairs
from stagespan.trace.read.intervals import Mask, Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once

WORK, LAUNCH, STREAM, DEPENDENCY = "work", "launch", "stream", "dependency"
HOST, CALL, WAIT = "host", "call", "wait"
KINDS = {
    WORK: "device work",
    LAUNCH: "launch to begin",
    STREAM: "between work of a stream",
    DEPENDENCY: "between work of two streams",
    HOST: "host between calls",
    CALL: "host in calls",
    WAIT: "end of work to end of wait",
}
"""The kinds of edges."""
_CODES = {kind: code for code, kind in enumerate(KINDS)}
# How far the clocks of host and device may differ.
_CLOCKS_NS = 5_000
# Work that begins so soon after the end of work on another stream may have waited for it.
_SOON_NS = 10_000
# The usual time from a launch to its start on an idle device, if the trace shows none.
_USUAL_LATENCY_NS = 5_000
_OF_THREADS = ("cpu_op", "user_annotation", "python_function")
_WAITS_FOR_ALL = re.compile("device|context", re.IGNORECASE)


class Edges(msgspec.Struct, frozen=True, dict=True):
    """The edges of a window, ordered so that all edges into a point precede those out of it."""

    source: Rows
    target: Rows
    """Points; 0 is the start of the window, and the last one is its end."""
    lag_ns: Numbers
    kind: NDArray[np.int8]
    """Index into the keys of KINDS."""
    row: Rows
    """The event to which the edge's time belongs: the device's event or the call that ends there
    or, for the time between two calls, the later one; -1 for the end of the window."""
    begin_ns: int
    end_ns: int
    points: int

    @cached_property
    def times(self) -> Numbers:
        """The time of each point."""
        return self._earliest(self.lag_ns[:, None])[:, 0]

    def ends(self, lag_ns: NDArray[np.int64]) -> list[int]:
        """Return the end of the window with other lags: one row for each edge, one column a case.

        No point can be earlier than the start of the window.
        """
        result: list[int] = self._earliest(lag_ns)[-1].tolist()
        return result

    def _earliest(self, lag_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        times = np.full((self.points, lag_ns.shape[1]), self.begin_ns)
        lags = np.ascontiguousarray(lag_ns)
        _core.trace_earliest(self.source, self.target, lags, lag_ns.shape[1], times)
        return times

    @cached_property
    def path(self) -> Rows:
        """The indices of the edges of the critical path, from the start to the end.

        If several edges determine the time of a point, work of the device is preferred.
        """
        times = self.times
        order = np.argsort(self.kind, kind="stable")[::-1]
        binds = times[self.source] + self.lag_ns == times[self.target]
        binding: Rows = np.full(self.points, -1, dtype=np.intp)
        # Of several edges into a point, the last one is kept.
        binding[self.target[order[binds[order]]]] = order[binds[order]]
        edges_of_path = []
        point, edges, sources = self.points - 1, binding.tolist(), self.source.tolist()
        while point != 0 and edges[point] >= 0:
            edges_of_path.append(edges[point])
            point = sources[edges[point]]
        return np.array(edges_of_path[::-1], dtype=np.intp)

    def slack_ns(self) -> Numbers:
        """Return how much longer each edge could take without a later end of the window."""
        latest = np.full(self.points, self.times[-1])
        _core.trace_latest(self.source, self.target, self.lag_ns, latest)
        result: Numbers = latest[self.target] - self.times[self.source] - self.lag_ns
        return result


@once
def _indices(trace: Trace) -> tuple[TimeIndex, TimeIndex]:
    """Return the device's events, and the calls that matter for their times, by time."""
    idle = gaps(trace)
    calls = waiting_calls(trace, idle.rows, idle.calls) | _other_calls(trace)
    calls[idle.calls[idle.calls >= 0]] = True
    return TimeIndex(trace, idle.rows), TimeIndex(trace, np.flatnonzero(calls))


def _other_calls(trace: Trace) -> Mask:
    """Return the calls that allocate or free memory, and those that take long."""
    calls = launches(trace)
    long = calls & (trace.events.dur_ns > QUIET_NS) & ~program_calls(trace, calls)
    found: Mask = among(calls, trace, ALLOCATES) | long
    return found


def dependencies(
    trace: Trace, begin_ns: int, end_ns: int, host_end_ns: int, most: int
) -> Edges | int:
    """Return the edges of a window, such as a step.

    Calls of the host that begin at `host_end_ns` or later, and what they launched, are left out:
    they belong to the next step. Returns the number of events if it is more than `most`, and 0 if
    there is no event of a device.
    """
    items, calls = (index.overlapping(begin_ns, end_ns) for index in _indices(trace))
    events = trace.events
    launched = launch_of(trace, items)
    items = items[(launched < 0) | (events.begin_ns[launched] < host_end_ns)]
    calls = calls[(events.begin_ns[calls] >= begin_ns) & (events.begin_ns[calls] < host_end_ns)]
    if len(items) == 0 or len(items) + len(calls) > most:
        return len(items) and len(items) + len(calls)
    return _Builder(trace, begin_ns, end_ns, items, calls).finished()


_Source = tuple[int, int, str]
"""A point, the least time from it that is known, and the kind of the edge."""


class _Sources(NamedTuple):
    """One point for each of several items of a device, with the least time from it."""

    kind: str
    """The kind of the edges."""
    items: Rows
    points: Rows
    lag_ns: Numbers


_NEVER = np.iinfo(np.int64).min


class _Builder:
    """Collects the edges of one window."""

    def __init__(self, trace: Trace, begin_ns: int, end_ns: int, items: Rows, calls: Rows) -> None:
        self.trace, self.begin_ns, self.end_ns = trace, begin_ns, end_ns
        self.edges: list[tuple[int, int, int, int, int]] = []
        self.time: list[int] = [begin_ns]
        events = trace.events
        self.items = items[np.lexsort((events.end_ns[items], events.begin_ns[items]))]
        self.item_begin = self._points(events.begin_ns[self.items])
        self.item_end = self._points(events.end_ns[self.items])
        self.calls, self.call_at = self._outermost(calls)
        self.call_begin = self._points(events.begin_ns[self.calls])
        self.call_end = self._points(events.end_ns[self.calls])
        self.launched_by = [
            self.call_at.get(call, -1) for call in launch_of(trace, self.items).tolist()
        ]
        last = [(point, 0, HOST) for point in self._add_threads()]
        self._add_calls()
        # After the last work of a stream, the host goes on.
        last += [(point, 0, HOST) for point in self._add_items()]
        (end,) = self._points(np.array([end_ns]))
        self._add(end, -1, last)

    def finished(self) -> Edges:
        """Return the edges in topological order."""
        source, target, lag, kind, row = (
            np.array(column, dtype=np.int64) for column in zip(*self.edges, strict=True)
        )
        ranks = np.empty(len(self.time), dtype=np.int64)
        _core.trace_topological_ranks(source, target, ranks)
        order = np.argsort(ranks[source], kind="stable")
        return Edges(
            source[order],
            target[order],
            lag[order],
            kind[order].astype(np.int8),
            row[order],
            self.begin_ns,
            self.end_ns,
            len(self.time),
        )

    def _points(self, times_ns: Numbers) -> list[int]:
        """Add points with the times that they have in the trace."""
        first = len(self.time)
        self.time += np.clip(times_ns, self.begin_ns, self.end_ns).tolist()
        return list(range(first, len(self.time)))

    def _add(self, target: int, row: int, sources: list[_Source]) -> None:
        """Add the edges into a point.

        The rest of the time until the point is added to all lags.
        """
        if len(sources) == 1:  # most points: its lag is all of the time
            ((source, _, kind),) = sources
            lag = self.time[target] - self.time[source]
            self.edges.append((source, target, lag, _CODES[kind], row))
            return
        rest = self.time[target] - max(self.time[source] + lag for source, lag, _ in sources)
        for source, lag, kind in sources:
            self.edges.append((source, target, lag + rest, _CODES[kind], row))

    def _outermost(self, calls: Rows) -> tuple[Rows, dict[int, int]]:
        """Return the calls without those inside others, and the index of each call's outermost."""
        events = self.trace.events
        _, thread = threads(self.trace, calls)
        order = np.lexsort((-events.end_ns[calls], events.begin_ns[calls], thread))
        outermost: list[int] = []
        at: dict[int, int] = {}
        reached, before = -1, -1
        for row, number, end in zip(
            calls[order].tolist(),
            thread[order].tolist(),
            events.end_ns[calls[order]].tolist(),
            strict=True,
        ):
            if number != before or end > reached:
                outermost.append(row)
                reached, before = end, number
            at[row] = len(outermost) - 1
        return np.array(outermost, dtype=np.intp), at

    def _add_threads(self) -> list[int]:
        """Add the edges into the begins of calls. Returns the end of the last call of each thread.

        If a thread did nothing while another one made calls, and went on after the last of them,
        it waited for that thread, as the thread of the forward pass and that of the backward pass
        do in turns.
        """
        events = self.trace.events
        owners, thread = threads(self.trace, self.calls)
        begin, end = events.begin_ns[self.calls], events.end_ns[self.calls]
        by_end = np.argsort(end, kind="stable")
        ended = (np.searchsorted(end[by_end], begin, "right") - 1).tolist()
        # For each place in `by_end`, the last earlier place of another thread, or -1.
        before_it = [-1] * len(by_end)
        of_places = thread[by_end].tolist()
        for place in range(1, len(by_end)):
            same = of_places[place] == of_places[place - 1]
            before_it[place] = before_it[place - 1] if same else place - 1
        processes_of = owners[:, 0][thread] if len(owners) else thread
        activity = self._activity_of(owners) if len(owners) > 1 else [begin[:0]] * len(owners)
        lasts = []
        for number, mine in enumerate(by_group(thread, len(owners))):
            previous, previous_end = 0, self.begin_ns
            for call in mine.tolist():
                sources: list[_Source] = [(previous, 0, HOST)]
                at = ended[call]
                at = at if at < 0 or of_places[at] != number else before_it[at]
                other = int(by_end[at]) if at >= 0 else -1
                if (
                    other >= 0
                    and processes_of[other] == owners[number, 0]
                    and _waited(activity[number], previous_end, int(end[other]), int(begin[call]))
                ):
                    sources.append((self.call_end[other], 0, HOST))
                self._add(self.call_begin[call], int(self.calls[call]), sources)
                previous, previous_end = self.call_end[call], int(end[call])
            lasts.append(previous)
        return lasts

    def _activity_of(self, owners: NDArray[np.int64]) -> list[Numbers]:
        """Return for each of some threads when its events in the window began and ended."""
        events = self.trace.events
        rows = time_index(self.trace).overlapping(self.begin_ns, self.end_ns)
        of_host = self.trace.rows_of(_OF_THREADS) | launches(self.trace)
        rows = rows[of_host[rows]]
        thread = threads_of(owners, self.trace, rows)
        rows, thread = rows[thread >= 0], thread[thread >= 0]
        return [
            np.sort(np.concatenate((events.begin_ns[mine], events.end_ns[mine])), kind="stable")
            for mine in (rows[group] for group in by_group(thread, len(owners)))
        ]

    def _add_calls(self) -> None:
        """Add the edges into the ends of calls.

        A call that waits for the device waits for all streams, one that copies for its copy, and
        any other for the work that ended last.
        """
        events = self.trace.events
        found = gaps(self.trace)
        waits = waiting_calls(self.trace, found.rows, found.calls)
        waits_for_all = named(self.trace, _WAITS_FOR_ALL, self.calls)
        item_of = {call: item for item, call in enumerate(self.launched_by)}
        ends = events.end_ns[self.items]
        by_end = np.argsort(ends, kind="stable")
        begins = events.begin_ns[self.calls]
        asked = [begins[call] if call >= 0 else self.begin_ns for call in self.launched_by]
        streams_found, stream = pairs(*streams(self.trace, self.items))
        of_streams = [by_end[mine] for mine in by_group(stream[by_end], len(streams_found))]
        columns = zip(
            *(self.call_begin, self.call_end, events.end_ns[self.calls].tolist()),
            *(self.calls.tolist(), waits[self.calls].tolist(), waits_for_all.tolist()),
            strict=True,
        )
        for call, (start, target, end, row, is_wait, is_for_all) in enumerate(columns):
            if not is_wait:  # most calls
                lag = self.time[target] - self.time[start]
                self.edges.append((start, target, lag, _CODES[CALL], row))
                continue
            sources: list[_Source] = [(start, 0, CALL)]
            groups = [by_end]
            if call in item_of:
                groups = [np.array([item_of[call]])]
            elif is_for_all:
                groups = of_streams
            for group in groups:
                at = int(np.searchsorted(ends[group], end + _CLOCKS_NS, "right")) - 1
                # Because clocks differ, work can seem to end here that was asked for later.
                while at >= 0 and asked[int(group[at])] >= end:
                    at -= 1
                if at >= 0:
                    item = int(group[at])
                    sources.append((self.item_end[item], min(end - int(ends[item]), 0), WAIT))
            self._add(target, row, sources)

    def _add_items(self) -> list[int]:
        """Add the edges into the device's events. Returns the end of each stream's last event."""
        _, stream = pairs(*streams(self.trace, self.items))
        by_stream = np.argsort(stream, kind="stable")
        follows = stream[by_stream[1:]] == stream[by_stream[:-1]]
        after, before = by_stream[1:][follows], by_stream[:-1][follows]
        times = np.array(self.time)
        item_begin, item_end = np.array(self.item_begin), np.array(self.item_end)
        begin, end = times[item_begin], times[item_end]
        sources = [_Sources(STREAM, after, item_end[before], np.zeros_like(after))]
        busy_until = _latest(sources, times, begin)
        launched, launch = self._launches(times, begin)
        latency = begin[launched] - times[launch]
        on_idle = latency[busy_until[launched] <= times[launch]]
        usual = max(int(median(on_idle)), 0) if len(on_idle) else _USUAL_LATENCY_NS
        sources.append(_Sources(LAUNCH, launched, launch, np.minimum(usual, latency)))
        known = _latest(sources, times, begin)
        late, other = self._other_streams(stream, begin, np.where(known == _NEVER, 0, known))
        sources.append(_Sources(DEPENDENCY, late, item_end[other], np.zeros_like(late)))
        without = np.flatnonzero(_latest(sources, times, begin) == _NEVER)
        zeros = np.zeros_like(without)
        sources.append(_Sources(STREAM, without, zeros, zeros))
        # The rest of the time until an item begins is added to all lags.
        left_ns = begin - _latest(sources, times, begin)
        work = _Sources(WORK, np.arange(len(begin)), item_begin, end - begin)
        item = np.concatenate([each.items for each in (*sources, work)])
        point = np.concatenate([each.points for each in (*sources, work)])
        target = np.concatenate([*(item_begin[each.items] for each in sources), item_end])
        lag = [*(each.lag_ns + left_ns[each.items] for each in sources), work.lag_ns]
        kind = np.repeat(
            [_CODES[each.kind] for each in (*sources, work)],
            [len(each.items) for each in (*sources, work)],
        )
        by_item = np.argsort(item, kind="stable")
        columns = (point, target, np.concatenate(lag), kind, self.items[item])
        self.edges += zip(*(column[by_item].tolist() for column in columns), strict=True)
        result: list[int] = item_end[by_stream[np.append(~follows, True)]].tolist()
        return result

    def _launches(self, times: Numbers, begin: Numbers) -> tuple[Rows, Rows]:
        """Return the items with a known launch, and the points of these launches.

        It is the end of the call if the item began later, otherwise the start. A call that waits
        for its item, such as a copy, had launched it before its end, whatever the clocks say.
        """
        call = np.array(self.launched_by)
        launched = np.flatnonzero(call >= 0)
        found = gaps(self.trace)
        waits = waiting_calls(self.trace, found.rows, found.calls)[self.calls[call[launched]]]
        of_begin = np.array(self.call_begin, dtype=np.intp)[call[launched]]
        of_end = np.array(self.call_end, dtype=np.intp)[call[launched]]
        after = (begin[launched] >= times[of_end]) & ~waits
        return launched, np.where(after, of_end, of_begin)

    def _other_streams(self, stream: Numbers, begin: Numbers, ready: Numbers) -> tuple[Rows, Rows]:
        """Return the items that began as soon as work on another stream had ended, and that work.

        `ready` is when each item could begin by all other conditions.
        """
        ends = self.trace.events.end_ns[self.items]
        by_end = np.argsort(ends, kind="stable")
        since = np.maximum(ready, begin - _SOON_NS)
        last = np.searchsorted(ends[by_end], begin, side="right") - 1
        late = (begin > ready) & (last >= 0) & (ends[by_end[last]] > since)
        pairs = []
        for item in np.flatnonzero(late).tolist():
            at = int(last[item])
            while at >= 0 and ends[by_end[at]] > since[item]:
                if stream[by_end[at]] != stream[item]:
                    pairs.append((item, int(by_end[at])))
                    break
                at -= 1
        items, others = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
        return items, others


def _latest(sources: list[_Sources], times: Numbers, begin: Numbers) -> Numbers:
    """Return when all known sources of each item had passed; _NEVER for an item without any."""
    latest = np.full_like(begin, _NEVER)
    for each in sources:
        passed = times[each.points] + each.lag_ns
        latest[each.items] = np.maximum(latest[each.items], passed)
    return latest


def _waited(active: Numbers, since_ns: int, other_end_ns: int, until_ns: int) -> bool:
    """Whether a thread seems to have waited for a call of another thread.

    `active` are the times at which the thread began or ended something, and `since_ns` and
    `until_ns` are the end of its previous call and the start of its next one.
    """
    if other_end_ns <= since_ns:
        return False
    at = int(np.searchsorted(active, other_end_ns, "left"))
    quiet_since = max(since_ns, int(active[at - 1])) if at else since_ns
    resumed = min(until_ns, int(active[at])) if at < len(active) else until_ns
    if quiet_since == since_ns:
        return True
    return other_end_ns - quiet_since > QUIET_NS and resumed - other_end_ns <= QUIET_NS
