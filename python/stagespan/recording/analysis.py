"""Analyses the spans of recordings like the stages of a trace."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from stagespan.errors import StagespanError
from stagespan.recording import dump
from stagespan.recording.finding import open_recording
from stagespan.recording.reading import Recording
from stagespan.trace import read_trace
from stagespan.trace.analysis import Analysis, analyze
from stagespan.trace.paths import analyze_ranks

_SUFFIX = ".stagespan"


def is_recording(path: Path) -> bool:
    """Whether a path is a recording's file, or the id of a process and not a file or folder."""
    text = str(path)
    return path.suffix == _SUFFIX or (text.isascii() and text.isdigit() and not path.exists())


def analyze_recording(path: Path) -> Analysis:
    """Analyse the spans of one recording, which a path or a process id names.

    Raises StagespanError if there is no such recording.
    """
    recording = open_recording(path)
    with tempfile.TemporaryDirectory(prefix="stagespan-") as folder:
        trace = read_trace(_dumped(recording, Path(folder, "trace.json")))
    return analyze(replace(trace, path=f"process {recording.pid}, {recording.name}"))


def analyze_recordings(folder: Path, jobs: int | None = None) -> Analysis | None:
    """Compare the recordings of a job's ranks; None if a path is not a folder with recordings.

    Raises StagespanError if they are not those of several ranks of one job.
    """
    if not folder.is_dir():
        return None
    found = [open_recording(path) for path in sorted(folder.glob(f"*{_SUFFIX}"))]
    if not found:
        return None
    ranks = {recording.rank: recording for recording in found if recording.rank is not None}
    jobs_of_ranks = {recording.job for recording in ranks.values()}
    if len(ranks) < 2 or len(jobs_of_ranks) > 1 or len(ranks) < len(found):
        raise StagespanError(
            f"{folder} contains {len(found)} recordings, which are not one for each rank of a job:"
            " pass one of them, or a process id (see `stagespan ps --all`)."
        )
    with tempfile.TemporaryDirectory(prefix="stagespan-") as scratch:
        for rank, recording in ranks.items():
            _dumped(recording, Path(scratch, f"rank{rank}.json"))
        analysis = analyze_ranks(Path(scratch), jobs)
    return replace(analysis, trace=replace(analysis.trace, path=str(folder)))


def _dumped(recording: Recording, path: Path) -> Path:
    path.write_text(dump.as_perfetto(recording))
    return path
