"""A rank's collectives from communication.json, for Ascend folders that hold no trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.analysis.axis import Cover
from stagespan.trace.ascend import communication
from stagespan.trace.ascend.kernel_lanes import intervals_of_kernels
from stagespan.trace.ascend.tables import CsvTable
from stagespan.trace.ranks.collectives import ASCEND_GROUP, MOST, Collectives, op_of


@dataclass(frozen=True, slots=True)
class _Call:
    begin_ns: int
    end_ns: int
    name: str
    transit_ns: int
    step: str


def transits(found: communication.Collectives | None) -> dict[str, list[int | None]]:
    """How long each collective moved data, by name and in the order of time."""
    operations = [] if found is None else found.operations
    times: dict[str, list[int | None]] = {}
    for each in sorted(operations, key=lambda each: each.begin_ns or 0):
        # Collectives that the cores carry out have no tasks of transit: 0 says nothing.
        times.setdefault(each.name, []).append(each.transit_ns or None)
    return times


def collectives_of_files(
    found: communication.Collectives | None, kernels: CsvTable | None
) -> Collectives:
    """The collectives of communication.json, and the computing of kernel_details.csv if given."""
    calls = sorted(
        (
            _Call(e.begin_ns, e.begin_ns + e.elapse_ns, e.name, e.transit_ns or -1, e.step)
            for e in ([] if found is None else found.operations)
            if e.begin_ns is not None and e.elapse_ns is not None and e.elapse_ns >= 0
        ),
        key=lambda each: (each.begin_ns, each.end_ns),
    )
    left_out = max(0, len(calls) - MOST)
    begin, end = _column(calls, "begin_ns"), _column(calls, "end_ns")
    computes = None if kernels is None else intervals_of_kernels(kernels)
    computing = Cover(*(computes or (begin[:0], end[:0])))
    busy = computing | Cover(begin, end)
    calls, begin, end = calls[:MOST], begin[:MOST], end[:MOST]
    since = np.full(len(calls), busy.begin[0] if len(busy.begin) else 0)
    ops: dict[str, int] = {}
    groups: dict[str, int] = {"": 0}
    steps: dict[str, int] = {}
    of_op = [ops.setdefault(op_of(each.name), len(ops)) for each in calls]
    of_group = []
    for each in calls:
        named = ASCEND_GROUP.match(each.name)
        of_group.append(groups.setdefault(named[1] if named else "", len(groups)))
    of_step = [steps.setdefault(each.step, len(steps) + 1) for each in calls]
    unknown = np.full(len(calls), -1, dtype=np.int64)
    return Collectives(
        ops=list(ops),
        op=np.array(of_op, dtype=np.int32),
        groups=list(groups),
        group=np.array(of_group, dtype=np.int32),
        bytes_in=unknown,
        members=unknown.copy(),
        begin_ns=begin,
        end_ns=end,
        computed_ns=computing.within(since, begin),
        computed_in_ns=computing.within(begin, end),
        busy_ns=busy.within(since, begin),
        transit_ns=_column(calls, "transit_ns"),
        step=np.array(of_step, dtype=np.int64),
        left_out=left_out,
        computing_known=computes is not None,
    )


def _column(calls: list[_Call], name: str) -> NDArray[np.int64]:
    return np.array([getattr(each, name) for each in calls], dtype=np.int64)
