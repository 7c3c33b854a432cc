"""Compares the time of a replay with the live time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLOSE_ENOUGH = 0.1
"""A ratio this far from 1 needs no reason."""
NOT_SHORT_MS = 1.0
SHORT_RATIO = 1.4
"""The largest usual ratio of a replay below `NOT_SHORT_MS`, where colder caches count more."""
MOST_REASONS = 2
WAITS = 0.5
"""The part of the time from which a thread waits for other threads, which its CPU time lacks."""
VARYING = 1.5
"""The ratio of the upper to the lower quartile from which iterations take different times."""
SLOWED_REASON = 1.1
"""The ratio of the fixed computation's mean to its fastest time from which it is a reason."""


def fidelity(
    live: Mapping[str, Any] | None,
    timing: Mapping[str, Any],
    step: Mapping[str, Any] | None = None,
    launches: int | None = None,
    *,
    on_host: bool = False,
) -> dict[str, Any]:
    """Return the median of the replay and of the live runs; unknown figures are None.

    ``live`` contains ``p50_ms`` and ``count`` of the live runs, and may contain ``cpu_p50_ms`` and
    ``launches``. If the stage runs ``on_host``, ``ratio`` is that of the CPU times of the thread,
    because the wall time depends on what else the machine does; ``compared`` says which is
    compared. The live time of a single step of a loop is not known. For a loop, the time of the
    whole stage is therefore estimated: the time up to the second step, plus the time of a step for
    each further step. The time after the loop is left out.
    """
    names = "compared live_p50_ms live_cpu_p50_ms live_runs live_steps before_ms ratio"
    facts: dict[str, Any] = dict.fromkeys((*names.split(), "live_launches"))
    facts["launches"] = launches
    if not live or not live.get("p50_ms"):
        return facts
    steps = 1
    if step is not None:
        known = step.get("of")
        facts["live_steps"] = known if known and not step.get("run_with") else None
        steps = facts["live_steps"] or 0
    live_ms = facts["live_p50_ms"] = live["p50_ms"]
    live_cpu_ms = facts["live_cpu_p50_ms"] = live.get("cpu_p50_ms")
    facts["live_runs"] = live.get("count")
    if step is None:
        facts["live_launches"] = live.get("launches")
    is_cpu = on_host and live_cpu_ms and _is_cpu_time_whole(timing)
    facts["compared"] = "cpu" if is_cpu else "wall"
    one_ms = timing["cpu"]["p50"] if is_cpu else timing.get("p50")
    if one_ms is None or not steps:
        return facts
    took_ms = one_ms * steps
    key = "before_cpu_ms" if is_cpu else "before_ms"
    before_ms = step.get(key) if step is not None and step["number"] == 2 else None
    if before_ms is not None:
        facts["before_ms"] = before_ms
        took_ms = before_ms + one_ms * (steps - 1)
    facts["ratio"] = took_ms / (live_cpu_ms if is_cpu else live_ms)
    return facts


def _is_cpu_time_whole(timing: Mapping[str, Any]) -> bool:
    """Whether the thread does the stage's work itself, and does not wait for other threads."""
    cpu, wall_ms = timing.get("cpu") or {}, timing.get("mean")
    if not cpu.get("p50") or not wall_ms or timing.get("waited_ms") is None:
        return bool(cpu.get("p50"))
    busy_ms = cpu["mean"] + timing["waited_ms"] / timing["iterations"]
    return bool(busy_ms >= (1 - WAITS) * wall_ms)


COMPARED = ("torch", "device", "cpu", "python")
"""Parts of an environment that explain a difference in time."""


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], threads: tuple[Any, int] | None = None
) -> list[tuple[int, str]]:
    """Return how an environment differs from the live one; ``threads`` are torch's, live and here.

    Each difference has a sign: 1 if it makes the replay slower, -1 if faster, 0 if either. Unknown
    parts are left out.
    """
    sentences: list[tuple[int, str]] = []
    if threads is not None and type(threads[0]) is int and threads[0] != threads[1]:
        word = "thread" if threads[0] == 1 else "threads"
        sign = 1 if threads[1] < threads[0] else -1
        text = f"the live runs used {threads[0]} {word} of torch, this one uses {threads[1]}"
        sentences.append((sign, text))
    sentences += [
        (0, f"the live runs used {name} {there[name]}, this one uses {here[name]}")
        for name in COMPARED
        if there.get(name) and here.get(name) and there[name] != here[name]
    ]
    return sentences


def fidelity_line(
    facts: Mapping[str, Any], reasons: list[str], timing: Mapping[str, Any] | None = None
) -> str:
    """Return the result of `fidelity` as one or two sentences."""
    if facts["live_p50_ms"] is None:
        why = "".join(f": {reason}" for reason in reasons[:1])
        return f"How well this agrees with the live runs is not known{why}."
    runs, steps = facts["live_runs"], facts["live_steps"]
    is_cpu = facts["compared"] == "cpu"
    live_ms = facts["live_cpu_p50_ms" if is_cpu else "live_p50_ms"]
    line = f"Live median {'CPU time ' if is_cpu else ''}{live_ms:,.2f} ms"
    if steps is not None:
        line += f" for {steps:,} step{'' if steps == 1 else 's'}"
    if runs is not None:
        line += f" ({runs:,} run{'' if runs == 1 else 's'} of this signature)"
    if facts["ratio"] is not None:
        line += f", replay {facts['ratio']:.2f} x"
        if _is_short(timing):
            line += " (below 1 ms: +10 to 40 % is usual)"
        if facts["before_ms"] is not None:
            line += f" ({facts['before_ms']:,.2f} ms up to step 2, then {steps - 1:,} x this step)"
        elif steps is not None and steps > 1:
            line += f" ({steps:,} x this step)"
    if facts["launches"] is not None and facts["live_launches"] is not None:
        line += f", launches {facts['launches']:,} of {facts['live_launches']:,}"
    word = "reason" if len(reasons) == 1 else "reasons"
    return f"{line}." + (f" Possible {word}: {'; '.join(reasons)}." if reasons else "")


def _is_short(timing: Mapping[str, Any] | None) -> bool:
    one_ms = (timing or {}).get("p50")
    return one_ms is not None and one_ms < NOT_SHORT_MS


def likely_reasons(
    facts: Mapping[str, Any],
    timing: Mapping[str, Any],
    differences: list[tuple[int, str]],
    step: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return at most two reasons for a ratio that is not close to 1, the most likely first.

    Each begins with its sign, ``slower:`` or ``faster:`` for what the replay is, and its figures
    support it. Equal launches leave only differences of the machine.
    """
    ratio, launches, live = facts["ratio"], facts["launches"], facts["live_launches"]
    counted: list[tuple[int, str]] = []
    if live is not None and launches is not None and live != launches:
        text = f"it makes {launches:,} launches, a live run {live:,}: other branches or shapes"
        counted.append((1 if launches > live else -1, text))
    if ratio is None:
        return []
    is_usual = _is_short(timing) and 1 <= ratio <= SHORT_RATIO
    if not counted and (abs(ratio - 1) <= CLOSE_ENOUGH or is_usual):
        return []
    candidates = [*counted, *differences, *_of_the_machine(facts, timing)]
    if live is None or launches is None:
        candidates += _of_the_work(facts, timing, step)
    sign = 1 if ratio > 1 else -1
    word = "slower" if sign > 0 else "faster"
    kept = [f"{word}: {text}" for way, text in candidates if way in (0, sign)]
    if counted and counted[0][0] != sign:  # a fact, though not the reason for this ratio
        kept.insert(0, f"{'slower' if counted[0][0] > 0 else 'faster'}: {counted[0][1]}")
    return kept[:MOST_REASONS]


def _of_the_machine(facts: Mapping[str, Any], timing: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return reasons that do not depend on what the stage computes, with their signs."""
    reasons: list[tuple[int, str]] = []
    slowdown = timing.get("slowdown")
    if slowdown is not None and slowdown >= SLOWED_REASON:
        reasons.append(
            (1, f"a fixed computation took {slowdown:.2f} x its fastest time during the replay")
        )
    elif facts["compared"] == "wall" and timing.get("busy"):
        reasons.append((1, "the machine was busy during the replay"))
    if facts["live_runs"] == 1:
        reasons.append((-1, "the live figure is of a single run, the first one"))
    cpu = timing.get("cpu") or {}
    if facts["compared"] == "wall" and cpu.get("p50") and facts["live_cpu_p50_ms"] is None:
        text = (
            "wall times are compared, because the live runs have no CPU time, and they depend on "
            "what else the machines did"
        )
        reasons.append((0, text))
    return reasons


def _of_the_work(
    facts: Mapping[str, Any], timing: Mapping[str, Any], step: Mapping[str, Any] | None
) -> list[tuple[int, str]]:
    """Return reasons in what the stage computes, with their signs."""
    reasons: list[tuple[int, str]] = []
    if step is not None:
        text = (
            f"the time of {facts['live_steps'] or 0:,} steps is estimated from step "
            f"{step['number']}, and steps can take different times (--step chooses another one)"
        )
        reasons.append((0, text))
    figures = (timing.get("cpu") or timing) if facts["compared"] == "cpu" else timing
    low_ms, high_ms = figures.get("p25"), figures.get("p75")
    if low_ms and high_ms and high_ms > VARYING * low_ms:
        text = f"its iterations vary, the middle half from {low_ms:,.2f} to {high_ms:,.2f} ms"
        reasons.append((0, text))
    if step is None:
        text = (
            "the launches of the live runs are not known (STAGESPAN_LAUNCHES=true counts them), so "
            "other values or state may have led to other work"
        )
        reasons.append((0, text))
    return reasons
