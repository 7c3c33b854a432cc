"""Creating and writing the timing report."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from stagespan import _core
from stagespan.contexts import requests
from stagespan.device import memory
from stagespan.device.environment import environment
from stagespan.errors import ReportError, SettingsError
from stagespan.live import service
from stagespan.pages.redaction import without_secrets
from stagespan.process import files, forks, imports, run
from stagespan.report.entries import RequestEntry, RequestStageEntry, TimingReport
from stagespan.report.merged import Stages, merged
from stagespan.report.stages import stage_entries, top_level_ns

if TYPE_CHECKING:
    from stagespan.report.tables import Timing

SCHEMA_VERSION = 1
_DEEPEST_METADATA = 8


@dataclass(eq=False)
class _Report:
    """The request and metadata of a report, and the time from which it counts."""

    request_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    begin_ns: int | None = None
    """Unix time from which it counts; None means from the start of the program."""
    baseline: _core.Snapshot | None = None
    lost_before: dict[str, int] = field(default_factory=dict)


# Without a lock: a report is replaced as a whole, and one call of dict changes its metadata.
_report = _Report()
_dumped: dict[Path, tuple[_Report, tuple[int, int, int]]] = {}
"""By path: the report that this process wrote there last, and the identity of the file."""


class Source(Protocol):
    """An object that adds data to the reports, see `register_source`."""

    def begin(self) -> None:
        """Called when a new report begins."""

    def collect(self) -> None:
        """Called before a report is created, to record spans that it must contain."""

    def complete(self, report: dict[str, Any]) -> None:
        """Called with the created report, to add data to it."""


_sources: list[Source] = []


def register_source(source: Source) -> None:
    """Let `source` add data to all later reports of this process."""
    _sources.append(source)


def _forget_parent() -> None:
    # The child's recorder starts empty, without the counts before the fork.
    global _report
    _dumped.clear()
    _report = _Report(_report.request_id, dict(_report.metadata))


forks.after_in_child(_forget_parent)


def reset_timing_registry(request_id: str = "", metadata: Mapping[str, Any] | None = None) -> None:
    """Start a new report, which counts stages, requests, memory and losses from now on.

    ``stats()`` and ``spans()`` do not change. A span that is open now counts when it ends. The call
    waits up to 10 s for pending device times. Raises SettingsError if ``metadata`` is not a
    mapping.
    """
    global _report
    if metadata is not None and not isinstance(metadata, Mapping):
        raise SettingsError(f"the metadata of a report must be a mapping, not {metadata!r}")
    service.settle()
    fresh = _Report(
        str(request_id), dict(metadata or {}), _core.now_ns(), _core.snapshot(), _core.lost()
    )
    _report = fresh
    memory.reset()
    for source in _sources:
        source.begin()
    store = imports.loaded("stagespan.signature.store")
    if store is not None:
        store.reset_signatures(fresh.request_id)


def request_id() -> str:
    """Return the request id that was passed to `reset_timing_registry`, or ""."""
    return _report.request_id


def set_timing_metadata(key: str, value: Any) -> None:
    """Set ``key`` in the report's ``metadata``. Values that are not JSON are converted to text."""
    _report.metadata[str(key)] = value


def timing_report() -> TimingReport:
    """Return the report of this process since it started, or since `reset_timing_registry`.

    It is a dict with the keys of ``timing.json``. Times are in the unit of their name, and None
    means unknown. A notebook shows it as a table, which ``to_pandas()`` and ``to_polars()`` return.
    It covers the spans that have ended, and waits up to 10 s for their device times.

    Example:
        ```python
        for name, stage in stagespan.timing_report()["stages"].items():
            print(name, stage["count"], stage["mean_ms"])
        ```
    """
    return report_with(())


def report_with(others: Sequence[Stages]) -> TimingReport:
    """Return the same with the stages of other processes, which ran during the whole report.

    Requests, memory and signatures are those of this process.
    """
    for source in _sources:
        source.collect()
    service.settle()
    report = _report
    snapshot = _core.snapshot()
    now_ns = snapshot.time_ns
    if report.baseline is not None:
        snapshot = snapshot.since(report.baseline)
    figures: Stages = snapshot.stages()
    if others:
        figures = merged([figures, *others])
    entries = stage_entries(figures, memory.stages_memory().get, _signatures())
    began_ns = run.script_begin_ns() if report.begin_ns is None else report.begin_ns
    timestamp = datetime.datetime.fromtimestamp(now_ns / 1e9, datetime.timezone.utc)
    made: TimingReport = {
        "schema_version": SCHEMA_VERSION,
        "request_id": report.request_id,
        "timestamp": timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "wall_clock_ms": max(now_ns - began_ns, 0) / 1e6,
        "total_stages_ms": sum(top_level_ns(name, figures) for name in figures) / 1e6,
        "num_stages": len(entries),
        "rank": run.rank(),
        "world_size": run.world_size(),
        "stages": entries,
        "requests": _requests(report.begin_ns or 0),
        "memory_snapshots": memory.snapshots(),
        "metadata": without_secrets(plain(report.metadata.copy())),
        "environment": environment(),
        "lost": {
            cause: count - report.lost_before.get(cause, 0) for cause, count in _core.lost().items()
        },
    }
    for source in _sources:
        source.complete(cast(dict[str, Any], made))
    return cast(TimingReport, _ShownReport(made))


class _ShownReport(dict[str, Any]):
    """A report, which a notebook shows as the page of `stagespan show`."""

    def _result(self) -> Timing:
        result: Timing = imports.load("stagespan.report.tables").Timing(self)
        return result

    def _repr_html_(self) -> str:
        """Return the headline and the tree of stages for a notebook."""
        return self._result()._repr_html_()

    def to_pandas(self) -> Any:
        """Return the stages as a pandas.DataFrame. Raises StagespanError without pandas."""
        return self._result().to_pandas()

    def to_polars(self) -> Any:
        """Return the stages as a polars.DataFrame. Raises StagespanError without polars."""
        return self._result().to_polars()


def dump_timing_report(path: str | os.PathLike[str]) -> Path:
    """Write the report to ``path``, completely or not at all, and return the path.

    Raises ReportError if it cannot be written.
    """
    return write_report(timing_report(), path)


def write_report(made: TimingReport, path: str | os.PathLike[str]) -> Path:
    """Write a report of this process, as `dump_timing_report` does."""
    report = _report
    encoded = files.json_bytes(plain(made), indent=2)
    try:
        written = files.write_whole(path, encoded + b"\n")
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReportError(
            f"the timing report cannot be written to {path}: {reason}; choose another folder"
        ) from error
    # While this process lives, no program that starts later takes the file for that of an old run.
    run.whose_file(written.parent)
    with contextlib.suppress(OSError, RuntimeError):  # the file may already be gone
        _dumped[written.resolve()] = report, _identity(written)
    return written


def holds_current_report(path: Path) -> bool:
    """Whether this process has written ``path`` since it began its current report.

    A later file then contains everything that this one contains.
    """
    try:
        return _dumped.get(path.resolve()) == (_report, _identity(path))
    except (OSError, ValueError, RuntimeError):
        return False


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _signatures() -> dict[str, list[dict[str, Any]]]:
    # The first stage that runs in debug mode imports this. Without it there are no signatures.
    store = imports.loaded("stagespan.signature.store")
    return {} if store is None else dict(store.signature_stats())


def _finished_requests() -> list[requests.FinishedRequest]:
    """Return the requests, ordered by end. Those entered again last from the first entry."""
    by_number: dict[int, requests.FinishedRequest] = {}
    for request in requests.finished_requests():
        earlier = by_number.pop(request["number"], None)
        if earlier is not None:
            request = request.copy()
            request["begin_ns"], request["figures"] = earlier["begin_ns"], None
        by_number[request["number"]] = request
    return list(by_number.values())


def _requests(since_ns: int) -> list[RequestEntry]:
    entries: list[RequestEntry] = []
    for request in _finished_requests():
        if request["end_ns"] < since_ns:
            continue
        stages: dict[str, RequestStageEntry] = {}
        figures = requests.figures_of(request)
        for stage, count, total_ns, errors, is_top in figures.stages:
            entry = stages.setdefault(
                stage, {"duration_ms": 0.0, "count": 0, "errors": 0, "top_level_ms": 0.0}
            )
            entry["duration_ms"] += total_ns / 1e6
            entry["count"] += count
            entry["errors"] += errors
            entry["top_level_ms"] += total_ns / 1e6 if is_top else 0.0
        duration_ms = (request["end_ns"] - request["begin_ns"]) / 1e6
        entries.append(
            {
                "request_id": requests.shown_id(str(request["id"])),
                "request_number": request["number"],
                "trace_id": request["trace_id"],
                "begin_ns": request["begin_ns"],
                "duration_ms": duration_ms,
                # Unknown if the rings had lost some of its spans when they were read.
                "total_stages_ms": sum(entry["top_level_ms"] for entry in stages.values())
                if figures.complete
                else None,
                "complete": figures.complete,
                "error": request["status"] == "error",
                "status": request["status"],
                "stages": stages,
                "metadata": without_secrets(plain(request["metadata"])),
            }
        )
    return entries


def plain(value: Any, depth: int = _DEEPEST_METADATA * 2) -> Any:
    """Return ``value`` as JSON types; other objects, and deeply nested ones, become text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        # Many readers, and the writer used here, refuse integers beyond 64 bits.
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    numpy = imports.loaded("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return plain(value.item(), depth)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if depth > 0 and isinstance(value, Mapping):
        return {plain(str(key)): plain(item, depth - 1) for key, item in value.items()}
    if depth > 0 and isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth - 1) for item in value]
    try:
        return plain(str(value))
    except Exception:
        return f"<{type(value).__name__}>"
