"""Analyse what a path names: one trace, an Ascend result folder, or a folder of many ranks."""

from __future__ import annotations

from pathlib import Path

from stagespan.errors import StagespanError
from stagespan.trace.analysis import Analysis, analyze, analyze_ascend
from stagespan.trace.read.model import Trace


def open_trace(path: Path) -> Trace:
    """Return the one trace that a path names. Raises TraceError if the path names none."""
    from stagespan.trace.ascend import find_ascend_folder, read_ascend_trace
    from stagespan.trace.read.reader import read_trace

    folder = find_ascend_folder(path)
    return read_trace(path) if folder is None else read_ascend_trace(folder)


def analyze_path(path: Path, against: Path | None = None, jobs: int | None = None) -> Analysis:
    """All that is found out about a path; with `against`, first what changed since that trace.

    Traces of many ranks are read by `jobs` worker processes, see `summarise_all`.

    Raises TraceError with a sentence for what cannot be read.
    """
    from stagespan.trace.ascend import find_ascend_folder, read_ascend_folder

    if against is not None:
        return _compared(path, against)
    ascend = find_ascend_folder(path)
    if ascend is not None:
        return analyze_ascend(read_ascend_folder(ascend))
    if path.is_dir():
        from stagespan.trace.ranks import analyze_folder
        from stagespan.trace.ranks.find import traces_in

        # A folder with one trace is that trace.
        paths = traces_in(path)
        if len(paths) > 1:
            return analyze_folder(path, jobs)
        return analyze_path(paths[0])
    return analyze(open_trace(path))


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

    Raises StagespanError with a sentence when the analysis is of one trace, or for a file that
    cannot be written.
    """
    from stagespan.trace.ranks.merge import merge
    from stagespan.trace.ranks.report import Ranks

    ranks = analysis.results.get("ranks")
    if not isinstance(ranks, Ranks):
        raise StagespanError(
            "Only the traces of several ranks can be merged: name the folder that holds them."
        )
    merge(ranks, target)


def print_page_of(analysis: Analysis) -> None:
    """Print on the terminal the page that suits what was analysed."""
    from stagespan.trace.ranks.report import Ranks

    ranks = analysis.results.get("ranks")
    if isinstance(ranks, Ranks):
        from stagespan.trace.render.terminal import print_ranks

        print_ranks(ranks)
        return
    from stagespan.trace.render.terminal import print_comparison

    print_comparison(analysis)
