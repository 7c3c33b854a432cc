"""One line an analysis for the screen: what it found, where there is room to say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagespan.trace.analysis import Analysis
from stagespan.trace.analysis.kinds import KINDS
from stagespan.trace.analysis.result import Nothing, in_words, many, shortened

Figures = dict[str, Any]
_KINDS = 4


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
    what = "kernels" if figures["on_device"] else "operators"
    return f"{', '.join(kinds)} of {_time(figures['time_us'])} in {figures['count']:,} {what}"


def _compiled(figures: Figures) -> str:
    counts = [
        ("forward graph", figures["graphs"]["forward"]),
        ("backward graph", figures["graphs"]["backward"]),
    ]
    if figures["graph_breaks"] is not None:
        counts.append(("graph break", sum(each["count"] for each in figures["graph_breaks"])))
    counts.append(("recompilation", len(figures["recompilations"])))
    return ", ".join(many(count, what) for what, count in counts if count)


def _steps(figures: Figures) -> str:
    step = figures["step_us"]
    if not figures["count"] or step is None:
        return ""
    return (
        f"{figures['count']:,}, {_time(step['median'])} in the median"
        f" ({_time(step['min'])} to {_time(step['max'])})"
    )


def _memory(figures: Figures) -> str:
    device = figures["devices"][0]
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
