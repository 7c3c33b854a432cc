"""Adds the spans of a recording to a trace of torch.profiler that was already written."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stagespan.errors import StagespanError
from stagespan.profiling.timeline import PROCESS, TimelineSpan, compressed_with_spans
from stagespan.recording.finding import ambiguous, of_pid, open_recording
from stagespan.recording.source import with_open
from stagespan.recording.spans import OPEN_NS
from stagespan.trace.read.reader import read_trace

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording
    from stagespan.trace.read.model import Trace


class Merged(NamedTuple):
    """A trace with the spans of a recording."""

    trace: bytes
    """The trace, compressed with gzip."""
    spans: int
    """The number of added spans."""
    pid: int
    """The id of the process of these spans."""


def merge_spans(
    trace_path: str | os.PathLike[str], recording: str | os.PathLike[str] | int | None = None
) -> Merged:
    """Return a trace with the overlapping spans of a recording, as a separate process.

    ``recording`` is a file or a process id; by default, the recording of the process that wrote the
    trace. Both use Unix times.

    Raises TraceError if the trace cannot be read, and StagespanError if it has no events or already
    contains spans, if there is no recording, or if no span overlaps the trace.
    """
    trace = read_trace(trace_path)
    if trace.incomplete is not None:
        raise StagespanError(f"{trace_path} cannot take spans: {trace.incomplete}")
    if not len(trace.events):
        raise StagespanError(f"{trace_path} contains no events: record the trace again.")
    if PROCESS in trace.process_names.values():
        raise StagespanError(f"{trace_path} already contains the spans of stagespan.")
    begin_ns, end_ns = int(trace.events.begin_ns.min()), int(trace.events.end_ns.all().max())
    fitting = of_pid(_process_of(trace)) if recording is None else [open_recording(recording)]
    overlapping = [
        (source, spans) for source in fitting if (spans := _spans(source, begin_ns, end_ns))
    ]
    if not overlapping:
        raise StagespanError(
            f"No span of process {fitting[0].pid} overlaps {trace_path}: pass the recording of the "
            f"process that wrote the trace with --recording; the oldest spans of a long run are "
            f"overwritten."
        )
    if len(overlapping) > 1:
        raise ambiguous(overlapping[0][0].pid, [source for source, _ in overlapping])
    ((found, spans),) = overlapping
    try:
        return Merged(compressed_with_spans(Path(trace_path), spans), len(spans), found.pid)
    except (OSError, ValueError) as error:
        raise StagespanError(f"{trace_path} cannot take spans: {error}") from error


def _process_of(trace: Trace) -> int:
    """Return the id of the process with the most host events."""
    host = trace.rows_of(("cpu_op", "user_annotation", "python_function"))
    pids = Counter(pid for pid in trace.events.pid[host].tolist() if pid > 0)
    if not pids:
        raise StagespanError(
            f"{trace.path} does not contain a process id: pass the recording with --recording "
            f"FILE|PID."
        )
    return int(pids.most_common(1)[0][0])


def _spans(recording: Recording, begin_ns: int, end_ns: int) -> list[TimelineSpan]:
    names = recording.stage_names()
    threads = {thread["thread"]: thread["name"] for thread in recording.threads()}
    spans = with_open(recording)
    overlapping = spans[(spans["begin_ns"] < end_ns) & (spans["end_ns"] > begin_ns)]
    columns = ("stage", "begin_ns", "end_ns", "thread", "id", "parent", "request")
    on_timeline = []
    for stage, begin, end, thread, id_, parent, request in overlapping[[*columns]].tolist():
        is_open = end == OPEN_NS
        times = begin, end_ns if is_open else end
        ids = thread, id_, parent, request
        on_timeline.append(TimelineSpan(names[stage], *times, *ids, is_open, threads.get(thread)))
    return on_timeline
