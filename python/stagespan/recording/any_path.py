"""Analyses whatever a path names: a trace, a folder of ranks, a report, or a recording."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from stagespan.errors import StagespanError
from stagespan.process.files import RECORDING_SUFFIX
from stagespan.report.reader import looks_like_report
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
    result = _of_own_files(local)
    return analyze_path(local, None, jobs, cluster, progress) if result is None else result


def _of_own_files(path: Path) -> Analysis | None:
    """Analyse a recording, a timing report or a folder of either; None if a path is not one."""
    # What a trace does not need is imported here.
    if _is_recording(path):
        from stagespan.recording.analysis import analyze_recording

        return analyze_recording(path)
    if path.is_file() and looks_like_report(path):
        from stagespan.report.analysis import analyze_report

        return analyze_report(path)
    if not path.is_dir():
        return None
    from stagespan.recording.analysis import analyze_recordings
    from stagespan.report.analysis import analyze_reports, reports_without_traces

    without_traces = reports_without_traces(path)
    return analyze_reports(path, without_traces) if without_traces else analyze_recordings(path)


def _is_recording(path: Path) -> bool:
    """Whether a path is a recording's file, or the id of a process and not a file or folder."""
    text = str(path)
    return path.suffix == RECORDING_SUFFIX or (
        text.isascii() and text.isdigit() and not path.exists()
    )
