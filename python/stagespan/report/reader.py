"""Reading `timing.json`, those that TeleFuser wrote included."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from stagespan.errors import ReportError


def read_timing_report(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a timing report; keys that its writer did not know are simply absent.

    Raises ReportError, one sentence, when the file cannot be read or is no timing report.
    """
    file = Path(path)
    try:
        raw = file.read_bytes()
    except IsADirectoryError:
        raise ReportError(f"{file} is a folder: name the timing.json in it") from None
    except FileNotFoundError:
        raise ReportError(f"{file} does not exist: name a timing.json of a run") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReportError(f"{file} cannot be read: {reason}") from None
    try:
        report = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReportError(f"{file} is not whole JSON ({error}): write the report again") from None
    stages = report.get("stages") if isinstance(report, dict) else None
    if not isinstance(stages, dict):
        raise ReportError(f'{file} is no timing report: it has no "stages"')
    for name, stage in stages.items():
        if not isinstance(stage, dict) or number(stage.get("duration_ms")) is None:
            raise ReportError(f'{file} is no timing report: stage {name!r} has no "duration_ms"')
    return dict(report)


def number(value: object) -> float | None:
    """``value`` as a number; None for anything else, a truth value included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)
