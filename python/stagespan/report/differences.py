"""Says how the machines, the software and the replays of two measurements differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stagespan.pages.amounts import quoted
from stagespan.pages.escaping import one_line

SPEED_CHANGE = 0.05
"""The relative change of the processor's speed between two measurements that is reported."""
_MACHINE = ("cpu", "cpu_count", "platform", "device")
_SOFTWARE = ("python", "torch", "stagespan")


def machine_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a warning if two environments are known to be of different machines, otherwise []."""
    found = _differences(before, after, _MACHINE)
    return [f"The machines differ, so the times are not comparable: {found}."] if found else []


def have_same_speed_unit(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the times of the fixed computation of two environments are comparable."""
    return not _differences(before, after, (*_MACHINE, "python"))


def speed_differences(
    ratios: Mapping[str, float],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    sides: tuple[str, str] = ("before", "after"),
) -> list[str]:
    """Return warnings if the processor was slower in one of two measurements on one machine.

    ``ratios`` says how many times as long a fixed computation took after as before, by stage.
    ``before`` and ``after`` are the environments, and ``sides`` what the warnings call the two. The
    warnings explain verdicts and change none.
    """
    if not have_same_speed_unit(before, after):
        return []
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


def replay_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a warning if two replays are known to be of different iterations, otherwise []."""
    found = _differences(before, after, before)
    return [f"The replays differ, so the times may not be comparable: {found}."] if found else []


def software_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a sentence if the software of two environments differs, otherwise []."""
    found = _differences(before, after, _SOFTWARE)
    return [f"The software differs: {found}."] if found else []


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], keys: Iterable[str]) -> str:
    return ", ".join(
        one_line(f"{key} {before[key]} before and {after[key]} after")
        for key in keys
        if before.get(key) is not None and after.get(key) is not None and before[key] != after[key]
    )
