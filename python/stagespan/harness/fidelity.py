"""How far a replay's time agrees with the live one. Needs nothing: scripts hold this text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLOSE_ENOUGH = 0.1
"""A ratio this far from 1 needs no reason."""


def fidelity(
    live: Mapping[str, Any] | None,
    timing: Mapping[str, Any],
    step: Mapping[str, Any] | None = None,
    launches: int | None = None,
) -> dict[str, Any]:
    """The replay's median beside the live one; everything that is not known is None.

    ``live`` has ``p50_ms`` and ``count`` of the live runs, and perhaps ``launches``. Of one step of
    a loop only an upper bound is known live: the stage's time by its number of steps.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("live_p50_ms", "live_runs", "live_steps", "ratio", "live_launches", "launches")
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
    if steps and timing.get("p50") is not None:
        found["ratio"] = timing["p50"] * steps / live["p50_ms"]
    return found


def fidelity_line(found: Mapping[str, Any], reasons: list[str]) -> str:
    """The same in one or two sentences."""
    if found["live_p50_ms"] is None:
        why = "".join(f": {reason}" for reason in reasons[:1])
        return f"How well this agrees with the live runs is not known{why}."
    runs, steps = found["live_runs"], found["live_steps"]
    live = found["live_p50_ms"]
    said = f"Live median {live:,.2f} ms"
    if steps is not None:
        said += f" for {steps} steps, so at most {live / steps:,.2f} ms a step"
    if runs is not None:
        said += f" ({runs:,} run{'' if runs == 1 else 's'} of this signature)"
    if found["ratio"] is not None:
        of = " of that" if steps is not None else ""
        said += f", replay {found['ratio']:.2f} x{of}"
    if found["launches"] is not None and found["live_launches"] is not None:
        said += f", launches {found['launches']:,} of {found['live_launches']:,}"
    return f"{said}." + (f" Possible reasons: {'; '.join(reasons)}." if reasons else "")


def likely_reasons(
    found: Mapping[str, Any],
    timing: Mapping[str, Any],
    differences: list[str],
    step: Mapping[str, Any] | None = None,
) -> list[str]:
    """What may explain a ratio that is not close to 1, the likeliest first."""
    ratio = found["ratio"]
    same_launches = found["live_launches"] in (None, found["launches"])
    if ratio is None or (abs(ratio - 1) <= CLOSE_ENOUGH and same_launches):
        return []
    reasons = list(differences)
    if not same_launches:
        reasons.append("another number of launches: other branches or shapes were taken")
    if timing.get("busy"):
        reasons.append("the machine was busy during the replay")
    if found["live_runs"] == 1:
        reasons.append("the live figure is of a single run, the first one")
    if step is not None and ratio < 1:
        reasons.append("the live figure includes what runs before and after the loop")
    elif step is not None:
        reasons.append("steps of this loop take different times, as with cached features")
    if timing.get("p75") and timing["p75"] > 1.5 * timing["p25"]:
        reasons.append("the iterations took very different times, as with state or cached features")
    if ratio < 1 and step is None:
        reasons.append("live, data was not in the processor's caches, or other stages ran beside")
    return reasons
