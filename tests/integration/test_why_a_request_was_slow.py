"""Why a request was slow: beside others, by position, and what a program reads of its own one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from exporting import exporter, of, scraped
from recorded_process import started
from recording import printed, python

import stagespan
from recorded import recorded, requests_in, segment_of
from running import PROGRAMS
from stagespan import recording
from stagespan.pages.terminal import print_result
from stagespan.recording.requests_page import Requests
from stagespan.recording.timelines import timelines

REQUESTING = PROGRAMS / "requesting.py"


def test_a_slow_request_is_shown_beside_others(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN 21 short requests after another, then a long one, while another one is open
    spans = [("decode", n, 10 * n, 10 * n + 1) for n in range(1, 22)]
    segments = [segment_of(n, begin_ns=10 * n, end_ns=10 * n + 2) for n in range(1, 22)]
    segments += [segment_of(99, begin_ns=300, end_ns=900)]
    segments += [segment_of(100, begin_ns=400, end_ns=700, id="slow")]
    slow_only = timelines([recorded([*spans, ("decode", 100, 550, 690)], segments)], "slow")
    # WHEN it is shown
    result = Requests(slow_only, list(slow_only), {}, 1, in_detail=True)
    (slow,) = result.to_dict()["requests"]
    # THEN it has the median of its stage, and how many others were open
    (span,) = slow["segments"][0]["spans"]
    assert (span["duration_ns"], span["median_ns"], slow["open_meanwhile"]) == (140, 1, 1)
    positions = {"before_first_ns": 150, "between_ns": 0, "after_last_ns": 10}
    assert (slow["unattributed"], slow["unattributed_ns"]) == (positions, 160)
    print_result(result)
    text = capsys.readouterr().out
    assert "140 x its median (0.001 µs)" in text
    assert "1 other request was open meanwhile" in text
    # AND only the time before its first stage is a finding
    (finding,) = result.findings()
    assert "50 % of the time passes before the first stage" in finding.sentence


def test_what_runs_between_stages_is_a_finding() -> None:
    spans = [("a", 1, 100, 120), ("b", 1, 220, 240)]
    result = requests_in(recorded(spans, [segment_of(1, begin_ns=100, end_ns=240)]))
    (gap,) = result.to_dict()["requests"]
    assert gap["unattributed"] == {"before_first_ns": 0, "between_ns": 100, "after_last_ns": 0}
    (finding,) = result.findings()
    assert "of the time passes between stages: wrap what runs there" in finding.sentence


@pytest.mark.usefixtures("fresh")
def test_chunks_are_shown_by_pipeline() -> None:
    with stagespan.request("in chunks") as in_chunks:
        in_chunks.pipeline = "chat"
        for _ in range(3):
            in_chunks.chunk(tokens=2)
    tables = requests_in(recording.open(os.getpid())).tables()
    (table,) = [table for table in tables if ("per token p50", "ns") in table.columns]
    assert [row[:2] for row in table.rows if row[0] == "chat"] == [("chat", 1)]


@pytest.mark.usefixtures("fresh")
def test_a_program_reads_the_breakdown_of_its_own_request() -> None:
    with stagespan.request("mine") as mine:
        with stagespan.queued("room"):
            time.sleep(0.002)
        with stagespan.span("work"):
            time.sleep(0.003)
        still_open = mine.breakdown()
    found = mine.breakdown()
    assert still_open is not None
    assert found is not None
    assert (still_open["status"], found["status"]) == ("open", "ok")
    assert found["queue_ns"] >= 2_000_000
    assert found["execution_ns"] >= 3_000_000
    parts = ("execution_ns", "queue_ns", "handoff_ns", "unattributed_ns")
    assert sum(found[name] for name in parts) == found["total_ns"]
    # WHEN two requests have the same id THEN each has its own
    with stagespan.request("mine") as other:
        pass
    assert other.breakdown() != found
    again = mine.breakdown()
    assert again is not None
    assert again["total_ns"] == pytest.approx(found["total_ns"], abs=1_000)
    stagespan.disable()
    try:
        with stagespan.request("off") as off:
            pass
        assert off.breakdown() is None
    finally:
        stagespan.enable()


def test_gauges_are_the_latest_values_of_a_bounded_number(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    process = started(REQUESTING, "gauges", STAGESPAN_JOB="svc")
    started(REQUESTING, "gauges", STAGESPAN_JOB="svc")
    assert recording.open(process.pid).gauges() == {"kv_blocks_free": 1204.5}
    with exporter() as (_, port):
        gauge = of(scraped(port), "stagespan_gauge", name="kv_blocks_free", service="svc")
        assert gauge == 2 * 1204.5
    assert printed(python((REQUESTING, "many_gauges"), tmp_path)) == [[64, 0.0, 38]]
