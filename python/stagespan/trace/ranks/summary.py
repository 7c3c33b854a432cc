"""What is kept of one rank's trace: a few figures and its collectives, small enough to send."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from stagespan.errors import TraceError
from stagespan.trace.analysis.result import window_of
from stagespan.trace.comparison.windows import steps_of
from stagespan.trace.device import launches
from stagespan.trace.device_use import DeviceUse, device_use
from stagespan.trace.model import Trace
from stagespan.trace.ranks.collectives import Collectives, collectives
from stagespan.trace.ranks.find import rank_of, world_size_of

# Times of a clock that counts from boot are far below.
_UNIX_NS = 10**18
_CALLS = (
    ("rocm", re.compile(r"^hip")),
    ("cuda", re.compile(r"^cu")),
    ("xpu", re.compile(r"^(?:ur|ze|pi)")),
)


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One trace; times in ns."""

    path: str
    rank: int | None
    rank_from: str | None
    """What told the rank: "metadata" or "name"."""
    world_size: int | None
    backend: str
    """"cuda", "rocm", "xpu", "npu", "cpu", or "device" where the trace does not tell."""
    host: str | None
    unix_clock: bool
    """Whether its times are Unix times, which those of other hosts can be compared with."""
    base_ns: int
    """What the file's own times are counted from; 0 where it does not say."""
    begin_ns: int
    end_ns: int
    entries: int
    steps: int
    step_ns: int | None
    """Mean length of a step."""
    use: DeviceUse
    collectives: Collectives
    incomplete: str | None = None

    @property
    def window_ns(self) -> int:
        """From the trace's first event to the end of its last."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is no trace, and why."""

    path: str
    reason: str


def summarise(
    path: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None
) -> RankSummary | Unreadable:
    """Read one trace and sum it up; never raises for what a file holds.

    `folder` is where the ranks were looked for: names of folders below it may tell the rank.
    """
    from stagespan.trace.opening import open_trace

    path = Path(path)
    try:
        trace = open_trace(path)
    except TraceError as error:
        return Unreadable(str(path), str(error))
    window = window_of(trace)
    if window is None:
        return Unreadable(str(path), f"{path} holds no events that last.")
    rank, told = rank_of(trace, path, None if folder is None else Path(folder))
    host = trace.metadata.get("host_name")
    steps = steps_of(trace)
    return RankSummary(
        path=str(path),
        rank=rank,
        rank_from=told,
        world_size=world_size_of(trace),
        backend=_backend(trace),
        host=host if isinstance(host, str) and host else None,
        unix_clock=window[0] > _UNIX_NS,
        base_ns=trace.base_ns or 0,
        begin_ns=window[0],
        end_ns=window[1],
        entries=trace.total,
        steps=0 if steps is None else steps.steps,
        step_ns=None if steps is None else steps.total_ns // steps.steps,
        use=device_use(trace),
        collectives=collectives(trace),
        incomplete=trace.incomplete,
    )


def _backend(trace: Trace) -> str:
    if "Ascend Hardware" in trace.process_names.values():
        return "npu"
    if not device_use(trace).device_events:
        return "cpu"
    calls = set(trace.events.name[launches(trace)].tolist())
    for backend, pattern in _CALLS:
        if any(pattern.match(trace.names[code]) for code in calls):
            return backend
    return "device"
