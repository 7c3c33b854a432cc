"""Compares two files of times, and decides which changes count."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np

from stagespan.errors import ReportError
from stagespan.pages.amounts import (
    in_percent,
    percent,
    quoted,
    signed,
    signed_percent,
    three_digits,
)
from stagespan.report.differences import (
    have_same_speed_unit,
    machine_differences,
    replay_differences,
    software_differences,
    speed_differences,
)
from stagespan.report.noise import (
    BEST,
    CONFIDENCE,
    FEWEST_RUNS,
    Drawn,
    Parts,
    Times,
    drawn_change,
    interval_of_change,
)
from stagespan.report.outcomes import failed_before, more_work, objections
from stagespan.report.timed import Timed, read

Statistic = Literal["median", "fastest"]
Verdict = Literal["slower", "worse", "faster", "same", "unknown", "added", "removed"]
WORDS: dict[Verdict, str] = {
    "slower": "slower",
    "worse": "worse",
    "faster": "faster",
    "same": "unchanged",
    "unknown": "not known",
    "added": "added",
    "removed": "missing",
}
"""The verdicts as users read them. A stage is worse if its runs do not take longer, but fail, do
less work a second, or take longer on average."""
DISTURBED_PROFILE = 2.0
"""A profiled iteration that took more than this many times its median time shows nothing."""
_MOST_REASONS = 4
_LEAST_PART = 0.2
"""A part of a run counts if its change is more than this part of the tolerance of the whole run."""
_SHORT_PART = 0.1
"""The changes of a part are told in ms if the part is shorter than this part of the run."""
OTHER_INPUTS = "ran with other inputs: no signature in common"
_INPUTS_LABEL, _TOO_SHORT_LABEL = "other inputs", "too short"
_TRACER_LABEL, _DISTURBED_LABEL = "tracer", "disturbed"
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
class PartChange:
    """The change of one part of the time of a run: what its thread computes, or how it waits."""

    name: Literal["computing", "waiting"]
    before_ms: float
    after_ms: float
    interval_ms: tuple[float, float]
    """The bounds of the change."""
    limit_ms: float
    """The largest change that does not count."""
    relative_limit_ms: float
    """The same without the absolute tolerance."""
    of_ms: float
    """The time of a whole run before."""
    statistic: Statistic = "median"

    @property
    def change_ms(self) -> float:
        """`after_ms` - `before_ms`."""
        return self.after_ms - self.before_ms

    @property
    def bounds(self) -> str:
        """The bounds of the change as text, in ms if the part was short before."""
        is_short = self.before_ms < _SHORT_PART * self.of_ms
        return _bounds(self.interval_ms, 0.0 if is_short else self.before_ms)


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
    parts: tuple[PartChange, ...] = ()
    """Computing and waiting, if one thread of the host did the work and its CPU time is known."""
    at_one_speed: bool = False
    """Whether what the speed of the processor decides is compared at its fastest speed before."""
    label: str = ""
    """What tables show instead of the verdict."""
    remarks: tuple[str, ...] = ()
    """Sentences about what the verdict does not contain."""

    @property
    def before_ms(self) -> float | None:
        """The compared figure before; None if there are no times."""
        if self.parts:
            return sum(part.before_ms for part in self.parts)
        return self._judged(self.before)

    @property
    def after_ms(self) -> float | None:
        """The compared figure after; None if there are no times."""
        if self.parts:
            return sum(part.after_ms for part in self.parts)
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
        """The distance from the change to the farther one of its bounds; None if unknown.

        If the parts of a run are compared, that of the part with the largest.
        """
        if self.interval_ms is None or self.change_ms is None:
            return None
        known = [(self.change_ms, self.interval_ms)]
        known += [(part.change_ms, part.interval_ms) for part in self.parts]
        return max(_noise_ms(change_ms, bounds) for change_ms, bounds in known)

    @property
    def noise(self) -> float | None:
        """`noise_ms` divided by `before_ms`; None if that is not possible."""
        return (
            None if self.noise_ms is None or not self.before_ms else self.noise_ms / self.before_ms
        )

    @property
    def bounds(self) -> str:
        """The bounds of the change as text, ``+3.1 to +5.0 %``; empty if they are unknown."""
        return "" if self.interval_ms is None else _bounds(self.interval_ms, self.before_ms or 0.0)

    def exceeding(self, tolerance: Tolerance) -> set[str]:
        """Return what takes longer than the tolerance allows: parts, or "" for the whole run."""
        found = {p.name for p in self.parts if p.change_ms > p.limit_ms}
        is_longer = (self.change_ms or 0.0) > tolerance.limit_ms(self.before_ms or 0.0)
        return {*found, *([""] if is_longer else [])}

    def exceeds_noise(self, limit: float) -> bool:
        """Whether neither slower nor faster, with a noise that is unknown or above ``limit``.

        ``limit`` is a fraction of the time before. The noise of times that a tracer has changed is
        unknown.
        """
        if self.verdict not in ("same", "unknown"):
            return False
        return self.noise is None or self.noise > limit or bool(self.tracers)

    @property
    def tracers(self) -> tuple[str, ...]:
        """The tracers and profilers that were active in one of the two measurements."""
        sides = (times.tracers for times in (self.before, self.after) if times is not None)
        return tuple(dict.fromkeys(name for side in sides for name in side))

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
    def is_worse(self) -> bool:
        """Whether anything counts as slower or worse, so that the comparison fails."""
        return any(change.verdict in ("slower", "worse") for change in self.changes)

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

    If one thread of the host did the work, its computing (CPU time) and its waiting are compared,
    and being slower in either is slower. Else the whole times are compared. Each is the median, or
    the fastest runs if other programs used the machine. With ``same_speed_unit`` (see
    `have_same_speed_unit`), what the speed of the processor decides is compared at the processor's
    fastest speed before.

    Nothing is known of times that were measured while a tracer was active.
    """
    change = TimingChange(name, signature, "same", before, after)
    judged = _by_parts(change, tolerance, same_speed_unit) or _whole(change, same_speed_unit)
    verdict, reason, label = _judgement(judged, tolerance)
    if "fastest" in (judged.statistic, *(part.statistic for part in judged.parts)):
        reason += "; by the fastest runs, because other programs used the machine"
    if judged.at_one_speed:
        reason += ", at the same speed of the processor"
    if judged.tracers:
        verdict, reason, label = "unknown", _was_active(before, after), _TRACER_LABEL
    return replace(judged, verdict=verdict, reason=reason, label=label)


def _was_active(before: Times, after: Times) -> str:
    if after.tracers:
        return f"{' and '.join(after.tracers)} was active"
    return f"{' and '.join(before.tracers)} was active in the measurement before"


def _whole(change: TimingChange, same_speed_unit: bool) -> TimingChange:
    """Return a change with the whole times of the runs compared."""
    before, after = change.before, change.after
    assert before is not None
    assert after is not None
    at_one_speed = _at_one_speed(before, after) if same_speed_unit else None
    if at_one_speed is not None:
        tracers = before.tracers, after.tracers
        before, after = (replace(t, tracers=n) for t, n in zip(at_one_speed, tracers, strict=True))
    statistic: Statistic = "median"
    is_disturbed = before.disturbed or after.disturbed
    if at_one_speed is None and is_disturbed and before.best_ms and after.best_ms:
        statistic = "fastest"
    quantile = 0.5 if statistic == "median" else BEST
    return replace(
        change,
        before=before,
        after=after,
        interval_ms=interval_of_change(before, after, quantile),
        statistic=statistic,
        at_one_speed=at_one_speed is not None,
    )


def _by_parts(
    change: TimingChange, tolerance: Tolerance, same_speed_unit: bool
) -> TimingChange | None:
    """Return a change with computing and waiting compared; None if they are not known."""
    before, after = change.before, change.after
    assert before is not None
    assert after is not None
    fixed_ns = before.fixed_ns if same_speed_unit else None
    sides = [times.parts_ms(fixed_ns) for times in (before, after)]
    if fixed_ns is not None and None in sides:
        fixed_ns = None
        sides = [times.parts_ms(None) for times in (before, after)]
    old, new = sides
    if old is None or new is None:
        return None
    can_be_fastest = before.best_ms is not None and after.best_ms is not None
    is_disturbed = bool(before.disturbed or after.disturbed) and can_be_fastest
    run_ms = fmean(float(np.median(session.computing + session.waiting)) for session in old)
    drawn: dict[str, Drawn] = {}
    statistics: dict[str, Statistic] = {}
    for seed, part in enumerate(Parts._fields):
        is_fastest = is_disturbed and (part == "waiting" or fixed_ns is None)
        statistics[part] = "fastest" if is_fastest else "median"
        then, now = ([getattr(session, part) for session in side] for side in (old, new))
        part_ms = fmean(float(np.median(runs)) for runs in then)
        is_short = part_ms < _SHORT_PART * run_ms
        of_ms = run_ms if part == "waiting" else part_ms if is_short else None
        drawn[part] = drawn_change(then, now, BEST if is_fastest else 0.5, of_ms=of_ms, seed=seed)
    of_run_ms = tolerance.relative * run_ms
    limits_ms = {
        "computing": max(
            tolerance.relative * drawn["computing"].before_ms, _LEAST_PART * of_run_ms
        ),
        "waiting": of_run_ms,
    }
    return replace(
        change,
        interval_ms=drawn["computing"].plus(drawn["waiting"]).interval_ms,
        parts=tuple(
            PartChange(
                "computing" if part == "computing" else "waiting",
                figure.before_ms,
                figure.after_ms,
                figure.interval_ms,
                max(limits_ms[part], tolerance.absolute_ms),
                limits_ms[part],
                run_ms,
                statistics[part],
            )
            for part, figure in drawn.items()
        ),
        at_one_speed=fixed_ns is not None,
    )


def judge_repeated(
    name: str,
    before: Times,
    after: Times,
    tolerance: Tolerance,
    *,
    same_speed_unit: bool = False,
) -> TimingChange:
    """Judge a stage that was measured in several processes, the sessions of ``after``.

    The stage counts as slower only if what is slower exceeds the tolerance in the latest process
    alone, too. Otherwise the earlier ones can have been slow for another reason.
    """
    judged = judge(name, before, after, tolerance, same_speed_unit=same_speed_unit)
    *earlier, latest = after.each_session
    if judged.verdict != "slower" or not earlier:
        return judged
    alone = judge(name, before, latest, tolerance, same_speed_unit=same_speed_unit)
    if alone.exceeding(tolerance) & judged.exceeding(tolerance):
        return replace(judged, reason=f"{judged.reason}, also in a new process")
    first = judge(
        name, before, Times.of_sessions(earlier), tolerance, same_speed_unit=same_speed_unit
    )
    percentages = (signed_percent(change.change or 0.0) for change in (first, alone))
    return replace(
        judged,
        verdict="unknown",
        reason="{} in one process, but {} in a new one".format(*percentages),
    )


class _Judgement(NamedTuple):
    verdict: Verdict
    reason: str
    label: str = ""


def _judgement(change: TimingChange, tolerance: Tolerance) -> _Judgement:
    """Return the verdict of a change, and the reason for it.

    A part that is slower decides. If no part and not the whole is slower, the whole decides whether
    it is faster, and whatever is not known makes the verdict unknown.
    """
    whole = _judged_alone(change, tolerance)
    parts = [(part, _judged_alone(part, tolerance)) for part in change.parts]
    verdicts = [whole.verdict, *(judged.verdict for _, judged in parts)]
    if whole.verdict == "faster" and "slower" not in verdicts:
        return whole
    order: tuple[Verdict, ...] = ("slower", "unknown", "faster", "same")
    verdict = min(verdicts, key=order.index)
    deciding = [(part, judged) for part, judged in parts if judged.verdict == verdict]
    if verdict == "same" or not deciding:
        return whole
    reasons = (f"{_told(part)}, {judged.reason}" for part, judged in deciding)
    return _Judgement(verdict, "; ".join(reasons), deciding[0][1].label)


def _told(part: PartChange) -> str:
    return (
        f"{part.name} takes {three_digits(part.after_ms)} ms instead of"
        f" {three_digits(part.before_ms)} ms "
        f"({part.bounds})"
    )


def _judged_alone(change: TimingChange | PartChange, tolerance: Tolerance) -> _Judgement:
    """Return the verdict of a change, or of a part of it, and the reason for it."""
    before_ms, change_ms = change.before_ms or 0.0, change.change_ms or 0.0
    if isinstance(change, PartChange):
        limit_ms, relative_ms = change.limit_ms, change.relative_limit_ms
        limit = f"{limit_ms:,.3g} ms"
    else:
        limit_ms, relative_ms = tolerance.limit_ms(before_ms), tolerance.relative * before_ms
        limit = tolerance.described(before_ms)
    is_more = abs(change_ms) > limit_ms
    direction: Verdict = "slower" if change_ms > 0 else "faster"
    if isinstance(change, TimingChange) and change.interval_ms is None:
        has_runs = all(
            times is not None and times.samples_ms for times in (change.before, change.after)
        )
        if is_more and has_runs:
            few = f"but of fewer than {FEWEST_RUNS} runs"
            return _Judgement("unknown", f"more than the tolerance of {limit}, {few}")
        if is_more:
            return _Judgement(direction, "more than the tolerance; the noise is not known")
        return _Judgement("unknown", f"within the tolerance of {limit}, but the noise is not known")
    assert change.interval_ms is not None
    low_ms, high_ms = change.interval_ms
    if is_more and not low_ms <= 0 <= high_ms:
        return _Judgement(direction, "more than the tolerance and the noise")
    noise_ms = _noise_ms(change_ms, change.interval_ms)
    if noise_ms > limit_ms:
        bounds = change.bounds
        return _Judgement(
            "unknown", f"the change is {bounds}, too wide for the tolerance of {limit}"
        )
    if max(abs(change_ms), noise_ms) > relative_ms:
        what = f"the change of {change.bounds} is at most {limit}"
        return _Judgement("unknown", f"too short to judge: {what}", _TOO_SHORT_LABEL)
    return _Judgement("same", f"within the tolerance of {limit_ms:,.3g} ms")


def _noise_ms(change_ms: float, interval_ms: tuple[float, float]) -> float:
    low_ms, high_ms = interval_ms
    return max(high_ms - change_ms, change_ms - low_ms)


def _bounds(interval_ms: tuple[float, float], before_ms: float) -> str:
    """Return the bounds of a change as text, in percent of a time before, or else in ms."""
    low, high = interval_ms
    if before_ms:
        return f"{signed(100 * low / before_ms, 1)} to {signed(100 * high / before_ms, 1)} %"
    return f"{signed(low, 3)} to {signed(high, 3)} ms"


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
    comparison = compare(read(path_a), read(path_b), tolerance or Tolerance())
    if comparison.problem is not None:
        raise ReportError(comparison.problem)
    return comparison


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
        _with_outcome(change, before, after, tolerance)
        for name in dict.fromkeys(name for name, _ in (*before.times, *after.times))
        for change in _of_name(name, before, after, tolerance)
    ]
    changes = [_without_trust(change, before, after) for change in changes]
    changes.sort(key=lambda change: -abs(change.change_ms or 0))
    totals = {name: before.totals_ms.get(name) for name in (*before.totals_ms, *after.totals_ms)}
    return TimingComparison(
        before.path,
        after.path,
        before.kind,
        tolerance,
        changes,
        machine_differences(before.environment, after.environment)
        + speed_differences(
            {change.name: change.slowdown for change in changes if change.slowdown},
            before.environment,
            after.environment,
        )
        + replay_differences(before.replayed, after.replayed),
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
                TimingChange(
                    *(name, None, "unknown", _most(old), _most(new)),
                    reason=OTHER_INPUTS,
                    label=_INPUTS_LABEL,
                )
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


def _with_outcome(
    change: TimingChange, before: Timed, after: Timed, tolerance: Tolerance
) -> TimingChange:
    """Return a change whose verdict is also about errors, work a second and the mean."""
    then, now = before.outcomes.get(change.name), after.outcomes.get(change.name)
    if then is None or now is None or change.before is None or change.after is None:
        return change
    same_inputs = change.signature is None and change.label != _INPUTS_LABEL
    limits = tolerance.relative, tolerance.absolute_ms
    doubt = failed_before(then, now) or more_work(then, now, tolerance.relative)
    with_mean = same_inputs and doubt is None and change.verdict != "slower"
    against = objections(then, now, *limits, same_inputs=same_inputs, with_mean=with_mean)
    heavy = " and ".join(each.sentence for each in against if each.effect != "remark")
    remarks = tuple(each.sentence for each in against if each.effect == "remark")
    is_worse = any(each.effect == "worse" for each in against)
    verdict, reason, label = change.verdict, change.reason, change.label
    if label == _TOO_SHORT_LABEL and change.before.total_ms and change.after.total_ms is not None:
        reason += (
            f"; {change.after.count:,} runs take {three_digits(change.after.total_ms)} ms in all,"
            f" and {change.before.count:,} took {three_digits(change.before.total_ms)} ms before"
        )
    if verdict == "slower" and doubt is not None and not heavy:
        verdict, reason = "unknown", f"slower, but {doubt}"
    elif heavy and verdict in ("same", "faster"):
        verdict, reason = "worse" if is_worse else "unknown", f"{WORDS[verdict]}, but {heavy}"
    elif heavy:
        reason = f"{reason}; {heavy}"
        if is_worse and verdict == "unknown":
            verdict, label = "worse", ""
    return replace(change, verdict=verdict, reason=reason, label=label, remarks=remarks)


def _without_trust(change: TimingChange, before: Timed, after: Timed) -> TimingChange:
    """Return a change of a breakdown as unknown if other work disturbed a profiled iteration."""
    ratio, path = max((file.profiled_ratio or 0.0, file.path) for file in (before, after))
    if ratio <= DISTURBED_PROFILE or change.verdict not in ("slower", "faster"):
        return change
    reason = f"the profiled iteration of {path} took {ratio:.2f} x its median time"
    return replace(change, verdict="unknown", reason=reason, label=_DISTURBED_LABEL)


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
        and not change.tracers
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
    notes += [
        f"{change.name!r} is {WORDS[change.verdict]}: {change.reason}."
        for change in changes
        if change.verdict == "worse" or (change.verdict == "slower" and change.parts)
    ]
    notes += [f"{change.name!r}: {remark}." for change in changes for remark in change.remarks]
    hidden = [
        change
        for change in changes
        if change.verdict == "unknown"
        and (change.noise is not None or change.label in (_TRACER_LABEL, _DISTURBED_LABEL))
    ]
    notes += [
        f"It is not known whether {change.name!r} has changed: {change.reason}."
        for change in hidden[:_MOST_REASONS]
    ]
    more = len(hidden) - _MOST_REASONS
    notes += [f"The same applies to {more} more."] if more > 0 else []
    if not all(change.label for change in hidden):
        times = (times for change in hidden for times in (change.before, change.after))
        has_runs = any(each is not None and each.basis == "samples" for each in times)
        test = "a bootstrap of the medians" if has_runs else "the quartiles of the runs"
        notes.append(
            f"To reduce the noise (from {test}, at {in_percent(100 * CONFIDENCE)}), measure in"
            " more processes, for longer, or on a calmer machine."
        )
    notes += software_differences(before.environment, after.environment)
    return notes
