"""What the HTML page shows, as plain lists and texts: bounded in size, every name printable."""

from __future__ import annotations

import math
from importlib import metadata
from pathlib import Path
from typing import Any

from stagespan.trace.analysis import Analysis
from stagespan.trace.analysis.html.lanes import timeline
from stagespan.trace.analysis.html.pictures import pictures
from stagespan.trace.analysis.markdown import heading, summary
from stagespan.trace.analysis.result import (
    Cell,
    Finding,
    Nothing,
    Table,
    printable,
    shortened,
    window_of,
)
from stagespan.trace.analysis.terminal import name_of
from stagespan.trace.analysis.verdict import Verdict
from stagespan.trace.ranks.report import Ranks

MOST_ROWS = 5_000
"""Rows of a table; the others are in --json and --markdown, and the page says so."""
LONGEST_TEXT = 2_000
_EXACT = 1 << 53


def page_data(analysis: Analysis) -> dict[str, Any]:
    """All that the page shows. Times in ns from the begin of the trace's window."""
    trace = analysis.trace
    notes = [printable(trace.incomplete)] if trace.incomplete else []
    for what, counts in (("Left out", trace.left_out), ("Adjusted", trace.adjusted)):
        if counts:
            told = ", ".join(f"{printable(cause)} ({n:,})" for cause, n in counts.items())
            notes.append(f"{what}: {told}.")
    window = window_of(trace)
    lanes = timeline(trace, _steps(analysis))
    return {
        "title": shortened(name_of(Path(trace.path)), 120),
        "path": shortened(trace.path, LONGEST_TEXT),
        "summary": summary(analysis),
        "made_by": f"stagespan {metadata.version('stagespan')}",
        "incomplete": trace.incomplete is not None,
        "notes": notes,
        "verdict": _verdict(analysis),
        "device": _device(analysis),
        "devices": _devices(analysis),
        "findings": [written_finding(each) for each in analysis.findings()],
        "no_findings": "No findings: nothing in this trace asks for a closer look.",
        "window_ns": 0 if window is None else window[1] - window[0],
        "lanes": [lane.to_dict() for lane in lanes],
        "pictures": pictures(analysis),
        "sections": [_section(name, result) for name, result in analysis.results.items()],
    }


def _verdict(analysis: Analysis) -> dict[str, str] | None:
    ranks = analysis.results.get("ranks")
    if isinstance(ranks, Ranks):
        word, sentence = ranks.verdict()
        return {"word": word, "sentence": printable(sentence)}
    result = analysis.results.get("verdict")
    if result is None:
        return None
    if isinstance(result, Nothing):
        return {"word": "cannot tell", "sentence": printable(result.reason)}
    said = result.to_dict()
    return {"word": str(said["verdict"]), "sentence": printable(str(said["sentence"]))}


def _device(analysis: Analysis) -> list[tuple[str, int, str]]:
    """The parts of the verdict's time, which sum to it, each with the key of its colour."""
    result = analysis.results.get("verdict")
    return result.bar() if isinstance(result, Verdict) else []


def _devices(analysis: Analysis) -> int:
    """How many devices `_device` sums over."""
    result = analysis.results.get("verdict")
    return result.devices if isinstance(result, Verdict) else 0


def _steps(analysis: Analysis) -> list[tuple[str, int, int]]:
    """Name, begin and length of the steps that were found."""
    result = analysis.results.get("steps")
    if result is None or isinstance(result, Nothing):
        return []
    return [
        (step["name"], round(step["time_us"] * 1000), round(step["step_us"] * 1000))
        for step in result.to_dict()["steps"]
    ]


def written_finding(finding: Finding) -> dict[str, Any]:
    """A finding for the page."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "sentence": shortened(finding.sentence, LONGEST_TEXT),
        "evidence": [
            (shortened(each.event, LONGEST_TEXT), each.time_ns, _cell(each.figure), each.unit)
            for each in finding.evidence
        ],
    }


def _section(name: str, result: Any) -> dict[str, Any]:
    return {
        "name": name,
        "heading": heading(name),
        "unknown": shortened(result.reason, LONGEST_TEXT) if isinstance(result, Nothing) else None,
        "tables": [written_table(table) for table in result.tables()],
    }


def written_table(table: Table) -> dict[str, Any]:
    """A table for the page, cut where it is too long."""
    note = printable(table.note)
    rows = list(table.rows[:MOST_ROWS])
    if len(table.rows) > len(rows):
        note = (
            f"{note} The first {len(rows):,} of {len(table.rows):,} rows are here; all are in"
            " --json and --markdown."
        ).strip()
    return {
        "title": printable(table.title),
        "columns": [(printable(name), unit) for name, unit in table.columns],
        "rows": [[_cell(cell) for cell in row] for row in rows],
        "note": shortened(note, LONGEST_TEXT),
    }


def _cell(cell: Cell) -> Cell:
    """A cell as JSON and a browser hold it: no NaN, no integer that it would round."""
    if isinstance(cell, str):
        return shortened(cell, LONGEST_TEXT)
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    if isinstance(cell, int) and abs(cell) >= _EXACT:
        return f"{cell:,}"
    return cell
