"""Compares two timing reports, as Markdown."""

from __future__ import annotations

import os
from typing import Any

from stagespan.report.reader import number, read_timing_report
from stagespan.text.amounts import signed
from stagespan.text.escaping import code, escaped

_NONE = "-"


def compare_timing_reports(path_a: str | os.PathLike[str], path_b: str | os.PathLike[str]) -> str:
    """Compare two ``timing.json`` files, ``path_a`` (before) and ``path_b`` (after).

    Returns Markdown with the totals, the common stages ordered by their change, the stages that are
    only in one report, and the differences between the environments. Also reads TeleFuser's files.
    Raises ReportError if a file cannot be read.
    """
    before, after = read_timing_report(path_a), read_timing_report(path_b)
    before_line = f"- before: {code(os.fspath(path_a))}{_of_request(before)}"
    after_line = f"- after: {code(os.fspath(path_b))}{_of_request(after)}"
    parts = [
        "# Timing comparison",
        f"{before_line}\n{after_line}",
        _totals(before, after),
        _common(before["stages"], after["stages"]),
        _only("Added stages", after["stages"], before["stages"]),
        _only("Removed stages", before["stages"], after["stages"]),
        _environment(before.get("environment"), after.get("environment")),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _totals(before: dict[str, Any], after: dict[str, Any]) -> str:
    rows = []
    for label, key in (("wall clock", "wall_clock_ms"), ("all stages", "total_stages_ms")):
        a, b = number(before.get(key)), number(after.get(key))
        if a is not None or b is not None:
            rows.append([label, _ms(a), _ms(b), *_change(a, b)])
    header = ["total", "before ms", "after ms", "change ms", "change %"]
    return _table(header, rows) if rows else ""


def _common(before: dict[str, Any], after: dict[str, Any]) -> str:
    both = [name for name in before if name in after]
    if not both:
        return "No stage is in both reports."

    def change(name: str) -> float:
        return abs(float(after[name]["duration_ms"]) - float(before[name]["duration_ms"]))

    rows = []
    for name in sorted(both, key=lambda name: (-change(name), name)):
        a, b = before[name], after[name]
        mean_a, mean_b = _mean(a), _mean(b)
        rows.append(
            [
                _cell(name),
                _ms(number(a["duration_ms"])),
                _ms(number(b["duration_ms"])),
                *_change(number(a["duration_ms"]), number(b["duration_ms"])),
                _pair(_count(a), _count(b)),
                _ms(mean_a),
                _ms(mean_b),
                _change(mean_a, mean_b)[1],
            ]
        )
    header = ["stage", "before ms", "after ms", "change ms", "change %", "count"]
    header += ["mean before ms", "mean after ms", "mean change %"]
    return "## Stages\n\n" + _table(header, rows)


def _only(title: str, stages: dict[str, Any], others: dict[str, Any]) -> str:
    rows = [
        [_cell(name), _ms(number(stage["duration_ms"])), _count(stage), _ms(_mean(stage))]
        for name, stage in stages.items()
        if name not in others
    ]
    return f"## {title}\n\n" + _table(["stage", "ms", "count", "mean ms"], rows) if rows else ""


def _environment(before: Any, after: Any) -> str:
    if not isinstance(before, dict) or not isinstance(after, dict):
        return ""
    known = dict.fromkeys((*before, *after))
    # The process id always differs, but this does not explain anything.
    keys = [key for key in known if key != "pid" and before.get(key) != after.get(key)]
    rows = [[_cell(key), _cell(before.get(key)), _cell(after.get(key))] for key in keys]
    return "## Environment\n\n" + _table(["what", "before", "after"], rows) if rows else ""


# --- figures ------------------------------------------------------------------------------------


def _mean(stage: dict[str, Any]) -> float | None:
    mean = number(stage.get("mean_ms"))
    if mean is not None:
        return mean
    duration, count = number(stage["duration_ms"]), number(stage.get("count"))
    return duration / count if duration is not None and count else None


def _count(stage: dict[str, Any]) -> str:
    count = number(stage.get("count"))
    return _NONE if count is None else f"{count:g}"


def _pair(first: str, second: str) -> str:
    return first if first == second else f"{first} → {second}"


def _ms(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.3f}"


def _change(before: float | None, after: float | None) -> list[str]:
    """Absolute and relative change as text; the relative one is `_NONE` if `before` is 0."""
    if before is None or after is None:
        return [_NONE, _NONE]
    share = f"{signed(100 * (after - before) / before, 1)} %" if before > 0 else _NONE
    return [signed(after - before, 3), share]


# --- Markdown -----------------------------------------------------------------------------------


def _of_request(report: dict[str, Any]) -> str:
    request = report.get("request_id")
    return f" (request {code(str(request))})" if request else ""


def _cell(value: object) -> str:
    """Return text for a cell; a dash for missing values."""
    return _NONE if value is None else escaped(str(value)) or _NONE


def _table(header: list[str], rows: list[list[str]]) -> str:
    align = ["---", *("---:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, align, *rows))
