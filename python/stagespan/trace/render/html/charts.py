"""The data of the charts: idle causes, steps, memory, stacks, ranks, changes.

Charts are made from the JSON of an analysis. If that lacks what a chart needs, there is no chart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagespan.trace.analysis import Analysis
from stagespan.trace.derived.step_times import HOST_PARTS, PARTS
from stagespan.trace.result import Unavailable, counted, shortened

Figures = dict[str, Any]
ChartData = dict[str, Any]

MOST_STEPS = 400
MOST_RANKS = 256
MOST_PARTS = 12
LONGEST_NAME = 160
_PARTS_OF_RANKS = {
    "computing": "computing",
    "waiting": "waiting for other ranks",
    "communicating": "other communication",
    "copying": "copying, nothing else",
    "idle": "idle",
}


def charts(analysis: Analysis) -> list[ChartData]:
    """One entry a picture: the analysis that it belongs to, its kind, and what it is drawn from.

    Times in ns.
    """
    found = []
    for name, result in analysis.results.items():
        draw = _DRAWN.get(name)
        if draw is None or isinstance(result, Unavailable):
            continue
        picture = draw(result.to_dict())
        if picture is not None:
            found.append({"analysis": name, **picture})
    return found


def _ns(time_us: float | None) -> int:
    return round((time_us or 0.0) * 1000)


def _idle_causes(figures: Figures) -> ChartData | None:
    """Cause, its meaning, idle time and gaps, the longest first."""
    causes = [
        (cause, each["meaning"], _ns(each["idle_us"]), each["gaps"])
        for cause, each in figures["by_cause"].items()
    ]
    return {"kind": "idle_causes", "causes": causes} if causes else None


def _steps(figures: Figures) -> ChartData | None:
    """The parts of every step; of many steps the first."""
    steps = figures["steps"][:MOST_STEPS]
    if len(steps) < 2:
        return None
    parts = list(figures["parts_us"])
    on_device = bool((PARTS.keys() - HOST_PARTS.keys()) & set(parts))
    words = PARTS if on_device else HOST_PARTS
    times = {part: [_ns(step["parts_us"].get(part)) for step in steps] for part in parts}
    left = figures["count"] - len(steps)
    return {
        "kind": "steps",
        "names": [shortened(step["name"], LONGEST_NAME) for step in steps],
        "on_device": on_device,
        "parts": [(part, words.get(part, part), of) for part, of in times.items() if any(of)],
        "note": f"Not drawn: {counted(left, 'step')}." if left > 0 else "",
    }


def _memory(figures: Figures) -> ChartData | None:
    """Bytes over time, of each device."""
    devices = [
        {
            "device": shortened(device["device"], LONGEST_NAME),
            "curve": [(_ns(time), size) for time, size in device["curve"]],
        }
        for device in figures["devices"]
        if len(device["curve"]) > 1
    ]
    return {"kind": "memory", "devices": devices} if devices else None


def _flame(figures: Figures) -> ChartData | None:
    """The tree of frames as columns, callers before what they call."""
    names: list[str] = []
    parents: list[int] = []
    own: list[int] = []
    deepest = 0
    left = [(figures["tree"], -1, 1)]
    while left:
        node, parent, depth = left.pop()
        deepest = max(deepest, depth)
        number = len(names)
        names.append(shortened(node["name"], LONGEST_NAME))
        parents.append(parent)
        own.append(_ns(node["self_us"]))
        left += [(child, number, depth + 1) for child in reversed(node["children"])]
    if not any(own):
        return None
    frames = figures["frames"]
    note = f"{len(names):,} frames" + (f" of {frames:,} are drawn" if frames > len(names) else "")
    return {
        "kind": "flame",
        "names": names,
        "parents": parents,
        "self_ns": own,
        "depth": deepest,
        "note": f"{note}; short ones of one caller are shown as one.",
    }


def _ranks(figures: Figures) -> ChartData | None:
    """What the time of each rank went to; the parts of a rank sum to its time."""
    ranks = figures["ranks"][:MOST_RANKS]
    parts = [
        (_PARTS_OF_RANKS[part], part, [_ns(each["parts_us"][part]) for each in ranks])
        for part in _PARTS_OF_RANKS
    ]
    if len(ranks) < 2 or not any(any(times) for *_, times in parts):
        return None
    left = len(figures["ranks"]) - len(ranks)
    return {
        "kind": "ranks",
        "ranks": [each["rank"] for each in ranks],
        "parts": [part for part in parts if any(part[2])],
        "note": f"Not drawn: {counted(left, 'rank')}." if left else "",
    }


def _change(figures: Figures) -> ChartData | None:
    """What the time before became, part by part; small parts as one, so that all sum up."""
    before, after = _ns(figures["before"]["time_us"]), _ns(figures["after"]["time_us"])
    parts = [(shortened(each["name"], LONGEST_NAME), _ns(each["change_us"]))
             for each in figures["parts"] if each["change_us"]]  # fmt: skip
    parts.sort(key=lambda part: -abs(part[1]))
    rest = after - before - sum(time for _, time in parts[:MOST_PARTS])
    shown = parts[:MOST_PARTS]
    if rest and len(parts) > MOST_PARTS:
        shown.append((counted(len(parts) - MOST_PARTS, "smaller part"), rest))
    if not shown:
        return None
    return {
        "kind": "change",
        "before": before,
        "after": after,
        "parts": shown,
        "per": shortened(figures["per"], 40),
    }


_DRAWN: dict[str, Callable[[Figures], ChartData | None]] = {
    "against": _change,
    "flame": _flame,
    "idle": _idle_causes,
    "memory": _memory,
    "ranks": _ranks,
    "steps": _steps,
}
