"""Finds the operator and the line of Python around an event on the host."""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.derived.device import launches, streams
from stagespan.trace.derived.gaps import Gaps
from stagespan.trace.derived.idle_causes import SYNC_OPERATORS
from stagespan.trace.derived.threads import processes, threads, time_index
from stagespan.trace.read.groups import by_group, distinct
from stagespan.trace.read.intervals import ROW, Mask, Numbers, Rows, looked_up
from stagespan.trace.read.model import MISSING, Trace
from stagespan.trace.read.view import once

_STREAM_WAIT, _STREAM, _EVENT, _DEVICE = (
    "Stream Wait Event",
    "Stream Sync",
    "Event Sync",
    "Context Sync",
)


class Awaited(msgspec.Struct, frozen=True):
    """The event for which a stream had to wait."""

    stream: int
    row: int
    """The row of the device event; -1 if the trace does not show which event it was."""

    def label(self, trace: Trace) -> str:
        """The stream and its event, as text."""
        if self.row < 0:
            return f"stream {self.stream}"
        return f"{trace.names[int(trace.events.name[self.row])]} on stream {self.stream}"


class SyncEvents:
    """Looks up events of category `cuda_sync`, which show why a call or a stream waited.

    All methods return None if the trace has no such events.
    """

    __slots__ = ("_at_of", "_device", "_kind", "_on", "_record", "_rows", "_stream", "_trace")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        rows = np.flatnonzero(trace.rows_of(["cuda_sync"]))
        self._rows = rows
        self._kind = np.array([trace.names[code] for code in trace.events.name[rows].tolist()])
        self._device, self._stream = streams(trace, rows)
        self._on = _numbers(trace, "wait_on_stream", rows)
        self._record = _numbers(trace, "wait_on_cuda_event_record_corr_id", rows)
        self._at_of: dict[int, int] = {}
        if len(rows):
            correlation = trace.events.correlation
            at_of = dict(zip(correlation[rows].tolist(), range(len(rows)), strict=True))
            at_of.pop(MISSING, None)
            calls = np.flatnonzero(correlation.having(list(at_of)))
            found = [at_of[number] for number in correlation[calls].tolist()]
            self._at_of = dict(zip(calls.tolist(), found, strict=True))

    def of_host(self, call: int) -> str | None:
        """Return what a host call waited for: a stream or the device; None if not known."""
        at = self._at_of.get(call, -1)
        if at < 0:
            return None
        kind = str(self._kind[at])
        if kind == _DEVICE:
            return "all streams"
        stream = {_STREAM: self._stream, _EVENT: self._on}.get(kind)
        return f"stream {stream[at]}" if stream is not None and stream[at] >= 0 else None

    def before(self, gaps: Gaps, at: int) -> Awaited | None:
        """Return the last event on another stream for which the work after a gap had to wait.

        Only waits between the launch of the stream's previous work and its own launch count.
        """
        events = self._trace.events
        first = int(gaps.first[at])
        row, call = int(gaps.rows[first]), int(gaps.calls[first])
        if call < 0 or len(self._rows) == 0:
            return None
        launch = int(events.begin_ns[call])
        device, stream = streams(self._trace, np.array([row]))
        waits = (self._kind == _STREAM_WAIT) & (self._device == device) & (self._stream == stream)
        issued = events.begin_ns[self._rows]
        waits &= (issued <= launch) & (issued > self._launched_before(gaps, device, stream, launch))
        found = [self._awaited(gaps, int(wait)) for wait in np.flatnonzero(waits & (self._on >= 0))]
        return max(found, key=lambda each: self._end(each.row), default=None)

    def _launched_before(self, gaps: Gaps, device: Numbers, stream: Numbers, time: int) -> int:
        """Return when the last work of a stream before a time was launched."""
        launched = self._on_stream(gaps, device, stream)[1]
        return int(launched[launched < time].max(initial=MISSING))

    def _awaited(self, gaps: Gaps, wait: int) -> Awaited:
        stream = int(self._on[wait])
        record = self._record[wait]
        events = self._trace.events
        if record < 0:
            return Awaited(stream, -1)
        is_call = self._trace.rows_of(["cuda_runtime", "cuda_driver"])
        calls = np.flatnonzero(events.correlation.having([record]) & is_call)
        if len(calls) == 0:
            return Awaited(stream, -1)
        rows, launched = self._on_stream(gaps, self._device[wait], self._on[wait])
        earlier = launched <= events.begin_ns[calls[0]]
        if not earlier.any():
            return Awaited(stream, -1)
        rows = rows[earlier]
        return Awaited(stream, int(rows[np.argmax(events.end_ns[rows])]))

    def _on_stream(
        self, gaps: Gaps, device: Numbers, stream: Numbers
    ) -> tuple[NDArray[np.intp], Numbers]:
        """Return a stream's work with launches in the trace, and the times of these launches."""
        devices, others = streams(self._trace, gaps.rows)
        here = (devices == device) & (others == stream) & (gaps.calls >= 0)
        return gaps.rows[here], self._trace.events.begin_ns[gaps.calls[here]]

    def _end(self, row: int) -> int:
        return int(self._trace.events.end_ns[row]) if row >= 0 else MISSING


def _numbers(trace: Trace, key: str, rows: NDArray[np.intp]) -> Numbers:
    """Return an argument of each of `rows`; `MISSING` if it is absent or not an integer."""
    column = np.full(len(trace.events), MISSING, dtype=np.int64)
    argument = trace.argument(key) if len(rows) else None
    if argument is not None and argument.numbers is not None:
        column[argument.rows] = argument.numbers.astype(np.int64)
    chosen: Numbers = column[rows]
    return chosen


# --- Call sites ---


_FRAME = re.compile(r"\.py\(\d+\): ")
# Frames of the framework and the interpreter, which do not help users.
_NOT_OWN = re.compile(
    r"(?:^|/)(?:torch|torch_npu|torchgen|functools|contextlib|threading|runpy|_pytest|importlib)"
    r"(?:/|\.py\()|<frozen|multiprocessing/"
)


class CallSites:
    """Looks up the events around a time on a thread."""

    __slots__ = (
        "_calls",
        "_frames",
        "_marks",
        "_operators",
        "_process",
        "trace",
        "waits",
    )

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.waits = SyncEvents(trace)
        self._process = processes(trace)
        self._operators = trace.rows_of(["cpu_op"])
        self._frames = trace.rows_of(["python_function"])
        self._marks = trace.rows_of(["user_annotation"])
        self._calls = np.flatnonzero(launches(trace)).astype(ROW)

    def operator(self, row: int) -> int:
        """Return the innermost operator around an event on its thread, or -1."""
        rows = self._around(row, self._operators)
        return int(rows[-1]) if len(rows) else -1

    def operators(self, row: int) -> Rows:
        """Return all operators around an event on its thread, the outermost first."""
        return self._around(row, self._operators)

    def marks(self, row: int) -> Rows:
        """Return all annotations around an event on its thread, the outermost first."""
        return self._around(row, self._marks)

    def calls_before(self, row: int) -> Rows:
        """Return the runtime calls that ended before an event on its thread, in order."""
        events = self.trace.events
        rows = self._on_thread(self._calls, row)
        rows = rows[events.end_ns[rows] <= events.begin_ns[row]]
        result: Rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
        return result

    def called(
        self, begin_ns: int, end_ns: int, among: Mask | None = None, like: int = -1
    ) -> tuple[int, int]:
        """Return the longest call in an interval, and the total time of calls with its name.

        `among` limits the calls, and `like` is an event on the thread to search. Returns (-1, 0) if
        there is no call.
        """
        events = self.trace.events
        rows = self._calls
        if among is not None:
            # In a trace without waiting calls, operators count as waiting calls.
            rows = np.flatnonzero(among)
        if like >= 0:
            rows = self._on_thread(rows, like)
        rows = rows[(events.begin_ns[rows] < end_ns) & (events.end_ns[rows] > begin_ns)]
        if len(rows) == 0:
            return -1, 0
        inside = np.minimum(events.end_ns[rows], end_ns) - np.maximum(
            events.begin_ns[rows], begin_ns
        )
        _, kind = distinct(events.name[rows], self._process[rows], events.tid[rows])
        # Whole numbers below 2**53: doubles add them exactly.
        sums = np.bincount(kind, weights=inside)
        mine = np.flatnonzero(kind == int(np.argmax(sums)))
        return int(rows[mine[np.argmax(inside[mine])]]), int(sums.max())

    def line(self, row: int) -> str | None:
        """Return the innermost frame around an event, preferably one of the user, or None."""
        return self._frame(self._around(row, self._frames))

    def doing(self, row: int, begin_ns: int, end_ns: int) -> tuple[int, str | None]:
        """Return the innermost event that fills half of an interval, and the Python frame.

        Searches the thread of `row`. The event is -1 if there is none.
        """
        events = self.trace.events
        rows = self._on_thread(time_index(self.trace).overlapping(begin_ns, end_ns), row)
        inside = np.minimum(events.end_ns[rows], end_ns) - np.maximum(
            events.begin_ns[rows], begin_ns
        )
        fills = (2 * inside >= end_ns - begin_ns) & (inside > 0)
        rows = self._outermost_first(rows[fills])
        seen = self._operators[rows] | self._frames[rows] | self._marks[rows]
        shown = rows[seen]
        return (int(shown[-1]) if len(shown) else -1, self._frame(rows[self._frames[rows]]))

    def _frame(self, frames: Rows) -> str | None:
        names = [self.trace.names[int(self.trace.events.name[row])] for row in frames]
        lines = [name for name in names if _FRAME.search(name)]
        own = [name for name in lines if _NOT_OWN.search(name) is None]
        chosen = own or lines
        return chosen[-1] if chosen else None

    def _on_thread(self, rows: Rows, like: int) -> Rows:
        """Return those events that are on the thread of another event."""
        tid, process = self.trace.events.tid, self._process
        same: Rows = rows[(process[rows] == process[like]) & (tid[rows] == tid[like])]
        return same

    def _around(self, row: int, among: Mask) -> Rows:
        events = self.trace.events
        begin, end = int(events.begin_ns[row]), int(events.end_ns[row])
        around = self._on_thread(time_index(self.trace).around(begin, end), row)
        return self._outermost_first(around[among[around] & (around != row)])

    def _outermost_first(self, rows: Rows) -> Rows:
        events = self.trace.events
        return rows[np.lexsort((-events.end_ns[rows], events.begin_ns[rows]))]


@once
def call_sites(trace: Trace) -> CallSites:
    """Return the look-up of a trace, which all analyses share."""
    return CallSites(trace)


@once
def _known_waits(trace: Trace) -> Rows:
    """Return the rows of all operators that are known to wait."""
    known = np.array([*(name in SYNC_OPERATORS for name in trace.names), False])
    return np.flatnonzero(looked_up(known, trace.events.name) & trace.rows_of(["cpu_op"]))


def waiting_operators(trace: Trace, rows: Rows) -> Rows:
    """Return the outermost operator around each event that is known to wait (item, to), or -1."""
    events = trace.events
    rank = np.full(len(trace.names) + 1, len(SYNC_OPERATORS))
    for code, name in enumerate(trace.names):
        if name in SYNC_OPERATORS:
            rank[code] = SYNC_OPERATORS.index(name)
    waits = _known_waits(trace)
    result = np.full(len(rows), -1, dtype=np.intp)
    threads_of, thread = threads(trace, np.concatenate((waits, rows)))
    count = len(threads_of)
    of_waits, of_rows = by_group(thread[: len(waits)], count), by_group(thread[len(waits) :], count)
    for of_wait, asked in zip(of_waits, of_rows, strict=True):
        if len(of_wait) == 0 or len(asked) == 0:
            continue
        here = waits[of_wait]
        begin, end = events.begin_ns[here], events.end_ns[here]
        # If several begin and end together, the caller comes first.
        order = np.lexsort((rank[events.name[here]], -end, begin))
        here, end = here[order], end[order]
        reach = np.maximum.accumulate(end)
        outer = here[np.concatenate(([True], end[1:] > reach[:-1]))]
        at = np.searchsorted(events.begin_ns[outer], events.begin_ns[rows[asked]], "right") - 1
        contains = (at >= 0) & (events.end_ns[outer[at]] >= events.end_ns[rows[asked]])
        result[asked[contains]] = outer[at[contains]]
    return result
