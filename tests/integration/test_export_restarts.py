"""Tests of requests that an exporter was about to send or write when it was killed."""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import textwrap
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from exporting import REQUESTS, exporter, of, scraped
from recorded_process import command_here, start, started

from changed_json import VALUES, places, put
from running import PROGRAMS, end, ready, tell, until
from stagespan import recording
from stagespan.export.families import FAMILIES
from stagespan.export.node import Node
from stagespan.export.traces import Rules

EXPORTED = PROGRAMS / "exported.py"

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="there is no OTLP exporter")
collector = pytest.importorskip("collector")

pytestmark = pytest.mark.slow


def kill(process: Any) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def end_by(process: Any, how: str) -> None:
    if how == "kill":
        kill(process)
    else:
        end(process)


def test_an_exporter_goes_on_after_it_was_suspended(folder: Path) -> None:
    process = start(REQUESTS, "30", STAGESPAN_JOB="svc")
    with exporter() as (first, port):
        ready(process)
        first.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        first.send_signal(signal.SIGCONT)
        time.sleep(1.5)
        assert of(scraped(port), "stagespan_stage_duration_seconds_count", stage="decode") == 30
        assert first.poll() is None
        first.terminate()
        assert first.wait(20) == 0


@pytest.mark.parametrize("how", ["return", "kill", "live"])
def test_a_killed_exporter_loses_no_request(folder: Path, how: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with exporter("--otlp", url) as (first, port):
            process = started(REQUESTS, "30", STAGESPAN_JOB="svc")
            if how != "live":
                end_by(process, how)
            metric = "stagespan_request_duration_seconds_count"
            until(lambda: of(scraped(port), metric, service="svc") == 30)
            up = of(scraped(port), "stagespan_process_up", service="svc")
            assert up == (1 if how == "live" else 0)
            # WHEN it is killed THEN the next one sends each request once, and counts none twice
            kill(first)
    with collector.http() as received, exporter("--otlp", received.url) as (_, port):
        until(lambda: len(received.spans("decode")) >= 30)
        time.sleep(1)
        assert len({span.span_id for span in received.spans()}) == len(received.spans()) == 60
        assert of(scraped(port), metric, service="svc") == 30
        if how == "live":
            end(process)


@pytest.mark.full
def test_no_state_keeps_an_exporter_from_a_live_process(folder: Path, tmp_path: Path) -> None:
    started(REQUESTS, "5", STAGESPAN_JOB="svc")
    path = tmp_path / "state.json"
    first = Node(path, Rules())
    first.read()
    first.close()
    page = json.loads(path.read_bytes())
    assert len(page["processes"]) == 1
    page["processes"][0]["figures"]["amounts"]["lost"] = {"requests_unread": {"": 1.0}}
    reading = [one for one in places(page) if one[:1] == ("processes",) and len(one) > 2]
    assert len(reading) > 20
    for place, value in product(reading, VALUES):
        changed = copy.deepcopy(page)
        put(changed, place, copy.deepcopy(value))
        path.write_text(json.dumps(changed))
        node = Node(path, Rules())
        try:
            node.read()
            node.read()
            totals = node.totals().values()
            runs = sum(one.durations["stage"]["decode"].below[-1] for one in totals)
        finally:
            node.close()
        assert runs >= 5, (place, value)
        assert node.lost()["unreadable"] == 0


def split(totals: dict[str, Any]) -> tuple[Any, dict[tuple[str, str], int]]:
    """Return totals without the sums of durations, and these sums in ns, by family and name."""
    counted: dict[tuple[str, str], Any] = {}
    sums_ns = {}
    for family, histograms in totals["durations"].items():
        for name, histogram in histograms.items():
            counted[family, name] = histogram
            if not FAMILIES[family].is_amount:
                counted[family, name] = histogram.below
                sums_ns[family, name] = histogram.sum
    return {**totals, "durations": counted}, sums_ns


def test_names_with_any_character_are_counted_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    characters = ["\0", '"', "\\", "\n", "\x1b", "\x7f", "\u2028", "\u202e", "é", "𝄞", "\ufffe"]
    program = f"""
        import stagespan
        for character in {characters!a}:
            with stagespan.request("r"), stagespan.span(f"a{{character}}b") as span:
                span.add(**{{f"u{{character}}": 2}})
                carrier = stagespan.inject(queue=f"q{{character}}r")
            with stagespan.extract(carrier):
                pass
        print("ready", flush=True)
        input()
    """
    process = started(program, STAGESPAN_JOB="svc")

    def totals() -> dict[str, Any]:
        node = Node()
        node.read()
        (found,) = node.totals().values()
        node.close()
        return {"durations": found.durations, "amounts": found.amounts}

    # WHEN exporters follow each other THEN figures are the same, and no state is set aside
    first, second = totals(), totals()
    end(process)
    last = totals()
    # THEN only the end of the process is new
    ends = [one["amounts"].pop("ended") for one in (first, second, last)]
    assert [sum(of[""] for of in by_how.values()) for by_how in ends] == [0, 0, 1]
    counts, sums_ns = split(first)
    for later in (second, last):
        later_counts, later_sums_ns = split(later)
        assert later_counts == counts
        # AND the rate of its clock is known better than before: a sum can be longer by a few ns
        assert later_sums_ns.keys() == sums_ns.keys()
        assert all(
            0 <= now - sums_ns[of] <= 1 + sums_ns[of] // 100_000
            for of, now in later_sums_ns.items()
        )
    assert caplog.messages == []
    assert len(first["durations"]["stage"]) == len(characters)
    assert len(first["durations"]["handoff"]) == len(characters)


def test_what_was_sent_before_a_kill_may_come_again_with_the_same_ids(folder: Path) -> None:
    started(REQUESTS, "30", STAGESPAN_JOB="svc")
    with collector.http() as received:
        with exporter("--otlp", received.url) as (first, _):
            until(lambda: len(received.spans("decode")) == 30)
            kill(first)
        before = {span.span_id for span in received.spans()}
        with exporter("--otlp", received.url):
            time.sleep(3)
        assert {span.span_id for span in received.spans()} == before


def test_an_exporter_that_is_stopped_leaves_nothing_to_send_again(folder: Path) -> None:
    started(REQUESTS, "30", STAGESPAN_JOB="svc")
    with collector.http() as received:
        for _ in range(2):
            with exporter("--otlp", received.url):
                until(lambda: len(received.spans("decode")) >= 30)
                time.sleep(1)
        # THEN the next one has sent none of them again
        assert len(received.spans("decode")) == 30


def test_kept_requests_are_read_once_after_a_kill(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "kept"
    started(REQUESTS, "30", STAGESPAN_JOB="svc")
    for _ in range(2):
        with exporter("--keep", str(target)) as (first, _):
            until(lambda: list(target.glob("*.gz")), 30)
            kill(first)
    found = json.loads(command_here("requests", "--json", str(target)).stdout)
    assert found["count"] == 30
    (stage,) = found["stages"]
    assert (stage["stage"], stage["count"]) == ("decode", 30)


@pytest.mark.full
def test_requests_in_parquet_are_written_at_the_end_or_by_the_next_exporter(
    folder: Path, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    target = tmp_path / "kept"
    options = ("--keep", str(target), "--keep-format", "parquet")

    def traces() -> set[str]:
        tables = map(parquet.read_table, target.glob("*.parquet"))
        return {trace for table in tables for trace in table["trace_id"].to_pylist()}

    # GIVEN a process that has ended, and one that lives
    with exporter(*options) as (first, port):
        started(REQUESTS, "30", STAGESPAN_JOB="svc")
        end(started(REQUESTS, "20", STAGESPAN_JOB="svc"))
        count = "stagespan_request_duration_seconds_count"
        until(lambda: of(scraped(port), count, status="ok", service="svc") == 50)
        # WHEN the exporter is stopped before it writes its first file
        first.terminate()
        first.wait(30)
    # THEN what it has not written in its last second is left to the next one
    with exporter(*options) as (_, port):
        until(lambda: len(traces()) == 50)
        assert of(scraped(port), "stagespan_lost_total", cause="keep") == 0
        assert not of(scraped(port), "stagespan_lost_total", cause="requests_unread")


def test_requests_that_are_displaced_before_they_are_read_are_counted(folder: Path) -> None:
    # GIVEN an exporter, and a process that displaces requests sooner than they are read: some
    # before they were ever seen, others when they had been seen and could still be entered again
    process = started(EXPORTED, "displaced_requests", STAGESPAN_JOB="svc", STAGESPAN_REQUESTS="512")
    with exporter() as (_, port):
        duration = "stagespan_request_duration_seconds_count"
        assert of(scraped(port), duration) == 10
        tell(process, "go")
        samples = scraped(port)
        assert of(samples, duration) == 2410
        assert of(samples, "stagespan_lost_total", cause="requests_unread") is None


def test_spans_that_are_overwritten_before_they_are_read_are_counted(folder: Path) -> None:
    # GIVEN an exporter that has read a process, and is stopped while it writes its ring 3 times
    process = started(
        EXPORTED, "numbers_of_spans", STAGESPAN_JOB="svc", STAGESPAN_RING_SPANS="1024"
    )

    def unread(port: int) -> float | None:
        return of(scraped(port), "stagespan_lost_total", cause="spans_unread")

    def work(spans: int) -> None:
        tell(process, spans)

    with collector.http() as received, exporter("--otlp", received.url) as (first, port):
        count = "stagespan_stage_duration_seconds_count"
        assert of(scraped(port), count, stage="s") == 10
        first.send_signal(signal.SIGSTOP)
        work(3000)
        first.send_signal(signal.SIGCONT)
        ring = len(recording.open(process.pid).spans())
        assert until(lambda: unread(port)) == 3000 - ring
        assert of(scraped(port), count, stage="s") == 3010
        work(5)
        until(lambda: of(scraped(port), count, stage="s") == 3015)
        assert unread(port) == 3000 - ring
        kill(first)
    with collector.http() as received, exporter("--otlp", received.url) as (first, port):
        assert unread(port) == 3000 - ring
        first.send_signal(signal.SIGSTOP)
        work(3000)
        first.send_signal(signal.SIGCONT)
        until(lambda: of(scraped(port), count, stage="s") == 6015)
        assert until(lambda: unread(port) != 3000 - ring)
    process.communicate("\n", timeout=60)


def test_hand_offs_have_the_counts_of_the_statistics(folder: Path) -> None:
    process = started(EXPORTED, "hand_offs", STAGESPAN_JOB="svc")
    stats = recording.open(process.pid).stats(kind="handoff")
    with exporter() as (_, port):
        metric = "stagespan_handoff_duration_seconds"
        until(lambda: of(scraped(port), f"{metric}_count", to="tasks") == 70)
        samples = scraped(port)
        for queue in ("tasks", "saving"):
            assert of(samples, f"{metric}_count", to=queue) == stats[queue].count
            total_s = of(samples, f"{metric}_sum", to=queue)
            assert total_s == pytest.approx(stats[queue].total_ns / 1e9, rel=0.01, abs=1e-5)


@pytest.mark.parametrize("is_read", [True, False])
def test_what_was_recorded_before_exec_is_read_or_counted_as_lost(
    folder: Path, is_read: bool
) -> None:
    program = """
        import os, sys, stagespan
        left = int(sys.argv[1])
        for _ in range(3):
            with stagespan.span(f"program {left}"): pass
        print("ready", flush=True)
        input()
        if left:
            arguments = ["-c", sys.argv[2], str(left - 1), sys.argv[2]]
            os.execv(sys.executable, [sys.executable, *arguments])
    """
    text = textwrap.dedent(program)
    count, lost = "stagespan_stage_duration_seconds_count", "stagespan_lost_total"
    with exporter() as (exporting, port):
        scraped(port)
        if not is_read:
            exporting.send_signal(signal.SIGSTOP)
        process = start(program, "2", text, STAGESPAN_JOB="svc")
        assert process.stdin is not None
        for left in (2, 1, 0):
            ready(process)
            if is_read:
                assert until(lambda left=left: of(scraped(port), count, stage=f"program {left}"))
            if left:
                process.stdin.write("\n")
                process.stdin.flush()
        exporting.send_signal(signal.SIGCONT)
        assert until(lambda: of(scraped(port), count, stage="program 0") == 3)
        # THEN those of the programs before are in the totals or among the losses
        found = scraped(port)
        before = [of(found, count, stage=f"program {left}") for left in (2, 1)]
        expected = ([3, 3], 0) if is_read else ([None, None], 2)
        assert (before, of(found, lost, cause="recording") or 0) == expected
        end(process)


@pytest.mark.full
def test_recordings_beyond_the_limit_are_counted(folder: Path) -> None:
    # GIVEN an exporter that stands still while processes end that leave 64 MiB each
    if os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize < 1 << 30:
        pytest.skip("the tmpfs has less than 1 GiB")
    with exporter() as (process, port):
        process.send_signal(signal.SIGSTOP)
        for _ in range(7):
            start(
                EXPORTED, "million_spans", STAGESPAN_JOB="svc", STAGESPAN_RING_SPANS=str(1 << 20)
            ).wait(120)
        left = len(list(folder.glob("*.stagespan")))
        assert 0 < left < 7
        process.send_signal(signal.SIGCONT)
        metric = "stagespan_lost_total"
        assert until(lambda: of(scraped(port), metric, cause="recording") == 7 - left)
        count = "stagespan_stage_duration_seconds_count"
        assert until(lambda: of(scraped(port), count, stage="decode") == left << 20)
