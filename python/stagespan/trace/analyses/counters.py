"""Counters of a trace, such as the clock of a device or the traffic of its memory."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from stagespan.pages.figures import Count, Figures, Ns, first
from stagespan.pages.result import StructResult, Table, Unavailable, shortened
from stagespan.trace.evidence import window_of
from stagespan.trace.read.groups import by_group, pairs
from stagespan.trace.read.intervals import Numbers
from stagespan.trace.read.model import Trace

# More series than a profiler writes.
_MOST_SERIES = 64
_SHOWN = 30
_WRITTEN = 2_000


def analyze(trace: Trace) -> Counters | Unavailable:
    """Sum up each series of each counter; Unavailable without counters."""
    window, written = window_of(trace), trace.arguments.get("counters")
    counters: list[Counter] = []
    if window is not None and written is not None and len(trace.counters):
        for key in islice(written.shapes.keys, _MOST_SERIES):
            values = trace.argument(key, "counters")
            if values is not None and values.numbers is not None:
                counters += _of_series(trace, window, key, values.rows, values.numbers)
    if not counters:
        return Unavailable("The trace has no counters.", "no_counters")
    return Counters(sorted(counters, key=lambda each: each.name))


class Counter(Figures, frozen=True):
    """One series of a counter. A value lasts until the next one, or to the end of the trace."""

    name: str
    """The counter's name, and that of the series if it has one."""
    process: str | None
    """The name of the process to which it belongs."""
    values: Count
    mean: float
    """Over the time from the first value."""
    lowest: float
    lowest_since_ns: Ns
    """When it first became that low, from the start of the trace's window."""
    lowest_ns: Ns
    """How long it was that low in total."""
    highest: float


class Counters(StructResult, frozen=True):
    """The series of all counters."""

    counters: Annotated[list[Counter], first(_WRITTEN)]

    def tables(self) -> list[Table]:
        """One row for each."""
        left = len(self.counters) - _SHOWN
        several = len({each.process for each in self.counters}) > 1
        table = Table.of(
            "Counters",
            self.counters[:_SHOWN],
            ("name", "counter", ""),
            (lambda each: each.process if several else None, "process", ""),
            ("mean", "mean", "rate"),
            ("lowest", "lowest", "rate"),
            ("lowest_since_ns", "lowest since", "ns"),
            ("lowest_ns", "for", "ns"),
            ("highest", "highest", "rate"),
            ("values", "values", ""),
            note=f"{left:,} more are in the JSON." if left > 0 else "",
        )
        return [table.filled(("mean", "lowest", "lowest since", "for", "highest"))]


def _of_series(
    trace: Trace,
    window: tuple[int, int],
    key: str,
    rows: Numbers,
    numbers: NDArray[np.generic],
) -> list[Counter]:
    """Return the figures of the counters that have the argument `key`, by name and process."""
    at, begin, end = trace.counters.begin_ns[rows], *window
    inside = np.flatnonzero((at >= begin) & (at < end) & np.isfinite(numbers.astype(np.float64)))
    rows, values = rows[inside], numbers[inside].astype(np.float64)
    names, of = pairs(trace.counters.name[rows].astype(np.int64), trace.counters.pid[rows])
    counters = []
    for (code, pid), mine in zip(names.tolist(), by_group(of, len(names)), strict=True):
        mine = mine[np.argsort(trace.counters.begin_ns[rows[mine]], kind="stable")]
        times, value = trace.counters.begin_ns[rows[mine]], values[mine]
        lasts = np.diff(np.append(times, end))
        lowest = float(value.min())
        low = value == lowest
        counter = trace.names[code]
        counters.append(
            Counter(
                name=shortened(counter if key in ("", counter) else f"{counter}: {key}", 90),
                process=trace.process_names.get(pid),
                values=len(value),
                mean=float((value * lasts).sum() / max(int(lasts.sum()), 1)),
                lowest=lowest,
                lowest_since_ns=int(times[low][0]) - begin,
                lowest_ns=int(lasts[low].sum()),
                highest=float(value.max()),
            )
        )
    return counters
