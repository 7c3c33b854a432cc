"""Requests are counted where they end: all of them, at once, also those that a kill has cut off."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from exporting import exporter, of, scraped
from recorded_process import started
from recording import printed, python

import stagespan
from running import PROGRAMS, end, in_threads, tell, until
from stagespan import recording
from stagespan.export.figures import Counts, Names, ShownNames, figures_of
from stagespan.export.this_process import ThisProcess
from stagespan.recording.reading import Recording

REQUESTING = PROGRAMS / "requesting.py"

NAMES = ShownNames(Names(200), Names(100), Names(200))
COUNT = "stagespan_request_duration_seconds_count"


def counted(kind: stagespan.live.span_kinds.AnyKind = "request") -> dict[str, int]:
    """Return how many requests of each pipeline have ended."""
    return {name: one.count for name, one in stagespan.stats(kind=kind).items()}


def requests_in(totals: dict[object, Counts]) -> int:
    found = (one.durations.get("request", {}).values() for one in totals.values())
    return sum(histogram.below[-1] for of_group in found for histogram in of_group)


@pytest.mark.usefixtures("fresh")
def test_requests_have_statistics_by_pipeline_and_status() -> None:
    for status in ("ok", "error", "cancelled", "discarded", "abandoned"):
        for _ in range(3):
            request = stagespan.request()
            request.pipeline = "chat"
            with request:
                time.sleep(0.001)
                request.set_status(status)
    with pytest.raises(KeyError), stagespan.request():
        raise KeyError
    assert counted() == {"chat": 15, "default": 1}
    assert counted("request_cancelled") == {"chat": 3}
    assert counted("request_error") == {"chat": 3, "default": 1}
    figures = stagespan.stats(kind="request")["chat"]
    assert figures.errors == 3
    assert figures.min_ns >= 1_000_000
    assert figures.total_ns >= 15_000_000
    assert stagespan.stats(60, kind="request")["chat"].count == 15


@pytest.mark.usefixtures("fresh")
def test_a_request_counts_once_with_its_latest_end_and_status() -> None:
    received = stagespan.extract({})
    for _ in range(3):
        with received:
            time.sleep(0.002)
    assert counted("request_ok") == {"default": 1}
    assert stagespan.stats(kind="request_ok")["default"].total_ns >= 6_000_000
    received.set_status("error")
    assert counted("request_ok") == {}
    assert counted("request_error") == {"default": 1}
    # WHEN the figures are reset THEN nothing is taken back from those of later requests
    stagespan._core._reset()
    with stagespan.request():
        pass
    received.set_status("ok")
    assert counted() == {"default": 2}


@pytest.mark.usefixtures("fresh")
def test_only_the_process_that_a_request_began_in_counts_it() -> None:
    with stagespan.request() as front:
        carrier = front.inject(queue="tasks")
    with stagespan.extract(carrier), stagespan.span("work"):
        pass
    assert counted() == {"default": 1}
    with stagespan.request():
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            code = 1
            try:
                with stagespan.request("of the child"):
                    pass
                os.write(writing, repr(counted()).encode())
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(reading, 99) == b"{'default': 1}"
    assert counted() == {"default": 2}
    os.close(reading)
    os.close(writing)


@pytest.mark.usefixtures("fresh")
def test_requests_without_an_entry_in_the_recording_are_counted() -> None:
    many = [stagespan.request(new=True) for _ in range(5000)]
    for one in many:
        one.__enter__()
    for one in many:
        one.__exit__()
    assert counted() == {"default": 5000}


@pytest.mark.usefixtures("fresh")
def test_all_requests_of_many_threads_are_counted() -> None:
    def serve() -> None:
        for n in range(500):
            with stagespan.request() as one:
                if n % 5 == 0:
                    one.set_status("error")

    in_threads(*[serve] * 8)
    assert counted("request_ok") == {"default": 3200}
    assert counted("request_error") == {"default": 800}


def test_more_pipelines_than_there_is_room_for_are_counted_together(tmp_path: Path) -> None:
    (found,) = printed(python((REQUESTING, "many_pipelines"), tmp_path))
    for of_kind in found[:2]:
        assert len(of_kind) == 201
        assert of_kind["(other)"] == 5800
    assert found[2] == {"a stage": 1}


def test_a_pipeline_is_a_text() -> None:
    request = stagespan.request()
    assert request.pipeline is None
    for wrong in (3, "", b"chat"):
        with pytest.raises(TypeError, match="pass a text that is not empty"):
            request.pipeline = wrong  # type: ignore[assignment]
    request.pipeline = "chat"
    assert request.pipeline == "chat"


@pytest.mark.usefixtures("fresh")
def test_no_reading_in_the_process_loses_a_request() -> None:
    own = ThisProcess()
    own.read()
    before = requests_in(own.totals())
    for scrape in range(1, 4):
        for _ in range(6000):
            with stagespan.request():
                pass
        own.read()
        assert requests_in(own.totals()) == before + 6000 * scrape
    assert "requests_unread" not in own.lost()


def test_figures_that_are_pushed_at_exit_are_complete(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    lines = python((REQUESTING, "pushed_at_exit"), tmp_path).stdout.splitlines()
    assert sorted(lines) == ["False 8000.0", "True 4000.0"]


def test_the_first_reading_of_a_side_car_has_all_requests(folder: Path) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    started(REQUESTING, "of_two_pipelines", "10000", STAGESPAN_JOB="svc")
    with exporter() as (_, port):
        samples = scraped(port)
    for pipeline, others in (("even", 4000), ("odd", 5000)):
        assert of(samples, COUNT, pipeline=pipeline, status="ok", service="svc") == others
    assert of(samples, COUNT, pipeline="even", status="cancelled", service="svc") == 1000


@pytest.mark.parametrize("how", [end, lambda process: process.communicate("\n", timeout=30)])
def test_requests_that_a_process_has_left_open_are_abandoned(
    folder: Path, how: Callable[[object], object]
) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    with exporter() as (_, port):
        process = started(
            REQUESTING, "of_two_pipelines", "4", STAGESPAN_JOB="svc", STAGESPAN_RECORDING="keep"
        )
        tell(process, "open")
        assert of(scraped(port), COUNT, status="abandoned") is None
        how(process)
        until(lambda: of(scraped(port), COUNT, status="abandoned", service="svc") == 2)
        # THEN they have lasted until the process last recorded something
        total_s = of(scraped(port), "stagespan_request_duration_seconds_sum", status="abandoned")
        assert total_s is not None
        assert total_s >= 2 * 0.05
        assert of(scraped(port), COUNT, status="ok", service="svc") == 3


def test_a_process_that_is_stopped_has_abandoned_nothing(folder: Path) -> None:
    process = started(REQUESTING, "of_two_pipelines", "2")
    tell(process, "open")
    process.send_signal(signal.SIGSTOP)
    assert recording.open(process.pid).left_open == []
    process.send_signal(signal.SIGCONT)


def test_a_reading_of_a_process_has_the_figures_of_its_requests(folder: Path) -> None:
    process = started(REQUESTING, "of_two_pipelines", "100")
    copy: Recording = recording.open(process.pid, spans=False)
    assert {name: one.count for name, one in copy.stats(kind="request").items()} == {
        "even": 50,
        "odd": 50,
    }


def test_a_process_that_is_killed_while_it_counts_has_whole_figures(folder: Path) -> None:
    # GIVEN a process that writes a byte after each request, and is killed at any time
    for n in range(8):
        process = started(
            REQUESTING, "endless_requests", STAGESPAN_JOB="svc", STAGESPAN_RECORDING="keep"
        )
        assert process.stdout is not None
        told = len(process.stdout.read(1))
        time.sleep(0.013 * n)
        process.kill()
        told += len(process.stdout.read())
        process.wait(30)
        copy = recording.open(process.pid)
        # THEN all requests are counted of which it has told
        assert told <= copy.stats(kind="request")["default"].count <= told + 2
        found = figures_of(copy, copy.snapshot().ns_per_tick, NAMES)
        for histogram in found.durations["request"].values():
            assert histogram.below == sorted(histogram.below)
        ended = sum(one.below[-1] for one in found.durations["request"].values())
        assert told <= ended - len(copy.left_open) <= told + 2
