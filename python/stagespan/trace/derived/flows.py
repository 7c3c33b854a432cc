"""Joins the starts and ends of flows, which lead from one event to another."""

from __future__ import annotations

import numpy as np

from stagespan.trace.read.groups import pairs
from stagespan.trace.read.intervals import Numbers, Rows
from stagespan.trace.read.model import Trace
from stagespan.trace.read.view import once


@once
def joined_flows(trace: Trace, category: str) -> tuple[Rows, Rows]:
    """Return the rows of `trace.flows` where each flow of a category starts and ends.

    A flow that starts once and ends several times counts as several flows. If several flows have
    the same id, an end belongs to the last of their starts before it or, if all are later, to the
    first one.
    """
    flows = trace.flows
    mine = trace.in_categories([category], flows.category)
    starts, ends = np.flatnonzero(mine & flows.starts), np.flatnonzero(mine & ~flows.starts)
    if len(starts) == 0 or len(ends) == 0:
        return starts[:0], ends[:0]
    starts = starts[np.argsort(flows.id[starts], kind="stable")]
    ids = flows.id[starts]
    at = np.searchsorted(ids, flows.id[ends])
    hit = np.flatnonzero(at < len(starts))
    hit = hit[ids[at[hit]] == flows.id[ends[hit]]]
    at, ends = at[hit], ends[hit]
    if (ids[1:] == ids[:-1]).any():
        both = np.concatenate((starts, ends))
        _, code = pairs(flows.id[both], flows.begin_ns[both])
        of_starts, of_ends = code[: len(starts)], code[len(starts) :]
        order = np.argsort(of_starts, kind="stable")
        starts = starts[order]
        # The first start of the same id is at `at`, because the order of ids is the same.
        at = np.maximum(np.searchsorted(of_starts[order], of_ends, side="right") - 1, at)
    return starts[at], ends


def flows_at(trace: Trace, flows: Rows, rows: Rows) -> Rows:
    """Return, for each event, the index in `flows` of the flow at its start on its thread, or -1.

    `flows` are rows of `trace.flows`: a flow starts and ends where events begin.
    """
    flow_of = np.full(len(rows), -1, dtype=np.intp)
    if len(flows) == 0 or len(rows) == 0:
        return flow_of
    events, table = trace.events, trace.flows
    _, thread = pairs(
        np.concatenate((table.pid[flows], events.pid[rows])),
        np.concatenate((table.tid[flows], events.tid[rows])),
    )
    _, place = pairs(thread, np.concatenate((table.begin_ns[flows], events.begin_ns[rows])))
    available, targets = place[: len(flows)], place[len(flows) :]
    order = np.argsort(available, kind="stable")
    at = np.minimum(np.searchsorted(available[order], targets), len(order) - 1)
    hit = available[order[at]] == targets
    flow_of[hit] = order[at[hit]]
    return flow_of


def started_by(trace: Trace, category: str, rows: Rows) -> Numbers:
    """Return, for each event, the row of `trace.flows` where a flow to this event starts, or -1."""
    starts, ends = joined_flows(trace, category)
    at = flows_at(trace, ends, rows)
    return np.where(at >= 0, np.append(starts, -1)[at], -1)
