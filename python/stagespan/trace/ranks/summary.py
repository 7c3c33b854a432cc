"""Summarises one rank's trace: figures and collectives, small enough to send to a process."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stagespan.device.table import DEVICES
from stagespan.errors import TraceError
from stagespan.pages.figures import Figures
from stagespan.trace.analyses import verdict
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.ascend import (
    AscendFolder,
    communication,
    find_ascend_folder,
    read_ascend_folder,
)
from stagespan.trace.ascend import steps as ascend_steps
from stagespan.trace.ascend.folder import KERNEL_DETAILS, STEP_TRACE_TIME
from stagespan.trace.ascend.steps import AscendSteps
from stagespan.trace.derived.device import COPY, device_work, is_ascend, launches
from stagespan.trace.derived.device_time import DeviceTime, device_times, together
from stagespan.trace.derived.launch_sources import stage_calls
from stagespan.trace.derived.windows import steps_of
from stagespan.trace.evidence import window_of
from stagespan.trace.ranks.collectives import (
    Collectives,
    collectives,
    collectives_of_files,
    transits,
)
from stagespan.trace.ranks.find import least_ranks, rank_of, world_size_of
from stagespan.trace.ranks.stages import MANY_RUNS, StageRuns
from stagespan.trace.rates.collectives import work_of
from stagespan.trace.read.columns import without_events
from stagespan.trace.read.groups import counts_of, grouped
from stagespan.trace.read.intervals import Cover, exclusive
from stagespan.trace.read.model import Trace
from stagespan.trace.read.reader import read_trace
from stagespan.trace.read.view import TraceView

# Steps with less of the rank's work are not representative of the rank.
_LEAST_SHARE = 0.5


class Usage(msgspec.Struct, frozen=True):
    """Times in ns; the four parts sum to `time_ns` exactly."""

    time_ns: int
    """From the start of the first step to the end of the last, or all of the trace."""
    steps: int
    """The number of steps in that time; 0 if it is all of the trace."""
    computing_ns: int
    communicating_ns: int
    """Communication during which nothing computed."""
    copying_ns: int
    """Copies during which nothing computed or communicated."""
    stage_ns: int | None = None
    """On Ascend, the time of the steps' stages in step_trace_time.csv."""
    stage_communicating_ns: int | None = None
    """Communication in the stages during which nothing computed."""

    @property
    def idle_ns(self) -> int:
        """The rest of the time."""
        return self.time_ns - self.computing_ns - self.communicating_ns - self.copying_ns

    @property
    def exposed(self) -> tuple[int, int]:
        """Exposed communication, and the time that it is a part of: the stages if known."""
        if self.stage_ns and self.stage_communicating_ns is not None:
            return self.stage_communicating_ns, self.stage_ns
        return self.communicating_ns, self.time_ns


def usage_of(trace: Trace, window: tuple[int, int], stages: AscendSteps | None = None) -> Usage:
    """Split the time of the steps, or of the trace's `window` if it has no steps."""
    events = trace.events
    communicates, computing = work_of(trace)
    kind = device_work(trace).kind
    copies = np.flatnonzero(kind == COPY)
    # Each cover contains the one before.
    working = computing | Cover(events.begin_ns[communicates], events.end_ns[communicates])
    busy = working | Cover(events.begin_ns[copies], events.end_ns[copies])
    steps, (begin, end) = 0, window
    step_ranges = steps_of(trace)
    if step_ranges is not None and step_ranges.steps:
        first, last = int(step_ranges.begin_ns[0]), int(step_ranges.end_ns[-1])
        if busy.time_in(first, last) >= _LEAST_SHARE * busy.time_in(begin, end):
            steps, begin, end = step_ranges.steps, first, last
    computing_ns, working_ns, busy_ns = (
        each.time_in(begin, end) for each in (computing, working, busy)
    )
    stage_ns, stage_communicating_ns = _stage_times(stages)
    return Usage(
        time_ns=end - begin,
        steps=steps,
        computing_ns=computing_ns,
        communicating_ns=working_ns - computing_ns,
        copying_ns=busy_ns - working_ns,
        stage_ns=stage_ns,
        stage_communicating_ns=stage_communicating_ns,
    )


def usage_of_stages(stages: AscendSteps) -> Usage | None:
    """The usage by the steps of a folder without a trace; None if no step is complete."""
    usages = [
        (step.computing_ns, step.exposed_ns, step.free_ns)
        for step in stages.steps
        if None not in (step.computing_ns, step.exposed_ns, step.free_ns)
    ]
    computing, exposed, free = (sum(each[at] or 0 for each in usages) for at in range(3))
    if computing + exposed + free <= 0:
        return None
    stage_ns, stage_communicating_ns = _stage_times(stages)
    return Usage(
        time_ns=computing + exposed + free,
        steps=len(usages),
        computing_ns=computing,
        communicating_ns=exposed,
        copying_ns=0,
        stage_ns=stage_ns,
        stage_communicating_ns=stage_communicating_ns,
    )


def _stage_times(stages: AscendSteps | None) -> tuple[int | None, int | None]:
    """The time of all stages, and the exposed communication in it; None if unknown."""
    if stages is None or stages.stage_ns <= 0:
        return None, None
    return stages.stage_ns, stages.exposed_ns


# --- One rank's trace in brief ---


# Times of a clock that counts from boot are far smaller.
_UNIX_NS = 10**18
_MOST_STAGES = 300
_TABLES = (STEP_TRACE_TIME, KERNEL_DETAILS)
_CALLS = [(row.name, re.compile(rf"^(?:{row.calls})")) for row in DEVICES if row.calls]


class RankSummary(msgspec.Struct, frozen=True):
    """One trace; times in ns."""

    path: str
    rank: int | None
    rank_from: str | None
    """The source of the rank: "metadata" or "name"."""
    world_size: int | None
    backend: str
    """"cuda", "rocm", "xpu", "npu", "cpu", or "device" if unknown."""
    host: str | None
    unix_clock: bool
    """Whether its times are Unix times, which can be compared with those of other hosts."""
    base_ns: int
    """The time from which the file's own times are counted; 0 if the file does not say."""
    begin_ns: int
    end_ns: int
    entries: int
    steps: int
    step_ns: int | None
    """Mean length of a step."""
    start_ns: int | None
    """The start of its first step, or of the trace if it has no steps; None without a trace."""
    device: DeviceTime | None
    """The device's time, summed over all devices; None without device work."""
    usage: Usage
    collectives: Collectives
    verdict: str | None = None
    """The verdict of the rank's own page; None if unknown."""
    verdict_sentence: str | None = None
    least_ranks: tuple[int, str] | None = None
    """The least possible number of ranks of the job, and its source; None if unknown."""
    pipeline_stage: int | None = None
    incomplete: str | None = None
    stages: dict[str, StageRuns] = msgspec.field(default_factory=dict)
    """The host's time in its stages, by name; the most time first, at most `_MOST_STAGES`."""
    process: int | None = None
    """The id of the process that ran most operators; None if the trace has no operators."""

    @property
    def window_ns(self) -> int:
        """The time from the start of the trace's first event to the end of its last."""
        return self.end_ns - self.begin_ns


class UnreadableFile(Figures, frozen=True):
    """A file that is not a trace, and the reason."""

    path: str
    reason: str


def summarise(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    most: int | None = None,
) -> RankSummary | UnreadableFile:
    """Read and summarise one trace, or the files of an Ascend folder.

    Returns an `UnreadableFile` for bad content instead of raising. `folder` is the folder that was
    searched for ranks; the names of its subfolders may contain the rank. Of the collectives, at
    most `most` are kept, or `MOST_COLLECTIVES`.
    """
    path, folder = Path(path), None if folder is None else Path(folder)
    try:
        ascend = find_ascend_folder(path)
        files = None if ascend is None else read_ascend_folder(ascend, _TABLES)
        read = read_trace(path) if files is None else files.trace
    except TraceError as error:
        return UnreadableFile(str(path), str(error))
    if read is None:
        assert files is not None
        return _of_tables(path, folder, files, most)
    return summarise_trace(read, path, folder, files, most)


def summarise_trace(
    read: Trace,
    path: Path,
    folder: Path | None = None,
    files: AscendFolder | None = None,
    most: int | None = None,
) -> RankSummary | UnreadableFile:
    """Summarise a trace that was read; the other arguments are those of `summarise`.

    ``files`` are the other files of an Ascend folder.
    """
    documents = {} if files is None else files.documents
    trace = TraceView.of(read)
    window = window_of(trace)
    if window is None:
        return UnreadableFile(str(path), f"{path} contains no events with a duration.")
    rank, rank_from = rank_of(trace, path, folder, None if files is None else files.rank)
    world = world_size_of(trace)
    stages = None
    if files is not None:
        world = files.world_size if world is None else world
        steps = ascend_steps.analyze(trace, files.tables.get(STEP_TRACE_TIME))
        stages = steps if isinstance(steps, ascend_steps.AscendSteps) else None
    host = trace.metadata.get("host_name")
    windows = steps_of(trace)
    devices = device_times(trace)
    judged = verdict.analyze(trace)
    overall = judged if isinstance(judged, Verdict) else None
    summary = RankSummary(
        path=str(path),
        rank=rank,
        rank_from=rank_from,
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
        collectives=collectives(trace, transits(_communication(documents)), most),
        verdict=None if overall is None else overall.verdict,
        verdict_sentence=None if overall is None else overall.sentence,
        least_ranks=least_ranks(trace, documents),
        pipeline_stage=None if files is None else files.pipeline_stage,
        incomplete=trace.incomplete,
        stages=_times_by_stage(trace),
        process=_process(trace),
    )
    # What is derived refers to the trace: without this, both would be kept until the garbage
    # collector finds the cycle, which is long after the next ranks.
    trace.cache.clear()
    return summary


def _process(trace: Trace) -> int | None:
    pids, counts = counts_of(trace.events.pid[trace.rows_of(["cpu_op"])])
    return int(pids[np.argmax(counts)]) if len(pids) else None


def _times_by_stage(trace: Trace) -> dict[str, StageRuns]:
    calls = stage_calls(trace)
    if calls is None:
        return {}
    events = trace.events
    begin, end, names = (
        events.begin_ns[calls.rows],
        events.end_ns[calls.rows],
        events.name[calls.rows],
    )
    own_ns = exclusive(begin, end, calls.thread)
    # On an axis that advances only while the rank communicates and does not compute, the same
    # ranges are nested in the same way, so their own times there are those parts of `own_ns`.
    communicates, computing = work_of(trace)
    working = computing | Cover(events.begin_ns[communicates], events.end_ns[communicates])
    waiting_until = working.until(begin) - computing.until(begin)
    waiting_after = working.until(end) - computing.until(end)
    waited = np.minimum(exclusive(waiting_until, waiting_after, calls.thread), own_ns)
    runs_of = {}
    for group in grouped(names.astype(np.int64), own_ns)[:_MOST_STAGES]:
        of_stage = names == group.code
        waited_ns = int(waited[of_stage].sum())
        runs_of[trace.names[group.code]] = StageRuns(
            group.count,
            group.time_ns - waited_ns,
            waited_ns,
            float(np.median((own_ns - waited)[of_stage])) if group.count < MANY_RUNS else None,
        )
    return runs_of


def _of_tables(
    path: Path,
    folder: Path | None,
    files: AscendFolder,
    most: int | None,
) -> RankSummary | UnreadableFile:
    """The summary of an Ascend folder that contains no trace."""
    empty, communication = without_events(str(path)), _communication(files.documents)
    kernels = files.tables.get(KERNEL_DETAILS)
    steps = ascend_steps.analyze(empty, files.tables.get(STEP_TRACE_TIME), kernels, communication)
    usage = usage_of_stages(steps) if isinstance(steps, ascend_steps.AscendSteps) else None
    if usage is None:
        return UnreadableFile(
            str(path),
            f"{files.output} contains neither a trace nor a step with times in {STEP_TRACE_TIME}.",
        )
    operations = collectives_of_files(communication, kernels, most)
    begin = int(operations.begin_ns.min()) if len(operations) else 0
    rank, rank_from = rank_of(empty, path, folder, files.rank)
    return RankSummary(
        path=str(path),
        rank=rank,
        rank_from=rank_from,
        world_size=files.world_size,
        backend="npu",
        host=None,
        unix_clock=begin > _UNIX_NS,
        base_ns=0,
        begin_ns=begin,
        end_ns=max(begin + usage.time_ns, int(operations.end_ns.max(initial=0))),
        entries=0,
        steps=usage.steps,
        step_ns=usage.time_ns // usage.steps,
        start_ns=None,
        device=None,
        usage=usage,
        collectives=operations,
        least_ranks=least_ranks(empty, files.documents),
        pipeline_stage=files.pipeline_stage,
        incomplete=" ".join(files.problems) or None,
    )


def _communication(documents: dict[str, Any]) -> communication.CollectiveStats | None:
    found = communication.collectives(documents)
    return found if isinstance(found, communication.CollectiveStats) else None


def _backend(trace: Trace) -> str:
    if is_ascend(trace):
        return "npu"
    if not len(device_work(trace).rows):
        return "cpu"
    calls = set(trace.events.name[launches(trace)].tolist())
    for backend, pattern in _CALLS:
        if any(pattern.match(trace.names[code]) for code in calls):
            return backend
    return "device"
