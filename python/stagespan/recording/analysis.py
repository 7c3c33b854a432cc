"""Analyses the spans of recordings like the stages of a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from stagespan.errors import StagespanError
from stagespan.process.files import RECORDING_SUFFIX
from stagespan.recording.finding import open_recording
from stagespan.recording.reading import Recording
from stagespan.recording.slices import CATEGORIES, TimeLine
from stagespan.trace.analysis import Analysis, analyze
from stagespan.trace.paths import analysis_of_ranks
from stagespan.trace.ranks.collectives import most_collectives
from stagespan.trace.ranks.summary import summarise_trace
from stagespan.trace.read.columns import Codebook, absent, without_events
from stagespan.trace.read.model import MISSING, Events, IdColumn, Trace


def trace_of(recording: Recording, path: str) -> Trace:
    """Return the slices of a recording as the trace that ``stagespan dump`` writes of it.

    It has no flows and no arguments, which no analysis of spans uses.
    """
    line = TimeLine([recording])
    slices, empty = line.slices[line.order], without_events(path)
    count = len(slices)
    names = Codebook(line.names)
    unknown = IdColumn(absent(count, np.int64(MISSING)))
    events = Events(
        name=names.encode(slices["name"].astype(np.int32)),
        category=slices["category"].astype(np.int32),
        begin_ns=slices["begin_ns"].copy(),
        dur_ns=slices["end_ns"] - slices["begin_ns"],
        pid=IdColumn(slices["pid"].copy()),
        tid=IdColumn(line.tids[line.order]),
        task_type=absent(count, np.int32(-1)),
        **dict.fromkeys(
            (*("correlation", "external_id", "device", "stream", "python_id"),),
            unknown,
        ),
    )
    arguments = structs.replace(empty.arguments["events"], shape=np.zeros(count, np.int32))
    return replace(
        empty,
        events=events,
        names=names.words,
        categories=list(CATEGORIES),
        base_ns=line.base_ns,
        total=count,
        metadata={"otherData": {"stagespan": line.identity}},
        process_names=line.process_names,
        thread_names=line.track_names,
        arguments={**empty.arguments, "events": arguments},
    )


def analyze_recording(path: Path) -> Analysis:
    """Analyse the spans of one recording, which a path or a process id names.

    Raises StagespanError if there is no such recording.
    """
    recording = open_recording(path)
    return analyze(trace_of(recording, f"process {recording.pid}, {recording.name}"))


def analyze_recordings(folder: Path) -> Analysis | None:
    """Compare the recordings of a job's ranks; None if a path is not a folder with recordings.

    Raises StagespanError if they are not those of several ranks of one job.
    """
    if not folder.is_dir():
        return None
    recordings = [open_recording(path) for path in sorted(folder.glob(f"*{RECORDING_SUFFIX}"))]
    if not recordings:
        return None
    ranks = {recording.rank: recording for recording in recordings if recording.rank is not None}
    jobs_of_ranks = {recording.job for recording in ranks.values()}
    if len(ranks) < 2 or len(jobs_of_ranks) > 1 or len(ranks) < len(recordings):
        raise StagespanError(
            f"{folder} contains {len(recordings)} recordings, which are not one for each rank of a "
            "job: pass one of them, or a process id (see `stagespan ps --all`)."
        )
    most = most_collectives(len(ranks))
    return analysis_of_ranks(
        folder,
        [
            summarise_trace(trace_of(one, one.path), Path(one.path), most=most)
            for one in ranks.values()
        ],
    )
