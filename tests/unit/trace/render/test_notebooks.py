"""What a notebook shows of an analysis and of its results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from html_pages import HOSTILE, a_program

from stagespan.errors import StagespanError
from stagespan.pages.result import Result, Table
from stagespan.trace.analysis import analyze

_TAGS = {"p", "b", "span", "svg", "rect", "table", "caption", "tr", "th", "td"}


def test_an_analysis_shows_its_verdict_a_bar_and_its_findings(tmp_path: Path) -> None:
    analysis = analyze(a_program().trace(tmp_path))
    shown = analysis._repr_html_()
    assert "Host-bound" in shown
    assert shown.count("<svg ") == 1
    assert f"high: {analysis.findings()[0].first_line}" in shown.replace("&#x27;", "'")


def test_a_result_shows_its_first_screen(tmp_path: Path) -> None:
    kernels = analyze(a_program().trace(tmp_path)).results["kernels"]
    shown = kernels._repr_html_()  # type: ignore[union-attr]
    assert shown.startswith("<p><span>Time goes to: communication 71.4 %")


def test_the_repr_of_a_result_is_its_headline(tmp_path: Path) -> None:
    analysis = analyze(a_program().trace(tmp_path))
    assert repr(analysis.results["verdict"]).startswith("<Verdict: Host-bound")
    results = [each for each in analysis.results.values() if isinstance(each, Result)]
    assert len(results) > 5
    assert all(len(repr(result)) < 500 for result in results)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_result_becomes_a_data_frame(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    kernels = analyze(a_program().trace(tmp_path)).results["kernels"]
    table = kernels.tables()[0]
    # WHEN a table is made a data frame
    frame = getattr(kernels, f"to_{library}")(table.title)
    # THEN it has all rows, and the units are in the names of its columns
    assert len(frame) == len(table.rows)
    assert list(frame.columns)[:2] == ["name", "time_ns"]
    assert list(frame["time_ns"]) == [row[1] for row in table.rows]
    with pytest.raises(StagespanError, match="There is no table 'other': the tables are"):
        getattr(kernels, f"to_{library}")("other")


def test_columns_of_a_data_frame_have_the_units_of_their_cells() -> None:
    units = {"time": "ns", "share": "%", "age": "rounded ns", "state": "state", "found": "words"}
    table = Table("", tuple(units.items()), [(1, 2.0, 3, "alive", "a word")])
    assert list(table.columns_of_frame()) == [
        "time_ns",
        "share_percent",
        "age_ns",
        "state",
        "found",
    ]


def test_names_of_a_trace_are_text(tmp_path: Path) -> None:
    analysis = analyze(a_program(HOSTILE).trace(tmp_path))
    pieces = [analysis._repr_html_()]
    pieces += [r._repr_html_() for r in analysis.results.values() if hasattr(r, "_repr_html_")]
    assert {tag for text in pieces for tag in re.findall(r"<([a-zA-Z!]\w*)", text)} <= _TAGS
    assert any("&lt;/script&gt;" in text for text in pieces)
