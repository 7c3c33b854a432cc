"""Analyses whatever a path names: a trace, a folder of ranks, a report, or a recording."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from stagespan.errors import StagespanError
from stagespan.recording.analysis import analyze_recording, analyze_recordings, is_recording
from stagespan.report import analysis as reports
from stagespan.report import reader
from stagespan.trace.analysis import Analysis
from stagespan.trace.paths import analyze_path
from stagespan.trace.read.remote import local_path


def analyze(
    path: str | os.PathLike[str],
    against: str | os.PathLike[str] | None = None,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    capture: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    device: str | None = None,
) -> Analysis:
    """Analyse a trace, or what stagespan itself writes, as `stagespan analyze` does.

    ``path`` is a trace of torch.profiler, a folder that torch_npu.profiler wrote for one process, a
    folder with the traces of many ranks, a timing report, a recording, or the id of a process that
    runs with stagespan. A URL such as ``s3://bucket/run`` is read with fsspec, and an archive is
    unpacked first. With ``against``, an earlier trace of the same program, the analysis says what
    changed since then.

    Traces of many ranks are read by ``jobs`` processes (default: one for each core; needs joblib),
    or by the workers of a Dask or Ray ``cluster``: the address of its scheduler, such as
    ``tcp://host:8786`` or ``ray://host:10001``. ``progress`` is called after each rank with the
    number of ranks that are done, and of all. Ranks that cannot be read are left out, with the
    reason (``analysis.results["ranks"].unreadable``).

    ``capture`` is a trace that was made while the device graphs of the trace at ``path`` were
    captured, a folder of such traces, or a sequence of both: the kernels of the graphs get their
    operators and shapes from it.

    ``device`` is the name of the device, for a trace that does not contain it: "NVIDIA H100 80GB
    HBM3". Shares of peaks refer to it.

    The result has the findings (``analysis.findings()``), the results by name
    (``analysis.results``), and everything as a dict for JSON with times in microseconds
    (``analysis.to_dict()``).

    Raises TraceError or StagespanError, with what to do, if the path cannot be read.
    """
    local = local_path(path)
    captures = [capture] if isinstance(capture, (str, os.PathLike)) else list(capture)
    if against is not None and captures:
        raise StagespanError(
            "A comparison does not use captures of device graphs: omit either of them."
        )
    if against is not None and device is not None:
        raise StagespanError("A comparison does not use the name of a device: omit either of them.")
    if against is not None:
        return analyze_path(local, local_path(against), jobs)
    if captures or device is not None:
        return analyze_path(local, captures=[local_path(each) for each in captures], device=device)
    if is_recording(local):
        return analyze_recording(local)
    if local.is_file() and reader.looks_like_report(local):
        return reports.analyze_report(local)
    without_traces = reports.reports_without_traces(local)
    if without_traces:
        return reports.analyze_reports(local, without_traces)
    of_ranks = analyze_recordings(local)
    return analyze_path(local, None, jobs, cluster, progress) if of_ranks is None else of_ranks
