"""Compares two files of times, and decides which changes count."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from stagespan.errors import ReportError
from stagespan.report.noise import BEST, FEWEST_RUNS, Times, interval_of_change
from stagespan.report.timed import Timed, read
from stagespan.text.amounts import percent, quoted, signed_percent
from stagespan.text.escaping import one_line

SCHEMA_VERSION = 1
Statistic = Literal["median", "fastest"]
Verdict = Literal["slower", "faster", "same", "unknown", "added", "removed"]
WORDS: dict[Verdict, str] = {
    "slower": "slower",
    "faster": "faster",
    "same": "unchanged",
    "unknown": "not known",
    "added": "added",
    "removed": "missing",
}
"""The verdicts as users read them."""
SPEED_CHANGE = 0.05
"""The relative change of the processor's speed between two measurements that is reported."""
_MOST_REASONS = 4
_MACHINE = ("cpu", "cpu_count", "platform", "device")
_SOFTWARE = ("python", "torch", "stagespan")
OTHER_INPUTS = "ran with other inputs: no signature in common"
_NAMES = {
    "report": "a timing report",
    "breakdown": "a kernel breakdown",
    "bench": "a bench result",
    "baseline": "a baseline",
}


@dataclass(frozen=True)
class Tolerance:
    """A change counts if it exceeds the larger of these two limits and the noise.

    A stage counts as unchanged if the noise is at most this limit. Otherwise, the verdict is
    ``unknown``.
    """

    relative: float = 0.05
    absolute_ms: float = 0.01

    def limit_ms(self, before_ms: float) -> float:
        """Return the largest change that does not count, in ms."""
        return max(self.relative * before_ms, self.absolute_ms)

    def described(self, before_ms: float) -> str:
        """Return the limit that applies as text, such as ``5 %`` or ``0.01 ms``."""
        if self.relative * before_ms >= self.absolute_ms:
            return percent(self.relative)
        return f"{self.absolute_ms:,.3g} ms"


@dataclass(frozen=True)
class TimingChange:
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
    def noise_ms(self) -> float | None:
        """The distance from the change to the farther one of its bounds; None if unknown."""
        if self.interval_ms is None or self.change_ms is None:
            return None
        low, high = self.interval_ms
        return max(high - self.change_ms, self.change_ms - low)

    @property
    def noise(self) -> float | None:
        """`noise_ms` divided by `before_ms`; None if that is not possible."""
        return (
            None if self.noise_ms is None or not self.before_ms else self.noise_ms / self.before_ms
        )

    def exceeds_noise(self, limit: float) -> bool:
        """Whether neither slower nor faster, with a noise that is unknown or above ``limit``.

        ``limit`` is a fraction of the time before.
        """
        if self.verdict not in ("same", "unknown"):
            return False
        return self.noise is None or self.noise > limit

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
                for key in ("samples_ms", "relative"):
                    del found[side][key]
                found[side]["sessions"] = len(found[side]["sessions"]) or 1
        return {
            **found,
            "before_ms": self.before_ms,
            "after_ms": self.after_ms,
            "change_ms": self.change_ms,
            "change": self.change,
            "noise": self.noise,
            "slowdown": self.slowdown,
        }


@dataclass(frozen=True)
class TotalChange:
    """The change of a time that has no verdict: the wall clock, or a sum or mean of stages."""

    name: str
    before_ms: float | None
    after_ms: float | None

    @property
    def change_ms(self) -> float | None:
        """`after_ms` - `before_ms`; None if one of the two is missing."""
        if self.before_ms is None or self.after_ms is None:
            return None
        return self.after_ms - self.before_ms


@dataclass(frozen=True)
class TimingComparison:
    """The changes between two files, with warnings and notes."""

    before: str
    after: str
    kind: str
    tolerance: Tolerance
    changes: list[TimingChange]
    warnings: list[str]
    notes: list[str]
    totals: list[TotalChange]
    environment: dict[str, tuple[Any, Any]]
    """What differs between the environments, before and after."""
    requests: tuple[str | None, str | None] = (None, None)
    """The ids of the requests before and after, if the files are of one request each."""
    problem: str | None = None
    """Why nothing could be compared; None if something was."""

    @property
    def is_slower(self) -> bool:
        """Whether anything counts as slower."""
        return any(change.verdict == "slower" for change in self.changes)

    @property
    def is_unknown(self) -> bool:
        """Whether it is not known of anything whether it has changed."""
        return any(change.verdict == "unknown" for change in self.changes)

    @property
    def is_missing(self) -> bool:
        """Whether a stage or kernel is missing after."""
        return any(change.verdict == "removed" for change in self.changes)

    @property
    def summary(self) -> str:
        """The number of stages with each verdict as text."""
        counts = [
            f"{count} {word}"
            for verdict, word in WORDS.items()
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
            "unknown": self.is_unknown,
            "summary": self.summary,
            "changes": [change.to_dict() for change in self.changes],
            "totals": [{**asdict(total), "change_ms": total.change_ms} for total in self.totals],
            "environment": self.environment,
            "requests": self.requests,
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
) -> TimingChange:
    """Return whether ``after`` is slower or faster than ``before``, beyond tolerance and noise.

    Otherwise it is unchanged if the noise is known and at most the tolerance, else not known.
    Compares the medians, or the fastest runs if other programs used the machine. With
    ``same_speed_unit`` (see `have_same_speed_unit`), and if the speed of the processor decides the
    times of both, the compared times are those at the processor's fastest speed before.
    """
    at_one_speed = _at_one_speed(before, after) if same_speed_unit else None
    if at_one_speed is not None:
        before, after = at_one_speed
    statistic: Statistic = "median"
    is_disturbed = before.disturbed or after.disturbed
    if at_one_speed is None and is_disturbed and before.best_ms and after.best_ms:
        statistic = "fastest"
    quantile = 0.5 if statistic == "median" else BEST
    change = TimingChange(
        name,
        signature,
        "same",
        before,
        after,
        interval_of_change(before, after, quantile),
        statistic=statistic,
    )
    verdict, reason = _verdict(change, tolerance)
    if statistic == "fastest":
        reason += "; by the fastest runs, because other programs used the machine"
    if at_one_speed is not None:
        reason += ", at the same speed of the processor"
    return replace(change, verdict=verdict, reason=reason)


def judge_repeated(
    name: str,
    before: Times,
    after: Times,
    tolerance: Tolerance,
    *,
    same_speed_unit: bool = False,
) -> TimingChange:
    """Judge a stage that was measured in several processes, the sessions of ``after``.

    The stage counts as slower only if it is slower than the tolerance in the latest process alone,
    too. Otherwise the earlier ones can have been slow for another reason.
    """
    found = judge(name, before, after, tolerance, same_speed_unit=same_speed_unit)
    *earlier, latest = after.each_session
    if found.verdict != "slower" or not earlier:
        return found
    alone = judge(name, before, latest, tolerance, same_speed_unit=same_speed_unit)
    if (alone.change_ms or 0.0) > tolerance.limit_ms(alone.before_ms or 0.0):
        return replace(found, reason=f"{found.reason}, also in a new process")
    first = judge(
        name, before, Times.of_sessions(earlier), tolerance, same_speed_unit=same_speed_unit
    )
    shown = (signed_percent(change.change or 0.0) for change in (first, alone))
    return replace(
        found, verdict="unknown", reason="{} in one process, but {} in a new one".format(*shown)
    )


def _verdict(change: TimingChange, tolerance: Tolerance) -> tuple[Verdict, str]:
    """Return the verdict of a change and the reason for it."""
    before_ms, change_ms = change.before_ms or 0.0, change.change_ms or 0.0
    limit_ms, limit = tolerance.limit_ms(before_ms), tolerance.described(before_ms)
    is_more = abs(change_ms) > limit_ms
    direction: Verdict = "slower" if change_ms > 0 else "faster"
    if change.interval_ms is None or change.noise_ms is None:
        has_runs = all(
            times is not None and times.samples_ms for times in (change.before, change.after)
        )
        if is_more and has_runs:
            return (
                "unknown",
                f"more than the tolerance of {limit}, but of fewer than {FEWEST_RUNS} runs",
            )
        if is_more:
            return direction, "more than the tolerance; the noise is not known"
        return "unknown", f"within the tolerance of {limit}, but the noise is not known"
    low_ms, high_ms = change.interval_ms
    if is_more and not low_ms <= 0 <= high_ms:
        return direction, "more than the tolerance and the noise"
    if change.noise_ms > limit_ms:
        is_in_ms = limit.endswith("ms") or change.noise is None
        noise = f"{change.noise_ms:,.3g} ms" if is_in_ms else percent(change.noise or 0.0)
        return "unknown", f"the noise of ±{noise} hides the tolerance of {limit}"
    return "same", f"within the tolerance of {limit_ms:,.3g} ms"


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
) -> TimingComparison:
    """Compare two files of one kind: timing reports, breakdowns, bench results or baselines.

    Raises ReportError if a file cannot be read, the two are of different kinds, the first one is
    empty, or they have no stage in common.
    """
    found = compare(read(path_a), read(path_b), tolerance or Tolerance())
    if found.problem is not None:
        raise ReportError(found.problem)
    return found


def compare(before: Timed, after: Timed, tolerance: Tolerance) -> TimingComparison:
    """Compare two files that have been read.

    If they have nothing in common, the result has a `TimingComparison.problem`. Raises ReportError
    if they are of different kinds.
    """
    if before.kind != after.kind:
        raise ReportError(
            f"{before.path} is {_NAMES[before.kind]} and {after.path} is {_NAMES[after.kind]}:"
            f" compare two files of one kind."
        )
    changes = [
        change
        for name in dict.fromkeys(name for name, _ in (*before.times, *after.times))
        for change in _of_name(name, before, after, tolerance)
    ]
    changes.sort(key=lambda change: -abs(change.change_ms or 0))
    totals = {name: before.totals_ms.get(name) for name in (*before.totals_ms, *after.totals_ms)}
    return TimingComparison(
        before.path,
        after.path,
        before.kind,
        tolerance,
        changes,
        machine_differences(before.environment, after.environment)
        + speed_differences(changes, before.environment, after.environment)
        + _replay_differences(before.replayed, after.replayed),
        _notes(changes, before, after),
        [TotalChange(name, ms, after.totals_ms.get(name)) for name, ms in totals.items()],
        {
            key: values
            for key in {**before.environment, **after.environment}
            # The process id always differs, but this does not explain anything.
            if key != "pid"
            for values in [(before.environment.get(key), after.environment.get(key))]
            if values[0] != values[1]
        },
        (before.request, after.request),
        _problem(before, after),
    )


def _problem(before: Timed, after: Timed) -> str | None:
    """Return why the two files cannot be compared; None if they can."""
    if not before.times:
        return f"{before.path} contains no times: record it again with stages that run."
    old, new = (dict.fromkeys(name for name, _ in file.times) for file in (before, after))
    if not new or old.keys() & new.keys():
        return None
    return (
        f"{before.path} and {after.path} have no stage in common: {quoted(old)} before,"
        f" {quoted(new)} after."
    )


def _of_name(name: str, before: Timed, after: Timed, tolerance: Tolerance) -> list[TimingChange]:
    old = {key: times for (known, key), times in before.times.items() if known == name}
    new = {key: times for (known, key), times in after.times.items() if known == name}
    if not new:
        return [TimingChange(name, None, "removed", _most(old), None, reason="is missing after")]
    if not old:
        return [TimingChange(name, None, "added", None, _most(new), reason="was not there before")]
    both = [key for key in old if key in new]
    same_unit = have_same_speed_unit(before.environment, after.environment)
    if None in old or None in new or not both:
        # Times of different signatures are not comparable, because the inputs differ.
        if None not in old and None not in new:
            return [
                TimingChange(name, None, "unknown", _most(old), _most(new), reason=OTHER_INPUTS)
            ]
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


def _notes(changes: Iterable[TimingChange], before: Timed, after: Timed) -> list[str]:
    notes = []
    unknown = [
        change
        for change in changes
        if change.before
        and change.after
        and change.interval_ms is None
        and change.reason != OTHER_INPUTS  # these were not compared at all
    ]
    if unknown and before.kind == "breakdown":
        notes.append(
            "A breakdown has one figure for each kernel, so its noise is not known, and only a "
            "change of more than the tolerance has a verdict."
        )
    elif unknown:
        names = quoted(dict.fromkeys(change.name for change in unknown))
        notes.append(
            f"The noise of {names} is not known: the files contain too few runs, or no quartiles. "
            f"Only a change of more than the tolerance has a verdict there."
        )
    hidden = [
        change for change in changes if change.verdict == "unknown" and change.noise is not None
    ]
    notes += [
        f"It is not known whether {change.name!r} has changed: {change.reason}."
        for change in hidden[:_MOST_REASONS]
    ]
    if hidden:
        more = len(hidden) - _MOST_REASONS
        notes.append(
            (f"The same applies to {more} more. " if more > 0 else "")
            + "To reduce the noise, measure in more processes, for longer, or on a calmer machine."
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
    changes: Iterable[TimingChange],
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
        f"The machine was slower {slow} than {fast}: while it measured {quoted(names)}, even the"
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
