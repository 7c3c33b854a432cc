"""Analyse what a path names: one trace, an Ascend result folder, or a folder of many ranks."""

from __future__ import annotations

from pathlib import Path

from stagespan.errors import StagespanError
from stagespan.trace.analysis import Analysis, analyze, analyze_ascend
from stagespan.trace.read.columns import without_events
from stagespan.trace.read.model import Trace


def open_trace(path: Path) -> Trace:
    """Return the one trace that a path names. Raises TraceError if the path names none."""
    from stagespan.trace.ascend import find_ascend_folder, read_ascend_trace
    from stagespan.trace.read.reader import read_trace

    folder = find_ascend_folder(path)
    return read_trace(path) if folder is None else read_ascend_trace(folder)


def analyze_path(path: Path, against: Path | None = None, jobs: int | None = None) -> Analysis:
    """Analyse the file or folder at a path; with `against`, also compare it with that trace.

    Traces of many ranks are read by `jobs` worker processes, see `summarise_all`.

    Raises TraceError if the path cannot be read.
    """
    from stagespan.trace.ascend import find_ascend_folder, read_ascend_folder

    if against is not None:
        return _compared(path, against)
    ascend = find_ascend_folder(path)
    if ascend is not None:
        return analyze_ascend(read_ascend_folder(ascend))
    if path.is_dir():
        from stagespan.trace.ranks.find import traces_in

        # A folder with only one trace is treated like the trace.
        paths = traces_in(path)
        if len(paths) > 1:
            return analyze_ranks(path, jobs)
        return analyze_path(paths[0])
    return analyze(open_trace(path))


def analyze_ranks(folder: Path, jobs: int | None = None) -> Analysis:
    """Analyse the traces of a folder together; `jobs` as in `summarise_all`.

    Raises TraceError if no trace in the folder contains its rank.
    """
    from stagespan.trace.ranks import ranks_of, summarise_all
    from stagespan.trace.ranks.find import traces_in

    ranks = ranks_of(folder, summarise_all(traces_in(folder), jobs, folder))
    entries = sum(each.entries for each in ranks.summaries)
    return Analysis(without_events(str(folder), entries), {"ranks": ranks})


def _compared(path: Path, against: Path) -> Analysis:
    from stagespan.trace.compare import compare
    from stagespan.trace.ranks.report import Ranks

    before = open_trace(against)
    analysis = analyze_path(path)
    if any(isinstance(result, Ranks) for result in analysis.results.values()):
        raise StagespanError(
            f"{path} contains the traces of many ranks: compare the trace of one rank with the"
            " trace of the same rank before."
        )
    trace = analysis.trace if len(analysis.trace.events) else open_trace(path)
    return Analysis(analysis.trace, {"against": compare(before, trace), **analysis.results})


def merge_ranks(analysis: Analysis, target: Path) -> None:
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
