"""The timing report on a terminal and in a pipe."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console
from runs import Run, a_stage, figures_of

from stagespan.report import tables
from stagespan.report.stages import stage_entries


def shown(report: dict[str, Any]) -> str:
    stream = io.StringIO()
    tables.print_report(report, Console(file=stream, width=200))
    return stream.getvalue()


def report_of(figures: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"stages": stage_entries(figures, lambda name: None, {}), **more}


def test_the_tree_has_its_unattributed_rows() -> None:
    runs = [Run("pipeline", 5_000_000, [Run("denoise", 15_000_000)])]
    text = shown(report_of(figures_of(runs), wall_clock_ms=25.0, total_stages_ms=20.0))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0][:3] == ["Timing", "report,", "2"]
    assert ["pipeline", "20.0", "100", "%", "1"] in [line[:5] for line in lines]
    assert ["├─", "denoise", "15.0", "75.0", "%", "1"] in [line[:6] for line in lines]
    assert ["└─", "(unattributed)", "5.00", "25.0", "%"] in lines


def test_only_columns_with_figures_are_shown() -> None:
    plain = a_stage(count=1, total_ns=10**6, mean_ns=1e6, parents={None: (1, 10**6)})
    rich = a_stage(
        **vars(a_stage()) | {"count": 2, "total_ns": 10**9, "errors": 1, "mean_ns": 5e8},
    )
    rich.work = {"tokens": 230.0}
    rich.device_elapsed_ns = a_stage(count=2, total_ns=7_000_000)

    text = shown(report_of({"plain": plain}))
    assert "mean (ms)" in text
    assert "device" not in text
    assert "errors" not in text
    text = shown(report_of({"rich": rich}))
    assert "230 tokens/s" in text
    assert "7.00" in text
    assert "errors" in text


def test_memory_of_an_accelerator_comes_before_the_process_s() -> None:
    stage = {"duration_ms": 1.0, "memory": {"peak_allocated_mb": 4608.0, "peak_rss_mb": 1.0}}
    assert "4,608 MB" in shown({"stages": {"a": stage}})
    stage = {"duration_ms": 1.0, "memory": {"peak_allocated_mb": None, "peak_rss_mb": 77.5}}
    assert "77.5" in shown({"stages": {"a": stage}})


def test_losses_and_ranks_are_shown() -> None:
    text = shown(
        {"stages": {}, "rank": 3, "world_size": 8, "lost": {"overwritten": 1200, "orphans": 0}}
    )
    assert "rank 3 of 8" in text
    assert "lost: overwritten 1,200" in text
    assert "orphans" not in text


def test_names_cannot_break_or_colour_the_table() -> None:
    text = shown({"stages": {"[red]a\n\x1b[31mb[/red]": {"duration_ms": 1.0}}})
    assert "[red]a\\n\\x1b[31mb[/red]" in text


def test_a_request_s_name_stays_on_its_line() -> None:
    text = shown({"stages": {}, "request_id": "a\n\x1b[2Jb"})
    assert text == "Timing report of request a\\n\\x1b[2Jb, 0 stages\n"


def test_a_pipe_gets_complete_rows(monkeypatch: Any) -> None:
    # GIVEN a long name, and no given width: rich would wrap at 80 columns
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    name = "a_stage_with_quite_a_long_name_" * 3
    report = report_of(
        {name: a_stage(count=1, total_ns=10**6, mean_ns=1e6)},
        request_id="a request with a name of some length",
        wall_clock_ms=1234.5,
        total_stages_ms=1000.0,
        lost=dict.fromkeys(("overwritten", "statistics_blocks", "detached_open_spans"), 12345),
    )

    tables.print_report(report, Console(file=stream))

    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("1 stage, wall clock 1,234 ms, in stages 1,000 ms")
    assert any(name in line for line in lines)
    assert lines[-1].endswith("detached_open_spans 12,345")


def test_a_terminal_of_any_encoding_gets_the_tree() -> None:
    # GIVEN names and guides that ASCII does not contain
    runs = [Run("pipeline \u2192", 5_000_000, [Run("denoise", 15_000_000)])]
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")

    tables.print_report(report_of(figures_of(runs)), Console(file=stream, width=200))

    stream.seek(0)
    cells = [re.split(" {2,}", line.strip()) for line in stream]
    assert ["pipeline ?", "20.0", "100 %", "1"] in cells
    assert ["|- denoise", "15.0", "75.0 %", "1"] in cells
    assert ["`- (unattributed)", "5.00", "25.0 %"] in cells


def frames(report: dict[str, Any]) -> dict[str, tuple[str | None, int]]:
    """Return the caller and the own time in ns of each frame of the flame graph."""
    chart = tables.Timing(report).chart()
    assert chart is not None
    names = chart["names"]
    callers = [None if parent < 0 else names[parent] for parent in chart["parents"]]
    return dict(zip(names, zip(callers, chart["self_ns"], strict=True), strict=True))


def test_the_flame_graph_has_the_time_of_the_tree() -> None:
    step = Run("step", 2_000_000, [Run("attention", 7_000_000)])
    runs = [Run("pipeline", 5_000_000, [Run("denoise", 1_000_000, [step])]), Run("load", 3_000_000)]
    assert frames(report_of(figures_of(runs))) == {
        "pipeline": (None, 5_000_000),
        "denoise": ("pipeline", 1_000_000),
        "step": ("denoise", 2_000_000),
        "attention": ("step", 7_000_000),
        "load": (None, 3_000_000),
    }


def test_an_empty_report_has_no_flame_graph() -> None:
    assert tables.Timing({"stages": {}}).chart() is None


def test_the_slowest_requests_are_listed_with_their_stages() -> None:
    requests = [
        {
            "request_id": f"r{number}",
            "status": "ok",
            "duration_ms": float(number),
            "total_stages_ms": None,
            "stages": {"decode": {"duration_ms": number / 2, "top_level_ms": number / 2}},
        }
        for number in range(30)
    ]
    table = tables.Timing({"stages": {}, "requests": [*requests, None, 3]}).tables()[0]
    assert table.title == "The 20 slowest of 30 requests"
    assert [heading for heading, _ in table.columns][-1] == "decode"
    assert table.rows[0] == ("r29", "ok", 29e6, "", 14.5e6)
    assert len(table.rows) == 20
