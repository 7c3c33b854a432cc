"""A step's time on the device by what it went to, with the columns of step_trace_time.csv."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stagespan.trace.ascend.cells import scaled
from stagespan.trace.ascend.lanes import (
    COMMUNICATING,
    COMPUTING,
    EXPOSED,
    FREE,
    RECEIVING,
    Lanes,
)
from stagespan.trace.ascend.step_ranges import StepRange, step_of
from stagespan.trace.ascend.tables import CsvTable

COLUMNS = {
    "computing_ns": "Computing",
    "exposed_ns": "Communication(Not Overlapped)",
    "overlapped_ns": "Overlapped",
    "communication_ns": "Communication",
    "free_ns": "Free",
    "stage_ns": "Stage",
    "bubble_ns": "Bubble",
    "exposed_without_receive_ns": "Communication(Not Overlapped and Exclude Receive)",
    "preparing_ns": "Preparing",
}
"""Each figure's name, and its column."""
_KEYS = {
    "computing_ns": "computing_us",
    "exposed_ns": "communication_not_overlapped_us",
    "overlapped_ns": "overlapped_us",
    "communication_ns": "communication_us",
    "free_ns": "free_us",
    "stage_ns": "stage_us",
    "bubble_ns": "bubble_us",
    "exposed_without_receive_ns": "communication_not_overlapped_exclude_receive_us",
    "preparing_ns": "preparing_us",
}


@dataclass(frozen=True, slots=True)
class StepTime:
    """Times in ns; None is unknown."""

    device: str
    step: str
    computing_ns: int | None
    exposed_ns: int | None
    """Communication beside which nothing computed."""
    overlapped_ns: int | None
    communication_ns: int | None
    free_ns: int | None
    """Neither computing nor communicating; copies are in it."""
    stage_ns: int | None
    """From the step's first work on the device to the end of its last, less `bubble_ns`."""
    bubble_ns: int | None
    """Operators that receive from another stage of a pipeline."""
    exposed_without_receive_ns: int | None
    preparing_ns: int | None
    """From the step's begin on the host to its first operator on the device."""
    intervals: int | None = None
    """Of how many intervals, each rounded to ns, it was summed up; None in a file."""

    def figures(self) -> dict[str, int | None]:
        """By field name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in COLUMNS}

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        times = {
            _KEYS[name]: None if time is None else time / 1000
            for name, time in self.figures().items()
        }
        return {"device": self.device or None, "step": self.step or None, **times}

    @property
    def name(self) -> str:
        """The step in words."""
        step = f"step {self.step}" if self.step else "the whole trace"
        return f"{step}, device {self.device}" if self.device else step


def step_times(lanes: dict[str, Lanes], ranges: list[StepRange]) -> list[StepTime]:
    """Sum up each device's lanes by step; steps in which a device did nothing are left out."""
    found = []
    for device, of_device in sorted(lanes.items()):
        kinds = {kind: of_device[kind] for kind in range(RECEIVING + 1)}
        of_step = {kind: step_of(ranges, begin) for kind, (begin, _) in kinds.items()}
        for number, each in enumerate(ranges):
            mine = {kind: of_step[kind] == number for kind in kinds}
            if any(chosen.any() for chosen in mine.values()):
                parts = {k: (kinds[k][0][mine[k]], kinds[k][1][mine[k]]) for k in kinds}
                found.append(_summed(device, each, Lanes(parts)))
    return found


def _summed(device: str, step: StepRange, lanes: Lanes) -> StepTime:
    total = {k: int((lanes[k][1] - lanes[k][0]).sum()) for k in range(RECEIVING + 1)}
    begin = np.concatenate([lanes[kind][0] for kind in range(RECEIVING + 1)])
    end = np.concatenate([lanes[kind][1] for kind in range(RECEIVING + 1)])
    work = np.concatenate((lanes[COMPUTING][0], lanes[COMMUNICATING][0]))
    preparing = None
    if len(work) and step.host_begin_ns is not None:
        preparing = int(work.min()) - step.host_begin_ns
    return StepTime(
        device=device,
        step=step.step,
        computing_ns=total[COMPUTING],
        exposed_ns=total[EXPOSED],
        overlapped_ns=total[COMMUNICATING] - total[EXPOSED],
        communication_ns=total[COMMUNICATING],
        free_ns=total[FREE],
        stage_ns=int(end.max() - begin.min()) - total[RECEIVING],
        bubble_ns=total[RECEIVING],
        exposed_without_receive_ns=total[EXPOSED] - total[RECEIVING],
        preparing_ns=preparing,
        intervals=len(begin),
    )


def step_times_of_file(table: CsvTable) -> list[StepTime]:
    """The rows of step_trace_time.csv; a cell that is no number is unknown."""
    cells = {
        name: [scaled(text, table.unit(column, "us")) for text in table.texts(column)]
        for name, column in COLUMNS.items()
    }
    places = zip(table.texts("device_id", "device"), table.texts("step", "step id"), strict=True)
    found = []
    for row, (device, step) in enumerate(places):
        times = {name: of_rows[row] for name, of_rows in cells.items()}
        device, step = device.removeprefix("-1"), "" if step.lower() == "none" else step
        found.append(StepTime(device, step, *(times[name] for name in _KEYS)))
    return found
