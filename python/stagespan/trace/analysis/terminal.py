"""What was found out about a trace on one screen: the verdict, idle time, and the findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stagespan.console import set_width, trimmed
from stagespan.trace.analysis import Analysis
from stagespan.trace.analysis.ascend_steps import Steps
from stagespan.trace.analysis.causes import CAUSES
from stagespan.trace.analysis.facts import facts
from stagespan.trace.analysis.idle import Idle
from stagespan.trace.analysis.markdown import heading, summary
from stagespan.trace.analysis.result import Finding, Nothing, in_words, printable, share
from stagespan.trace.analysis.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# A file or a pipe has no height.
_LINES = 60
_FEWEST_LINES = 20
# What findings get where the figures above them would fill the screen.
_FOR_FINDINGS = 6
_BAR = 25
_WIDTH = 100
_CAUSES = 5
# Of idle time: less is not shown here.
_LEAST_CAUSE = 1.0
# The verdict stands above; the host is told about where there is no device.
_NOT_MISSED = ("against", "verdict", "host")
# Every trace has some, and they hold nothing that is missed.
_NOT_TOLD = ("metadata entry that is no name",)
_BAR_COLOURS = {
    "computing": "green",
    "communicating": "magenta",
    "copying": "blue",
    "idle": "red",
}
_COLOURS = {"high": "bold red", "medium": "yellow", "low": "cyan"}


def print_analysis(analysis: Analysis, console: Console | None = None) -> None:
    """Print the page on `console`, by default standard output; as much of it as fits a screen."""
    blocks = [*_head(analysis), *_idle(analysis)]
    blocks += [text_block("")] if blocks else []
    tables = sum(len(result.tables()) for result in analysis.results.values())
    tail = _unknown(analysis)
    if tables:
        more = f"{tables} tables and all evidence: --html, --markdown or --json FILE."
        tail.append(text_block(more, "dim"))
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
    blocks = _that_fit(blocks, room - _heights(tail, console) - _FOR_FINDINGS, console)
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
        more = len(findings) - shown
        blocks.append(
            text_block(f"and {more} more finding{'' if more == 1 else 's'}: see --html", "dim")
        )
        left -= 1
    if not findings:
        blocks.append(text_block("No findings."))
        left -= 1
    told = list(lines)
    while told and _heights(told, console) + 1 > left:
        told.pop()
    between = [text_block("")] if told else []
    with trimmed(console):
        for block in [*blocks, *between, *told, *tail]:
            console.print(block, highlight=False)


def screen(console: Console | None) -> Console:
    """The console, by default standard output; a page is 100 columns wide without a terminal."""
    from rich.console import Console

    console = console or Console()
    set_width(console, _WIDTH)
    return console


def _that_fit(blocks: list[RenderableType], room: int, console: Console) -> list[RenderableType]:
    """The blocks without the last tables, as long as they take too much room."""
    from rich.table import Table

    kept = list(blocks)
    tables = [block for block in kept if isinstance(block, Table)]
    while len(tables) > 1 and _heights(kept, console) > room:
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
    told = ", ".join(f"{c} {n:,}" for c, n in trace.left_out.items() if c not in _NOT_TOLD)
    if told:
        blocks.append(text_block(f"left out: {told}", "dim"))
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


def name_of(path: Path) -> str:
    """The file's name; of a folder of Ascend, where all traces have one name, the folder's."""
    folders = [each.name for each in path.parents if each.name.endswith("_ascend_pt")]
    return folders[0] if path.name.startswith("trace_view.json") and folders else path.name


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
    from rich.table import Table

    idle = analysis.results.get("idle")
    if not isinstance(idle, Idle) or not idle.by_cause:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (
        ("why it was idle" if idle.devices == 1 else "why all were idle", "left"),
        ("time", "right"),
        ("of idle", "right"),
        ("gaps", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    causes = [
        (cause, time)
        for cause, time in idle.by_cause.items()
        if share(time, idle.idle_ns) >= _LEAST_CAUSE
    ]
    for cause, time in causes[:_CAUSES]:
        table.add_row(
            CAUSES[cause],
            in_words(time, "ns"),
            in_words(share(time, idle.idle_ns), "%"),
            f"{idle.gaps_by_cause.get(cause, 0):,}",
        )
    return [table]


def _finding(finding: Finding, evidence: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    text = Text(printable(finding.sentence))
    for each in finding.evidence[:evidence]:
        text.append(f"\n- {each}", "dim")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=6)
    grid.add_column()
    grid.add_row(Text(finding.severity, _COLOURS[finding.severity]), text)
    return grid


def _unknown(analysis: Analysis) -> list[RenderableType]:
    """The analyses that have nothing to say; why stands in the other outputs."""
    names = [
        heading(name)
        for name, result in analysis.results.items()
        if isinstance(result, Nothing) and name not in _NOT_MISSED
    ]
    return [text_block(f"Not in this trace: {', '.join(names)}.", "dim")] if names else []


def text_block(text: str, style: str = "") -> RenderableType:
    """A line, with what would steer a terminal taken out."""
    from rich.text import Text

    return Text(printable(text), style)


def _heights(blocks: Sequence[RenderableType], console: Console) -> int:
    return sum(len(console.render_lines(block, pad=False)) for block in blocks)
