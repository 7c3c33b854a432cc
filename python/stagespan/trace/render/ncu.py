"""The report on kernels for the terminal, as Markdown, as SVG and as an HTML page."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from stagespan.console import set_width, trimmed
from stagespan.trace.ncu.command import base_name
from stagespan.trace.ncu.report import NcuReport, summary
from stagespan.trace.ncu.roofline import COLOURS, svg
from stagespan.trace.ncu.verdict import CANNOT_TELL
from stagespan.trace.render.html import filled
from stagespan.trace.render.html.data import written_finding, written_table
from stagespan.trace.render.markdown import escaped, markdown_table
from stagespan.trace.result import Cell, in_cell, in_words, printable, shortened

if TYPE_CHECKING:
    from rich.console import Console


_WIDTH = 100
_SEVERITIES = {"high": "bold red", "medium": "yellow", "low": "cyan"}


def show(report: NcuReport, console: Console | None = None) -> None:
    """Print a line for each kernel and the findings, on standard output."""
    from rich.console import Console

    console = console or Console()
    set_width(console, _WIDTH)
    with trimmed(console):
        _show(report, console)


def _show(report: NcuReport, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(Text(_head(report), "bold"))
    for note in _notes(report):
        console.print(Text(note, "yellow"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("kernel", "bound"):
        table.add_column(heading, no_wrap=True)
    for heading in ("of stage", "one launch", "computing", "memory", "occupancy"):
        table.add_column(heading, justify="right")
    for row in report.tables()[0].rows:
        kernel, bound, percent, _, time, computing, memory, occupancy, _ = row
        shares = [_percent(cell) for cell in (computing, memory, occupancy)]
        table.add_row(
            Text(shortened(base_name(str(kernel)), 34)),
            Text(str(bound)),
            _percent(percent),
            in_cell(time, "ns"),
            *shares,
        )
    console.print(table)
    for finding in report.findings():
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=6)
        grid.add_column()
        severity = Text(finding.severity, _SEVERITIES[finding.severity])
        grid.add_row(severity, Text(printable(finding.sentence)))
        console.print(grid, highlight=False)
    for reason in _missing_reasons(report):
        console.print(Text(reason, "dim"))


def markdown(report: NcuReport) -> str:
    """Return the whole report as Markdown."""
    lines = ["# Kernels by Nsight Compute", "", f"{escaped(_head(report))}.", ""]
    lines += [line for note in _notes(report) for line in (escaped(note), "")]
    findings = report.findings()
    if findings:
        lines += ["## Findings", ""]
    for finding in findings:
        lines.append(f"- **{finding.severity}** {escaped(finding.sentence)}")
        lines += [f"  - {escaped(str(each))}" for each in finding.evidence]
    lines += [""] if findings else []
    for table in report.tables():
        lines += [*markdown_table(table), ""]
    lines += [line for reason in _missing_reasons(report) for line in (escaped(reason), "")]
    return "\n".join(lines).rstrip() + "\n"


def roofline(report: NcuReport) -> str:
    """Return the roofline as SVG."""
    stage = f"Roofline of {report.top.stage}" if report.top is not None else "Roofline"
    return svg(shortened(stage, 80), report.placed(), report.roofs)


def html(report: NcuReport) -> str:
    """Return a page that needs no network. Raises StagespanError if plotly is not installed."""
    placed = report.placed()
    picture = {
        "analysis": "kernels",
        "kind": "roofline",
        "bandwidth": report.roofs.bandwidth,
        "rates": sorted(report.roofs.rates.items()),
        "points": [
            (shortened(each.name, 200), each.bound, each.point.intensity, each.point.rate)
            for each in placed
        ],
        "colours": COLOURS,
    }
    title = report.top.stage if report.top is not None else "kernels"
    data: dict[str, Any] = {
        "title": shortened(f"{title}: kernels by Nsight Compute", 120),
        "summary": summary(report),
        "made_by": f"stagespan {metadata.version('stagespan')}",
        "incomplete": False,
        "notes": [*_notes(report), *_missing_reasons(report)],
        "verdict": None,
        "device": [],
        "findings": [written_finding(each) for each in report.findings()],
        "no_findings": "No findings: no kernel has enough metrics for a verdict.",
        "window_ns": 0,
        "lanes": [],
        "pictures": [picture] if placed else [],
        "sections": [
            {
                "name": "kernels",
                "heading": "Kernels",
                "unknown": None,
                "tables": [written_table(table) for table in report.tables()],
            }
        ],
    }
    return filled(data)


def _percent(cell: Cell) -> str:
    return "-" if cell is None else in_cell(cell, "%")


def _head(report: NcuReport) -> str:
    stage = f"{report.top.stage}: " if report.top is not None else ""
    return printable(f"{stage}{summary(report)}")


_SKIPPED = {
    "line that is no row of the table": "line that is not a row of the table",
    "value that is no number": "value that is not a number",
}


def _notes(report: NcuReport) -> list[str]:
    notes = [printable(report.reading.incomplete)] if report.reading.incomplete else []
    left_out = report.reading.left_out
    if left_out:
        listed = [f"{_SKIPPED.get(what, what)} ({count:,})" for what, count in left_out.items()]
        notes.append(f"Skipped: {', '.join(listed)}.")
    if report.missing:
        names = ", ".join(shortened(kernel.name, 60) for kernel in report.missing)
        time = in_words(sum(kernel.ms for kernel in report.missing) * 1e6, "ns")
        notes.append(f"Requested, but not measured ({time} in the trace): {names}.")
    return notes


def _missing_reasons(report: NcuReport) -> list[str]:
    """Return the reasons why some kernels have no verdict, each once."""
    reasons: dict[str, int] = {}
    for each in report.judged:
        if each.judgement.bound == CANNOT_TELL:
            text = "; ".join(each.judgement.reasons)
            reasons[text] = reasons.get(text, 0) + 1
    return [f"No verdict on {number:,} kernels: {reason}." for reason, number in reasons.items()]
