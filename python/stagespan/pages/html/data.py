"""The data of the HTML page as plain lists and texts, limited in size and on one line."""

from __future__ import annotations

import base64
import gzip
import json
import math
from importlib import metadata
from typing import Any

from stagespan.pages.escaping import one_line
from stagespan.pages.kernel_names import labels
from stagespan.pages.page import Page, heading
from stagespan.pages.result import Bar, Cell, Finding, Result, Table, Titled, Unavailable, shortened
from stagespan.pages.timeline import LONGEST_EVENT, drawn

MOST_ROWS = 5_000
"""The most rows of a table. All rows are in --json and --markdown, as the page says."""
LONGEST_TEXT = 2_000
LONGEST_SHOWN = 70
_EXACT = 1 << 53


def page_data(page: Page) -> dict[str, Any]:
    """Return all data of the page. Times are in ns from the start of its window."""
    caveat = page.caveat()
    notes = [one_line(caveat)] if caveat is not None else []
    notes += map(one_line, page.notes())
    timeline = drawn(page.timeline())
    is_titled = [isinstance(result, Titled) for result in page.results.values()]
    return {
        "words": page.words._asdict(),
        "title": shortened(page.name(), 120),
        "summary": page.summary(),
        "made_by": f"stagespan {metadata.version('stagespan')}",
        "incomplete": caveat is not None,
        "notes": notes,
        "verdict": _title(page),
        "bar": _bar(page),
        "lines": list(map(_text, page.lines())),
        "folded": page.open_sections is not None,
        "compared": any(is_titled) and not all(is_titled),
        "findings": [written_finding(each) for each in page.findings()],
        "window_ns": page.window_ns(),
        "rows": [row["name"] for row in timeline["rows"]],
        "timeline": packed(timeline),
        "pictures": charts(page),
        "sections": [_section(page, name) for name in page.results],
    }


def packed(value: dict[str, Any]) -> str:
    """Return compressed JSON as text."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _title(page: Page) -> dict[str, str] | None:
    """Return the title of the first result that has one."""
    for each in page.results.values():
        title = each.title()
        if title is not None:
            word, sentence = title
            return {"word": one_line(word), "sentence": one_line(sentence)}
    return None


def _bar(page: Page) -> dict[str, Any] | None:
    """Return the first bar of the first screens of the results."""
    for each in page.results.values():
        for block in each.head():
            if isinstance(block, Bar):
                return {"name": block.name, "count": block.count, "parts": block.parts}
    return None


def _is_first(result: Result | Unavailable) -> bool:
    """Return whether a result comes before the timeline, such as a comparison."""
    return result.is_requested if isinstance(result, Unavailable) else isinstance(result, Titled)


def written_finding(finding: Finding) -> dict[str, Any]:
    """Return a finding for the page."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "sentence": _text(finding.first_line),
        "rest": _text(finding.explanation),
        "evidence": [
            (shortened(each.event, LONGEST_EVENT), each.time_ns, _cell(each.figure), each.unit)
            for each in finding.evidence
        ],
    }


def charts(page: Page) -> list[dict[str, Any]]:
    """Return the charts, each with the name of its result."""
    results = {n: r for n, r in page.results.items() if isinstance(r, Result)}
    drawn = {name: result.chart() for name, result in results.items()}
    return [{"analysis": name, **_smaller(chart)} for name, chart in drawn.items() if chart]


def _smaller(chart: dict[str, Any]) -> dict[str, Any]:
    """Return a chart with its long lists, such as the frames of a flame graph, compressed."""
    long = {
        key: value for key, value in chart.items() if isinstance(value, list) and len(value) > 500
    }
    if not long:
        return chart
    return {
        **{key: value for key, value in chart.items() if key not in long},
        "packed": packed(long),
    }


def _section(page: Page, name: str) -> dict[str, Any]:
    result = page.results[name]
    return {
        "name": name,
        "first": _is_first(result),
        "open": page.open_sections is None or name in page.open_sections or _is_first(result),
        "heading": heading(name),
        "unknown": _text(result.reason) if isinstance(result, Unavailable) else None,
        "tables": [written_table(table) for table in page.tables[name]],
    }


def written_table(table: Table) -> dict[str, Any]:
    """Return a table for the page, cut if it is too long."""
    note = one_line(table.note)
    rows = list(table.rows[:MOST_ROWS])
    if len(table.rows) > len(rows):
        note = (
            f"{note} The first {len(rows):,} of {len(table.rows):,} rows are here; all are in"
            " --json and --markdown."
        ).strip()
    written = [[_cell(cell) for cell in row] for row in rows]
    return {
        "title": one_line(table.title),
        "columns": [(one_line(name), unit) for name, unit in table.columns],
        "rows": written,
        "labels": _labels(table, written),
        "note": _text(note),
    }


def _labels(table: Table, rows: list[list[Cell]]) -> dict[str, str]:
    """Return the labels of all shortened names; they are distinct in each column."""
    shortened_names: dict[str, str] = {}
    for at, (_, unit) in enumerate(table.columns):
        names = [str(row[at]) for row in rows if isinstance(row[at], str) and unit != "words"]
        short = labels(names, LONGEST_SHOWN)
        shortened_names |= {name: label for name, label in short.items() if label != name}
    return shortened_names


def _text(text: str) -> str:
    return one_line(text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "...")


def _cell(cell: Cell) -> Cell:
    """Return a cell for JSON in browsers: no NaN, and no integer that would be rounded."""
    if isinstance(cell, str):
        return _text(cell)
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    if isinstance(cell, int) and abs(cell) >= _EXACT:
        return f"{cell:,}"
    return cell
