"""Steps' times from kernel_details.csv alone, for folders without a trace, and as a check."""

from __future__ import annotations

import re

import numpy as np

from stagespan.trace.ascend.cells import scaled
from stagespan.trace.ascend.lanes import (
    COMMUNICATING,
    COMPUTING,
    EXPOSED,
    FREE,
    RECEIVING,
    Interval,
    Lanes,
    minus,
)
from stagespan.trace.ascend.step_ranges import StepRange
from stagespan.trace.ascend.step_times import StepTime, step_times
from stagespan.trace.ascend.tables import CsvTable
from stagespan.trace.intervals import merged

_COMMUNICATES = re.compile(r"^(?:HCCL|COMMUNICATION)", re.IGNORECASE)
_COLLECTIVE = re.compile(r"^hcom_|^hccl", re.IGNORECASE)
_RECEIVE = re.compile(r"^hcom_receive")


def step_times_of_kernels(table: CsvTable) -> list[StepTime]:
    """Each step's times by device; empty where the table has no times of day.

    A step is the rows with its `Step Id`, or all rows where there is no such column. Collectives
    are rows of core HCCL or COMMUNICATION, which only some releases write.
    """
    rows = _rows(table)
    found = []
    for (device, step), mine in sorted(rows.items(), key=lambda item: (item[0], item[1][0])):
        limits = np.iinfo(np.int64)
        whole = StepRange(step, int(limits.min), int(limits.max), None)
        found += step_times({device: _lanes(np.array(mine, dtype=np.int64))}, [whole])
    return found


def intervals_of_kernels(table: CsvTable) -> Interval | None:
    """When the rows that compute ran; None where the table has no times of day."""
    every = [row for rows in _rows(table).values() for row in rows]
    if not every:
        return None
    computes = [(begin, end) for begin, end, kind in every if kind == COMPUTING]
    edges = np.array(computes, dtype=np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]


def _rows(table: CsvTable) -> dict[tuple[str, str], list[tuple[int, int, int]]]:
    """Begin, end and kind of each row, by device and step."""
    if not table.has("start time", "duration"):
        return {}
    start, length = table.unit("start time", "us"), table.unit("duration", "us")
    rows: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    kinds: dict[tuple[str, str], int] = {}
    cells = zip(
        table.texts("device_id"),
        table.texts("step id", "step"),
        table.texts("name"),
        table.texts("accelerator core", "core type", "task type"),
        table.texts("start time"),
        table.texts("duration"),
        strict=True,
    )
    for device, step, name, core, begin_text, time_text in cells:
        begin, time = scaled(begin_text, start), scaled(time_text, length)
        if begin is None or time is None or time < 0:
            continue
        kind = kinds.get((core, name))
        if kind is None:
            kind = kinds[core, name] = _kind(core, name)
        rows.setdefault((device, step), []).append((begin, begin + time, kind))
    return rows


def _kind(core: str, name: str) -> int:
    if _RECEIVE.match(name):
        return RECEIVING
    return COMMUNICATING if _COMMUNICATES.match(core) or _COLLECTIVE.match(name) else COMPUTING


def _lanes(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Lanes:
    begin, end, kind = rows[:, 0], rows[:, 1], rows[:, 2]
    computes, receives = kind == COMPUTING, kind == RECEIVING
    computing = merged(begin[computes], end[computes])
    talking = merged(begin[~computes], end[~computes])
    busy = merged(begin, end)
    return Lanes(
        {
            COMPUTING: computing,
            COMMUNICATING: talking,
            EXPOSED: minus(talking, computing),
            FREE: (busy[1][:-1], busy[0][1:]),
            RECEIVING: (begin[receives], end[receives]),
        }
    )
