"""Baselines: files of times with which later measurements are compared."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from stagespan.environment import machine
from stagespan.errors import ReportError
from stagespan.files import json_bytes, write_whole
from stagespan.report.changes import machine_differences
from stagespan.report.noise import Times
from stagespan.report.timed import BASELINE, NoTimesError, Timed, read

SCHEMA_VERSION = 1
_DIGITS = 6
_MOST_RUNS = 1000
"""The number of runs of a stage in a file, which is often kept in a repository."""


def read_baseline(path: str | os.PathLike[str]) -> Timed:
    """Read a baseline. Raises ReportError if the file cannot be read or is not a baseline."""
    if not os.path.exists(path):
        raise ReportError(f"{path} does not exist: write it with --stage-baseline-write.")
    if os.path.isdir(path):
        raise ReportError(f"{path} is a folder: pass the file of a baseline.")
    found = read(path)
    if found.kind != "baseline":
        raise ReportError(f"{path} is not a baseline: write one with --stage-baseline-write.")
    return found


def write_baseline(path: str | os.PathLike[str], times: Mapping[str, Times]) -> list[str]:
    """Add times to a baseline, or create it. Returns sentences for the user.

    Times with the same names are replaced. Times of another machine are removed, because they are
    not comparable. An empty file is overwritten. Raises ReportError if the file is not a baseline,
    or if it cannot be written.
    """
    sentences: list[str] = []
    stages: dict[str, Any] = {}
    before = _known(path)
    if before is not None:
        if machine_differences(before.environment, machine()):
            sentences.append(
                f"The {len(before.times)} times in {path} are from another machine and were "
                f"removed."
            )
        else:
            stages = {name: _entry(known) for (name, _), known in before.times.items()}
    stages.update({name: _entry(new) for name, new in times.items()})
    content = {
        "kind": BASELINE,
        "schema_version": SCHEMA_VERSION,
        "environment": machine(),
        "stages": dict(sorted(stages.items())),
    }
    try:
        write_whole(path, json_bytes(content, indent=2) + b"\n")
    except OSError as error:
        raise ReportError(
            f"the baseline {path} cannot be written: {error.strerror or error}; choose another file"
        ) from error
    return sentences


def _known(path: str | os.PathLike[str]) -> Timed | None:
    try:
        return read_baseline(path) if os.path.exists(path) else None
    except NoTimesError:
        return None


def _entry(times: Times) -> dict[str, Any]:
    samples_ms = _stored(times.samples_ms)
    return {
        "median_ms": round(statistics.median(samples_ms), _DIGITS),
        "count": len(samples_ms),
        "disturbed": times.disturbed,
        "fixed_ns": times.fixed_ns,
        "samples_ms": samples_ms,
        "relative": _stored(times.relative),
    }


def _stored(values: Sequence[float]) -> list[float]:
    """Return at most `_MOST_RUNS` rounded values, spread evenly over the measurement."""
    count = min(len(values), _MOST_RUNS)
    return [round(values[place * len(values) // count], _DIGITS) for place in range(count)]
