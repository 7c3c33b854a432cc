"""Tests of `stagespan export --otlp` with a collector in trouble, and of its end after a signal."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from exporting import ONE_REQUEST, exporter, of, otlp_exporter, scraped, until
from recorded_process import end, ready, start

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="there is no OTLP exporter")
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="there is no OTLP over gRPC")
collector = pytest.importorskip("collector")
otlp = pytest.importorskip("stagespan.export.otlp")
otlp_sending = pytest.importorskip("stagespan.export.otlp_sending")

pytestmark = pytest.mark.slow


@contextmanager
def silent() -> Iterator[str]:
    """Accept connections and never answer."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def refusing() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@contextmanager
def failing() -> Iterator[str]:
    with collector.http(lambda: 500) as received:
        yield received.url


@pytest.mark.parametrize(
    ("trouble", "protocol"),
    [
        (silent, "http/protobuf"),
        pytest.param(refusing, "http/protobuf", marks=pytest.mark.full),
        pytest.param(failing, "http/protobuf", marks=pytest.mark.full),
        pytest.param(silent, "grpc", marks=pytest.mark.full),
    ],
)
def test_a_collector_in_trouble_delays_no_end(folder: Path, protocol: str, trouble: Any) -> None:
    # GIVEN a collector that does not take what it is sent
    with trouble() as url, otlp_exporter(url, OTEL_EXPORTER_OTLP_PROTOCOL=protocol) as process:
        recorded = start(ONE_REQUEST)
        ready(recorded)
        time.sleep(2)
        # WHEN the exporter is stopped THEN it ends at once, and has written its state
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.communicate(timeout=20)
        assert time.monotonic() - began < 4
        assert process.returncode == 0
        assert (folder / ".export-state.json").exists()
        end(recorded)


BUSY = """
import os, sys, time
import stagespan

parent = os.getpid()
for _ in range(4):
    if os.fork() == 0:
        while os.getppid() == parent:
            with stagespan.request(), stagespan.span("busy"):
                time.sleep(0.002)
        os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_state_is_written_after_a_signal_beside_busy_processes(folder: Path) -> None:
    # GIVEN processes that are busy, and a collector that never answers
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        process = start(BUSY, STAGESPAN_JOB="svc")
        ready(process)
        with otlp_exporter(f"http://127.0.0.1:{silent.getsockname()[1]}") as running:
            state = folder / ".export-state.json"
            until(lambda: state.exists() and b"busy" in state.read_bytes())
            # WHEN the exporter is asked to end THEN it ends, and has written its state since then
            asked_ns = time.time_ns()
            running.terminate()
            running.wait(30)
            assert running.returncode == 0
            assert state.stat().st_mtime_ns >= asked_ns
        # THEN the next one goes on with it
        with exporter() as (_, port):
            counted = of(scraped(port), "stagespan_stage_duration_seconds_count", stage="busy")
            assert counted is not None
            assert counted > 0
            assert not of(scraped(port), "stagespan_lost_total", cause="recording")
        end(process)


STUCK = """
import pathlib, sys, time
from stagespan.export.ending import Ending

ending = Ending()
ending.limit(lambda longest_s: pathlib.Path(sys.argv[1]).write_text("saved"))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def test_an_exporter_that_hangs_ends_after_a_signal_with_its_state_written(tmp_path: Path) -> None:
    # GIVEN an exporter whose work never comes to its end
    process = start(STUCK, str(tmp_path / "state"))
    ready(process)
    # WHEN it is asked to end THEN it ends, with its state written
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert (tmp_path / "state").read_text() == "saved"


def test_a_slow_collector_that_fails_at_times_gets_everything(folder: Path) -> None:
    # GIVEN a collector that takes a second for each answer, and refuses every other call
    calls = iter(range(1 << 30))

    def answer() -> int:
        time.sleep(1)
        return 503 if next(calls) % 2 else 200

    with collector.http(answer) as received, otlp_exporter(received.url):
        process = start(ONE_REQUEST)
        ready(process)
        # WHEN a request is sent THEN it arrives once
        until(lambda: received.spans("decode"), 40)
        end(process)
        assert len(received.spans("decode")) == 1


def test_a_call_that_hangs_is_given_up_and_counted() -> None:
    # GIVEN an exporter whose calls never return
    hang = threading.Event()
    sender = otlp_sending.Sender(
        lambda: None, lambda exporter, batch: hang.wait(30), longest_call_s=0.05
    )
    # WHEN more is put than the queue can hold
    sender.put(range(2000))
    until(lambda: sum(sender.lost.values()) == 2000)
    # THEN all is counted, and only a few calls remain
    assert sender.lost["otlp_timeout"] == 2000
    calls = [one for one in threading.enumerate() if one.name == "stagespan-otlp-call"]
    assert len(calls) <= 3
    sender.put(range(50_000))
    assert sender.lost["otlp_queue"] > 0
    sender.close()
    hang.set()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_a_collector_rejects_is_counted_and_told_once(folder: Path, protocol: str) -> None:
    # GIVEN a collector that rejects 3 spans, or data points, of whatever it is sent
    with collector.RECEIVERS[protocol](rejected=3) as received:
        variables = {
            "OTEL_EXPORTER_OTLP_PROTOCOL": collector.PROTOCOLS[protocol],
            "OTEL_METRIC_EXPORT_INTERVAL": "1000000",
        }
        with exporter("--otlp", received.url, **variables) as (process, port):
            recorded = start(ONE_REQUEST)
            ready(recorded)
            # WHEN figures and a request were sent THEN both are counted
            cause = {"cause": "otlp_rejected"}
            assert until(lambda: of(scraped(port), "stagespan_lost_total", **cause) == 6)
            end(recorded)
            process.terminate()
            _, errors = process.communicate(timeout=20)
    # THEN one sentence says why
    assert errors.count("\n") == 1
    assert "It says: the quota is used up" in errors


def test_an_answer_that_is_not_otlp_is_no_loss(folder: Path) -> None:
    # GIVEN a proxy that answers with a page
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "6")
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        rejected = otlp_sending.Rejected()
        url = f"http://127.0.0.1:{server.server_port}"
        made = otlp_sending.exporter_for("metrics", url, rejected)
        assert made.export(otlp.points.MetricsData([])).name == "SUCCESS"
        server.shutdown()
    assert rejected.number == 0
