"""Pages for the terminal: as much of the results as fits on a screen."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from stagespan.pages.amounts import counted, in_percent, of_time, signed_percent
from stagespan.pages.console import encodable, set_width
from stagespan.pages.escaping import one_line
from stagespan.pages.kernel_names import labels
from stagespan.pages.page import Page, heading
from stagespan.pages.result import (
    STATES,
    Bar,
    Block,
    Changes,
    Finding,
    Line,
    Result,
    Table,
    Titled,
    Unavailable,
    share,
    shortened,
    texts_of,
    time_units,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment
    from rich.table import Table as Grid

# A file or a pipe has no height.
_LINES = 60
_FEWEST_LINES = 20
# The evidence of a finding on a page that is printed whole.
_EVIDENCE = 2
# The lines for findings if the figures above would fill the screen.
_FOR_FINDINGS = 6
_BAR = 25
# The width of the column of severities, with the blank after it.
_SEVERITY = 7
# The width of a page, unless COLUMNS is set, and that of a page that is printed whole, because
# programs read its rows from a pipe.
_WIDTH, _UNLIMITED = 100, 10_000
# The characters of a name in a table; longer names are shortened.
_LONGEST_NAME = 80
# The characters of a line of a heading in a table that is too wide for the screen, and if it still
# is.
_HEADINGS = 13, 8
# The least width of a column of texts, and the columns that a table has on any screen.
_LEAST_TEXT, _FEWEST_COLUMNS = 8, 2
# The same for pages that are printed whole, on which figures yield before names.
_WHOLE_NAME = 40
# The least width of a line of text.
_LEAST_LINE = 20
# Longer words in tables, such as paths, are cut.
_LONGEST_WORD = 20
# The width of the columns of `Changes` after the name, and the least width of the name.
_CHANGE_FIGURES, _LEAST_NAME = 47, 20
# Percentages are not printed for rows below this share of the whole, or for larger changes.
_LEAST_BEFORE, _MOST_PERCENT = 1.0, 1_000.0
# Stands for a blank that is no place for a new line. Texts do not contain it (`one_line`).
_GLUE = "\ue000"
_AMOUNT = re.compile(
    r"(?<=\d) (?=(?:%|µs|ms|s|ns|bytes?|[KMGT]iB|MB|[MGT]?FLOP(?:/s)?|[GT]B/s)(?![\w/]))"
)
_STYLES = {"plain": "", "strong": "bold", "remark": "yellow", "warning": "bold yellow"}
_FIRST_OF_FIGURE = ("", *"+-?0123456789")
"""The first characters of texts that are aligned like figures, such as "+12.0 %"."""
_BAR_COLOURS = {
    "computing": "green",
    "communicating": "magenta",
    "copying": "blue",
    "idle": "red",
}
_COLOURS = {"high": "bold red", "medium": "yellow", "low": "cyan", "better": "green"}
_STATES = {word: _COLOURS[severity] for word, severity in STATES.items()}


def print_page(page: Page, console: Console | None = None) -> None:
    """Print as much of the page as fits on a screen to `console`, by default standard output.

    A result with a page of its own, such as a comparison, is printed instead of the page.
    """
    console = screen(console)
    for result in page.results.values():
        if isinstance(result, Titled):
            # A page of one result joins findings about one cause.
            findings = page.findings() if len(page.results) == 1 else None
            print_result(result, console, findings)
            return
    headline = page.headline()
    head: list[Block] = [] if headline is None else [Line(headline, "strong")]
    if (caveat := page.caveat()) is not None:
        head.append(Line(caveat, "remark"))
    for result in page.results.values():
        if isinstance(result, Unavailable) and result.is_requested:
            head[:0] = result.head()
        else:
            head += result.head()
    notes = [*filter(None, (page.together(),)), *page.missing(), *page.notes()]
    if page.is_whole:
        set_width(console, _UNLIMITED)
        _print_whole(head, page.findings(), notes, console)
        return
    tables = sum(result.number_of_tables() for result in page.results.values())
    if tables:
        more = f"{counted(tables, 'table')} and all evidence: --html FILE, --markdown or --json."
        notes.append(more)
    tail = [text_block(note, "dim") for note in notes]
    summaries = one_liners(page)
    width = max((len(name) for name, _ in summaries), default=0) + 2
    lines = [_named_line(name, line, width) for name, line in summaries]
    blocks = [*laid_out(head, console), text_block("")]
    print_blocks(blocks, page.findings(), tail, console, lines)


def _print_whole(
    head: Sequence[Block], findings: Sequence[Finding], notes: Sequence[str], console: Console
) -> None:
    """Print all blocks in their order, tables with their titles, then the findings and notes."""
    for block in head:
        if isinstance(block, (Table, Changes)):
            print_block(text_block(""), console)
            if isinstance(block, Table) and block.title:
                print_block(text_block(block.title, "bold"), console)
        if isinstance(block, Table):
            print_block(text_table(block, console.width, _WHOLE_NAME), console)
        elif isinstance(block, Line):
            _print_line(block, console)
        else:
            for drawn in laid_out([block], console):
                print_block(drawn, console)
    tail = [whole_finding_block(finding, console.width) for finding in findings]
    tail += [text_block(note, "dim") for note in notes]
    for drawn in [*([text_block("")] if tail else []), *tail]:
        print_block(drawn, console)


def _print_line(line: Line, console: Console) -> None:
    """Print a line, on a narrow screen as several ones with the indentation of the first.

    Words are not cut: one can be the path in a command that is to be typed.
    """
    from rich.text import Text

    text = line.text.lstrip(" ")
    indent = " " * (len(line.text) - len(text))
    glued = _AMOUNT.sub(_GLUE, one_line(text))
    width = max(console.width - len(indent), _LEAST_LINE)
    parts = textwrap.wrap(glued, width, break_long_words=False, break_on_hyphens=False)
    for part in parts or [""]:
        shown = encodable(f"{indent}{part}".replace(_GLUE, " "), console.encoding)
        console.print(Text(shown, _STYLES[line.style]), highlight=False, soft_wrap=True)


def print_result(
    result: Result, console: Console | None = None, findings: list[Finding] | None = None
) -> None:
    """Print as much of a result's page as fits on a screen, by default to standard output.

    `findings` are those of its page, by default its own.
    """
    console = screen(console)
    blocks = [*laid_out(result.head(), console), text_block("")]
    print_blocks(blocks, result.findings() if findings is None else findings, [], console)


def one_liners(page: Page) -> list[tuple[str, str]]:
    """Return heading and summary line of each result that has one."""
    lines = {name: result.line() for name, result in page.results.items()}
    return [(heading(name), line) for name, line in lines.items() if line]


def laid_out(blocks: Sequence[Block], console: Console) -> list[RenderableType]:
    """Return lines and bars, then the tables, with an empty line between two tables."""
    tables: list[RenderableType] = []
    others: list[RenderableType] = []
    for block in blocks:
        if isinstance(block, (Table, Changes)):
            tables += [text_block("")] if tables else []
            tables.append(
                text_table(block, console.width)
                if isinstance(block, Table)
                else _changes_table(block, console.width - _CHANGE_FIGURES)
            )
        else:
            others.append(
                text_block(block.text, _STYLES[block.style])
                if isinstance(block, Line)
                else _bar(block)
            )
    return [*others, *tables]


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
    drawn = _Drawn(console)
    limit = max(console.height - 2, _FEWEST_LINES) if console.is_terminal else _LINES
    limit -= drawn.height(tail)
    first = [finding_block(finding) for finding in findings[:1]]
    # The first finding is shown in any case, and one line says how many others there are.
    kept = max(_FOR_FINDINGS, drawn.height(first) + 1 if first else 0)
    blocks = _that_fit(blocks, limit - kept, drawn)
    left = limit - drawn.height(blocks)
    printed = 0
    for finding in findings:
        # One line is reserved for the number of findings that do not fit.
        most = left - (printed + 1 < len(findings))
        block = finding_block(finding) if printed else first[0]
        height = drawn.height([block])
        if printed and height > most:
            break
        blocks.append(block)
        left -= height
        printed += 1
    if printed < len(findings):
        more = f"and {counted(len(findings) - printed, 'more finding')}: see --markdown"
        blocks.append(text_block(more, "dim"))
        left -= 1
    if not findings:
        blocks.append(text_block("No findings."))
        left -= 1
    left -= 1  # an empty line before `lines`
    extra: list[RenderableType] = []
    for line in lines:
        left -= drawn.height([line])
        if left < 0:
            break
        extra.append(line)
    between = [text_block("")] if extra else []
    drawn.print([*blocks, *between, *extra, *tail])


def print_block(block: RenderableType, console: Console) -> None:
    """Print a block without blanks at the ends of its lines."""
    _Drawn(console).print([block])


class _Drawn:
    """Blocks as lines on a console. Each is drawn once: to find its height, and to print it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # The block is kept so that no other one gets its id.
        self._lines: dict[int, tuple[RenderableType, list[list[Segment]]]] = {}

    def _lines_of(self, block: RenderableType) -> list[list[Segment]]:
        if id(block) not in self._lines:
            lines = self._console.render_lines(block, pad=False)
            self._lines[id(block)] = block, lines
        return self._lines[id(block)][1]

    def height(self, blocks: Sequence[RenderableType]) -> int:
        """Return the number of lines of some blocks."""
        return sum(len(self._lines_of(block)) for block in blocks)

    def print(self, blocks: Sequence[RenderableType]) -> None:
        """Print blocks without blanks at the ends of their lines."""
        from rich.text import Text

        page = []
        for line in itertools.chain.from_iterable(map(self._lines_of, blocks)):
            parts = (
                (encodable(part.text.replace(_GLUE, " "), self._console.encoding), part.style or "")
                for part in line
            )
            text = Text.assemble(*parts)
            text.rstrip()
            page.append(text)
        if page:
            self._console.print(Text("\n").join(page), highlight=False, soft_wrap=True)


def screen(console: Console | None) -> Console:
    """Return the console, by default standard output, with 100 columns if it is not a terminal."""
    from rich.console import Console

    console = console or Console()
    set_width(console, _WIDTH)
    return console


def _that_fit(blocks: list[RenderableType], limit: int, drawn: _Drawn) -> list[RenderableType]:
    """Return the blocks without as many of the last tables as necessary to fit."""
    from rich.table import Table as Grid
    from rich.text import Text

    kept = list(blocks)
    tables = [block for block in kept if isinstance(block, Grid)]
    while tables and drawn.height(kept) > limit:
        at = kept.index(tables.pop())
        # With the empty line above it, if there is one.
        above = kept[at - 1] if at else None
        is_spaced = isinstance(above, Text) and not above.plain
        del kept[at - is_spaced : at + 1]
    return kept


def _bar(bar: Bar) -> RenderableType:
    from rich.text import Text

    words = Text()
    for part in bar.parts:
        words.append("  " + f"{part.name} ".replace(" ", _GLUE))
        percent = in_percent(share(part.time_ns, bar.whole_ns)).replace(" ", _GLUE)
        words.append(percent, _BAR_COLOURS.get(part.colour))
    name = bar.name if bar.count == 1 else f"{bar.count} {bar.name.lower()}s, sums"
    drawn = Text(f"{name}  ")
    # Rounded parts may be slightly longer than their sum.
    length = min(_BAR, _WIDTH - len(drawn) - len(words) - len(bar.parts) // 2)
    for part in bar.parts:
        cells = round(share(part.time_ns, bar.whole_ns) / 100 * length)
        drawn.append("#" * cells, _BAR_COLOURS.get(part.colour))
    return drawn.append_text(words)


def text_table(table: Table, width: int, least_text: int = _LEAST_TEXT) -> RenderableType:
    """Return a table for the screen, with right-aligned figures and times in one unit.

    If it would be wider than `width`, texts and then headings are wrapped, and the last columns
    for which there is still no space are left out. Texts of up to `least_text` are not wrapped.
    """
    from rich.table import Table as Grid
    from rich.text import Text

    heads, rows = texts_of(table, _LONGEST_NAME)
    texts = [any(isinstance(row[at], str) for row in table.rows) for at in range(len(heads))]
    columns = [[row[at] for row in rows] for at in range(len(heads))]
    longest = [max(map(len, column), default=0) for column in columns]
    # Lines end between words: a single word, such as a verdict, is not cut.
    words = [max(map(_longest_word, column), default=0) for column in columns]
    cells = [
        min(most, max(word, least_text)) if is_text else most
        for most, word, is_text in zip(longest, words, texts, strict=True)
    ]

    def width_of(count: int) -> int:
        heads_of = (max(map(len, head.split("\n"))) for head in heads)
        each = (max(pair) for pair in zip(heads_of, cells, strict=True))
        return sum(itertools.islice(each, count)) + 2 * (count - 1)

    for most in _HEADINGS:
        if width_of(len(heads)) > width:
            heads = ["\n".join(textwrap.wrap(head, most, break_long_words=False)) for head in heads]
    kept = len(heads)
    while kept > _FEWEST_COLUMNS and width_of(kept) > width:
        kept -= 1
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    for head, is_text in zip(heads[:kept], texts, strict=False):
        side: Literal["left", "right"] = "left" if is_text else "right"
        grid.add_column(head, justify=side, no_wrap=not is_text, overflow="fold")
    for column, cells_of in list(zip(grid.columns, columns, strict=False))[1:]:
        if all(cell[:1] in _FIRST_OF_FIGURE for cell in cells_of):
            column.justify = "right"
    states = [unit == "state" for _, unit in table.columns[:kept]]
    name_width = width - width_of(kept) + max(*map(len, heads[0].split("\n")), cells[0])
    rows = [[_with_fewer_guides(row[0], name_width), *row[1:]] for row in rows]
    for row in rows:
        grid.add_row(
            *(
                Text(_AMOUNT.sub(_GLUE, cell), _STATES.get(cell, "") if is_state else "")
                for cell, is_state in zip(row, states, strict=False)
            )
        )
    return grid


def _with_fewer_guides(name: str, width: int) -> str:
    """Return a name in a tree with as many of the guides before it as there is space for."""
    while len(name) > width and name.startswith(("│  ", "   ")):
        name = name[len("│  ") :]
    return name


def _longest_word(text: str) -> int:
    return min(max(map(len, text.split()), default=0), _LONGEST_WORD)


def finding_block(finding: Finding) -> RenderableType:
    """Return severity and first line of a finding."""
    return _finding_grid(finding, finding.first_line)


def whole_finding_block(finding: Finding, width: int = _WIDTH) -> RenderableType:
    """Return severity and text of a finding, with its first evidence below.

    `width` is that of the screen.
    """
    grid = _finding_grid(finding, finding.text)
    for evidence in finding.evidence[:_EVIDENCE]:
        # Each on one line: a long path would leave its dash on a line of its own.
        most = max(width - _SEVERITY - len("- ") - len(evidence.details), _LEAST_NAME)
        grid.add_row("", text_block(f"- {evidence.shortened_to(most)}", "dim"))
    return grid


def _finding_grid(finding: Finding, text: str) -> Grid:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid.grid(padding=(0, 1))
    grid.add_column(width=_SEVERITY - 1)
    grid.add_column()
    grid.add_row(Text(finding.severity, _COLOURS[finding.severity]), text_block(text))
    return grid


def _named_line(name: str, line: str, width: int) -> RenderableType:
    """Return a summary after its name; if it needs several lines, they begin below each other."""
    from rich.table import Table as Grid

    grid = Grid.grid(padding=0)
    grid.add_column(width=width)
    grid.add_column()
    grid.add_row(text_block(name), text_block(line))
    return grid


def text_block(text: str, style: str = "") -> RenderableType:
    """Return a line without terminal control characters, in which amounts keep their units."""
    from rich.text import Text

    return Text(_AMOUNT.sub(_GLUE, one_line(text)), style)


def _changes_table(changes: Changes, most: int) -> RenderableType:
    """Return the rows with the times before and after in one unit; a final sum is bold.

    Names are limited to `most` characters even on a narrow screen.
    """
    from rich.table import Table as Grid
    from rich.text import Text

    limit, all_names = max(most, _LEAST_NAME), [name for name, _, _ in changes.rows]
    # Rows that sum up to the last one are words, others are kernels with similar names.
    names = (
        {name: shortened(name, limit) for name in all_names}
        if changes.has_sum
        else labels(all_names, limit)
    )
    times = [time for _, *row in changes.rows for time in row]
    ((size, unit),) = time_units([max(times, default=0)])
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    grid.add_column(changes.heading)
    for heading_of in ("before", "after", "change"):
        grid.add_column(f"{heading_of} ({unit})", justify="right", no_wrap=True)
    for name, before, after in changes.rows:
        change = after - before
        colour = "" if not change else "red" if change > 0 else "green"
        percent = _percent_of(change, before, changes.whole_ns)
        is_sum = changes.has_sum and name == changes.rows[-1][0]
        grid.add_row(
            text_block(names[name], "bold" if is_sum else ""),
            of_time(before, size),
            of_time(after, size),
            Text(f"{'+' if change > 0 else ''}{of_time(change, size)}{percent}", colour),
        )
    return grid


def _percent_of(change_ns: int, before_ns: int, whole_ns: int) -> str:
    """Return a change in percent of the time before; "" if that was a very small part."""
    if before_ns <= 0 or share(before_ns, whole_ns) < _LEAST_BEFORE:
        return ""
    percent = share(change_ns, before_ns)
    return f" ({signed_percent(percent / 100)})" if abs(percent) < _MOST_PERCENT else ""
