"""``compare_timing_reports`` with the output of TeleFuser."""

from __future__ import annotations

from typing import Any

from stagespan.pages.escaping import escaped
from stagespan.report.reader import number, read_timing_report

_THRESHOLD_PERCENT = 5.0


def compare_timing_reports(baseline_path: str, new_path: str) -> str:
    """Compare two reports, and return Markdown with the totals and each stage.

    A change of more than 5 % has a red or green mark. The marks do not consider noise; ``stagespan
    compare`` does.
    """
    before, after = read_timing_report(baseline_path), read_timing_report(new_path)
    total = _row("Total (ms)", _total(before), _total(after))
    memory = [_peak_gb(report) for report in (before, after)]
    stages = sorted({*before["stages"], *after["stages"]})
    rows = [
        _row(name, _duration(before["stages"].get(name)), _duration(after["stages"].get(name)))
        for name in stages
    ]
    return "\n".join(
        [
            "### Performance Comparison",
            "",
            "| Metric | Baseline | New | Diff |",
            "|--------|----------|-----|------|",
            total,
            f"| Peak Memory (GB) | {memory[0]:.2f} | {memory[1]:.2f} | - |",
            "",
            "### Stage Breakdown",
            "",
            "| Stage | Baseline (ms) | New (ms) | Diff (%) |",
            "|-------|---------------|----------|----------|",
            *rows,
        ]
    )


def _row(label: str, before: float, after: float) -> str:
    percent = 100 * (after - before) / before if before else 0.0
    mark = "🔴" if percent > _THRESHOLD_PERCENT else "⚪"
    if percent < -_THRESHOLD_PERCENT:
        mark = "🟢"
    return f"| {escaped(label)} | {before:.1f} | {after:.1f} | {percent:+.1f}% {mark} |"


def _total(report: dict[str, Any]) -> float:
    return number(report.get("total_stages_ms", report.get("total_ms"))) or 0.0


def _duration(stage: dict[str, Any] | None) -> float:
    return number((stage or {}).get("duration_ms")) or 0.0


def _peak_gb(report: dict[str, Any]) -> float:
    memory = report.get("memory")
    known = memory.get("peak_reserved_gb") if isinstance(memory, dict) else None
    return number(report.get("peak_memory_gb", known)) or 0.0
