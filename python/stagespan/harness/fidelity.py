"""Compares the time of a replay with the live time.

The generated scripts contain the source of this module, so it imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FAR_BELOW, FAR_ABOVE = 0.8, 1.25  # ratios beyond which values may also be the reason
CLOSE_ENOUGH = 0.1
"""A ratio this far from 1 needs no reason."""
TOO_SHORT_MS = 0.1
"""Reading the clocks around a run takes up to a tenth of this time."""


def fidelity(
    live: Mapping[str, Any] | None,
    timing: Mapping[str, Any],
    step: Mapping[str, Any] | None = None,
    launches: int | None = None,
) -> dict[str, Any]:
    """Return the median of the replay and of the live runs; unknown figures are None.

    ``live`` contains ``p50_ms`` and ``count`` of the live runs, and may contain ``launches``. The
    live time of a single step of a loop is not known. For a loop, the time of the whole stage is
    therefore estimated: the time up to the second step, plus the time of a step for each further
    step. The time after the loop is left out.
    """
    found: dict[str, Any] = dict.fromkeys(
        (
            "live_p50_ms",
            "live_runs",
            "live_steps",
            "before_ms",
            "ratio",
            "live_launches",
            "launches",
        )
    )
    found["launches"] = launches
    if not live or not live.get("p50_ms"):
        return found
    steps = 1
    if step is not None:
        known = step.get("of")
        found["live_steps"] = known if known and not step.get("run_with") else None
        steps = found["live_steps"] or 0
    found["live_p50_ms"] = live["p50_ms"]
    found["live_runs"] = live.get("count")
    if step is None:
        found["live_launches"] = live.get("launches")
    if timing.get("p50") is None or not steps:
        return found
    took = timing["p50"] * steps
    before = step.get("before_ms") if step is not None and step["number"] == 2 else None
    if before is not None:
        found["before_ms"] = before
        took = before + timing["p50"] * (steps - 1)
    found["ratio"] = took / live["p50_ms"]
    return found


COMPARED = ("torch", "device", "cpu", "python")
"""Parts of an environment that explain a difference in time."""


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], threads: tuple[Any, int] | None = None
) -> list[str]:
    """Return how an environment differs from the live one; ``threads`` are torch's, live and here.

    Unknown parts are left out.
    """
    found = [
        f"the live runs used {name} {there[name]}, this one uses {here[name]}"
        for name in COMPARED
        if there.get(name) and here.get(name) and there[name] != here[name]
    ]
    if threads is not None and type(threads[0]) is int and threads[0] != threads[1]:
        word = "thread" if threads[0] == 1 else "threads"
        found.append(f"the live runs used {threads[0]} {word} of torch, this one uses {threads[1]}")
    return found


def fidelity_line(found: Mapping[str, Any], reasons: list[str]) -> str:
    """Return the result of `fidelity` as one or two sentences."""
    if found["live_p50_ms"] is None:
        why = "".join(f": {reason}" for reason in reasons[:1])
        return f"How well this agrees with the live runs is not known{why}."
    runs, steps = found["live_runs"], found["live_steps"]
    line = f"Live median {found['live_p50_ms']:,.2f} ms"
    if steps is not None:
        line += f" for {steps:,} step{'' if steps == 1 else 's'}"
    if runs is not None:
        line += f" ({runs:,} run{'' if runs == 1 else 's'} of this signature)"
    if found["ratio"] is not None:
        line += f", replay {found['ratio']:.2f} x"
        if found["before_ms"] is not None:
            line += f" ({found['before_ms']:,.2f} ms up to step 2, then {steps - 1:,} x this step)"
        elif steps is not None and steps > 1:
            line += f" ({steps:,} x this step)"
    if found["launches"] is not None and found["live_launches"] is not None:
        line += f", launches {found['launches']:,} of {found['live_launches']:,}"
    return f"{line}." + (f" Possible reasons: {'; '.join(reasons)}." if reasons else "")


def likely_reasons(
    found: Mapping[str, Any],
    timing: Mapping[str, Any],
    differences: list[str],
    step: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return reasons for a ratio that is not close to 1, the most likely first."""
    ratio = found["ratio"]
    same_launches = found["live_launches"] in (None, found["launches"])
    if ratio is None or (abs(ratio - 1) <= CLOSE_ENOUGH and same_launches):
        return []
    reasons = list(differences)
    if not same_launches:
        reasons.append("the number of launches differs: other branches or shapes were taken")
    if ratio > 1 and timing.get("busy"):
        reasons.append("the machine was busy during the replay")
    if found["live_runs"] == 1:
        reasons.append("the live figure is of a single run, the first one")
    if step is not None:
        reasons.append(
            "the steps of this loop take different times, as with cached features (--step chooses "
            "another step)"
        )
        if ratio < 1:
            reasons.append("the live figure includes what runs after the loop")
    if ratio > 1 and timing["p50"] < TOO_SHORT_MS:
        reasons.append(
            f"a run of {1000 * timing['p50']:,.0f} us is so short that reading the clocks is a "
            f"part of its time"
        )
    if timing.get("p75") and timing["p75"] > 1.5 * timing["p25"]:
        reasons.append("the iterations took very different times, as with state or cached features")
    if ratio < 1:
        reasons.append(
            "during the live runs, the machine was busy, other stages ran at the same time, or "
            "data was not in the processor's caches"
        )
    if not reasons or not FAR_BELOW <= ratio <= FAR_ABOVE:
        reasons.append(
            "the values of the inputs, or what the stage keeps between calls, such as cached "
            "results, differ from those of the live runs"
        )
    return reasons
