"""What streams and the host waited for, where the trace holds the driver's word (`cuda_sync`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.gaps import Gaps
from stagespan.trace.arrays import Numbers
from stagespan.trace.device import streams
from stagespan.trace.model import MISSING, Trace

_STREAM_WAIT, _STREAM, _EVENT, _DEVICE = (
    "Stream Wait Event",
    "Stream Sync",
    "Event Sync",
    "Context Sync",
)


@dataclass(frozen=True, slots=True)
class Awaited:
    """What a stream was told to wait for."""

    stream: int
    row: int
    """The device event; -1 when the trace does not tell which it was."""

    def words(self, trace: Trace) -> str:
        """The stream, and what ran on it."""
        if self.row < 0:
            return f"stream {self.stream}"
        return f"{trace.names[int(trace.events.name[self.row])]} on stream {self.stream}"


class Waits:
    """Looks up waits; of a trace without such events, nothing is known."""

    __slots__ = ("_call_of", "_device", "_kind", "_on", "_record", "_rows", "_stream", "_trace")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        rows = np.flatnonzero(trace.rows_of(["cuda_sync"]))
        self._rows = rows
        self._kind = np.array([trace.names[code] for code in trace.events.name[rows].tolist()])
        self._device, self._stream = streams(trace, rows)
        self._on = _numbers(trace, "wait_on_stream", rows)
        self._record = _numbers(trace, "wait_on_cuda_event_record_corr_id", rows)
        correlation = trace.events.correlation[rows].tolist()
        self._call_of = dict(zip(correlation, range(len(rows)), strict=True))

    def of_host(self, call: int) -> str | None:
        """What a call of the host's waited for: a stream, or the device; None if not known."""
        at = self._call_of.get(int(self._trace.events.correlation[call]), -1)
        if at < 0 or self._trace.events.correlation[call] == MISSING:
            return None
        kind = str(self._kind[at])
        if kind == _DEVICE:
            return "all streams"
        stream = {_STREAM: self._stream, _EVENT: self._on}.get(kind)
        return f"stream {stream[at]}" if stream is not None and stream[at] >= 0 else None

    def before(self, gaps: Gaps, at: int) -> Awaited | None:
        """What the work behind a gap was told to wait for on another stream, the last to end.

        Only waits between the launch of what its stream ran before and its own count.
        """
        events = self._trace.events
        first = int(gaps.first[at])
        row, call = int(gaps.rows[first]), int(gaps.calls[first])
        if call < 0 or len(self._rows) == 0:
            return None
        launch = int(events.begin_ns[call])
        device, stream = streams(self._trace, np.array([row]))
        mine = (self._kind == _STREAM_WAIT) & (self._device == device) & (self._stream == stream)
        told = events.begin_ns[self._rows]
        mine &= (told <= launch) & (told > self._launched_before(gaps, device, stream, launch))
        found = [self._awaited(gaps, int(wait)) for wait in np.flatnonzero(mine & (self._on >= 0))]
        return max(found, key=lambda each: self._end(each.row), default=None)

    def _launched_before(self, gaps: Gaps, device: Numbers, stream: Numbers, time: int) -> int:
        """When the work that a stream has had last before a time was launched."""
        launched = self._on_stream(gaps, device, stream)[1]
        return int(launched[launched < time].max(initial=MISSING))

    def _awaited(self, gaps: Gaps, wait: int) -> Awaited:
        stream = int(self._on[wait])
        record = self._record[wait]
        events = self._trace.events
        if record < 0:
            return Awaited(stream, -1)
        calls = np.flatnonzero(
            (events.correlation == record) & self._trace.rows_of(["cuda_runtime", "cuda_driver"])
        )
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
        """The work of a stream whose launch is in the trace, and when it was launched."""
        devices, others = streams(self._trace, gaps.rows)
        here = (devices == device) & (others == stream) & (gaps.calls >= 0)
        return gaps.rows[here], self._trace.events.begin_ns[gaps.calls[here]]

    def _end(self, row: int) -> int:
        return int(self._trace.events.end_ns[row]) if row >= 0 else MISSING


def _numbers(trace: Trace, key: str, rows: NDArray[np.intp]) -> Numbers:
    """An argument of some events, `MISSING` where it is none or no whole number."""
    column = np.full(len(trace.events), MISSING, dtype=np.int64)
    argument = trace.argument(key) if len(rows) else None
    if argument is not None and argument.numbers is not None:
        column[argument.rows] = argument.numbers.astype(np.int64)
    chosen: Numbers = column[rows]
    return chosen
