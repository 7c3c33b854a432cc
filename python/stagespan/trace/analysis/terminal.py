"""What was found out about a trace on one screen: the verdict, idle time, and the findings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagespan.trace.analysis import Analysis
from stagespan.trace.analysis.ascend_steps import Steps
from stagespan.trace.analysis.causes import CAUSES
from stagespan.trace.analysis.device_use import Use
from stagespan.trace.analysis.idle import Idle
from stagespan.trace.analysis.markdown import heading, summary
from stagespan.trace.analysis.result import Finding, Nothing, in_words, printable, share
from stagespan.trace.analysis.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# A file or a pipe has no height.
_LINES = 60
_FEWEST_LINES = 20
_WIDTH = 100
_CAUSES = 5
# The verdict stands above; the host is told about where there is no device.
_NOT_MISSED = ("against", "verdict", "host")
# Every trace has some, and they hold nothing that is missed.
_NOT_TOLD = ("metadata entry that is no name",)
_COLOURS = {"high": "bold red", "medium": "yellow", "low": "cyan"}


def print_analysis(analysis: Analysis, console: Console | None = None) -> None:
    """Print the page on `console`, by default standard output; as much of it as fits a screen."""
    blocks = [*_head(analysis), *_idle(analysis)]
    blocks += [text_block("")] if blocks else []
    print_page(blocks, analysis.findings(), _unknown(analysis), console)


def print_page(
    blocks: list[RenderableType],
    findings: list[Finding],
    tail: list[RenderableType],
    console: Console | None = None,
) -> None:
    """Print blocks, then as many findings as a screen has room for, then `tail`."""
    from rich.console import Console

    console = console or Console()
    if not console.is_terminal:
        console.width = _WIDTH
    room = max(console.height - 2, _FEWEST_LINES) if console.is_terminal else _LINES
    blocks = list(blocks)
    left = room - sum(_height(block, console) for block in [*blocks, *tail])
    shown = 0
    for finding in findings:
        block = _finding(finding)
        height = _height(block, console)
        # One line is kept for the number of those that do not fit.
        if shown and height > left - (shown + 1 < len(findings)):
            break
        blocks.append(block)
        left -= height
        shown += 1
    if shown < len(findings):
        blocks.append(
            text_block(f"and {len(findings) - shown} more findings: see --markdown", "dim")
        )
    if not findings:
        blocks.append(text_block("No findings."))
    for block in [*blocks, *tail]:
        console.print(block, highlight=False)


def _head(analysis: Analysis) -> list[RenderableType]:
    trace, results = analysis.trace, analysis.results
    blocks: list[RenderableType] = [
        text_block(f"{_name(Path(trace.path))}: {summary(analysis)}", "bold"),
    ]
    if trace.incomplete:
        blocks.append(text_block(trace.incomplete, "yellow"))
    told = ", ".join(f"{c} {n:,}" for c, n in trace.left_out.items() if c not in _NOT_TOLD)
    if told:
        blocks.append(text_block(f"left out: {told}", "dim"))
    verdict = results.get("verdict")
    if isinstance(verdict, Verdict):
        blocks.append(text_block(verdict.sentence, "bold"))
    elif isinstance(verdict, Nothing):
        blocks.append(text_block(verdict.reason, "bold"))
    use = results.get("device_use")
    if isinstance(use, Use):
        blocks.append(_bar(use))
    steps = results.get("ascend_steps")
    if isinstance(steps, Steps):
        blocks += [text_block(line) for line in steps.headlines]
    return blocks


def _name(path: Path) -> str:
    """The file's name; of a folder of Ascend, where all traces have one name, the folder's."""
    folders = [each.name for each in path.parents if each.name.endswith("_ascend_pt")]
    return folders[0] if path.name.startswith("trace_view.json") and folders else path.name


def _bar(use: Use) -> RenderableType:
    from rich.text import Text

    span = use.use.span_ns or 0
    parts = (
        ("computing", use.use.compute_ns, "green"),
        ("communicating", use.use.exposed_communication_ns, "magenta"),
        ("copying", use.use.exposed_copy_ns, "blue"),
        ("idle", use.use.idle_ns, "red"),
    )
    bar = Text("Device  ")
    for _, time, colour in parts:
        bar.append("#" * round(share(time or 0, span) * 0.25), colour)
    for what, time, colour in parts:
        if time:
            bar.append(f"  {what} ")
            bar.append(f"{share(time, span):.1f} %", colour)
    return bar


def _idle(analysis: Analysis) -> list[RenderableType]:
    from rich.table import Table

    idle = analysis.results.get("idle")
    if not isinstance(idle, Idle) or not idle.by_cause:
        return []
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (
        ("why it was idle", "left"),
        ("time", "right"),
        ("of idle", "right"),
        ("gaps", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for cause, time in list(idle.by_cause.items())[:_CAUSES]:
        table.add_row(
            CAUSES[cause],
            in_words(time, "ns"),
            in_words(share(time, idle.idle_ns), "%"),
            f"{idle.gaps_by_cause.get(cause, 0):,}",
        )
    return [table]


def _finding(finding: Finding) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    text = Text(printable(finding.sentence))
    for each in finding.evidence[:2]:
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


def _height(block: RenderableType, console: Console) -> int:
    return len(console.render_lines(block, pad=False))
