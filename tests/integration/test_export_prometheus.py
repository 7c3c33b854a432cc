"""Tests of `stagespan export --prometheus`: counts of all processes, also of those that ended."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from exporting import (
    TWO_PROCESSES,
    WORKERS,
    Prometheus,
    durations_ns,
    exporter,
    get,
    of,
    quantile,
    scraped,
)
from recorded_process import skip_unless_works, start, started

from running import PROGRAMS, end, free_port, ran, ready, tell, until
from stagespan import recording
from stagespan.export.node import Node
from stagespan.export.totals import ReadProcess, Totals

EXPORTED = PROGRAMS / "exported.py"

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

pytestmark = pytest.mark.slow

DURATION = "stagespan_stage_duration_seconds"
ENDS = ("return", "kill", "term", "exit")


@pytest.fixture
def workers(folder: Path) -> Iterator[Any]:
    """Return a process that starts workers; give it [seed, spans, how they end]."""
    process = started(WORKERS, STAGESPAN_JOB="svc")

    def run(seed: int, count: int, how: str) -> None:
        tell(process, json.dumps([seed, count, how]))

    yield run
    end(process)


def counts(port: int) -> tuple[float | None, ...]:
    samples = scraped(port)
    return (
        of(samples, f"{DURATION}_count", stage="decode", service="svc"),
        of(samples, f"{DURATION}_count", stage="outer", service="svc"),
        of(samples, "stagespan_stage_errors_total", stage="decode"),
        of(samples, "stagespan_stage_work_total", stage="outer", unit="tokens"),
    )


@pytest.mark.parametrize("how", ENDS)
def test_a_worker_that_has_ended_is_counted(folder: Path, workers: Any, how: str) -> None:
    with exporter() as (_, port):
        for seed in range(2):
            workers(seed, 50, how)
        expected = (100, 2, 10, 14)
        assert until(lambda: counts(port) == expected)
        assert until(lambda: of(scraped(port), "stagespan_process_up", service="svc") == 0)
        # THEN no file stays of processes that have ended cleanly
        assert len(list(folder.glob("*.stagespan"))) == (0 if how == "return" else 2)


def test_each_scrape_shows_all_that_was_recorded_before_it(folder: Path) -> None:
    process = started(EXPORTED, "span_a_line")
    with exporter() as (_, port):
        # WHEN metrics are asked for after each span, much faster than recordings are polled
        for number in range(1, 41):
            print(file=process.stdin, flush=True)
            ready(process)
            # THEN the span is counted at once, also for several that ask at the same time
            with ThreadPoolExecutor(4) as threads:
                found = list(threads.map(scraped, [port] * (4 if number % 4 == 0 else 1)))
            assert {of(one, f"{DURATION}_count", stage="decode") for one in found} == {number}


def test_a_live_process_is_counted_as_its_statistics_do(folder: Path) -> None:
    # GIVEN a process with finished and open spans, an open request and a wait
    process = started(
        EXPORTED,
        "decoding",
        STAGESPAN_JOB="svc",
        STAGESPAN_PIPELINE_NAME="wan",
        RANK="3",
        WORLD_SIZE="4",
    )
    with exporter() as (_, port):
        samples = scraped(port)
        labels = {"service": "svc", "pipeline": "wan", "rank": "3"}
        stats = recording.open(process.pid).stats()["decode"]
        assert of(samples, f"{DURATION}_count", stage="decode", **labels) == stats.count == 100
        total_s = of(samples, f"{DURATION}_sum", stage="decode", **labels)
        assert total_s == pytest.approx(stats.total_ns / 1e9, rel=1e-4)
        buckets = samples[f"{DURATION}_bucket"]
        last = max(v for k, v in buckets.items() if ("le", "+Inf") not in k)
        assert last == 100
        assert of(samples, "stagespan_stage_running", stage="outer", **labels) == 1
        assert of(samples, "stagespan_queue_waiting", stage="replica", **labels) == 1
        assert of(samples, "stagespan_oldest_request_age_seconds", **labels) > 0
        assert of(samples, "stagespan_process_up", service="svc") == 1
        names = {name for one in samples.values() for labels in one for name, _ in labels}
        assert not names & {"job", "instance", "pid", "id"}


def test_a_process_that_does_nothing_is_shown_as_it_is_now(folder: Path) -> None:
    process = started(EXPORTED, "late_span", STAGESPAN_JOB="svc")
    with exporter() as (_, port):

        def age() -> float:
            return until(lambda: of(scraped(port), "stagespan_oldest_request_age_seconds"))

        # WHEN it is scraped several times THEN its request gets older, and its span stays open
        ages = [age()]
        for _ in range(3):
            ages.append(until(lambda: age() if age() > ages[-1] else None))
            assert of(scraped(port), "stagespan_stage_running", stage="outer") == 1
        tell(process)
        until(lambda: of(scraped(port), f"{DURATION}_count", stage="late") == 1)
        until(lambda: not of(scraped(port), "stagespan_stage_running", stage="outer"))
        # WHEN it is killed while it waits THEN it is gone
        end(process)
        until(lambda: of(scraped(port), "stagespan_process_up", service="svc") == 0)
        assert until(lambda: of(scraped(port), f"{DURATION}_count", stage="outer") == 1)


def test_what_was_not_lost_and_what_is_idle_has_the_value_0(folder: Path, tmp_path: Path) -> None:
    process = started(
        EXPORTED, "three_thousand_waits", STAGESPAN_JOB="svc", STAGESPAN_RING_SPANS="1024"
    )
    sends = ("--otlp", "http://127.0.0.1:9") if find_spec("opentelemetry.sdk") else ()
    with exporter("--keep", str(tmp_path / "kept"), *sends) as (_, port):
        until(lambda: of(scraped(port), f"{DURATION}_count", stage="decode") == 3000)
        samples = scraped(port)
    end(process)
    # THEN each cause of losses has a series, so that the first loss is an increase
    lost = samples["stagespan_lost_total"]
    causes = {dict(labels)["cause"] for labels in lost}
    assert {"names", "threads", "unreadable", "recording", "requests_unread", "keep"} <= causes
    docs = Path(__file__).parents[2] / "docs"
    pages = ("metrics.md", "otlp.md", "keep.md", "losses.md")
    text = "".join((docs / name).read_text("utf-8") for name in pages)
    assert [cause for cause in causes if f"`{cause}`" not in text] == []
    assert "overwritten" not in causes
    counts = {number for labels, number in lost.items() if "otlp" not in dict(labels)["cause"]}
    assert counts == {0}
    assert of(samples, "stagespan_stage_running", stage="decode", service="svc") == 0
    assert of(samples, "stagespan_queue_waiting", stage="replica", service="svc") == 0


def test_requests_and_hand_offs_are_counted_once(folder: Path) -> None:
    process = start(TWO_PROCESSES, "kill", STAGESPAN_JOB="svc")
    with exporter() as (side_car, port):
        ready(process)
        count = "stagespan_handoff_duration_seconds_count"
        expected = {"request": 1, "tasks": 1, "replies": 1}

        def found(port: int) -> dict[str, float | None]:
            samples = scraped(port)
            request = "stagespan_request_duration_seconds_count"
            return {
                "request": of(samples, request, status="ok", pipeline="default", service="svc"),
                "tasks": of(samples, count, to="tasks"),
                "replies": of(samples, count, to="replies"),
            }

        until(lambda: found(port) == expected)
        (segment,) = [
            one for one in recording.open(process.pid).segments() if one["origin"] == "root"
        ]

        def exemplars() -> list[str]:
            text = get(f"http://127.0.0.1:{port}/metrics", "application/openmetrics-text")
            return [line for line in text.splitlines() if " # " in line]

        (line,) = until(exemplars)
        assert line.startswith("stagespan_request_duration_seconds_bucket")
        assert f'# {{trace_id="{segment["trace_id"]}"}}' in line
        # WHEN it has ended THEN it is counted, also by an exporter that goes on after a killed one
        assert until(lambda: found(port) == expected)
        side_car.kill()
        side_car.wait()
    with exporter() as (_, port):
        assert found(port) == expected


def test_counters_go_on_after_the_exporter_was_killed(folder: Path, workers: Any) -> None:
    with exporter() as (process, port):
        workers(1, 30, "return")
        workers(2, 30, "kill")
        assert until(lambda: counts(port)[0] == 60)
        process.kill()
        process.wait()
    workers(3, 30, "kill")
    with exporter() as (_, port):
        # THEN nothing is counted twice, and nothing that has left its file is missing
        assert until(lambda: counts(port)[0] == 90)
        workers(4, 10, "return")
        assert until(lambda: counts(port)[0] == 100)


def test_recordings_stay_only_while_an_exporter_reads_them(folder: Path, workers: Any) -> None:
    with exporter() as (process, port):
        process.send_signal(signal.SIGSTOP)
        for seed in range(20):
            workers(seed, 1, "kill")
        assert len(list(folder.glob("*.stagespan"))) == 20
        process.send_signal(signal.SIGCONT)
        assert until(lambda: counts(port)[0] == 20)
        # THEN it keeps as many of them as the processes would
        assert until(lambda: len(list(folder.glob("*.stagespan"))) == 16)
    # THEN a process that ends after the exporter leaves nothing
    before = set(folder.glob("*.stagespan"))
    workers(21, 1, "return")
    assert set(folder.glob("*.stagespan")) <= before


def test_a_second_exporter_is_refused(folder: Path) -> None:
    with exporter():
        second = ran([sys.executable, "-m", "stagespan", "export", "--prometheus", "0"])
    assert second.returncode == 2
    assert f"reads the recordings in {folder}" in second.stderr


def test_a_port_that_is_taken_is_refused_in_one_sentence(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = ran(
            [sys.executable, "-m", "stagespan", "export", "--prometheus", f"127.0.0.1:{port}"]
        )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}" in done.stderr


def test_recordings_that_cannot_be_read_are_counted(folder: Path, workers: Any) -> None:
    # GIVEN a file that is not a recording, an empty one, and one of another version
    (folder / "999999-1.stagespan").write_bytes(os.urandom(4096))
    (folder / "999998-1.stagespan").write_bytes(b"")
    workers(1, 5, "kill")
    (found,) = [one for one in folder.glob("*.stagespan") if not one.name.startswith("99999")]
    data = bytearray(found.read_bytes()[:65536])
    data[8] = 99
    (folder / "999997-1.stagespan").write_bytes(data)
    with exporter() as (process, port):
        assert until(lambda: of(scraped(port), "stagespan_lost_total", cause="unreadable") == 3)
        assert until(lambda: counts(port)[0] == 5)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    # The first one is named, and how many others there are.
    assert errors.count("\n") == 1
    assert "2 other recordings" in errors
    assert process.returncode == 0


def test_a_prometheus_agrees_over_restarts(folder: Path, tmp_path: Path, workers: Any) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus on PATH: install the Debian package prometheus")
    values: list[int] = []
    ends = [*islice(cycle(("return", "return", "return", "term", "kill")), 50)]
    assert ends.count("kill") == 10
    prometheus = None
    try:
        with exporter("--buckets", "fine") as (process, port):
            prometheus = Prometheus(program, tmp_path, port, free_port())
            selected = f'{DURATION}_count{{stage="decode",service="svc"}}'
            # WHEN 50 workers come and go, 10 of them killed, and the exporter is restarted once
            for seed, how in enumerate(ends[:25]):
                workers(seed, 200, how)
                values += durations_ns(seed, 200)
            until(lambda: prometheus.query(f"sum({selected})") == [({}, len(values))])
            if process.poll() is None:
                process.kill()
                process.wait()
        with exporter("--buckets", "fine", port=port) as (process, port):
            for seed, how in enumerate(ends[25:], 25):
                workers(seed, 200, how)
                values += durations_ns(seed, 200)
            assert until(lambda: prometheus.query(f"sum({selected})") == [({}, 10_000)])
            assert len(values) == 10_000
            for q in (0.5, 0.95, 0.99):
                expression = f'histogram_quantile({q}, {DURATION}_bucket{{stage="decode"}})'
                ((_, found),) = prometheus.query(expression)
                exact = quantile(values, q) / 1e9
                assert exact / 1.19 < found < exact * 1.19
            for series in prometheus.series(f'{{__name__=~"{DURATION}_(bucket|count|sum)"}}'):
                assert series == sorted(series)
            ((_, resets),) = prometheus.query(f"sum(resets({selected}[10m]))")
            assert resets == 0
            # THEN fifty workers have left as many series as one
            assert len(prometheus.query(selected)) == 1
            assert get(f"http://127.0.0.1:{port}/metrics", "application/openmetrics-text")
    finally:
        if prometheus is not None:
            prometheus.close()


def test_a_prometheus_agrees_with_a_process_that_serves_itself(
    folder: Path, tmp_path: Path
) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus on PATH: install the Debian package prometheus")
    process = start(EXPORTED, "serving_itself", STAGESPAN_JOB="svc")
    target = int(ready(process))
    stats = recording.open(process.pid).stats()["decode"]
    with contextlib.closing(Prometheus(program, tmp_path, target, free_port())) as prometheus:
        until(lambda: prometheus.query(f"sum({DURATION}_count)") == [({}, stats.count)])
        for q, exact_ns in ((0.5, stats.p50_ns), (0.95, stats.p95_ns), (0.99, stats.p99_ns)):
            ((_, found),) = prometheus.query(f"histogram_quantile({q}, {DURATION}_bucket)")
            assert exact_ns is not None
            assert exact_ns / 1.19 < found * 1e9 < exact_ns * 1.19


def test_a_scrape_of_many_stages_and_ranks_is_small(folder: Path) -> None:
    for rank in range(8):
        started(EXPORTED, "stages", "50", STAGESPAN_JOB="svc", RANK=str(rank), WORLD_SIZE="8")
    sizes, bounds = {}, {}
    for buckets in ("coarse", "fine"):
        with exporter("--buckets", buckets) as (_, port):
            text = get(f"http://127.0.0.1:{port}/metrics")
            found = scraped(port)
        assert of(found, f"{DURATION}_count", service="svc") == 400
        # Without the titles of families, which do not depend on what is recorded.
        sizes[buckets] = sum(1 + len(line) for line in text.splitlines() if line[0] != "#")
        bounds[buckets] = sorted({float(dict(k)["le"]) for k in found[f"{DURATION}_bucket"]})
    # THEN coarse bounds are an octave apart, are some of the fine ones, and take little space
    assert bounds["coarse"] == [*(2**n / 1e9 for n in range(14, 40)), math.inf]
    assert set(bounds["coarse"]) < set(bounds["fine"])
    assert sizes["coarse"] <= 1_600_000 < sizes["fine"]


def test_quantiles_of_the_last_minute_are_exact_for_all_that_ask(
    folder: Path, workers: Any
) -> None:
    gauge = "stagespan_stage_duration_quantile_seconds"
    with exporter() as (_, port):
        values: list[int] = []
        # WHEN several processes have recorded, which have ended since
        for seed, how in enumerate(("return", "kill", "return"), 1):
            workers(seed, 500, how)
            values += durations_ns(seed, 500)
        until(lambda: counts(port)[0] == len(values))
        # THEN each scrape has the quantiles of all their runs
        with ThreadPoolExecutor(3) as threads:
            for found in threads.map(scraped, [port] * 3):
                for q in (0.5, 0.95, 0.99):
                    value_s = of(found, gauge, stage="decode", service="svc", quantile=str(q))
                    assert value_s == pytest.approx(quantile(values, q) / 1e9, rel=0.03)


def test_a_process_serves_its_own_figures(folder: Path) -> None:
    process = start(EXPORTED, "collecting_itself", STAGESPAN_JOB="svc")
    out, errors = process.communicate(timeout=60)
    assert (out, errors) == ("child 0\n", "")


def test_a_process_without_a_recording_is_told(folder: Path) -> None:
    process = start(
        "from stagespan.export import prometheus; prometheus.register()", STAGESPAN_RECORDING="off"
    )
    _, errors = process.communicate(timeout=60)
    assert "no recording to export" in errors.splitlines()[-1]


def test_what_is_left_shows_no_thread_and_no_write_of_the_exporter(folder: Path) -> None:
    process = started(EXPORTED, "open_request")
    (file,) = folder.glob("*.stagespan")
    threads = len(os.listdir(f"/proc/{process.pid}/task"))
    with exporter() as (side_car, port):
        for _ in range(3):
            scraped(port)
        assert len(os.listdir(f"/proc/{process.pid}/task")) == threads
        handles = []
        for number in os.listdir(f"/proc/{side_car.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # it closes connections meanwhile
                if os.readlink(f"/proc/{side_car.pid}/fd/{number}") == str(file):
                    handles.append(number)
        assert handles
        for number in handles:
            info = Path(f"/proc/{side_car.pid}/fdinfo/{number}").read_text()
            flags = int(info.split("flags:")[1].split()[0], 8)
            assert flags & os.O_ACCMODE == os.O_RDONLY
        assert str(file) not in Path(f"/proc/{side_car.pid}/maps").read_text()


def test_a_recording_that_is_cut_off_keeps_its_counts(folder: Path) -> None:
    started(EXPORTED, "runs", "10", STAGESPAN_JOB="svc")
    with exporter() as (_, port):
        assert until(lambda: counts(port)[0] == 10)
        (file,) = folder.glob("*.stagespan")
        os.truncate(file, 0)
        assert until(lambda: of(scraped(port), "stagespan_lost_total", cause="unreadable") == 1)
        assert counts(port)[0] == 10


def test_figures_that_cannot_be_added_spoil_no_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [started(EXPORTED, "runs", "5", STAGESPAN_JOB=job) for job in ("bad", "good", "better")]
    update = Totals.update

    def failing(self: Totals, process: ReadProcess, *arguments: Any, **options: Any) -> None:
        if process.group.service == "bad":
            raise OverflowError("too large")
        update(self, process, *arguments, **options)

    monkeypatch.setattr(Totals, "update", failing)
    with contextlib.closing(Node()) as node:
        for _ in range(3):
            node.read()
        # THEN the others are counted, the one is counted as unreadable, and one line says so
        totals = {group.service: one for group, one in node.totals().items()}
        runs = {
            service: one.durations["stage"]["decode"].below[-1]
            for service, one in totals.items()
            if one.durations
        }
        assert runs == {"good": 5, "better": 5}
        assert node.lost()["unreadable"] == 1
        assert len(caplog.messages) == 1
        assert "too large" in caplog.messages[0]


def test_a_state_that_cannot_be_read_is_set_aside(folder: Path, workers: Any) -> None:
    state = folder / ".export-state.json"
    state.write_text('{"schema_version": 99')
    workers(1, 5, "kill")
    with exporter() as (process, port):
        assert until(lambda: counts(port)[0] == 5)
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert "it is set aside as .export-state.json.unreadable-1" in errors
    assert errors.count("\n") == 1
    # WHEN only its end is missing THEN totals go on, and no process that was killed counts twice
    data = state.read_bytes()
    page = json.loads(data)
    page.pop("processes")
    page["folded"] = page.pop("folded")  # the last one, as an earlier exporter has written it
    text = json.dumps(page)
    state.write_text(text[: text.index('"folded"')])
    workers(2, 5, "exit")
    with exporter() as (_, port):
        assert until(lambda: counts(port)[0] >= 5)
        workers(3, 5, "exit")
        assert until(lambda: counts(port)[0] == 10)


def test_sums_that_no_number_can_hold_stay_at_the_largest(folder: Path) -> None:
    amounts = ["1.5e308", "1.5e308", "2.5"]
    for _ in range(2):
        with exporter() as (_, port):
            while amounts:
                amount = amounts.pop()
                process = start(EXPORTED, "amount", amount, STAGESPAN_JOB=f"svc{amount[0]}")
                assert process.wait(60) == 0
            until(
                lambda at=port: (
                    of(scraped(at), f"{DURATION}_count", stage="copy", service="svc1") == 2
                )
            )
            samples = scraped(port)
            assert of(samples, "stagespan_stage_work_total", service="svc1") == sys.float_info.max
            assert of(samples, "stagespan_stage_work_total", service="svc2") == 2.5


def test_a_state_that_cannot_be_written_is_told_once(folder: Path, workers: Any) -> None:
    workers(1, 5, "kill")
    with exporter("--state", "/proc/none/state.json") as (process, port):
        assert until(lambda: counts(port)[0] == 5)
        workers(2, 5, "kill")
        assert until(lambda: counts(port)[0] == 10)
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert "The state cannot be written to /proc/none/state.json" in errors
    assert errors.count("\n") == 1


def test_scrapes_ten_times_a_second_see_no_counter_fall(folder: Path, workers: Any) -> None:
    # GIVEN an exporter that is asked all the time while processes begin, end and are killed
    from threading import Event, Thread

    seen: list[float] = []
    stop = Event()
    with exporter() as (_, port):

        def scrape() -> None:
            while not stop.wait(0.1):
                seen.append(counts(port)[0] or 0.0)

        thread = Thread(target=scrape)
        thread.start()
        for seed, how in enumerate(islice(cycle(ENDS), 12)):
            workers(seed, 100, how)
        assert until(lambda: counts(port)[0] == 1200)
        stop.set()
        thread.join()
    assert seen == sorted(seen)


def test_an_exporter_without_privileges_sees_other_containers(folder: Path) -> None:
    # GIVEN a folder of an ordinary user, and processes in pid namespaces of their own
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    container = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    skip_unless_works(*container, *nobody, sys.executable, "-c", "import stagespan")
    os.chown(folder, 65534, 65534)
    with exporter(prefix=nobody) as (_, port):
        for total, how in enumerate(("return", "kill"), 1):
            process = started(
                EXPORTED,
                "runs",
                "10",
                how,
                python=(*container, *nobody, sys.executable),
                STAGESPAN_JOB="svc",
            )
            # THEN a live one is seen as such, and one that has ended stays counted
            assert until(lambda: of(scraped(port), "stagespan_process_up", service="svc") == 1)
            process.communicate("\n", timeout=30)
            assert until(lambda: of(scraped(port), "stagespan_process_up", service="svc") == 0)
            assert counts(port)[0] == 10 * total


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_recordings_of_another_user_are_refused_in_one_sentence(folder: Path) -> None:
    # GIVEN a folder that belongs to root
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    done = ran([*nobody, sys.executable, "-m", "stagespan", "export", "--prometheus", "0"])
    if "No module named" in done.stderr or done.returncode == 126:
        pytest.skip("another user cannot run this interpreter")
    # WHEN another user exports it THEN one sentence says what to do, after the usual warning
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"Error: The recordings in {folder} cannot be read: Permission denied.")


def test_a_service_makes_the_same_system_calls_beside_an_exporter(
    folder: Path, tmp_path: Path
) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")

    def calls(log: Path) -> list[str]:
        """Return the names of the system calls that it makes while it works."""
        process = started(
            EXPORTED, "requests_twice", python=(strace, "-f", "-o", str(log), sys.executable)
        )
        if port:
            # An answer may be as old as the shortest time between two readings.
            until(lambda: of(scraped(port), f"{DURATION}_count", stage="decode") == 2000)
        process.communicate("\n", timeout=60)
        names = [line.split("(")[0].split()[-1] for line in log.read_text().splitlines()]
        first, last = (i for i, name in enumerate(names) if name == "getppid")
        return names[first:last]

    port = 0
    alone = calls(tmp_path / "alone")
    with exporter() as (_, port):
        assert calls(tmp_path / "beside") == alone
