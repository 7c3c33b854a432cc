"""What sampling found, on a terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from stagespan.pages.amounts import in_percent, three_digits
from stagespan.pages.console import encodable, width_of
from stagespan.pages.escaping import one_line
from stagespan.pages.page import Page, ResultPage, Words
from stagespan.pages.result import Table
from stagespan.pages.tables import Column, plain_table
from stagespan.sampling.result import Sampled

_WIDTH = 100


def sampled_page(sampled: Sampled, subject: str, as_text: str) -> Page:
    """Return a page with the result; ``as_text`` is the command that prints it."""
    words = Words(page="Samples", as_text=as_text)
    return ResultPage(words, sampled, one_line(subject), sampled.line())


def print_sampled(sampled: Sampled, command: str, file: TextIO) -> None:
    """Print the tables of all roles, and the command that times the suggested stages.

    This is done at the end of a program, so it needs no library that takes long to import.
    """
    width = width_of(file, _WIDTH)
    lines = [f"Where the time went: {sampled.line()}"]
    for table in sampled.tables():
        lines += ["", plain_table(_columns(table), width, is_ruled=True), ""]
        if table.note:
            lines += [table.note, ""]
    if sampled.suggested_stages:
        lines += ["To time these functions as stages:", "", command]
    file.write(encodable("\n".join(lines) + "\n", getattr(file, "encoding", None) or "utf-8"))


def _columns(table: Table) -> list[Column]:
    function, share, time, mostly = zip(*table.rows, strict=True)

    def texts(cells: Sequence[Any]) -> list[str]:
        return [one_line(str(cell)) for cell in cells]

    return [
        Column(one_line(table.title), texts(function), is_flexible=True),
        Column("share", [f"{in_percent(cell)}" for cell in share], is_number=True),
        Column("time", [f"{three_digits(cell / 1e9)} s" for cell in time], is_number=True),
        Column("mostly", texts(mostly), optional=1),
    ]
