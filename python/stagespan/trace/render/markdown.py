"""The results of a trace as Markdown."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from stagespan.text.amounts import counted, in_words
from stagespan.text.escaping import escaped, one_line
from stagespan.text.tables import Column, markdown_table
from stagespan.trace.analysis import Analysis
from stagespan.trace.ascend.folder import TRACE
from stagespan.trace.derived.device import shared_correlations
from stagespan.trace.kernel_names import labels
from stagespan.trace.read.model import Trace
from stagespan.trace.read.other_tools import unknown_categories
from stagespan.trace.read.plausibility import (
    ABSENT,
    CUT,
    ENDS_FAR,
    FAR,
    NEGATIVE,
    RANGE_CUT,
)
from stagespan.trace.result import (
    MOST_LETTERS,
    Finding,
    Line,
    Table,
    Titled,
    Unavailable,
    texts_of,
    window_of,
)


def markdown(analysis: Analysis) -> str:
    """Return the page: the file, the findings with their evidence, and all tables."""
    trace = analysis.trace
    name = escaped(name_of(Path(trace.path)))
    lines = ["# Trace analysis", "", f"{name}: {summary(analysis)}.", ""]
    if trace.caveat:
        lines += [f"**{escaped(trace.caveat)}**", ""]
    lines += listed_findings(analysis.findings())
    if (together := analysis.together()) is not None:
        lines += [escaped(together), ""]
    for name, tables in analysis.tables.items():
        if tables:
            lines += [f"## {heading(name)}", ""]
        for table in tables:
            lines += [*titled_table(table), ""]
    unknown = {n: r.reason for n, r in analysis.results.items() if isinstance(r, Unavailable)}
    if unknown:
        lines += ["## Not in this trace", ""]
        lines += [f"- {heading(name)}: {escaped(reason)}" for name, reason in unknown.items()]
        lines.append("")
    full = _full_names(analysis)
    if full:
        lines += ["## Full names", "", *(f"- {escaped(n)}: {escaped(full[n])}" for n in full), ""]
    lines += [line for note in ignored(trace) for line in (escaped(note), "")]
    return "\n".join(lines).rstrip() + "\n"


def markdown_of(result: Titled) -> str:
    """Return the page of one result: the lines of its head, its findings, and all tables."""
    title, _ = result.title()
    lines = [f"# {escaped(title)}", ""]
    for block in result.head():
        lines += [escaped(block.text), ""] if isinstance(block, Line) else []
    lines += listed_findings(result.findings())
    for table in result.tables():
        lines += [*titled_table(table), ""]
    return "\n".join(lines).rstrip() + "\n"


def summary(analysis: Analysis) -> str:
    """Return the number of entries and the length of the window."""
    window = window_of(analysis.trace)
    length = "" if window is None else f", {in_words(window[1] - window[0], 'ns')} long"
    total = analysis.trace.total
    if not total and "ascend_files" in analysis.results:
        return "the profiler's tables, without a trace"
    return f"{total:,} {'entry' if total == 1 else 'entries'}{length}"


def name_of(path: Path) -> str:
    """Return the name of the file, or of an Ascend folder, in which all traces have one name."""
    folders = [each.name for each in path.parents if each.name.endswith("_ascend_pt")]
    return folders[0] if path.name.startswith(TRACE) and folders else path.name


def heading(name: str) -> str:
    """Return an analysis' name as a heading: "device_use" is "Device use"."""
    words = {"against": "comparison"}.get(name, name.replace("_", " "))
    return words[:1].upper() + words[1:]


# Entries of which a part of the duration, or all of it, was not used.
_CUT = {ABSENT, NEGATIVE, CUT, ENDS_FAR, RANGE_CUT}


def ignored(trace: Trace) -> list[str]:
    """Return sentences about entries that were not used, or not as they are in the file."""
    found = []
    listed = [_not_used(trace, cause, count) for cause, count in trace.left_out.items()]
    cut = {cause: count for cause, count in trace.adjusted.items() if cause in _CUT}
    listed += [_not_used(trace, cause, count) for cause, count in cut.items()]
    if listed:
        found.append(f"Ignored: {', '.join(listed)}.")
    if len(trace.doubtful):
        found.append(
            "Findings that rest on the times of these device events are one grade less severe."
        )
    changed = {cause: count for cause, count in trace.adjusted.items() if cause not in cut}
    if changed:
        listed = [f"{cause} ({count:,})" for cause, count in changed.items()]
        found.append(f"Read with a change: {', '.join(listed)}.")
    shared = shared_correlations(trace)
    if shared:
        found.append(
            f"The launch of {counted(shared, 'device event')} is unknown, because calls of several"
            " processes have the same correlation, as in a file of merged ranks. Analyse the trace"
            " of each rank on its own."
        )
    return found


def _not_used(trace: Trace, cause: str, count: int) -> str:
    """Return how many entries, and how much of their time, were not used for a cause."""
    time = trace.ignored_ns.get(cause)
    if time is None:
        return f"{cause} ({count:,})"
    length = in_words(time, "ns")
    return f"{cause} ({count:,}, {f'up to {length} away' if cause == FAR else length})"


def missing(analysis: Analysis) -> list[str]:
    """Return a sentence about missing data and how to record it; [] if nothing is missing.

    A recording of stagespan never contains more than spans.
    """
    other = analysis.trace.metadata.get("otherData")
    if (isinstance(other, dict) and "stagespan" in other) or unknown_categories(analysis.trace):
        return []
    results = analysis.results.values()
    needs = dict.fromkeys(each.needs for each in results if isinstance(each, Unavailable))
    listed = [f"{need[0]} ({need[1]})" for need in needs if need is not None]
    return [f"Not in this trace: {', '.join(listed)}."] if listed else []


def _full_names(analysis: Analysis) -> dict[str, str]:
    """Return the full names of all shortened names in tables."""
    found: dict[str, str] = {}
    for table in chain.from_iterable(analysis.tables.values()):
        for at in range(len(table.columns)):
            names = [row[at] for row in table.rows if isinstance(row[at], str)]
            shown = labels((name for name in names if isinstance(name, str)), MOST_LETTERS)
            found |= {label: name for name, label in shown.items() if label != one_line(name)}
    return found


def listed_findings(findings: list[Finding]) -> list[str]:
    """Return a section with the findings and their evidence as lines; [] without findings."""
    lines = []
    for finding in findings:
        lines.append(f"- **{finding.severity}** {escaped(finding.text)}")
        lines += [f"  - {escaped(str(each))}" for each in finding.evidence]
    return ["## Findings", "", *lines, ""] if lines else []


def titled_table(table: Table) -> list[str]:
    """Return a table as lines, with its note below."""
    heads, rows = texts_of(table)
    figures = [
        all(not isinstance(row[at], str) for row in table.rows) for at in range(len(table.columns))
    ]
    columns = [
        Column(head, [row[at] for row in rows], is_number=is_figure)
        for at, (head, is_figure) in enumerate(zip(heads, figures, strict=True))
    ]
    lines = [f"### {escaped(table.title)}", "", *markdown_table(columns)]
    if table.note:
        lines += ["", escaped(table.note)]
    return lines
