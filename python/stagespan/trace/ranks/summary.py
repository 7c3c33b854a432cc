"""What is kept of one rank's trace: a few figures and its collectives, small enough to send."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from stagespan.errors import TraceError
from stagespan.trace.analysis import ascend_steps, verdict
from stagespan.trace.analysis.device_time import DeviceTime, device_times, together
from stagespan.trace.analysis.result import window_of
from stagespan.trace.ascend import (
    AscendFolder,
    communication,
    find_ascend_folder,
    read_ascend_folder,
)
from stagespan.trace.comparison.windows import steps_of
from stagespan.trace.device import device_work, launches
from stagespan.trace.gather import without_events
from stagespan.trace.model import Trace
from stagespan.trace.ranks.collectives import Collectives, collectives
from stagespan.trace.ranks.find import MOST_RANKS, rank_of, world_size_of
from stagespan.trace.ranks.groups import least_ranks
from stagespan.trace.ranks.npu import collectives_of_files, transits
from stagespan.trace.ranks.usage import Usage, usage_of, usage_of_stages
from stagespan.trace.reader import read_trace

# Times of a clock that counts from boot are far below.
_UNIX_NS = 10**18
_LARGEST = 2**62
_STEPS, _KERNELS = "step_trace_time.csv", "kernel_details.csv"
_TABLES = (_STEPS, _KERNELS)
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
    start_ns: int | None
    """Where its first step begins, or else the trace; None without a trace."""
    device: DeviceTime | None
    """What the device's time went to, of several devices the sums; None without device work."""
    usage: Usage
    collectives: Collectives
    verdict: str | None = None
    """The verdict of the rank's own page; None where it cannot tell."""
    verdict_sentence: str | None = None
    least_ranks: tuple[int, str] | None = None
    """How many ranks the job has at least, and what says so; None if nothing does."""
    pipeline_stage: int | None = None
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
    """Read one trace, or the files of an Ascend folder, and sum it up; never raises for what they
    hold.

    `folder` is where the ranks were looked for: names of folders below it may tell the rank.
    """
    path = Path(path)
    try:
        ascend = find_ascend_folder(path)
        files = None if ascend is None else read_ascend_folder(ascend, _TABLES)
        trace = read_trace(path) if files is None else files.trace
    except TraceError as error:
        return Unreadable(str(path), str(error))
    documents = {} if files is None else files.documents
    found = communication.collectives(documents)
    known = found if isinstance(found, communication.Collectives) else None
    if trace is None:
        assert files is not None
        return _of_tables(path, files, known)
    window = window_of(trace)
    if window is None:
        return Unreadable(str(path), f"{path} holds no events that last.")
    rank, told = rank_of(trace, path, None if folder is None else Path(folder))
    world = world_size_of(trace)
    stages = None
    if files is not None:
        world = files.world_size if world is None else world
        steps = ascend_steps.analyze(trace, files.tables.get(_STEPS))
        stages = steps if isinstance(steps, ascend_steps.Steps) else None
    host = trace.metadata.get("host_name")
    windows = steps_of(trace)
    devices = device_times(trace)
    verdict_said = verdict.analyze(trace).to_dict()
    return RankSummary(
        path=str(path),
        rank=rank,
        rank_from=told,
        world_size=world,
        backend=_backend(trace),
        host=host if isinstance(host, str) and host else None,
        unix_clock=window[0] > _UNIX_NS,
        base_ns=trace.base_ns or 0,
        begin_ns=window[0],
        end_ns=window[1],
        entries=trace.total,
        steps=0 if windows is None else windows.steps,
        step_ns=None if windows is None else windows.total_ns // windows.steps,
        start_ns=window[0] if windows is None else int(windows.begin_ns[0]),
        device=together(devices.values()) if devices else None,
        usage=usage_of(trace, window, stages),
        collectives=collectives(trace, transits(known)),
        verdict=verdict_said.get("verdict"),
        verdict_sentence=verdict_said.get("sentence"),
        least_ranks=least_ranks(trace, documents),
        pipeline_stage=None if files is None else files.pipeline_stage,
        incomplete=trace.incomplete,
    )


def _of_tables(
    path: Path, files: AscendFolder, known: communication.Collectives | None
) -> RankSummary | Unreadable:
    """The summary of an Ascend folder that holds no trace."""
    nothing = without_events(str(path))
    kernels = files.tables.get(_KERNELS)
    steps = ascend_steps.analyze(nothing, files.tables.get(_STEPS), kernels, known)
    usage = usage_of_stages(steps) if isinstance(steps, ascend_steps.Steps) else None
    if usage is None:
        return Unreadable(
            str(path), f"{files.output} holds neither a trace nor a step with times in {_STEPS}."
        )
    called = collectives_of_files(known, kernels)
    begin = int(called.begin_ns.min(initial=_LARGEST)) if len(called) else 0
    rank: int | None = files.rank
    told: str | None = "metadata"
    if rank is None or rank >= MOST_RANKS:
        rank, told = rank_of(nothing, path)
    return RankSummary(
        path=str(path),
        rank=rank,
        rank_from=None if rank is None else told,
        world_size=files.world_size,
        backend="npu",
        host=None,
        unix_clock=begin > _UNIX_NS,
        base_ns=0,
        begin_ns=begin,
        end_ns=max(begin + usage.time_ns, int(called.end_ns.max(initial=0))),
        entries=0,
        steps=usage.steps,
        step_ns=usage.time_ns // usage.steps,
        start_ns=None,
        device=None,
        usage=usage,
        collectives=called,
        least_ranks=least_ranks(nothing, files.documents),
        pipeline_stage=files.pipeline_stage,
        incomplete=" ".join(files.problems) or None,
    )


def _backend(trace: Trace) -> str:
    if "Ascend Hardware" in trace.process_names.values():
        return "npu"
    if not len(device_work(trace).rows):
        return "cpu"
    calls = set(trace.events.name[launches(trace)].tolist())
    for backend, pattern in _CALLS:
        if any(pattern.match(trace.names[code]) for code in calls):
            return backend
    return "device"
