"""Why a request was slow: beside others, by position, and what a program reads of its own one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from exporting import exporter, of, scraped
from recorded_process import command_here, started
from recording import printed, python

import stagespan
from running import PROGRAMS
from stagespan import recording
from stagespan.pages.amounts import in_words

REQUESTING = PROGRAMS / "requesting.py"


def page(*options: str) -> Any:
    return json.loads(command_here("requests", *options, "--json").stdout)


def test_a_slow_request_is_shown_beside_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(REQUESTING, "one_slow_request")
    (slow,) = page("--id", "slow")["requests"]
    (span,) = slow["segments"][0]["spans"]
    assert span["duration_ns"] >= 15 * span["median_ns"]
    assert slow["open_meanwhile"] == 1
    positions = slow["unattributed"]
    assert positions["before_first_ns"] >= 100_000_000
    assert positions["between_ns"] == 0
    assert positions["after_last_ns"] >= 6_000_000
    assert sum(positions.values()) == slow["unattributed_ns"]
    monkeypatch.setenv("COLUMNS", "120")  # the column of medians is left out if it does not fit
    text = command_here("requests", "--id", "slow").stdout
    assert f"x its median ({in_words(span['median_ns'], 'ns')})" in text
    assert "1 other request was open meanwhile" in text
    assert (
        "of the time passes before the first stage: waiting for a thread of the pool"
        in " ".join(text.split())
    )
    assert "after the last stage" not in text


def test_what_runs_between_stages_is_a_finding(folder: Path) -> None:
    started(REQUESTING, "gap_between_stages")
    (gap,) = page("--id", "gap")["requests"]
    assert gap["unattributed"]["between_ns"] >= 10_000_000
    text = command_here("requests", "--id", "gap").stdout
    assert "of the time passes between stages: wrap what runs there" in text


def test_chunks_are_shown_by_pipeline(folder: Path) -> None:
    started(REQUESTING, "one_slow_request", STAGESPAN_PIPELINE_NAME="chat")
    text = command_here("requests").stdout
    after = text.partition("per token p50")[2].partition("Work of a request")[0].splitlines()
    (row,) = [one.split() for one in after if one.split()[:1] == ["chat"]]
    assert row[1] == "1"


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
    process = started(REQUESTING, "one_slow_request", STAGESPAN_JOB="svc")
    started(REQUESTING, "one_slow_request", STAGESPAN_JOB="svc")
    assert recording.open(process.pid).gauges() == {"kv_blocks_free": 1204.5}
    with exporter() as (_, port):
        gauge = of(scraped(port), "stagespan_gauge", name="kv_blocks_free", service="svc")
        assert gauge == 2 * 1204.5
    assert printed(python((REQUESTING, "many_gauges"), tmp_path)) == [[64, 0.0, 38]]
