"""The page of a process: percentiles of its stages over time, and its requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded_process import RING, command_here, started

from page_data import data_of
from running import PROGRAMS, end

LIVE = PROGRAMS / "live.py"


def rows(markdown: str, title: str) -> dict[str, list[str]]:
    """Return the rows of a table of the page by their first cells."""
    lines = markdown.partition(f"### {title}\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


def test_the_page_shows_percentiles_over_time(folder: Path, tmp_path: Path) -> None:
    process = started(LIVE, "slower")
    text = command_here("show", str(process.pid), "--markdown").stdout
    page = tmp_path / "page.html"
    command_here("show", str(process.pid), "--html", str(page))
    end(process)
    halves = rows(text, "First and second half of the time")
    assert halves["decode"] == ["100 of 100", "1.00", "4.00", "1.00", "4.00"]
    assert halves["load"] == ["1 of 1", "3.00", "unknown", "3.00", "unknown"]
    (chart,) = data_of(page.read_text())["pictures"]
    decode, load = chart["stages"]
    assert (decode["name"], load["name"]) == ("decode", "load")
    assert sum(decode["runs"]) == 100
    # The core keeps times in ticks of its own clock. Each end of a span can be 1 ns off, and the
    # rate of the ticks, which readings of both clocks give, by some millionths on a busy machine.
    assert decode["p50_ns"][0] == pytest.approx(1_000_000, rel=1e-5)
    assert decode["p95_ns"][-1] == pytest.approx(4_000_000, rel=1e-5)
    assert load["p50_ns"] == [pytest.approx(3_000_000, rel=1e-5)]


def test_the_page_has_the_latest_spans_in_a_table_and_not_above_it(
    folder: Path, tmp_path: Path
) -> None:
    process = started(LIVE, "nested")
    text = command_here("show", str(process.pid), "--markdown").stdout
    page = tmp_path / "page.html"
    command_here("show", str(process.pid), "--html", str(page))
    end(process)
    assert len(rows(text, "Latest spans of each thread")) > 0
    assert not [line for line in data_of(page.read_text())["lines"] if "inner" in line]


def test_the_page_says_how_many_runs_it_has(folder: Path) -> None:
    process = started(f"""
        import stagespan, time
        for at in range({RING} + 72):
            with stagespan.span("work"):
                pass
        print("ready", flush=True)
        time.sleep(60)
    """)
    text = command_here("show", str(process.pid), "--markdown").stdout
    end(process)
    here, _, of_all = rows(text, "First and second half of the time")["work"][0].partition(" of ")
    assert int(here) <= RING
    assert int(of_all) == RING + 72


def test_the_page_shows_requests(folder: Path) -> None:
    process = started(LIVE, "nested")
    text = command_here("show", str(process.pid), "--markdown").stdout
    screen = command_here("show", str(process.pid)).stdout
    end(process)
    assert set(rows(text, "Requests")) == {"r0", "r1", "r2"}
    assert rows(text, "Stages")["inner"][0] == "3"
    assert "r0" not in screen


def test_a_process_without_spans_has_a_page(folder: Path, tmp_path: Path) -> None:
    process = started(LIVE, "inside", "first")
    page = tmp_path / "page.html"
    command_here("show", str(process.pid), "--html", str(page))
    end(process)
    assert data_of(page.read_text())["pictures"] == []


def test_a_stage_around_others_runs_once_at_once(folder: Path) -> None:
    process = started(LIVE, "nested")
    stages = json.loads(command_here("requests", str(process.pid), "--json").stdout)["stages"]
    end(process)
    assert {stage["stage"]: stage["parallel"] for stage in stages} == {"outer": 1.0, "inner": 1.0}


def test_spans_of_a_request_that_run_at_once_are_counted(folder: Path) -> None:
    process = started(LIVE, "spans_at_once")
    stages = json.loads(command_here("requests", str(process.pid), "--json").stdout)["stages"]
    end(process)
    (part,) = [stage for stage in stages if stage["stage"] == "part"]
    assert part["parallel"] == pytest.approx(30 / 25)
