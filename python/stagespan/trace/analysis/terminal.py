"""What was found out about a trace on one screen: the verdict, idle time, and the findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stagespan.console import set_width
from stagespan.trace.analysis import Analysis
from stagespan.trace.analysis.ascend_steps import Steps
from stagespan.trace.analysis.causes import CAUSES
from stagespan.trace.analysis.facts import facts
from stagespan.trace.analysis.idle import Idle
from stagespan.trace.analysis.markdown import ignored, missing, name_of, summary
from stagespan.trace.analysis.result import (
    Finding,
    Nothing,
    Table,
    many,
    printable,
    share,
    texts_of,
)
from stagespan.trace.analysis.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# A file or a pipe has no height.
_LINES = 60
_FEWEST_LINES = 20
# What findings get where the figures above them would fill the screen.
_FOR_FINDINGS = 6
_BAR = 25
# As wide as a page, unless COLUMNS says otherwise.
_WIDTH = 100
_LEAST_WIDTH = 40
_CAUSES = 5
# Of idle time: less is not shown here.
_LEAST_CAUSE = 1.0
_BAR_COLOURS = {
    "computing": "green",
    "communicating": "magenta",
    "copying": "blue",
    "idle": "red",
}
_COLOURS = {"high": "bold red", "medium": "yellow", "low": "cyan", "better": "green"}


def print_analysis(analysis: Analysis, console: Console | None = None) -> None:
    """Print the page on `console`, by default standard output; as much of it as fits a screen."""
    blocks = [*_head(analysis), *_idle(analysis)]
    blocks += [text_block("")] if blocks else []
    tables = sum(len(result.tables()) for result in analysis.results.values())
    notes = [*missing(analysis), *ignored(analysis.trace)]
    if tables:
        more = f"{many(tables, 'table')} and all evidence: --html, --markdown or --json FILE."
        notes.append(more)
    tail = [text_block(note, "dim") for note in notes]
    lines = [text_block(f"{name:9}{said}") for name, said in facts(analysis)]
    print_page(blocks, analysis.findings(), tail, console, lines)


def print_page(
    blocks: list[RenderableType],
    findings: list[Finding],
    tail: list[RenderableType],
    console: Console | None = None,
    lines: Sequence[RenderableType] = (),
) -> None:
    """Print blocks, then as many findings as a screen has room for, then `tail`.

    Where room is left, `lines` stand behind the findings. Where the blocks alone would fill the
    screen the last tables among them are left out.
    """
    console = screen(console)
    room = max(console.height - 2, _FEWEST_LINES) if console.is_terminal else _LINES
    # The first finding is shown in any case, and one line says how many others there are.
    first = _heights([_finding(findings[0], 0)], console) + 1 if findings else 0
    kept = max(_FOR_FINDINGS, first)
    blocks = _that_fit(blocks, room - _heights(tail, console) - kept, console)
    left = room - _heights([*blocks, *tail], console)
    shown = 0
    for finding in findings:
        # One line is kept for the number of those that do not fit.
        most = left - (shown + 1 < len(findings))
        block = _finding(finding, 2)
        if not shown:
            fitting = (_finding(finding, count) for count in (2, 1, 0))
            block = next(
                (b for b in fitting if _heights([b], console) <= most), _finding(finding, 0)
            )
        elif _heights([block], console) > most:
            break
        blocks.append(block)
        left -= _heights([block], console)
        shown += 1
    if shown < len(findings):
        more = f"and {many(len(findings) - shown, 'more finding')}: see --html"
        blocks.append(text_block(more, "dim"))
        left -= 1
    if not findings:
        blocks.append(text_block("No findings."))
        left -= 1
    told = list(lines)
    while told and _heights(told, console) + 1 > left:
        told.pop()
    between = [text_block("")] if told else []
    for block in [*blocks, *between, *told, *tail]:
        print_block(block, console)


def print_block(block: RenderableType, console: Console) -> None:
    """Print a block without blanks at the ends of its lines."""
    from rich.text import Text

    for line in console.render_lines(block, pad=False):
        text = Text.assemble(*((part.text, part.style or "") for part in line))
        text.rstrip()
        console.print(text, highlight=False, soft_wrap=True)


def screen(console: Console | None) -> Console:
    """The console, by default standard output; a page is 100 columns wide without a terminal."""
    from rich.console import Console

    console = console or Console()
    set_width(console, _WIDTH)
    return console


def _that_fit(blocks: list[RenderableType], room: int, console: Console) -> list[RenderableType]:
    """The blocks without the last tables, as long as they take too much room."""
    from rich.table import Table as Grid

    kept = list(blocks)
    tables = [block for block in kept if isinstance(block, Grid)]
    while tables and _heights(kept, console) > room:
        at = kept.index(tables.pop())
        # With the blank line above it.
        del kept[max(at - 1, 0) : at + 1]
    return kept


def _head(analysis: Analysis) -> list[RenderableType]:
    trace, results = analysis.trace, analysis.results
    blocks: list[RenderableType] = [
        text_block(f"{name_of(Path(trace.path))}: {summary(analysis)}", "bold"),
    ]
    if trace.incomplete:
        blocks.append(text_block(trace.incomplete, "yellow"))
    verdict = results.get("verdict")
    if isinstance(verdict, Verdict):
        blocks.append(text_block(verdict.sentence, "bold"))
        blocks.append(_bar(verdict))
    elif isinstance(verdict, Nothing):
        blocks.append(text_block(verdict.reason, "bold"))
    steps = results.get("ascend_steps")
    if isinstance(steps, Steps):
        blocks += [text_block(line) for line in steps.headlines]
    return blocks


def _bar(verdict: Verdict) -> RenderableType:
    from rich.text import Text

    parts, whole = verdict.bar(), verdict.whole_ns
    words = Text()
    for what, time, key in parts:
        words.append(f"  {what} ")
        words.append(f"{share(time, whole):.1f} %", _BAR_COLOURS[key])
    bar = Text("Device  " if verdict.devices == 1 else f"{verdict.devices} devices, sums  ")
    # Parts that are rounded may be a little longer than their sum.
    length = min(_BAR, _WIDTH - len(bar) - len(words) - len(parts) // 2)
    for _, time, key in parts:
        bar.append("#" * round(share(time, whole) / 100 * length), _BAR_COLOURS[key])
    return bar.append_text(words)


def _idle(analysis: Analysis) -> list[RenderableType]:
    idle = analysis.results.get("idle")
    if not isinstance(idle, Idle) or not idle.by_cause:
        return []
    why = "why it was idle" if idle.devices == 1 else "why all were idle"
    rows = [
        (CAUSES[cause], time, share(time, idle.idle_ns), idle.gaps_by_cause.get(cause, 0))
        for cause, time in idle.by_cause.items()
        if share(time, idle.idle_ns) >= _LEAST_CAUSE
    ]
    columns = ((why, ""), ("time", "ns"), ("of idle", "%"), ("gaps", ""))
    return [text_table(Table("", columns, rows[:_CAUSES]), most=80)]


def text_table(table: Table, most: int = 60) -> RenderableType:
    """A table for the screen: figures to the right, times in one unit."""
    from rich.table import Table as Grid
    from rich.text import Text

    heads, rows = texts_of(table, most)
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    for at, head in enumerate(heads):
        texts = any(isinstance(row[at], str) for row in table.rows)
        grid.add_column(head, justify="left" if texts else "right", no_wrap=not texts)
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def _finding(finding: Finding, evidence: int) -> RenderableType:
    from rich.table import Table as Grid
    from rich.text import Text

    text = Text(printable(finding.sentence))
    for each in finding.evidence[:evidence]:
        text.append(f"\n- {each}", "dim")
    grid = Grid.grid(padding=(0, 1))
    grid.add_column(width=6)
    grid.add_column()
    grid.add_row(Text(finding.severity, _COLOURS[finding.severity]), text)
    return grid


def text_block(text: str, style: str = "") -> RenderableType:
    """A line, with what would steer a terminal taken out."""
    from rich.text import Text

    return Text(printable(text), style)


def _heights(blocks: Sequence[RenderableType], console: Console) -> int:
    return sum(len(console.render_lines(block, pad=False)) for block in blocks)
