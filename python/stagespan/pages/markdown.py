"""A page as Markdown."""

from __future__ import annotations

from itertools import chain

from stagespan.pages.escaping import escaped, one_line
from stagespan.pages.kernel_names import labels
from stagespan.pages.page import Page, heading
from stagespan.pages.result import MOST_LETTERS, Finding, Line, Table, Titled, Unavailable, texts_of
from stagespan.pages.tables import Column, markdown_table


def markdown(page: Page) -> str:
    """Return the page: the subject, the findings with their evidence, and all tables."""
    match list(page.results.values()):
        case [Titled() as result]:
            return markdown_of(result, page.findings())
    lines = [f"# {page.words.page}", "", f"{escaped(page.name())}: {page.summary()}.", ""]
    if (caveat := page.caveat()) is not None:
        lines += [f"**{escaped(caveat)}**", ""]
    lines += [text for line in page.lines() for text in (escaped(line), "")]
    lines += listed_findings(page.findings())
    if (together := page.together()) is not None:
        lines += [escaped(together), ""]
    for name, tables in page.tables.items():
        if tables and heading(name) != page.words.page:
            lines += [f"## {heading(name)}", ""]
        for table in tables:
            lines += [*titled_table(table), ""]
    unknown = {n: r.reason for n, r in page.results.items() if isinstance(r, Unavailable)}
    if unknown:
        lines += ["## Not in this trace", ""]
        lines += [f"- {heading(name)}: {escaped(reason)}" for name, reason in unknown.items()]
        lines.append("")
    full = _full_names(page)
    if full:
        lines += ["## Full names", "", *(f"- {escaped(n)}: {escaped(full[n])}" for n in full), ""]
    lines += [line for note in page.notes() for line in (escaped(note), "")]
    return "\n".join(lines).rstrip() + "\n"


def markdown_of(result: Titled, findings: list[Finding]) -> str:
    """Return the page of one result: the lines of its head, the page's findings, and all tables."""
    title, _ = result.title()
    lines = [f"# {escaped(title)}", ""]
    for block in result.head():
        lines += [escaped(block.text), ""] if isinstance(block, Line) else []
    lines += listed_findings(findings)
    for table in result.tables():
        lines += [*titled_table(table), ""]
    return "\n".join(lines).rstrip() + "\n"


def _full_names(page: Page) -> dict[str, str]:
    """Return the full names of all shortened names in tables."""
    full_names: dict[str, str] = {}
    for table in chain.from_iterable(page.tables.values()):
        for at in range(len(table.columns)):
            names = [row[at] for row in table.rows if isinstance(row[at], str)]
            shown = labels((name for name in names if isinstance(name, str)), MOST_LETTERS)
            full_names |= {label: name for name, label in shown.items() if label != one_line(name)}
    return full_names


def listed_findings(findings: list[Finding]) -> list[str]:
    """Return a section with the findings and their evidence as lines; [] without findings."""
    lines = []
    for finding in findings:
        lines.append(f"- **{finding.severity}** {escaped(finding.first_line)}")
        if finding.explanation:
            lines.append(f"  - {escaped(finding.explanation)}")
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
    title = [f"### {escaped(table.title)}", ""] if table.title else []
    lines = [*title, *markdown_table(columns)]
    if table.note:
        lines += ["", escaped(table.note)]
    return lines
