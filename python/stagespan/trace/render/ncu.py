"""The report on kernels for the terminal and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagespan.text.console import trimmed
from stagespan.trace.ncu.limits import CANNOT_TELL
from stagespan.trace.ncu.report import NcuReport, summary
from stagespan.trace.render.markdown import escaped, listed_findings, markdown_table
from stagespan.trace.render.terminal import finding_block, screen, text_block, text_table
from stagespan.trace.result import in_words, printable, shortened

if TYPE_CHECKING:
    from rich.console import Console


def show(report: NcuReport, console: Console | None = None) -> None:
    """Print the tables and findings, by default on standard output."""
    console = screen(console)
    with trimmed(console):
        console.print(text_block(_head(report), "bold"))
        for note in _notes(report):
            console.print(text_block(note, "yellow"))
        for table in report.tables():
            console.print(text_table(table))
        for finding in report.findings():
            console.print(finding_block(finding, 0), highlight=False)


def markdown(report: NcuReport) -> str:
    """Return the whole report as Markdown."""
    lines = ["# Kernels by Nsight Compute", "", f"{escaped(_head(report))}.", ""]
    lines += [line for note in _notes(report) for line in (escaped(note), "")]
    lines += listed_findings(report.findings())
    for table in report.tables():
        lines += [*markdown_table(table), ""]
    return "\n".join(lines).rstrip() + "\n"


def _head(report: NcuReport) -> str:
    stage = f"{report.top.stage}: " if report.top is not None else ""
    return printable(f"{stage}{summary(report)}")


def _notes(report: NcuReport) -> list[str]:
    """Return what is missing: damaged rows, kernels that were not measured, unknown verdicts."""
    notes = [printable(report.reading.incomplete)] if report.reading.incomplete else []
    left_out = report.reading.left_out
    if left_out:
        listed = [f"{what} ({count:,})" for what, count in left_out.items()]
        notes.append(f"Skipped: {', '.join(listed)}.")
    if report.missing:
        names = ", ".join(shortened(kernel.name, 60) for kernel in report.missing)
        time = in_words(sum(kernel.ms for kernel in report.missing) * 1e6, "ns")
        notes.append(f"Requested, but not measured ({time} in the trace): {names}.")
    reasons: dict[str, int] = {}
    for each in report.judged:
        if each.judgement.bound == CANNOT_TELL:
            text = "; ".join(each.judgement.reasons)
            reasons[text] = reasons.get(text, 0) + 1
    notes += [f"No verdict on {number:,} kernels: {text}." for text, number in reasons.items()]
    return notes
