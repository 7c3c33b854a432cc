"""One line an analysis for the screen: what it found, where there is room to say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagespan.trace.analysis import Analysis
from stagespan.trace.analysis.kinds import KINDS
from stagespan.trace.analysis.result import Nothing, in_words, many, shortened

Figures = dict[str, Any]
_KINDS = 4
# A program's tensors take more: less is what an allocator that is not recorded left over.
_LEAST_BYTES = 2**20


def facts(analysis: Analysis) -> list[tuple[str, str]]:
    """Heading and line, of those analyses that have one."""
    found = []
    for name, line in _LINES.items():
        result = analysis.results.get(name)
        if result is None or isinstance(result, Nothing):
            continue
        said = line(result.to_dict())
        if said:
            found.append((name.capitalize(), said))
    return found


def _time(time_us: float) -> str:
    return in_words(time_us * 1000, "ns")


def _kernels(figures: Figures) -> str:
    kinds = [
        f"{KINDS.get(each['kind'], each['kind'])} {each['percent']:.1f} %"
        for each in figures["by_kind"][:_KINDS]
    ]
    what = "device event" if figures["on_device"] else "operator"
    count = many(figures["count"], what)
    return f"{', '.join(kinds)} of the {_time(figures['time_us'])} of {count}"


def _compiled(figures: Figures) -> str:
    counts = [
        ("forward graph", figures["graphs"]["forward"]),
        ("backward graph", figures["graphs"]["backward"]),
    ]
    if figures["graph_breaks"] is not None:
        counts.append(("graph break", sum(each["count"] for each in figures["graph_breaks"])))
    again = figures["recompilations"]
    found = [many(count, what) for what, count in counts if count]
    inside = sum(each["in_window"] for each in again)
    before = sum(each["before_window"] for each in again)
    eager = figures["eager_calls"] or 0
    found += [many(inside, "recompilation")] if inside else []
    found += [f"{many(before, 'recompilation')} before the trace"] if before else []
    found += [f"{many(eager, 'call')} that ran eagerly"] if eager else []
    return ", ".join(found)


def _steps(figures: Figures) -> str:
    step = figures["step_us"]
    if not figures["count"] or step is None:
        return ""
    if figures["count"] == 1:
        return f"1, {_time(step['mean'])}"
    return (
        f"{figures['count']:,}, {_time(step['median'])} in the median"
        f" ({_time(step['min'])} to {_time(step['max'])})"
    )


def _memory(figures: Figures) -> str:
    device = figures["devices"][0]
    if device["peak_bytes"] < _LEAST_BYTES:
        return ""
    return (
        f"at most {in_words(device['peak_bytes'], 'bytes')} on {shortened(device['device'], 30)},"
        f" at {_time(device['peak_time_us'])}"
    )


_LINES: dict[str, Callable[[Figures], str]] = {
    "kernels": _kernels,
    "compiled": _compiled,
    "steps": _steps,
    "memory": _memory,
}
