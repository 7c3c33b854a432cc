"""The collectives of one rank: operation, process group, time, and the computing before."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stagespan.trace.ascend import communication
from stagespan.trace.ascend.steps import intervals_of_kernels
from stagespan.trace.derived.device import launch_of
from stagespan.trace.derived.step_ranges import step_ranges
from stagespan.trace.rates.collectives import (
    argument_of,
    bytes_in,
    members,
    numbered_ops,
    ops_of,
    work_of,
)
from stagespan.trace.read.csv_tables import CsvTable
from stagespan.trace.read.groups import numbered
from stagespan.trace.read.intervals import Cover, Numbers, Rows
from stagespan.trace.read.model import Trace

MOST_COLLECTIVES = 5_000
"""The number of collectives kept for each rank, so that a worker's result stays small."""
_MOST_OF_ALL = 4_000_000
# Steps repeat, so this many show who is late.
_ENOUGH = 200


def most_collectives(ranks: int) -> int:
    """Return how many collectives are kept for each of some ranks, so that memory is bounded."""
    return min(MOST_COLLECTIVES, max(_ENOUGH, _MOST_OF_ALL // max(ranks, 1)))


TOGETHER = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "send_recv"}
)
"""Operations that end on all ranks at about the same time, after all ranks have arrived."""
BETWEEN_TWO = frozenset({"send", "recv"})
"""Operations between two ranks."""
# `hcom_allReduce__586_0_1`: the 0th of group 586.
_ASCEND_GROUP = re.compile(r"^hcom_[A-Za-z]+__(\d+)_\d+_")


class Collectives(msgspec.Struct, frozen=True):
    """One element for each collective, sorted by begin; times in ns.

    Of many ranks, these take most of the memory, so all arrays but `begin_ns` are of the smallest
    type that holds their values.
    """

    ops: list[str]
    op: NDArray[np.signedinteger[Any]]
    """Index into `ops`."""
    groups: list[str]
    group: NDArray[np.signedinteger[Any]]
    """Index into `groups`; "" if the trace does not name the group."""
    bytes_in: Numbers
    """The input bytes of the rank; -1 if unknown."""
    members: Numbers
    """The number of ranks in the group; -1 if unknown."""
    begin_ns: Numbers
    dur_ns: Numbers
    computed_ns: Numbers
    """Time that the rank computed from the trace's start until the collective began."""
    computed_in_ns: Numbers
    """Time that the rank computed while the collective ran."""
    busy_ns: Numbers
    """Time that the rank computed or communicated from the trace's start until it began."""
    transit_ns: Numbers
    """Time in which data moved; -1 if unknown."""
    step: Numbers
    """The step that launched it: 0 before the first mark of a step, otherwise its number from 1;
    -1 if the trace has no steps."""
    left_out: int
    """The number of further collectives, which are skipped."""
    computing_known: bool = True
    """Whether the trace shows what the rank computed; if not, the computing times are 0."""

    def __len__(self) -> int:
        return len(self.begin_ns)

    @property
    def end_ns(self) -> Numbers:
        """The end of each."""
        return self.begin_ns + self.dur_ns

    @classmethod
    def small(cls, **columns: Any) -> Collectives:
        """Return collectives whose arrays are of the smallest types."""
        arrays: dict[str, Any] = {
            name: _small(column)
            for name, column in columns.items()
            if isinstance(column, np.ndarray) and name != "begin_ns"
        }
        return cls(**(columns | arrays))


def _small(values: NDArray[np.signedinteger[Any]]) -> NDArray[np.signedinteger[Any]]:
    """Return integers in the smallest type that holds all of them."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values


def collectives(
    trace: Trace,
    transit_ns: Mapping[str, Sequence[int | None]] | None = None,
    most: int | None = None,
) -> Collectives:
    """The collectives of `work_of`, at most `most`, or `MOST_COLLECTIVES`.

    `transit_ns` has the time in which each moved data, by name and in the order of time.
    """
    events = trace.events
    every, computes = work_of(trace)
    most = MOST_COLLECTIVES if most is None else most
    left_out = max(0, len(every) - most)
    rows = every[:most]
    group, groups = argument_of(trace, rows, "Process Group Name")
    if not groups:
        codes, which = numbered(trace.events.name[rows])
        of_code, groups = _groups_in(trace.names[code] for code in codes.tolist())
        group = of_code[which]
    ops, op = ops_of(trace, rows)
    busy = computes | Cover(events.begin_ns[every], events.end_ns[every])
    begin = events.begin_ns[rows]
    first = busy.begin[0] if len(busy.begin) else 0
    since = np.full(len(rows), min(first, begin.min(initial=first)))
    return Collectives.small(
        ops=ops,
        op=op,
        groups=["", *groups],
        group=group + 1,
        bytes_in=bytes_in(trace, rows),
        members=members(trace, rows),
        begin_ns=begin,
        dur_ns=events.dur_ns[rows],
        computed_ns=computes.length(since, begin),
        computed_in_ns=computes.length(begin, events.end_ns[rows]),
        busy_ns=busy.length(since, begin),
        transit_ns=_transit(trace, rows, transit_ns or {}),
        step=_steps(trace, rows),
        left_out=left_out,
    )


def _transit(trace: Trace, rows: Rows, times_of: Mapping[str, Sequence[int | None]]) -> Numbers:
    seen: dict[str, int] = {}
    transit = np.full(len(rows), -1, dtype=np.int64)
    counts = Counter(trace.events.name[rows].tolist())
    for at, code in enumerate(trace.events.name[rows].tolist()):
        name = trace.names[code]
        times = times_of.get(name, ())
        # Collectives outside of steps are not in the file, so the counts may differ. Then it is
        # unknown which entry belongs to which collective.
        if len(times) == counts[code]:
            number = seen.get(name, 0)
            seen[name] = number + 1
            time = times[number]
            transit[at] = -1 if time is None else time
    return transit


def _steps(trace: Trace, rows: Rows) -> Numbers:
    ranges = step_ranges(trace) if len(rows) else None
    if ranges is None or len(ranges) == 0:
        return np.full(len(rows), -1, dtype=np.int64)
    at = trace.events.begin_ns[rows].copy()
    if ranges.on_host:
        calls = launch_of(trace, rows)
        at[calls >= 0] = trace.events.begin_ns[calls[calls >= 0]]
    # Work after the last step belongs to an additional step.
    edges = np.append(ranges.begin_ns, ranges.end_ns[-1])
    return np.searchsorted(edges, at, side="right").astype(np.int64)


def _groups_in(names: Iterable[str]) -> tuple[Numbers, list[str]]:
    """The groups in Ascend's names of collectives, in the form that `argument_of` returns."""
    groups: dict[str, int] = {}
    found = map(_ASCEND_GROUP.match, names)
    codes = [-1 if each is None else groups.setdefault(each[1], len(groups)) for each in found]
    return np.array(codes, dtype=np.int64), list(groups)


# --- Collectives of Ascend folders without a trace ---


class _Call(msgspec.Struct, frozen=True):
    begin_ns: int
    end_ns: int
    name: str
    transit_ns: int
    step: str


def transits(stats: communication.CollectiveStats | None) -> dict[str, list[int | None]]:
    """How long each collective moved data, by name and in the order of time."""
    operations = [] if stats is None else stats.operations
    times: dict[str, list[int | None]] = {}
    for each in sorted(operations, key=lambda each: each.begin_ns or 0):
        # Collectives that run on the cores have no transit tasks, so 0 means unknown.
        times.setdefault(each.name, []).append(each.transit_ns or None)
    return times


def collectives_of_files(
    stats: communication.CollectiveStats | None, kernels: CsvTable | None, most: int | None = None
) -> Collectives:
    """The collectives of communication.json, and the computing of kernel_details.csv if given.

    They are at most `most`, or `MOST_COLLECTIVES`.
    """
    most = MOST_COLLECTIVES if most is None else most
    calls = sorted(
        (
            _Call(e.begin_ns, e.begin_ns + e.elapse_ns, e.name, e.transit_ns or -1, e.step)
            for e in ([] if stats is None else stats.operations)
            if e.begin_ns is not None and e.elapse_ns is not None and e.elapse_ns >= 0
        ),
        key=lambda each: (each.begin_ns, each.end_ns),
    )
    left_out = max(0, len(calls) - most)
    begin, end = _column(calls, "begin_ns"), _column(calls, "end_ns")
    computes = None if kernels is None else intervals_of_kernels(kernels)
    computing = Cover(*(computes or (begin[:0], end[:0])))
    busy = computing | Cover(begin, end)
    calls, begin, end = calls[:most], begin[:most], end[:most]
    since = np.full(len(calls), busy.begin[0] if len(busy.begin) else 0)
    ops, op = numbered_ops([each.name for each in calls])
    group, groups = _groups_in(each.name for each in calls)
    steps: dict[str, int] = {}
    of_step = [steps.setdefault(each.step, len(steps) + 1) for each in calls]
    unknown = np.full(len(calls), -1, dtype=np.int64)
    return Collectives.small(
        ops=ops,
        op=op,
        groups=["", *groups],
        group=group + 1,
        bytes_in=unknown,
        members=unknown.copy(),
        begin_ns=begin,
        dur_ns=end - begin,
        computed_ns=computing.length(since, begin),
        computed_in_ns=computing.length(begin, end),
        busy_ns=busy.length(since, begin),
        transit_ns=_column(calls, "transit_ns"),
        step=np.array(of_step, dtype=np.int64),
        left_out=left_out,
        computing_known=computes is not None,
    )


def _column(calls: list[_Call], name: str) -> NDArray[np.int64]:
    return np.array([getattr(each, name) for each in calls], dtype=np.int64)
