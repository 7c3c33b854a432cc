"""Pages for the terminal: one trace, a comparison, or many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stagespan.text.console import set_width
from stagespan.trace.analyses.idle import Idle
from stagespan.trace.analyses.verdict import Verdict
from stagespan.trace.analysis import Analysis
from stagespan.trace.ascend.steps import AscendSteps
from stagespan.trace.compare.comparison import Change, Comparison, headline, percent_of
from stagespan.trace.derived.idle_causes import CAUSES
from stagespan.trace.kernel_names import kernel_label, labels
from stagespan.trace.ranks.report import Ranks
from stagespan.trace.ranks.report import headline as headline_of_ranks
from stagespan.trace.render.markdown import heading, ignored, missing, name_of, summary
from stagespan.trace.result import (
    Finding,
    Result,
    Table,
    Unavailable,
    counted,
    in_cell,
    printable,
    share,
    shortened,
    texts_of,
    time_unit,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def one_liners(analysis: Analysis) -> list[tuple[str, str]]:
    """Return heading and summary line of each analysis that has one."""
    results = {n: r for n, r in analysis.results.items() if isinstance(r, Result)}
    lines = {name: result.line() for name, result in results.items()}
    return [(heading(name), line) for name, line in lines.items() if line]


# --- One trace ---


# A file or a pipe has no height.
_LINES = 60
_FEWEST_LINES = 20
# The lines for findings if the figures above would fill the screen.
_FOR_FINDINGS = 6
_BAR = 25
# The width of a page, unless COLUMNS is set.
_WIDTH = 100
_CAUSES = 5
# The least percentage of idle time that is shown here.
_LEAST_CAUSE = 1.0
_BAR_COLOURS = {
    "computing": "green",
    "communicating": "magenta",
    "copying": "blue",
    "idle": "red",
}
_COLOURS = {"high": "bold red", "medium": "yellow", "low": "cyan", "better": "green"}


def print_analysis(analysis: Analysis, console: Console | None = None) -> None:
    """Print as much of the page as fits on a screen to `console`, by default standard output."""
    blocks = [*_head(analysis), *_idle(analysis)]
    blocks += [text_block("")] if blocks else []
    tables = sum(map(len, analysis.tables.values()))
    notes = [*missing(analysis), *ignored(analysis.trace)]
    if tables:
        more = f"{counted(tables, 'table')} and all evidence: --html, --markdown or --json FILE."
        notes.append(more)
    tail = [text_block(note, "dim") for note in notes]
    lines = [text_block(f"{name:9}{line}") for name, line in one_liners(analysis)]
    print_blocks(blocks, analysis.findings(), tail, console, lines)


def print_blocks(
    blocks: list[RenderableType],
    findings: list[Finding],
    tail: list[RenderableType],
    console: Console | None = None,
    lines: Sequence[RenderableType] = (),
) -> None:
    """Print blocks, then as many findings as a screen has room for, then `tail`.

    If space is left, `lines` follow the findings. If the blocks alone would fill the screen, the
    last tables among them are left out.
    """
    console = screen(console)
    limit = max(console.height - 2, _FEWEST_LINES) if console.is_terminal else _LINES
    # The first finding is shown in any case, and one line says how many others there are.
    first = _heights([finding_block(findings[0], 0)], console) + 1 if findings else 0
    kept = max(_FOR_FINDINGS, first)
    blocks = _that_fit(blocks, limit - _heights(tail, console) - kept, console)
    left = limit - _heights([*blocks, *tail], console)
    shown = 0
    for finding in findings:
        # One line is reserved for the number of findings that do not fit.
        most = left - (shown + 1 < len(findings))
        block = finding_block(finding, 2)
        if not shown:
            fitting = (finding_block(finding, count) for count in (2, 1, 0))
            block = next(
                (b for b in fitting if _heights([b], console) <= most), finding_block(finding, 0)
            )
        elif _heights([block], console) > most:
            break
        blocks.append(block)
        left -= _heights([block], console)
        shown += 1
    if shown < len(findings):
        more = f"and {counted(len(findings) - shown, 'more finding')}: see --html"
        blocks.append(text_block(more, "dim"))
        left -= 1
    if not findings:
        blocks.append(text_block("No findings."))
        left -= 1
    extra = list(lines)
    while extra and _heights(extra, console) + 1 > left:
        extra.pop()
    between = [text_block("")] if extra else []
    for block in [*blocks, *between, *extra, *tail]:
        print_block(block, console)


def print_block(block: RenderableType, console: Console) -> None:
    """Print a block without blanks at the ends of its lines."""
    from rich.text import Text

    for line in console.render_lines(block, pad=False):
        text = Text.assemble(*((part.text, part.style or "") for part in line))
        text.rstrip()
        console.print(text, highlight=False, soft_wrap=True)


def screen(console: Console | None) -> Console:
    """Return the console, by default standard output, with 100 columns if it is not a terminal."""
    from rich.console import Console

    console = console or Console()
    set_width(console, _WIDTH)
    return console


def _that_fit(blocks: list[RenderableType], limit: int, console: Console) -> list[RenderableType]:
    """Return the blocks without as many of the last tables as necessary to fit."""
    from rich.table import Table as Grid

    kept = list(blocks)
    tables = [block for block in kept if isinstance(block, Grid)]
    while tables and _heights(kept, console) > limit:
        at = kept.index(tables.pop())
        # Includes the blank line above it.
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
    elif isinstance(verdict, Unavailable):
        blocks.append(text_block(verdict.reason, "bold"))
    steps = results.get("ascend_steps")
    if isinstance(steps, AscendSteps):
        blocks += [text_block(line) for line in steps.headlines]
    return blocks


def _bar(verdict: Verdict) -> RenderableType:
    from rich.text import Text

    parts, whole = verdict.bar(), verdict.whole_ns
    words = Text()
    for what, time, key in parts:
        words.append(f"  {what} ")
        words.append(f"{share(time, whole):.1f} %", _BAR_COLOURS[key])
    name = "Device" if verdict.on_device else "Host"
    bar = Text(f"{name}  " if verdict.devices == 1 else f"{verdict.devices} devices, sums  ")
    # Rounded parts may be slightly longer than their sum.
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
    """Return a table for the screen, with right-aligned figures and times in one unit."""
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


def finding_block(finding: Finding, evidence: int) -> RenderableType:
    """Return severity and sentence of a finding, with at most `evidence` lines of evidence."""
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
    """Return a line without terminal control characters."""
    from rich.text import Text

    return Text(printable(text), style)


def _heights(blocks: Sequence[RenderableType], console: Console) -> int:
    return sum(len(console.render_lines(block, pad=False)) for block in blocks)


# --- A comparison of two traces ---


_PARTS, _KERNELS = 8, 5
# The width of the columns after the name, in characters.
_FIGURES = 47
_LEAST_NAME = 20


def print_page(analysis: Analysis, console: Console | None = None) -> None:
    """Print the page of a trace, of two compared traces, or of many ranks.

    Prints as much as fits on a screen to `console`, by default standard output. If two traces
    cannot be compared, prints the reason and the page of the second trace.
    """
    console = screen(console)
    ranks = analysis.results.get("ranks")
    compared = analysis.results.get("against")
    if isinstance(ranks, Ranks):
        print_ranks(ranks, console)
    elif isinstance(compared, Comparison):
        print_comparison(compared, console)
    else:
        if isinstance(compared, Unavailable):
            print_block(text_block(compared.reason, "bold yellow"), console)
        print_analysis(analysis, console)


def print_comparison(found: Comparison, console: Console | None = None) -> None:
    """Print as much of the page as fits on a screen to `console`, by default standard output."""
    console = screen(console)
    names = _names(found.before.path, found.after.path)
    blocks: list[RenderableType] = [
        text_block(f"{names[1]} against {names[0]}", "bold"),
        text_block(headline(found), "bold"),
        *(text_block(remark, "yellow") for remark in found.remarks),
        _change_parts(found, console.width - _FIGURES),
    ]
    kernels = [each for each in found.kernels() or found.operators() if each.change_ns]
    if kernels:
        most = console.width - _FIGURES
        blocks += [text_block(""), _changed_kernels(found, kernels[:_KERNELS], most)]
    print_blocks([*blocks, text_block("")], found.findings(), [], console)


def _names(*paths: str) -> list[str]:
    """Return the names of the files, with enough folders to make them different."""
    parts = [Path(path).parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-count:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return [shortened(name, 60) for name in names]


def _change_parts(found: Comparison, most: int) -> RenderableType:
    """Return a line for each part. Names are limited in length even on a narrow screen."""
    parts = [part for part in found.parts() if part.change_ns]
    rows = [(part.name, part) for part in parts[:_PARTS]]
    rest = parts[_PARTS:]
    if rest:
        time = sum(p.before_ns for p in rest), sum(p.after_ns for p in rest)
        rows.append((f"{len(rest)} more", Change("", *time)))
    same = [part for part in found.parts() if not part.change_ns]
    if same:
        time = sum(p.before_ns for p in same), sum(p.after_ns for p in same)
        rows.append(("unchanged", Change("", *time)))
    rows.append(("all", Change("", found.before_ns, found.after_ns)))
    return _changes_table("per step" if found.unit == "step" else "", rows, found, most, True)


def _changed_kernels(found: Comparison, kernels: list[Change], most: int) -> RenderableType:
    named = [
        (f"{kernel_label(each.name)} (was {kernel_label(each.old_name)})", each)
        if each.old_name
        else (each.name, each)
        for each in kernels
    ]
    return _changes_table("kernel" if found.on_device else "operator", named, found, most)


def _changes_table(
    head: str, rows: list[tuple[str, Change]], found: Comparison, most: int, sums: bool = False
) -> RenderableType:
    """Return rows with the times before and after in one unit; a final sum is bold."""
    from rich.table import Table
    from rich.text import Text

    limit = max(most, _LEAST_NAME)
    names = {name: shortened(name, limit) for name, _ in rows}
    names = names if sums else labels(names, limit)
    times = [time for _, row in rows for time in (row.before_ns, row.after_ns)]
    size, unit = time_unit([max(times, default=0)])
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(head)
    for name in ("before", "after", "change"):
        table.add_column(f"{name} ({unit})", justify="right", no_wrap=True)
    for at, (name, row) in enumerate(rows):
        change = row.change_ns
        colour = "" if not change else "red" if change > 0 else "green"
        percent = percent_of(change, row.before_ns, found.before_ns)
        table.add_row(
            text_block(names[name], "bold" if sums and at == len(rows) - 1 else ""),
            f"{row.before_ns / size:,.3f}",
            f"{row.after_ns / size:,.3f}",
            Text(f"{change / size:{'+' if change else ''},.3f}{percent}", colour),
        )
    return table


# --- Many ranks ---


_ROWS = 8


def print_ranks(found: Ranks, console: Console | None = None) -> None:
    """Print as much of the page as fits on a screen to `console`, by default standard output."""
    blocks: list[RenderableType] = [
        text_block(f"{Path(found.folder).name}: {len(found.summaries)} ranks", "bold"),
        text_block(found.title()[1], "bold"),
        text_block(headline_of_ranks(found)),
        *(text_block(remark, "yellow") for remark in found.remarks),
    ]
    tables = found.tables()
    # The ranks without lengths, shares and clocks, and all columns of collectives.
    blocks.append(_rank_table(tables[0], (0, 1, 4, 5, 6, 8, 12)))
    if found.waits.instances:  # otherwise the second table is not about collectives
        groups = (1,) if any(row[1] is not None for row in tables[1].rows) else ()
        blocks += [text_block(""), _rank_table(tables[1], (0, *groups, 2, 3, 4, 7))]
    print_blocks([*blocks, text_block("")], found.findings(), [], console)


def _rank_table(figures: Table, columns: tuple[int, ...]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for at in columns:
        table.add_column(figures.columns[at][0], justify="right" if at else "left")
    for row in figures.rows[:_ROWS]:
        table.add_row(*(printable(in_cell(row[at], figures.columns[at][1], 40)) for at in columns))
    return table
