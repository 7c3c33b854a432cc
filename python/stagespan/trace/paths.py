"""Analyse what a path names: one trace, an Ascend result folder, or a folder of many ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stagespan.errors import StagespanError, TraceError
from stagespan.trace.analysis import Analysis, analyze, analyze_ascend
from stagespan.trace.rates.peaks import with_device
from stagespan.trace.read.columns import without_events
from stagespan.trace.read.model import Trace

if TYPE_CHECKING:
    from stagespan.trace.ranks.summary import RankSummary, UnreadableFile

Progress = Callable[[int, int], None]
"""A function that is called with the number of ranks that are done, and of all ranks."""


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Return the one trace that a path names. Raises TraceError if it names none or several."""
    from stagespan.trace.ascend import read_ascend_trace
    from stagespan.trace.read.reader import read_trace

    only = _one_trace(path)
    return read_ascend_trace(only) if only.is_dir() else read_trace(only)


def analyze_path(
    path: str | os.PathLike[str],
    against: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
    captures: Sequence[str | os.PathLike[str]] = (),
    device: str | None = None,
) -> Analysis:
    """Analyse the file or folder at a path; with `against`, also compare it with that trace.

    `captures` are traces of the capture of its device graphs, or folders of such traces. `device`
    is the name of the devices on which one trace was recorded.

    Traces of many ranks are read by `jobs` worker processes or a `cluster`, see `summarise_all`.

    Raises TraceError if the path cannot be read.
    """
    from stagespan.trace.ascend import read_ascend_folder
    from stagespan.trace.ascend.folder import is_op_summary, read_op_summary

    if against is not None:
        return _compared(path, against)
    only = _only_trace(path)
    if captures and (only is None or only.is_dir()):
        raise TraceError(
            f"{path} is a folder: pass the trace of one process to match it with captures of its"
            " device graphs."
        )
    if device is not None and (only is None or only.is_dir()):
        raise TraceError(f"{path} is a folder: pass the trace of one process to name its device.")
    if only is None:
        return analyze_ranks(path, jobs, cluster, progress)
    if only.is_dir():
        return analyze_ascend(read_ascend_folder(only))
    if is_op_summary(only) and only.is_file():
        return analyze_ascend(read_op_summary(only))
    trace = open_trace(only)
    if device is not None:
        trace = with_device(trace, device)
    return analyze(trace, captures=_captures(captures))


def _captures(paths: Sequence[str | os.PathLike[str]]) -> list[Trace]:
    """Read traces, and all traces of folders."""
    from stagespan.trace.ranks.find import traces_in
    from stagespan.trace.read.reader import read_trace

    files = [traces_in(path) if path.is_dir() else [path] for path in map(Path, paths)]
    return [read_trace(each) for some in files for each in some]


def _only_trace(path: str | os.PathLike[str]) -> Path | None:
    """Return the only file or Ascend folder that a path names; None for a folder of several.

    Raises TraceError for a folder without traces.
    """
    from stagespan.trace.ascend import find_ascend_folder
    from stagespan.trace.ranks.find import traces_in

    path = Path(path)
    ascend = find_ascend_folder(path)
    if ascend is not None or not path.is_dir():
        return ascend or path
    paths = traces_in(path)
    return paths[0] if len(paths) == 1 else None


def _one_trace(path: str | os.PathLike[str]) -> Path:
    """Return the only file or Ascend folder that a path names.

    Raises TraceError for a folder without traces or with several.
    """
    only = _only_trace(path)
    if only is None:
        raise TraceError(
            f"{path} contains the traces of many ranks: compare the trace of one rank with the"
            " trace of the same rank before."
        )
    return only


def analyze_ranks(
    folder: str | os.PathLike[str],
    jobs: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Analyse the traces of a folder together; the other arguments are those of `summarise_all`.

    Raises TraceError if no trace in the folder contains its rank.
    """
    from stagespan.trace.ranks.find import traces_in
    from stagespan.trace.ranks.workers import summarise_all

    summaries = summarise_all(traces_in(folder), jobs, folder, cluster=cluster, progress=progress)
    return analysis_of_ranks(folder, summaries)


def analysis_of_ranks(
    folder: str | os.PathLike[str], summaries: Sequence[RankSummary | UnreadableFile]
) -> Analysis:
    """Return the analysis of the ranks with these summaries, which `folder` contains.

    Raises TraceError if they are not the ranks of one job.
    """
    from stagespan.trace.ranks.folder import ranks_of

    ranks = ranks_of(folder, summaries)
    entries = sum(each.entries for each in ranks.summaries)
    return Analysis(without_events(str(folder), entries), {"ranks": ranks})


def _compared(path: str | os.PathLike[str], against: str | os.PathLike[str]) -> Analysis:
    from stagespan.trace.compare import compare

    # Both are checked before one is read.
    path, against = _one_trace(path), _one_trace(against)
    before = open_trace(against)
    analysis = analyze_path(path)
    trace = analysis.trace if len(analysis.trace.events) else open_trace(path)
    return Analysis(analysis.trace, {"against": compare(before, trace), **analysis.results})


def merge_ranks(analysis: Analysis, target: str | os.PathLike[str]) -> None:
    """Write the timelines of all ranks of an analysed folder as one file.

    Raises StagespanError if the analysis is of one trace, or if the file cannot be written.
    """
    from stagespan.trace.ranks.merge import merge
    from stagespan.trace.ranks.report import Ranks

    ranks = analysis.results.get("ranks")
    if not isinstance(ranks, Ranks):
        raise StagespanError(
            "Only the traces of several ranks can be merged: pass the folder that contains them."
        )
    merge(ranks, target)
