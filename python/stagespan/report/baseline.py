"""Baselines: files of times with which later measurements are compared."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from stagespan.device.environment import machine
from stagespan.errors import ReportError
from stagespan.pages.amounts import percent, quoted
from stagespan.process.files import json_bytes, only_writer, write_whole
from stagespan.report.changes import Tolerance, judge
from stagespan.report.differences import have_same_speed_unit, machine_differences
from stagespan.report.noise import Times
from stagespan.report.timed import BASELINE, NoTimesError, Timed, read

SCHEMA_VERSION = 1
_DIGITS = 6
_MOST_RUNS = 1000
"""The number of runs of a stage in a file, which is often kept in a repository."""
MOST_SESSIONS = 20
"""The number of sessions of a stage in a file. A new one then replaces the oldest."""


def read_baseline(path: str | os.PathLike[str]) -> Timed:
    """Read a baseline. Raises ReportError if the file cannot be read or is not a baseline."""
    if not os.path.exists(path):
        raise ReportError(f"{path} does not exist: write it with --stage-baseline-write.")
    if os.path.isdir(path):
        raise ReportError(f"{path} is a folder: pass the file of a baseline.")
    timed = read(path)
    if timed.kind != "baseline":
        raise ReportError(f"{path} is not a baseline: write one with --stage-baseline-write.")
    return timed


def write_baseline(
    path: str | os.PathLike[str], times: Mapping[str, Times], *, replace: bool = False
) -> list[str]:
    """Add a session to a baseline, or create it. Returns sentences for the user.

    A session is a measurement in one process. With ``replace``, the earlier sessions of the
    measured stages are removed. Times of another machine are removed, because they are not
    comparable. An empty file is overwritten. Processes that write one baseline at the same time
    wait for each other. Raises ReportError if the file is not a baseline, or if it cannot be
    written.
    """
    try:
        with only_writer(path):
            return _add_session(path, times, replace=replace)
    except OSError as error:
        raise ReportError(
            f"the baseline {path} cannot be written: {error.strerror or error}; choose another file"
        ) from error


def _add_session(
    path: str | os.PathLike[str], times: Mapping[str, Times], *, replace: bool
) -> list[str]:
    sentences: list[str] = []
    stages: dict[str, Times] = {}
    same_unit = False
    before = _known(path)
    if before is not None:
        if machine_differences(before.environment, machine()):
            sentences.append(
                f"The {len(before.times)} times in {path} are from another machine and were "
                f"removed."
            )
        else:
            stages = {name: known for (name, _), known in before.times.items()}
            same_unit = have_same_speed_unit(before.environment, machine())
    for name, new in times.items():
        earlier = stages.get(name)
        if earlier is None or replace:
            stages[name] = new
            continue
        changed = _change(name, earlier, new, same_unit=same_unit)
        sentences += [] if changed is None else [changed]
        sessions = (*earlier.each_session, *new.each_session)
        stages[name] = Times.of_sessions(sessions[-MOST_SESSIONS:])
    content = {
        "kind": BASELINE,
        "schema_version": SCHEMA_VERSION,
        "environment": machine(),
        "stages": {name: _entry(stages[name]) for name in sorted(stages)},
    }
    write_whole(path, json_bytes(content, indent=2) + b"\n")
    return sentences


def disturbance(times: Mapping[str, Times]) -> str | None:
    """Return a warning if other programs used the machine while a baseline was measured."""
    names = [name for name, measured in times.items() if measured.disturbed]
    if not names:
        return None
    were = "was" if len(names) == 1 else "were"
    return (
        f"warning: other programs used the machine while {quoted(names)} {were} measured, so the "
        f"baseline can hide a change: write it again on a calm machine with "
        f"--stage-baseline-replace, or add more sessions."
    )


def traced(times: Mapping[str, Times]) -> str | None:
    """Return a warning if a tracer was active while a baseline was measured."""
    names = [name for name, measured in times.items() if measured.tracers]
    if not names:
        return None
    tracers = dict.fromkeys(tracer for name in names for tracer in times[name].tracers)
    return (
        f"warning: {' and '.join(tracers)} was active while {quoted(names)} "
        f"{'was' if len(names) == 1 else 'were'} measured, so nothing can be compared with this "
        f"session: write it again without, with --stage-baseline-replace."
    )


def _change(name: str, earlier: Times, new: Times, *, same_unit: bool) -> str | None:
    """Return a warning if a session differs from the earlier ones by more than their noise."""
    change = judge(name, earlier, new, Tolerance(), same_speed_unit=same_unit)
    if change.verdict not in ("slower", "faster"):
        return None
    return (
        f"warning: {name!r} is {percent(abs(change.change or 0.0))} {change.verdict} than in the "
        f"earlier sessions of the baseline, which becomes less precise: if the stage was changed, "
        f"write it with --stage-baseline-replace."
    )


def _known(path: str | os.PathLike[str]) -> Timed | None:
    try:
        return read_baseline(path) if os.path.exists(path) else None
    except NoTimesError:
        return None


def _entry(times: Times) -> dict[str, Any]:
    sessions = times.each_session
    runs = [_stored(session.samples_ms, len(sessions)) for session in sessions]
    relative = [_stored(session.relative, len(sessions)) for session in sessions]
    cpu = [_stored(session.cpu_ms, len(sessions)) for session in sessions]
    entry: dict[str, Any] = {
        "median_ms": round(statistics.fmean(map(statistics.median, runs)), _DIGITS),
        "count": sum(map(len, runs)),
        "disturbed": times.disturbed,
        "fixed_ns": times.fixed_ns,
        **({"tracers": list(times.tracers)} if times.tracers else {}),
    }
    if len(sessions) > 1:
        entry["sessions"] = [
            {
                "runs": len(session_runs),
                "relative": len(ratios),
                "disturbed": session.disturbed,
                "fixed_ns": session.fixed_ns,
                "cpu": bool(session.cpu_ms),
                **({"tracers": list(session.tracers)} if session.tracers else {}),
            }
            for session, session_runs, ratios in zip(sessions, runs, relative, strict=True)
        ]
    entry["samples_ms"] = [sample for session_runs in runs for sample in session_runs]
    entry["relative"] = [ratio for ratios in relative for ratio in ratios]
    entry["cpu_ms"] = [cpu_ms for session_runs in cpu for cpu_ms in session_runs]
    return entry


def _stored(values: Sequence[float], sessions: int) -> list[float]:
    """Return at most a session's share of `_MOST_RUNS` rounded values, spread evenly over it."""
    count = min(len(values), _MOST_RUNS // sessions)
    return [round(values[place * len(values) // count], _DIGITS) for place in range(count)]
