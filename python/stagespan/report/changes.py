"""What changed between two files of times, and which of the changes count."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from stagespan.errors import ReportError
from stagespan.report.noise import BEST, Times, interval_of_change
from stagespan.report.reader import number, read_timing_report

SCHEMA_VERSION = 1
Statistic = Literal["median", "fastest"]
Verdict = Literal["slower", "faster", "same", "added", "removed"]
_PERCENTILE_RUNS = 512
"""Runs behind a signature's percentiles, in reports that do not say so."""
_MACHINE = ("cpu", "cpu_count", "platform", "device")
_SOFTWARE = ("python", "torch", "stagespan")
_WRITE_AGAIN = "write it again (a baseline with --stage-baseline-write), or name another file."
_NAMES = {
    "report": "a timing report",
    "breakdown": "a kernel breakdown",
    "bench": "a bench result",
    "baseline": "a baseline",
}


@dataclass(frozen=True)
class Tolerance:
    """A change counts if it is more than the larger of the two, and more than the noise."""

    relative: float = 0.05
    absolute_ms: float = 0.01

    def limit_ms(self, before_ms: float) -> float:
        """The change that is tolerated."""
        return max(self.relative * before_ms, self.absolute_ms)


@dataclass(frozen=True)
class Change:
    """What became of one stage, one signature of it, or one kernel."""

    name: str
    signature: str | None
    verdict: Verdict
    before: Times | None
    after: Times | None
    interval_ms: tuple[float, float] | None = None
    """Bounds of the change, see `noise.interval_of_change`."""
    reason: str = ""
    """Why the verdict is what it is, in a few words."""
    statistic: Statistic = "median"
    """What is judged: the medians, or the fastest runs."""

    @property
    def before_ms(self) -> float | None:
        """What is judged of the times before; None if there are none."""
        return self._judged(self.before)

    @property
    def after_ms(self) -> float | None:
        """What is judged of the times after; None if there are none."""
        return self._judged(self.after)

    @property
    def change_ms(self) -> float | None:
        """`after_ms` - `before_ms`; None if one of the two is missing."""
        if self.before_ms is None or self.after_ms is None:
            return None
        return self.after_ms - self.before_ms

    @property
    def change(self) -> float | None:
        """The same as a part of `before_ms`."""
        return (
            None
            if self.change_ms is None or not self.before_ms
            else self.change_ms / self.before_ms
        )

    def _judged(self, times: Times | None) -> float | None:
        if times is None:
            return None
        return times.median_ms if self.statistic == "median" else times.best_ms

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON holds it; samples are left out."""
        found = asdict(self)
        for side in ("before", "after"):
            if found[side] is not None:
                del found[side]["samples_ms"]
        return {
            **found,
            "before_ms": self.before_ms,
            "after_ms": self.after_ms,
            "change_ms": self.change_ms,
            "change": self.change,
        }


@dataclass(frozen=True)
class Timed:
    """A file of times."""

    path: str
    kind: str
    times: dict[tuple[str, str | None], Times]
    """By stage or kernel, and signature; the signature is None if there is only one."""
    environment: dict[str, Any] = field(default_factory=dict)
    replayed: dict[str, Any] = field(default_factory=dict)
    """What a bench result is of, apart from the stage and the signature."""


@dataclass(frozen=True)
class Comparison:
    """The changes between two files, and what is to be said of them."""

    before: str
    after: str
    kind: str
    tolerance: Tolerance
    changes: list[Change]
    warnings: list[str]
    notes: list[str]

    @property
    def is_slower(self) -> bool:
        """Whether anything counts as slower."""
        return any(change.verdict == "slower" for change in self.changes)

    @property
    def is_missing(self) -> bool:
        """Whether anything that was there before is missing."""
        return any(change.verdict == "removed" for change in self.changes)

    @property
    def summary(self) -> str:
        """One line: how many are slower, faster and unchanged."""
        words = {"slower": "slower", "faster": "faster", "same": "unchanged"}
        words |= {"added": "added", "removed": "missing"}
        counts = [
            f"{count} {word}"
            for verdict, word in words.items()
            if (count := sum(change.verdict == verdict for change in self.changes))
        ]
        return ", ".join(counts)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON holds it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "before": self.before,
            "after": self.after,
            "kind": self.kind,
            "tolerance": asdict(self.tolerance),
            "slower": self.is_slower,
            "summary": self.summary,
            "changes": [change.to_dict() for change in self.changes],
            "warnings": self.warnings,
            "notes": self.notes,
        }


def judge(
    name: str,
    before: Times,
    after: Times,
    tolerance: Tolerance,
    signature: str | None = None,
) -> Change:
    """Say whether ``after`` is slower than ``before``, beyond the tolerance and the noise.

    The medians are judged, or the fastest runs if other programs have used the machine.
    """
    statistic: Statistic = "median"
    if (before.disturbed or after.disturbed) and before.best_ms and after.best_ms:
        statistic = "fastest"
    quantile = 0.5 if statistic == "median" else BEST
    change = Change(
        name,
        signature,
        "same",
        before,
        after,
        interval_of_change(before, after, quantile),
        statistic=statistic,
    )
    before_ms, change_ms, interval = (
        change.before_ms or 0.0,
        change.change_ms or 0.0,
        change.interval_ms,
    )
    limit_ms = tolerance.limit_ms(before_ms)
    verdict: Verdict = "slower" if change_ms > 0 else "faster"
    if abs(change_ms) <= limit_ms:
        verdict, reason = "same", f"within the tolerance of {limit_ms:,.3g} ms"
    elif interval is None:
        reason = "more than the tolerance; the noise is not known"
    elif interval[0] <= 0 <= interval[1]:
        verdict, reason = "same", "within the noise"
    else:
        reason = "more than the tolerance and the noise"
    if statistic == "fastest":
        reason += "; judged by the fastest runs, because other programs used the machine"
    return replace(change, verdict=verdict, reason=reason)


def compare_files(
    path_a: str | os.PathLike[str],
    path_b: str | os.PathLike[str],
    tolerance: Tolerance | None = None,
) -> Comparison:
    """Compare two files of one kind: timing reports, breakdowns, bench results or baselines.

    Raises ReportError, one sentence, if a file cannot be read, the two are of different kinds, the
    first one is empty, or they have nothing in common.
    """
    return compare(read(path_a), read(path_b), tolerance or Tolerance())


def compare(before: Timed, after: Timed, tolerance: Tolerance) -> Comparison:
    """Compare what has been read, see `compare_files`."""
    if before.kind != after.kind:
        raise ReportError(
            f"{before.path} is {_NAMES[before.kind]} and {after.path} is {_NAMES[after.kind]}:"
            f" compare two files of one kind."
        )
    if not before.times:
        raise ReportError(f"{before.path} holds no times: record it again with stages that run.")
    names = {name for name, _ in before.times}
    if after.times and not names & {name for name, _ in after.times}:
        raise ReportError(
            f"{before.path} and {after.path} have no stage in common: {_listed(names)} before,"
            f" {_listed(name for name, _ in after.times)} after."
        )
    changes = [
        change
        for name in dict.fromkeys(name for name, _ in (*before.times, *after.times))
        for change in _of_name(name, before, after, tolerance)
    ]
    changes.sort(key=lambda change: -abs(change.change_ms or 0))
    return Comparison(
        before.path,
        after.path,
        before.kind,
        tolerance,
        changes,
        machine_differences(before.environment, after.environment)
        + _replay_differences(before.replayed, after.replayed),
        _notes(changes, before, after),
    )


def _of_name(name: str, before: Timed, after: Timed, tolerance: Tolerance) -> list[Change]:
    old = {key: times for (known, key), times in before.times.items() if known == name}
    new = {key: times for (known, key), times in after.times.items() if known == name}
    if not new:
        return [Change(name, None, "removed", _most(old), None, reason="is missing after")]
    if not old:
        return [Change(name, None, "added", None, _most(new), reason="was not there before")]
    both = [key for key in old if key in new]
    if None in old or None in new or not both:
        # Signatures that one side does not know, or that differ: other inputs, other work.
        if None not in old and None not in new:
            reason = "ran with other inputs: no signature in common"
            return [Change(name, None, "same", _most(old), _most(new), reason=reason)]
        return [judge(name, _most(old), _most(new), tolerance)]
    several = len(old) > 1 or len(new) > 1
    return [judge(name, old[key], new[key], tolerance, key if several else None) for key in both]


def _most(times: Mapping[str | None, Times]) -> Times:
    """The times of the signature that ran most."""
    return max(times.values(), key=lambda found: found.count or 0)


def _notes(changes: Iterable[Change], before: Timed, after: Timed) -> list[str]:
    notes = []
    unknown = [c for c in changes if c.before and c.after and c.interval_ms is None]
    if unknown and before.kind == "breakdown":
        notes.append("A breakdown has one figure for each kernel, so its noise is not known.")
    elif unknown:
        names = _listed(dict.fromkeys(change.name for change in unknown))
        notes.append(
            f"The noise of {names} is not known: the files hold too few runs of it, or no"
            " quartiles. Only the tolerance decides there."
        )
    software = _differences(before.environment, after.environment, _SOFTWARE)
    if software:
        notes.append(f"The software differs: {software}.")
    return notes


def machine_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """A warning if two environments tell of different machines; [] if not, or if not known."""
    found = _differences(before, after, _MACHINE)
    return [f"The machines differ, so the times do not compare: {found}."] if found else []


def _replay_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    found = _differences(before, after, before)
    return [f"The replays differ, so the times may not compare: {found}."] if found else []


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], keys: Iterable[str]) -> str:
    return ", ".join(
        f"{key} {before[key]} before and {after[key]} after"
        for key in keys
        if before.get(key) is not None and after.get(key) is not None and before[key] != after[key]
    )


def _listed(names: Iterable[str]) -> str:
    found = [repr(name) for name in names]
    shown = ", ".join(found[:4])
    return f"{shown} and {len(found) - 4} more" if len(found) > 4 else shown or "none"


# --- reading ------------------------------------------------------------------------------------


class NoTimesError(ReportError):
    """A file is empty, or a baseline without times."""


def read(path: str | os.PathLike[str]) -> Timed:
    """Read a file of times; what it is shows in its keys. Raises ReportError."""
    file = Path(path)
    if file.is_dir():
        return _of_report(str(path), read_timing_report(file))
    content = _json(file)
    if not content and _is_empty(file):
        raise NoTimesError(f"{path} is empty: {_WRITE_AGAIN}")
    if "top_kernels" in content:
        return _of_breakdown(str(path), content)
    if _is_baseline(content):
        return _of_baseline(str(path), content)
    if _samples(content):
        return _of_bench(str(path), content)
    return _of_report(str(path), read_timing_report(file))


def _json(file: Path) -> dict[str, Any]:
    try:
        raw = file.read_bytes()
        if raw.startswith(b"\x1f\x8b"):
            raw = gzip.decompress(raw)
        content = msgspec.json.decode(raw)
    except (OSError, EOFError, ValueError, msgspec.DecodeError, RecursionError):
        return {}  # the reader of reports says what is wrong with it
    return content if isinstance(content, dict) else {}


def _is_empty(file: Path) -> bool:
    """Whether a file has no content, or is an empty object of JSON."""
    try:
        return file.read_bytes().split() in ([], [b"{}"])
    except (OSError, ValueError):
        return False


def _is_baseline(content: dict[str, Any]) -> bool:
    if content.get("kind") == "stagespan baseline":
        return True
    stages = content.get("stages")
    if not isinstance(stages, dict):
        return False
    return bool(stages) and all(isinstance(s, dict) and "samples_ms" in s for s in stages.values())


def _of_baseline(path: str, content: dict[str, Any]) -> Timed:
    times: dict[tuple[str, str | None], Times] = {}
    stages = content.get("stages")
    for name, stage in stages.items() if isinstance(stages, dict) else ():
        samples = _numbers(stage.get("samples_ms")) if isinstance(stage, dict) else ()
        if samples:
            disturbed = stage.get("disturbed")
            times[name, None] = Times.of(
                samples, disturbed if isinstance(disturbed, bool) else None
            )
    if not times:
        raise NoTimesError(f"{path} is a baseline without times: {_WRITE_AGAIN}")
    return Timed(path, "baseline", times, _environment(content))


def _of_bench(path: str, content: dict[str, Any]) -> Timed:
    name = str(content.get("stage") or content.get("stage_name") or "stage")
    timing = content.get("timing_ms")
    disturbed = bool(timing.get("busy")) if isinstance(timing, dict) else None
    samples = Times.of(_samples(content), disturbed)
    signature = content.get("signature")
    key = signature.get("key") if isinstance(signature, dict) else None
    times: dict[tuple[str, str | None], Times] = {
        (name, key if isinstance(key, str) else None): samples
    }
    return Timed(path, "bench", times, _environment(content), _replayed(content))


def _replayed(content: dict[str, Any]) -> dict[str, Any]:
    """What one iteration of a bench result is; what is not known is None."""
    step, device, settings = (content.get(key) for key in ("step", "device", "settings"))
    number_of = step.get("number") if isinstance(step, dict) else None
    return {
        "adapter": content.get("adapter"),
        "step": "whole" if step is None and "step" in content else number_of,
        "inputs on": device.partition(":")[0] if isinstance(device, str) else None,
        "dtype": settings.get("dtype") or "as captured" if isinstance(settings, dict) else None,
    }


def _samples(content: dict[str, Any]) -> tuple[float, ...]:
    """The times of single runs in a bench result, stagespan's or TeleFuser's."""
    return _numbers(content.get("times_ms")) or _numbers(content.get("timing_ms"))


def _numbers(values: object) -> tuple[float, ...]:
    found = [number(value) for value in values] if isinstance(values, list) else []
    return tuple(value for value in found if value is not None and value >= 0)


def _of_breakdown(path: str, content: dict[str, Any]) -> Timed:
    steps = number(content.get("profile_steps")) or 1.0
    rows = content["top_kernels"]
    times: dict[tuple[str, str | None], Times] = {}
    for row in rows if isinstance(rows, list) else ():
        ms = number(row.get("ms")) if isinstance(row, dict) else None
        if ms is not None:
            times[str(row.get("name")), None] = Times(ms / steps)
    return Timed(path, "breakdown", times, _environment(content))


def _of_report(path: str, report: dict[str, Any]) -> Timed:
    times: dict[tuple[str, str | None], Times] = {}
    for name, stage in report["stages"].items():
        signatures = [s for s in stage.get("signatures") or () if _of_signature(s) is not None]
        whole = _of_stage(stage)
        if len(signatures) == 1:
            # All runs had it, so that the stage's quartiles are the signature's.
            times[name, str(signatures[0].get("key"))] = whole
        elif not signatures:
            times[name, None] = whole
        for signature in signatures if len(signatures) > 1 else ():
            known = _of_signature(signature)
            if known is not None:
                times[name, str(signature.get("key"))] = known
    return Timed(path, "report", times, _environment(report))


def _of_signature(signature: object) -> Times | None:
    if not isinstance(signature, dict):
        return None
    median = number(signature.get("p50_ms"))
    if median is None:
        return None
    counts = [_count(signature), number(signature.get("percentile_runs", _PERCENTILE_RUNS))]
    known = [int(count) for count in counts if count is not None]
    return Times(median, min(known) if len(known) == 2 else None, _quartiles(signature))


def _of_stage(stage: dict[str, Any]) -> Times:
    count, duration = _count(stage), number(stage["duration_ms"]) or 0.0
    median = number(stage.get("p50_ms"))
    if median is None:  # of TeleFuser: the one run
        median = duration / (count or 1)
    return Times(median, count, _quartiles(stage))


def _quartiles(entry: dict[str, Any]) -> tuple[float, float] | None:
    low, high = number(entry.get("p25_ms")), number(entry.get("p75_ms"))
    return None if low is None or high is None else (low, high)


def _count(entry: dict[str, Any]) -> int | None:
    count = number(entry.get("count"))
    return None if count is None else int(count)


def _environment(content: dict[str, Any]) -> dict[str, Any]:
    found = content.get("environment")
    return found if isinstance(found, dict) else {}
