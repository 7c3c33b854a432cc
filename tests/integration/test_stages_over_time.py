"""The page of a process: percentiles of its stages over time, and its requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recorded_process import RING, command_here, started

from page_data import data_of
from recorded import recorded, requests_in, segment_of
from running import PROGRAMS, end
from stagespan.recording.stages_over_time import StagesOverTime

LIVE = PROGRAMS / "live.py"


def rows(markdown: str, title: str) -> dict[str, list[str]]:
    """Return the rows of a table of the page by their first cells."""
    lines = markdown.partition(f"### {title}\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


def test_percentiles_over_time() -> None:
    # GIVEN a stage whose runs take 4 ms instead of 1 in the second half of the time
    starts = [at * 100_000_000 for at in range(100)]
    decode = [
        ("decode", 0, start, start + (1_000_000 if at < 50 else 4_000_000))
        for at, start in enumerate(starts)
    ]
    over_time = StagesOverTime(recorded([*decode, ("load", 0, 0, 3_000_000)]))
    (table,) = over_time.tables()
    assert table.rows == [
        ("decode", "100 of 100", 1_000_000, 4_000_000, 1_000_000, 4_000_000),
        ("load", "1 of 1", 3_000_000, None, 3_000_000, None),
    ]
    chart: Any = over_time.chart()
    decode_chart, load_chart = chart["stages"]
    assert (decode_chart["name"], load_chart["name"]) == ("decode", "load")
    assert sum(decode_chart["runs"]) == 100
    assert (decode_chart["p50_ns"][0], decode_chart["p95_ns"][-1]) == (1_000_000, 4_000_000)
    assert load_chart["p50_ns"] == [3_000_000]


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


def test_runs_of_a_stage_at_once() -> None:
    # GIVEN a stage around another, and one with three runs of 10 in 15 + 10
    around = [("outer", 1, 100, 120), ("inner", 1, 105, 115)]
    at_once = [("part", 2, 200 + first, 210 + first) for first in (0, 5, 20)]
    segments = [segment_of(n, begin_ns=100 * n, end_ns=100 * n + 40) for n in (1, 2)]
    stages = requests_in(recorded([*around, *at_once], segments)).to_dict()["stages"]
    parallel = {stage["stage"]: stage["parallel"] for stage in stages}
    assert parallel == {"outer": 1.0, "inner": 1.0, "part": 30 / 25}
