"""The page's charts: their figures equal those of the analyses, and a browser draws each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from html_pages import a_trace
from kernel_programs import operator
from planted import Program

from stagespan.pages import html
from stagespan.pages.html.data import charts
from stagespan.trace.analyses.steps import MOST_DRAWN
from stagespan.trace.analysis import Analysis, analyze
from stagespan.trace.compare import comparison
from stagespan.trace.paths import analyze_path


def by_kind(analysis: Analysis) -> dict[str, dict[str, Any]]:
    return {picture["kind"]: picture for picture in charts(analysis)}


def test_charts_contain_the_figures_of_the_analyses(tmp_path: Path) -> None:
    # GIVEN a trace with steps, memory, stacks and idle time
    analysis = analyze_path(a_trace(tmp_path))
    figures = analysis.to_dict()
    drawn = by_kind(analysis)
    assert list(drawn) == ["idle_causes", "steps", "memory", "flame"]
    parts = figures["verdict"]["parts_us"]
    busy = sum(parts.get(part, 0) for part in ("computing", "communicating", "copying"))
    idle_ns = round((figures["verdict"]["whole_us"] - busy) * 1000)
    assert sum(time for _, _, time, _ in drawn["idle_causes"]["causes"]) == idle_ns
    steps = drawn["steps"]
    assert steps["names"] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    for at, step in enumerate(figures["steps"]["steps"]):
        assert sum(times[at] for _, _, times in steps["parts"]) == round(step["step_us"] * 1000)
    flame = drawn["flame"]
    assert sum(flame["self_ns"]) == round(figures["flame"]["total_us"] * 1000)
    assert all(parent < at for at, parent in enumerate(flame["parents"]))
    assert flame["names"][0] == "all"
    called = flame["names"].index("train.py(2): f2")
    assert flame["names"][flame["parents"][called]] == "train.py(1): f1"
    # THEN the curve's highest point is the peak: two steps left 2 MiB each, and 3 more
    (device,) = drawn["memory"]["devices"]
    assert max(size for _, size in device["curve"]) == (2 + 2 + 3) << 20
    assert figures["memory"]["devices"][0]["peak_bytes"] == (2 + 2 + 3) << 20


def test_a_change_is_drawn_from_before_to_after(tmp_path: Path) -> None:
    # GIVEN a program before and after its kernels became slower
    before = a_trace(tmp_path, us=40, name="before")
    after = a_trace(tmp_path, us=90, tail=300, name="after")
    analysis = analyze_path(after, before)
    change = by_kind(analysis)["change"]
    assert change["before"] + sum(time for _, time in change["parts"]) == pytest.approx(
        change["after"], abs=len(change["parts"])
    )
    assert change["after"] > change["before"]
    whole = change["parts"]
    most, comparison.MOST_DRAWN = comparison.MOST_DRAWN, 1
    try:
        short = by_kind(analysis)["change"]["parts"]
    finally:
        comparison.MOST_DRAWN = most
    assert short[0] == max(whole, key=lambda part: abs(part[1]))
    assert short[1][0] == f"{len(whole) - 1} smaller parts"
    assert change["before"] + sum(time for _, time in short) == change["after"]


def test_many_steps_are_cut_and_say_so(tmp_path: Path) -> None:
    analysis = analyze_path(a_trace(tmp_path, steps=MOST_DRAWN + 20))
    steps = by_kind(analysis)["steps"]
    assert len(steps["names"]) <= MOST_DRAWN
    left = analysis.to_dict()["steps"]["count"] - len(steps["names"])
    assert steps["note"] == f"Not drawn: {left:,} steps."


def test_no_chart_without_figures(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text("[]")
    assert charts(analyze_path(path)) == []


@pytest.mark.slow
def test_a_browser_draws_each(browser: Browser, tmp_path: Path) -> None:
    before = a_trace(tmp_path, us=40, name="before")
    analysis = analyze_path(a_trace(tmp_path, us=90, name="after"), before)
    page = tmp_path / "page.html"
    page.write_text(html.html_page(analysis))
    browser.open(page)
    drawn = json.loads(browser.evaluate(
        "JSON.stringify([...document.querySelectorAll('.chart')].map((chart) =>"
        " [chart.ariaLabel, chart.querySelectorAll('path').length > 1]))"
    ))  # fmt: skip
    assert drawn == [
        ["Change by part", True],
        ["Timeline of steps, stages, device and host", True],
        ["Idle time by cause", True],
        ["Time of each step by part", True],
        ["Memory over time", True],
        ["Flame graph of the recorded stacks", True],
    ]
    assert browser.complaints == []
    # THEN the flame graph shows the lines of Python
    assert "train.py(2): f2" in browser.evaluate(
        "document.querySelector('#analysis-flame .chart').textContent"
    )


@pytest.mark.slow
@pytest.mark.parametrize("peaks", ["H100 80GB HBM3", "Mystery 9"])
def test_a_browser_draws_a_roofline(peaks: str, browser: Browser, tmp_path: Path) -> None:
    program = Program()
    bf16 = {"Input type": ["c10::BFloat16"] * 2}
    for size in (64, 1024):
        operator(program, "aten::mm", "gemm", 100, [[size, 1024], [1024, 2048]], **bf16)
    trace = tmp_path / "trace.json"
    device = {"id": 0, "name": peaks}
    trace.write_text(json.dumps({"traceEvents": program.events, "deviceProperties": [device]}))
    page = tmp_path / "page.html"
    page.write_text(html.html_page(analyze_path(trace)))
    browser.open(page)
    points = "document.querySelectorAll('#analysis-rates .chart circle').length"
    assert browser.evaluate(points) == 2
    lines = "document.querySelectorAll('#analysis-rates .chart path[fill=none]').length"
    assert browser.evaluate(lines) == (2 if peaks.startswith("H100") else 0)
    assert browser.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["cuda_h100_bert.json.gz", "rocm_mi300_sglang_decode.json.gz", "cpu_only.json.gz",
     "mtia_inference.json.gz", "nccl_dlrm_8rank", "ascend_level1", "ascend_level1/rank0_ascend_pt"],
)  # fmt: skip
def test_real_traces_are_drawn_without_errors(
    name: str, traces: Path, browser: Browser, tmp_path: Path
) -> None:
    analysis = analyze_path(traces / name, jobs=1)
    page = tmp_path / "page.html"
    page.write_text(html.html_page(analysis))
    browser.size(800, 600)
    browser.open(page)
    assert browser.evaluate("document.documentElement.dataset.ready") == "yes"
    assert browser.complaints == []
    assert len(browser.text(".findings > li")) == len(analysis.findings())
    tables = sum(len(result.tables()) for result in analysis.results.values())
    assert len(browser.text(".table")) == tables
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_analyses_that_are_added_appear_by_themselves(tmp_path: Path) -> None:
    known = analyze(Program().trace(tmp_path))
    other = analyze_path(a_trace(tmp_path)).results["kernels"]
    analysis = Analysis(known.trace, {"something_new": other})
    page = html.html_page(analysis)
    assert '"heading":"Something new"' in page
    assert other.tables()[0].title in page
