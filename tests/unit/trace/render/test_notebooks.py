"""What a notebook shows of an analysis and of its results."""

from __future__ import annotations

import re
from pathlib import Path

from html_pages import HOSTILE, a_program

from stagespan.trace.analysis import analyze

_TAGS = {"p", "b", "span", "svg", "rect", "table", "caption", "tr", "th", "td"}


def test_an_analysis_shows_its_verdict_a_bar_and_its_findings(tmp_path: Path) -> None:
    analysis = analyze(a_program().trace(tmp_path))
    shown = analysis._repr_html_()
    assert "Host-bound" in shown
    assert shown.count("<svg ") == 1
    assert f"high: {analysis.findings()[0].sentence}" in shown.replace("&#x27;", "'")


def test_a_result_shows_its_table(tmp_path: Path) -> None:
    kernels = analyze(a_program().trace(tmp_path)).results["kernels"]
    shown = kernels._repr_html_()  # type: ignore[union-attr]
    assert shown.startswith("<table>")
    assert "<td>kernel one</td>" in shown


def test_names_of_a_trace_are_text(tmp_path: Path) -> None:
    analysis = analyze(a_program(HOSTILE).trace(tmp_path))
    pieces = [analysis._repr_html_()]
    pieces += [r._repr_html_() for r in analysis.results.values() if hasattr(r, "_repr_html_")]
    assert {tag for text in pieces for tag in re.findall(r"<([a-zA-Z!]\w*)", text)} <= _TAGS
    assert any("&lt;/script&gt;" in text for text in pieces)
