"""Reading `timing.json`, including files that TeleFuser wrote."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import Any

import msgspec

from stagespan.errors import ReportError
from stagespan.pages.amounts import listed
from stagespan.process.files import SCHEMA_VERSION, is_from_newer_version, what_it_is


def read_timing_report(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a timing report, which may lack keys if another version wrote it.

    ``path`` can be a folder that contains only one timing report.

    Raises ReportError if the file cannot be read or is not a timing report.
    """
    file = Path(path)
    if os.path.isdir(file):  # unlike Path.is_dir(), false for names that are too long
        file = _only_report(file)
    return report_of(read_json(file), file)


def reports_in(folder: Path) -> list[Path]:
    """Return the timing reports in a folder, by name."""
    return sorted(
        path
        for path in folder.glob("timing*.json")
        if path.is_file() and not path.name.endswith("_io_signature.json")
    )


def read_json(file: Path) -> Any:
    """Return the content of a JSON file, which can be compressed with gzip; {} if it is empty.

    Raises ReportError if the file cannot be read, has a newer `schema_version`, or is a trace.
    Traces can be very large, so they are recognised by their first part.
    """
    try:
        with file.open("rb") as raw:
            is_packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            stream = gzip.GzipFile(fileobj=raw) if is_packed else raw
            head = stream.read(_HEAD_BYTES)
            if b'"traceEvents"' in head:
                raise ReportError(_is_trace(file))
            text = head + stream.read()
    except FileNotFoundError:
        raise ReportError(f"{file} does not exist: check the path.") from None
    except ReportError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReportError(f"{file} cannot be read: {reason}.") from None
    if not text.strip():
        return {}
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        other = what_it_is(text)
        raise ReportError(
            f"{file} is not JSON but {other}."
            if other
            else f"{file} is not valid JSON ({error}): write it again, or pass another file."
        ) from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if is_from_newer_version(version):
        raise ReportError(
            f"{file} has the schema_version {version!r}, but this stagespan reads only up to "
            f"{SCHEMA_VERSION}: update stagespan, or pass another file."
        )
    return content


def looks_like_report(file: Path) -> bool:
    """Whether a file begins like a timing report; False if it cannot be read."""
    try:
        with file.open("rb") as raw:
            is_packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            head = (gzip.GzipFile(fileobj=raw) if is_packed else raw).read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return False
    is_object = head.lstrip()[:1] == b"{"
    return is_object and all(key in head for key in _KEYS) and b'"traceEvents"' not in head


def report_of(report: object, file: Path) -> dict[str, Any]:
    """Return the content of a file as a timing report. Raises ReportError if it is not one."""
    if report == {}:
        raise ReportError(f"{file} is empty: {_PASS_ONE}")
    if isinstance(report, dict) and "traceEvents" in report:
        raise ReportError(_is_trace(file))
    stages = report.get("stages") if isinstance(report, dict) else None
    if not isinstance(report, dict) or not isinstance(stages, dict):
        raise ReportError(f'{file} is not a timing report: it has no "stages"; {_PASS_ONE}')
    for name, stage in stages.items():
        problem = _problem(stage)
        if problem is not None:
            hint = _PASS_ONE
            if isinstance(stage, dict) and "input_signatures" in stage:
                hint = "it is a signature file; pass the timing.json in the same folder."
            raise ReportError(f"{file} is not a timing report: stage {name!r} {problem}; {hint}")
    return report


_PASS_ONE = "pass the timing.json of a run."
_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 1 << 16
_KEYS = (b'"num_stages"', b'"stages"')


def _is_trace(file: Path) -> str:
    return (
        f"{file} is a trace, not a timing report: use `stagespan analyze {file}`, or "
        f"`stagespan compare BEFORE {file}` for two traces."
    )


def _only_report(folder: Path) -> Path:
    reports = reports_in(folder)
    if len(reports) == 1:
        return reports[0]
    if not reports:
        raise ReportError(f"{folder} is a folder without a timing.json: pass the path of a file.")
    raise ReportError(
        f"{folder} contains {len(reports)} timing reports: pass one of "
        f"{listed(path.name for path in reports)}."
    )


def _problem(stage: object) -> str | None:
    """Return what is wrong with a stage's entry, or None. Checks only the keys that are needed."""
    if not isinstance(stage, dict) or number(stage.get("duration_ms")) is None:
        return 'has no "duration_ms"'
    parents = stage.get("parents")
    if parents is not None and not (isinstance(parents, list) and all(map(_is_place, parents))):
        return 'has invalid "parents"'
    return None


def _is_place(place: object) -> bool:
    return (
        isinstance(place, dict)
        and isinstance(place.get("parent"), (str, type(None)))
        and "parent" in place
        and number(place.get("duration_ms")) is not None
    )


def count_of(entry: dict[str, Any]) -> int | None:
    """Return the number of runs in an entry of a file; None if it is not known."""
    count = number(entry.get("count"))
    return None if count is None else int(count)


def number(value: object) -> float | None:
    """Return ``value`` as a float, or None for anything else, including booleans."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # too many digits
        return None
