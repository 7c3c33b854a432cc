"""Decides whether errors, work a second and the total of all runs speak against a faster median."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from stagespan.pages.amounts import amount, signed_percent, three_digits
from stagespan.report.noise import Z
from stagespan.report.reader import count_of, number

MOST_ERRORS = 0.05
"""The part of the runs from which failing more often than before counts even if it is chance."""
_FIGURES = (
    (0.0, "min_ms"),
    (0.25, "p25_ms"),
    (0.5, "p50_ms"),
    (0.75, "p75_ms"),
    (0.95, "p95_ms"),
    (0.99, "p99_ms"),
    (1.0, "max_ms"),
)

_ROUNDING = 1e-9

Effect = Literal["worse", "unclear", "remark"]


@dataclass(frozen=True)
class Outcome:
    """What all runs of a stage came to. None means unknown."""

    count: int | None = None
    errors: int | None = None
    mean_ms: float | None = None
    mean_error_ms: float | None = None
    """The standard error of the mean."""
    work_per_s: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, stage: dict[str, Any]) -> Outcome:
        """Return the outcome of a stage of a timing report."""
        count, errors = count_of(stage), number(stage.get("errors"))
        total_ms, mean_ms = number(stage.get("duration_ms")), number(stage.get("mean_ms"))
        if mean_ms is None and count and total_ms is not None:
            mean_ms = total_ms / count
        return cls(
            count,
            None if errors is None or not count or errors > count else int(errors),
            mean_ms,
            _mean_error_ms(stage, count, mean_ms),
            _rates(stage, total_ms),
        )


@dataclass(frozen=True)
class Objection:
    """Something that a verdict about times alone would hide."""

    effect: Effect
    """``worse`` if it outweighs times, ``unclear`` if times are then not known to have improved,
    and ``remark`` if it changes no verdict."""
    sentence: str


def objections(
    before: Outcome,
    after: Outcome,
    tolerance: float,
    tolerance_ms: float,
    *,
    same_inputs: bool,
    with_mean: bool,
) -> list[Objection]:
    """Return what speaks against a stage although its times do not.

    ``tolerance`` and ``tolerance_ms`` are the changes that do not count. Without ``same_inputs``,
    the runs are of several signatures, so that rates may differ because of the inputs alone.
    ``with_mean`` says whether the mean can tell anything.
    """
    is_short = abs((after.mean_ms or 0.0) - (before.mean_ms or 0.0)) <= tolerance_ms
    objections_ = [_errors(before, after), *_work(before, after, tolerance, same_inputs, is_short)]
    if with_mean and not is_short:
        objections_.append(_mean(before, after, tolerance))
    return [objection for objection in objections_ if objection is not None]


def failed_before(before: Outcome, after: Outcome) -> str | None:
    """Return a phrase if runs failed before and do no longer: failing can take less time."""
    objection = _errors(after, before)
    if objection is None or objection.effect != "worse":
        return None
    return f"{before.errors:,} of {before.count:,} runs failed before"


def more_work(before: Outcome, after: Outcome, tolerance: float) -> str | None:
    """Return a phrase if the stage now does more work a second than before."""
    for what, rate in before.work_per_s.items():
        now = after.work_per_s.get(what, 0.0)
        if rate and now > rate * (1 + max(tolerance, _relative_noise(before, after) or 0.0)):
            return _rate_change(what, rate, now)
    return None


def _errors(before: Outcome, after: Outcome) -> Objection | None:
    if before.errors is None or after.errors is None or not before.count or not after.count:
        return None
    then, now = before.errors / before.count, after.errors / after.count
    if now <= then:
        return None
    sentence = (
        f"{after.errors:,} of {after.count:,} runs failed ({before.errors:,} of {before.count:,} "
        f"before)"
    )
    share = (before.errors + after.errors) / (before.count + after.count)
    per_run = 1 / before.count + 1 / after.count
    by_chance = Z * math.sqrt(share * (1 - share) * per_run) + per_run / 2
    is_worse = now - then > min(by_chance, MOST_ERRORS)
    return Objection("worse" if is_worse else "remark", sentence)


def _work(
    before: Outcome, after: Outcome, tolerance: float, same_inputs: bool, is_short: bool
) -> list[Objection | None]:
    objections: list[Objection | None] = []
    noise = _relative_noise(before, after)
    for what, rate in before.work_per_s.items():
        if not rate:
            continue
        now = after.work_per_s.get(what)
        if now is None:
            sentence = f"no {what} are counted any more ({amount(rate)} {what}/s before)"
            objections.append(Objection("unclear", sentence))
            continue
        fall = 1 - now / rate
        if is_short and before.mean_ms and after.mean_ms:
            # The runs may only be slower by a time that does not count: compare the work of a run.
            fall = 1 - now * after.mean_ms / (rate * before.mean_ms)
        if fall > tolerance:
            is_sure = same_inputs and fall > (noise or 0.0)
            sentence = _rate_change(what, rate, now)
            objections.append(Objection("worse" if is_sure else "unclear", sentence))
    return objections


def _mean(before: Outcome, after: Outcome, tolerance: float) -> Objection | None:
    if not before.mean_ms or after.mean_ms is None:
        return None
    rise = after.mean_ms / before.mean_ms - 1
    if rise <= tolerance + _ROUNDING:
        return None
    noise = _relative_noise(before, after)
    sentence = (
        f"on average, a run takes {three_digits(after.mean_ms)} ms instead of"
        f" {three_digits(before.mean_ms)} ms "
        f"({signed_percent(rise)})"
    )
    return Objection("worse" if noise is not None and rise > noise else "unclear", sentence)


def _relative_noise(before: Outcome, after: Outcome) -> float | None:
    """Return half the width of the interval of the mean's change, by the mean; None if unknown."""
    then_ms, now_ms = before.mean_error_ms, after.mean_error_ms
    if not before.mean_ms or then_ms is None or now_ms is None:
        return None
    return Z * math.hypot(then_ms, now_ms) / before.mean_ms


def _rate_change(what: str, rate: float, now: float) -> str:
    change = signed_percent(now / rate - 1)
    return f"{amount(now)} {what}/s instead of {amount(rate)} ({change})"


def _rates(stage: Mapping[str, Any], total_ms: float | None) -> dict[str, float]:
    """Return the work a second of each kind that was done at all."""
    rates, work = stage.get("work_per_s"), stage.get("work")
    by_unit = {str(k): number(v) for k, v in rates.items()} if isinstance(rates, dict) else {}
    for what, done in work.items() if isinstance(work, dict) else ():
        known = number(done)
        if by_unit.get(str(what)) is None and known is not None and total_ms:
            by_unit[str(what)] = known / total_ms * 1000
    return {what: rate for what, rate in by_unit.items() if rate is not None and rate >= 0}


def _mean_error_ms(
    stage: Mapping[str, Any], count: int | None, mean_ms: float | None
) -> float | None:
    """Return the standard error of a mean from the quantiles; None without those of the slowest.

    Between two quantiles, the times are taken to be spread evenly.
    """
    quantiles = [
        (at, value) for at, name in _FIGURES if (value := number(stage.get(name))) is not None
    ]
    if not count or mean_ms is None or len(quantiles) < 3 or quantiles[-1][0] < 0.99:
        return None
    quantiles = [(0.0, quantiles[0][1]), *quantiles, (1.0, quantiles[-1][1])]
    squares = sum(
        (end - begin) * (low**2 + low * high + high**2) / 3
        for (begin, low), (end, high) in (
            ((at, value - mean_ms), (next_at, following - mean_ms))
            for (at, value), (next_at, following) in itertools.pairwise(quantiles)
        )
    )
    return math.sqrt(squares / count)
