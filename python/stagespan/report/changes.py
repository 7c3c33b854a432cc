"""Compares two files of times, and decides which changes count."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from stagespan.errors import ReportError
from stagespan.lines import one_line
from stagespan.report.noise import BEST, Times, interval_of_change
from stagespan.report.timed import Timed, read

SCHEMA_VERSION = 1
Statistic = Literal["median", "fastest"]
Verdict = Literal["slower", "faster", "same", "added", "removed"]
SPEED_CHANGE = 0.05
"""The relative change of the processor's speed between two measurements that is reported."""
_MACHINE = ("cpu", "cpu_count", "platform", "device")
_SOFTWARE = ("python", "torch", "stagespan")
_OTHER_INPUTS = "ran with other inputs: no signature in common"
_NAMES = {
    "report": "a timing report",
    "breakdown": "a kernel breakdown",
    "bench": "a bench result",
    "baseline": "a baseline",
}


@dataclass(frozen=True)
class Tolerance:
    """A change counts if it exceeds the larger of these two limits and the noise."""

    relative: float = 0.05
    absolute_ms: float = 0.01

    def limit_ms(self, before_ms: float) -> float:
        """Return the largest change that does not count, in ms."""
        return max(self.relative * before_ms, self.absolute_ms)


@dataclass(frozen=True)
class Change:
    """The change of one stage, of one signature of a stage, or of one kernel."""

    name: str
    signature: str | None
    verdict: Verdict
    before: Times | None
    after: Times | None
    interval_ms: tuple[float, float] | None = None
    """The bounds of the change, see `noise.interval_of_change`."""
    reason: str = ""
    """The reason for the verdict, in a few words."""
    statistic: Statistic = "median"
    """The compared figure: the median, or the time of the fastest runs."""

    @property
    def before_ms(self) -> float | None:
        """The compared figure before; None if there are no times."""
        return self._judged(self.before)

    @property
    def after_ms(self) -> float | None:
        """The compared figure after; None if there are no times."""
        return self._judged(self.after)

    @property
    def change_ms(self) -> float | None:
        """`after_ms` - `before_ms`; None if one of the two is missing."""
        if self.before_ms is None or self.after_ms is None:
            return None
        return self.after_ms - self.before_ms

    @property
    def change(self) -> float | None:
        """`change_ms` divided by `before_ms`; None if that is not possible."""
        return (
            None
            if self.change_ms is None or not self.before_ms
            else self.change_ms / self.before_ms
        )

    @property
    def slowdown(self) -> float | None:
        """How many times as long a fixed computation took after as before; None if unknown.

        Only comparable on one machine with one version of Python.
        """
        before, after = (times and times.fixed_ns for times in (self.before, self.after))
        return after / before if before and after else None

    def _judged(self, times: Times | None) -> float | None:
        if times is None:
            return None
        return times.median_ms if self.statistic == "median" else times.best_ms

    def to_dict(self) -> dict[str, Any]:
        """Return the change as plain data for JSON, without the samples."""
        found = asdict(self)
        for side in ("before", "after"):
            if found[side] is not None:
                del found[side]["samples_ms"], found[side]["relative"]
        return {
            **found,
            "before_ms": self.before_ms,
            "after_ms": self.after_ms,
            "change_ms": self.change_ms,
            "change": self.change,
            "slowdown": self.slowdown,
        }


@dataclass(frozen=True)
class Comparison:
    """The changes between two files, with warnings and notes."""

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
        """Whether a stage or kernel is missing after."""
        return any(change.verdict == "removed" for change in self.changes)

    @property
    def summary(self) -> str:
        """The numbers of slower, faster and unchanged stages as text."""
        words = {"slower": "slower", "faster": "faster", "same": "unchanged"}
        words |= {"added": "added", "removed": "missing"}
        counts = [
            f"{count} {word}"
            for verdict, word in words.items()
            if (count := sum(change.verdict == verdict for change in self.changes))
        ]
        return ", ".join(counts)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data for JSON."""
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
    *,
    same_speed_unit: bool = False,
) -> Change:
    """Return whether ``after`` is slower or faster than ``before``, beyond tolerance and noise.

    Compares the medians, or the fastest runs if other programs used the machine. With
    ``same_speed_unit`` (see `have_same_speed_unit`), and if the speed of the processor decides the
    times of both, the compared times are those at the processor's fastest speed before.
    """
    at_one_speed = _at_one_speed(before, after) if same_speed_unit else None
    if at_one_speed is not None:
        before, after = at_one_speed
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
        reason += "; by the fastest runs, because other programs used the machine"
    if at_one_speed is not None:
        reason += ", at the same speed of the processor"
    return replace(change, verdict=verdict, reason=reason)


def _at_one_speed(before: Times, after: Times) -> tuple[Times, Times] | None:
    """Return both at the processor's fastest speed before; None if its speed does not decide."""
    if not before.fixed_ns:
        return None
    at_speed = before.at_speed(before.fixed_ns), after.at_speed(before.fixed_ns)
    return None if at_speed[0] is None or at_speed[1] is None else (at_speed[0], at_speed[1])


def compare_files(
    path_a: str | os.PathLike[str],
    path_b: str | os.PathLike[str],
    tolerance: Tolerance | None = None,
) -> Comparison:
    """Compare two files of one kind: timing reports, breakdowns, bench results or baselines.

    Raises ReportError if a file cannot be read, the two are of different kinds, the first one is
    empty, or they have no stage in common.
    """
    return compare(read(path_a), read(path_b), tolerance or Tolerance())


def compare(before: Timed, after: Timed, tolerance: Tolerance) -> Comparison:
    """Compare two files that have been read, see `compare_files`."""
    if before.kind != after.kind:
        raise ReportError(
            f"{before.path} is {_NAMES[before.kind]} and {after.path} is {_NAMES[after.kind]}:"
            f" compare two files of one kind."
        )
    if not before.times:
        raise ReportError(f"{before.path} contains no times: record it again with stages that run.")
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
        + speed_differences(changes, before.environment, after.environment)
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
    same_unit = have_same_speed_unit(before.environment, after.environment)
    if None in old or None in new or not both:
        # Times of different signatures are not comparable, because the inputs differ.
        if None not in old and None not in new:
            return [Change(name, None, "same", _most(old), _most(new), reason=_OTHER_INPUTS)]
        return [judge(name, _most(old), _most(new), tolerance, same_speed_unit=same_unit)]
    several = len(old) > 1 or len(new) > 1
    return [
        judge(
            name,
            old[key],
            new[key],
            tolerance,
            key if several else None,
            same_speed_unit=same_unit,
        )
        for key in both
    ]


def _most(times: Mapping[str | None, Times]) -> Times:
    """Return the times of the signature that ran most."""
    return max(times.values(), key=lambda found: found.count or 0)


def _notes(changes: Iterable[Change], before: Timed, after: Timed) -> list[str]:
    notes = []
    unknown = [
        change
        for change in changes
        if change.before
        and change.after
        and change.interval_ms is None
        and change.reason != _OTHER_INPUTS  # these were not compared at all
    ]
    if unknown and before.kind == "breakdown":
        notes.append("A breakdown has one figure for each kernel, so its noise is not known.")
    elif unknown:
        names = _listed(dict.fromkeys(change.name for change in unknown))
        notes.append(
            f"The noise of {names} is not known: the files contain too few runs, or no quartiles. "
            f"Only the tolerance decides there."
        )
    software = _differences(before.environment, after.environment, _SOFTWARE)
    if software:
        notes.append(f"The software differs: {software}.")
    return notes


def machine_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a warning if two environments are known to be of different machines, otherwise []."""
    found = _differences(before, after, _MACHINE)
    return [f"The machines differ, so the times are not comparable: {found}."] if found else []


def have_same_speed_unit(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the times of the fixed computation of two environments are comparable."""
    return not _differences(before, after, (*_MACHINE, "python"))


def speed_differences(
    changes: Iterable[Change],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    sides: tuple[str, str] = ("before", "after"),
) -> list[str]:
    """Return warnings if the processor was slower in one of two measurements on one machine.

    ``before`` and ``after`` are the environments, and ``sides`` what the warnings call the two. The
    warnings explain verdicts and change none.
    """
    if not have_same_speed_unit(before, after):
        return []
    ratios = {change.name: change.slowdown for change in changes if change.slowdown}
    then, now = sides
    return [
        f"The machine was slower {slow} than {fast}: while it measured {_listed(names)}, even the"
        f" fastest run of a fixed computation took {max(names.values()):.2f} x as long. {advice}"
        for slow, fast, names, advice in (
            (
                now,
                then,
                {name: ratio for name, ratio in ratios.items() if ratio > 1 + SPEED_CHANGE},
                "Measure again to see whether a stage is slower by itself.",
            ),
            (
                then,
                now,
                {name: 1 / ratio for name, ratio in ratios.items() if 1 / ratio > 1 + SPEED_CHANGE},
                "This can hide that a stage has become slower, so measure both again.",
            ),
        )
        if names
    ]


def _replay_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    found = _differences(before, after, before)
    return [f"The replays differ, so the times may not be comparable: {found}."] if found else []


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], keys: Iterable[str]) -> str:
    return ", ".join(
        one_line(f"{key} {before[key]} before and {after[key]} after")
        for key in keys
        if before.get(key) is not None and after.get(key) is not None and before[key] != after[key]
    )


def _listed(names: Iterable[str]) -> str:
    found = [repr(name) for name in names]
    shown = ", ".join(found[:4])
    return f"{shown} and {len(found) - 4} more" if len(found) > 4 else shown or "none"
