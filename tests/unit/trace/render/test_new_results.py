"""A result that no renderer knows is on every page."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from page_data import data_of
from stagespan.pages.figures import Count, Figures, Internal, Ns
from stagespan.pages.html import html_page
from stagespan.pages.markdown import markdown, markdown_of
from stagespan.pages.result import (
    Bar,
    BarPart,
    Block,
    Changes,
    Evidence,
    Finding,
    Line,
    StructResult,
    Table,
    Titled,
    Unavailable,
)
from stagespan.pages.terminal import print_page
from stagespan.trace.analysis import Analysis, analyze
from stagespan.trace.read.columns import without_events


class TokenFigures(Figures, frozen=True):
    """The tokens of one request."""

    request: str
    tokens: Count
    time_ns: Ns


class Tokens(StructResult, frozen=True):
    """The tokens that a server generated."""

    requests: list[TokenFigures]
    prefill_ns: Ns
    decode_ns: Ns
    sentence: Internal[str] = "Decoding takes most of the time."

    def title(self) -> tuple[str, str]:
        return "decode-bound", self.sentence

    def head(self) -> list[Block]:
        return [
            self.tables()[0].selected(1, ("time", "request")),
            Changes("phase", [("prefill", 900, self.prefill_ns)], 1_000),
            Line(self.sentence, "strong"),
            Bar(
                "Server",
                [
                    BarPart("decoding", self.decode_ns, "computing"),
                    BarPart("queueing", self.prefill_ns, "a colour of its own"),
                ],
            ),
        ]

    def findings(self) -> list[Finding]:
        shown = (Evidence("request-1", None, 7, "tokens"),)
        return [Finding("low", "Batches are small.", shown, "tokens.small_batches")]

    def tables(self) -> list[Table]:
        return [
            Table.of(
                "Requests",
                self.requests,
                ("request", "request", ""),
                ("tokens", "tokens", ""),
                ("time_ns", "time", "ns"),
            )
        ]

    def line(self) -> str:
        return f"{len(self.requests)} requests"


class OwnPage(Tokens, Titled, frozen=True):
    """The same with a page of its own."""


REQUESTS = [TokenFigures("request-1", 7, 4_000_000), TokenFigures("request-2", 9, 5_000_000)]


def printed(analysis: Analysis, width: int = 100, height: int | None = None) -> list[str]:
    text = io.StringIO()
    console = Console(
        file=text, width=width, height=height, force_terminal=height is not None, no_color=True
    )
    print_page(analysis, console)
    return re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue()).splitlines()


def test_a_new_result_is_on_all_pages() -> None:
    # GIVEN a class of results that no renderer knows
    tokens = Tokens(REQUESTS, 1_000, 3_000)
    analysis = Analysis(without_events("server.json"), {"tokens_per_request": tokens})
    lines, page = printed(analysis), markdown(analysis)
    data = data_of(html_page(analysis))
    # THEN the terminal shows lines and bars first, and then the tables
    assert lines[0].startswith("server.json: ")
    assert lines[1] == "Decoding takes most of the time."
    assert re.fullmatch(r"Server  #{25}  decoding 75.0 %  queueing 25.0 %", lines[2])
    assert [line.split() for line in lines[3:8]] == [
        ["time", "(ms)", "request"],
        ["4.00", "request-1"],
        [],
        ["phase", "before", "(µs)", "after", "(µs)", "change", "(µs)"],
        ["prefill", "0.900", "1.00", "+0.100", "(+11.1", "%)"],
    ]
    assert "low    Batches are small." in lines
    assert "Tokens per request  2 requests" in lines
    assert "## Tokens per request" in page
    assert "| request-2 | 9 | 5.00 |" in page
    assert "Batches are small." in page
    assert data["verdict"] == {"word": "decode-bound", "sentence": tokens.sentence}
    assert data["bar"] == {
        "name": "Server",
        "count": 1,
        "parts": [["decoding", 3_000, "computing"], ["queueing", 1_000, "a colour of its own"]],
    }
    assert data["sections"][0]["tables"][0]["title"] == "Requests"
    assert [finding["sentence"] for finding in data["findings"]] == ["Batches are small."]
    assert analysis.to_dict()["tokens_per_request"]["requests"][1]["time_us"] == 5_000


def test_a_result_with_a_page_of_its_own_is_shown_alone() -> None:
    own = OwnPage(REQUESTS, 1_000, 3_000)
    other = msgspec.structs.replace(own, sentence="Something else.")
    analysis = Analysis(without_events("server.json"), {"own": own, "other": other})
    lines, data = printed(analysis), data_of(html_page(analysis))
    # THEN only it is on the terminal, and it comes first in HTML
    assert lines[0] == own.sentence
    assert "Something else." not in " ".join(lines)
    assert data["verdict"]["sentence"] == own.sentence
    assert [section["first"] for section in data["sections"]] == [True, True]
    assert markdown_of(own, own.findings()).startswith(
        "# decode-bound\n\nDecoding takes most of the time.\n"
    )


def test_an_analysis_without_a_result_says_what_it_needs() -> None:
    # GIVEN analyses that lack something, of which two lack the same
    tokens = ("tokens", "log them with Server(log_tokens=True)")
    analysis = Analysis(
        without_events("server.json"),
        {
            "tokens": Unavailable("No tokens are known.", "no_files", needs=tokens),
            "rates": Unavailable("No rates are known.", "no_files", needs=tokens),
            "queue": Unavailable("The queue is unknown.", "no_files"),
            "texts": Unavailable("No words.", "no_files", verdict="cannot tell"),
            "asked": Unavailable("Not comparable.", "different_work", is_requested=True),
        },
    )
    lines = printed(analysis)
    # THEN each need is listed once, and the reasons that matter are at the top
    assert (lines[0], lines[2]) == ("Not comparable.", "No words.")
    assert "Not in this trace: tokens (log them with Server(log_tokens=True))." in lines
    assert data_of(html_page(analysis))["verdict"] == {
        "word": "cannot tell",
        "sentence": "No words.",
    }


def test_columns_are_selected_by_heading() -> None:
    table = Table("t", (("a", ""), ("b", "ns")), [("x", 1), ("y", 2)], "A note.")
    wider = Table("t", (("new", ""), ("a", ""), ("b", "ns")), [(0, "x", 1), (0, "y", 2)])
    assert table.selected(1, ("b", "a")) == wider.selected(1, ("b", "a"))
    assert table.selected(1, ("b", "a")).rows == [(1, "x")]
    assert table.selected(9) == Table("t", table.columns, table.rows)
    with pytest.raises(ValueError, match="c"):
        table.selected(1, ("c",))


class Changed(Tokens, frozen=True):
    """A result with changes of large and small parts."""

    def head(self) -> list[Block]:
        rows = [("large", 10, 30), ("small", 1, 10), ("multiplied", 10, 210), ("new", 0, 5)]
        return [Changes("part", [(n, b * 1_000, a * 1_000) for n, b, a in rows], 110_000)]


def test_next_to_nothing_has_no_percentage() -> None:
    # GIVEN changes of parts of 9 %, 0.9 % and nothing of the time before
    analysis = Analysis(without_events("t.json"), {"changed": Changed(REQUESTS, 1, 1)})
    words = {line.split()[0]: line.split()[3:] for line in printed(analysis) if line}
    # THEN those of less than 1 %, and those of ten times and more, have no percentage
    assert words["large"] == ["+20.0", "(+200", "%)"]
    assert words["small"] == ["+9.00"]
    assert words["multiplied"] == ["+200"]
    assert words["new"] == ["+5.00"]


class Wide(Tokens, frozen=True):
    """A result with a wide table."""

    def head(self) -> list[Block]:
        columns = (("name", ""), *((f"a heading of words {n}", "ns") for n in range(6)))
        rows = [(f"row {n}", *(n * 1_000_000 + at for at in range(6))) for n in range(40)]
        return [Line("The line above the table.", "strong"), Table("", columns, rows)]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_figures_are_never_cut(width: int) -> None:
    analysis = Analysis(without_events("t.json"), {"wide": Wide(REQUESTS, 1, 1)})
    lines = printed(analysis, width, height=80)
    # THEN each row has its name and whole figures, and the columns without space are left out
    rows = [line for line in lines if line.startswith("row ")]
    assert len(rows) == 40
    assert all(re.fullmatch(r"row \d+( +(0|\d\.\d\d|\d\d\.\d|0\.\d{3}))+", row) for row in rows)
    assert max(map(len, rows)) <= width


def test_a_table_that_does_not_fit_leaves_the_line_above_it() -> None:
    analysis = Analysis(without_events("t.json"), {"wide": Wide(REQUESTS, 1, 1)})
    lines = printed(analysis, 100, height=24)
    # THEN the table is left out, and nothing else
    assert not [line for line in lines if line.startswith("row ")]
    assert "The line above the table." in lines


def test_every_analysis_of_a_trace_may_be_without_a_result(tmp_path: Path) -> None:
    analysis = analyze(without_events(str(tmp_path)))
    # THEN its page has the reason at the top, and how to record what is missing
    lines = printed(analysis)
    assert lines[1].startswith("Cannot tell: ")
    assert "Not in this trace: device events (record the device's activity)" in " ".join(lines)
