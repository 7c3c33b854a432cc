"""All that was found out about a trace, as Markdown."""

from __future__ import annotations

import re

from stagespan.trace.analysis import Analysis
from stagespan.trace.analysis.result import Nothing, Table, in_cell, in_words, printable, window_of

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$])")


def markdown(analysis: Analysis) -> str:
    """The page: what was read, the findings with their evidence, and each analysis' tables."""
    trace = analysis.trace
    lines = ["# Trace analysis", "", f"{escaped(trace.path)}: {summary(analysis)}.", ""]
    if trace.incomplete:
        lines += [f"**{escaped(trace.incomplete)}**", ""]
    for what, counts in (("Left out", trace.left_out), ("Adjusted", trace.adjusted)):
        if counts:
            told = ", ".join(f"{escaped(cause)} ({n:,})" for cause, n in counts.items())
            lines += [f"{what}: {told}.", ""]
    findings = analysis.findings()
    if findings:
        lines += ["## Findings", ""]
    for finding in findings:
        lines.append(f"- **{finding.severity}** {escaped(finding.sentence)}")
        lines += [f"  - {escaped(str(each))}" for each in finding.evidence]
    if findings:
        lines.append("")
    for name, result in analysis.results.items():
        tables = result.tables()
        if tables:
            lines += [f"## {heading(name)}", ""]
        for table in tables:
            lines += [*markdown_table(table), ""]
    unknown = {n: r.reason for n, r in analysis.results.items() if isinstance(r, Nothing)}
    if unknown:
        lines += ["## Not known", ""]
        lines += [f"- {heading(name)}: {escaped(reason)}" for name, reason in unknown.items()]
    return "\n".join(lines).rstrip() + "\n"


def summary(analysis: Analysis) -> str:
    """How much was read: entries, and the length of the window."""
    window = window_of(analysis.trace)
    length = "" if window is None else f", {in_words(window[1] - window[0], 'ns')} long"
    return f"{analysis.trace.total:,} entries{length}"


def heading(name: str) -> str:
    """An analysis' name as a heading: "device_use" is "Device use"."""
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def markdown_table(table: Table) -> list[str]:
    """A table as lines, its note below."""
    heads = [name for name, _ in table.columns]
    units = [unit for _, unit in table.columns]
    figures = [
        all(not isinstance(row[at], str) for row in table.rows) for at in range(len(table.columns))
    ]
    lines = [f"### {escaped(table.title)}", ""]
    lines.append("| " + " | ".join(escaped(head) for head in heads) + " |")
    lines.append("| " + " | ".join("---:" if figure else "---" for figure in figures) + " |")
    for row in table.rows:
        cells = [escaped(in_cell(cell, unit)) for cell, unit in zip(row, units, strict=True)]
        lines.append("| " + " | ".join(cells) + " |")
    if table.note:
        lines += ["", escaped(table.note)]
    return lines
