"""Tests of `stagespan export --otlp` with a collector in trouble, and of its end after a signal."""

from __future__ import annotations

import re
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
from exporting import REQUESTS, exporter, of, otlp_exporter, scraped
from recorded_process import started

from recorded import part_of, segment_of
from running import PROGRAMS, end, ended, until
from stagespan.errors import StagespanError
from stagespan.export.parts import AWAITED_OTLP

EXPORTED = PROGRAMS / "exported.py"
LIVE = PROGRAMS / "live.py"

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
        recorded = started(REQUESTS, "1")
        time.sleep(2)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.communicate(timeout=20)
        assert time.monotonic() - began < 4
        assert process.returncode == 0
        assert (folder / ".export-state.json").exists()
        end(recorded)


def test_the_state_is_written_after_a_signal_beside_busy_processes(folder: Path) -> None:
    # GIVEN processes that are busy, and a collector that never answers
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        process = started(EXPORTED, "busy", STAGESPAN_JOB="svc")
        with otlp_exporter(f"http://127.0.0.1:{silent.getsockname()[1]}") as running:
            state = folder / ".export-state.json"
            until(lambda: state.exists() and b"busy" in state.read_bytes())
            # WHEN the exporter is asked to end THEN it ends, and has written its state since then
            asked_ns = time.time_ns()
            running.terminate()
            running.wait(30)
            assert running.returncode == 0
            assert state.stat().st_mtime_ns >= asked_ns
        with exporter() as (_, port):
            counted = of(scraped(port), "stagespan_stage_duration_seconds_count", stage="busy")
            assert counted is not None
            assert counted > 0
            assert not of(scraped(port), "stagespan_lost_total", cause="recording")
        end(process)


@pytest.mark.parametrize("what", ["stuck", "slow_to_save"])
def test_an_exporter_ends_after_a_signal_with_its_state_written(what: str, tmp_path: Path) -> None:
    # GIVEN an exporter whose work never ends, or whose state takes longer than is left to its work
    process = started(EXPORTED, what, str(tmp_path / "state"))
    process.terminate()
    ended(process, 0)
    assert (tmp_path / "state").read_text() == "saved"


def test_a_slow_collector_that_fails_at_times_gets_everything(folder: Path) -> None:
    # GIVEN a collector that takes a second for each answer, and refuses every other call
    calls = iter(range(1 << 30))

    def answer() -> int:
        time.sleep(1)
        return 503 if next(calls) % 2 else 200

    with collector.http(answer) as received, otlp_exporter(received.url):
        process = started(REQUESTS, "1")
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


def test_what_waits_for_a_collector_is_bounded_by_its_bytes() -> None:
    # GIVEN an exporter whose calls take messages of a megabyte, and do not return
    hang, taken = threading.Event(), list[int]()

    def export(exporter: object, batch: list[bytes]) -> int:
        taken.append(len(batch))
        hang.wait(60)
        return 0

    sender = otlp_sending.Sender(
        lambda: None, export, 4 << 20, size=lambda _: 512, weight=len, most=32 << 20
    )
    sender.put([b" " * (1 << 20)] * 40)
    # THEN a call has so many, the queue as many more, and the spans of the others are counted
    assert sender.lost["otlp_queue"] >= 512 * (40 - 32 - 4)
    until(lambda: taken)
    assert taken[0] <= 4
    hang.set()
    assert until(lambda: 512 * sum(taken) + sender.lost["otlp_queue"] == 512 * 40)
    assert max(taken) == 4
    sender.close()
    assert sender.sent == 512 * sum(taken)


@contextmanager
def in_trouble(trouble: str) -> Iterator[Any]:
    if trouble == "down":
        with refusing() as url:
            yield collector.Received(), url
    else:

        def answer() -> int:
            time.sleep(0.5 if trouble == "slow" else 0)
            return 200

        with collector.http(answer, rejected=3 if trouble == "partly" else 0) as received:
            yield received, received.url


@pytest.mark.parametrize(
    "trouble", ["slow", "partly", pytest.param("down", marks=pytest.mark.full)]
)
def test_each_span_of_a_fast_thread_is_delivered_or_counted(folder: Path, trouble: str) -> None:
    # GIVEN a collector that answers slowly, takes only a part, or is not there
    variables = {"OTEL_EXPORTER_OTLP_TIMEOUT": "2", "OTEL_METRIC_EXPORT_INTERVAL": "1000000"}
    with (
        in_trouble(trouble) as (received, url),
        exporter("--otlp", url, **variables) as (_, port),
    ):
        process = started(LIVE, "growing", "1500", STAGESPAN_JOB="svc")
        assert process.stdout is not None
        sent = int(process.stdout.readline())

        def lost(*causes: str) -> float:
            found = (of(scraped(port), "stagespan_lost_total", cause=cause) for cause in causes)
            return sum(filter(None, found))

        def accounted() -> float:
            return len(received.spans()) + lost("otlp_queue", "otlp_failed", "otlp_timeout")

        def is_unread() -> bool:  # the machine is too busy
            return lost("requests_unread", "spans_unread") > 0

        # THEN each request and each of its stages has arrived, or is lost for a reason
        assert until(lambda: accounted() == 7 * sent or is_unread(), 120)
        calls = len(received.paths)
        assert lost("otlp_rejected") == (3 * calls if trouble == "partly" else 0)
        end(process)


def test_a_sender_goes_on_if_it_cannot_connect_again(caplog: pytest.LogCaptureFixture) -> None:
    # GIVEN an exporter whose first call never returns, and that cannot be made again
    hang = threading.Event()
    made: list[str] = []
    delivered: list[int] = []

    def make() -> None:
        if made:
            raise OSError("the certificate is being replaced")
        made.append("once")

    def export(exporter: object, batch: list[int]) -> int:
        if not delivered and 0 in batch:
            hang.wait(30)
        delivered.extend(batch)
        return 0

    sender = otlp_sending.Sender(make, export, batch=1, longest_call_s=0.2)
    done: list[str] = []
    sender.put([0], lambda: done.append("first"))
    assert until(lambda: done)
    sender.put([1, 2], lambda: done.append("others"))
    # THEN the others are delivered by the exporter that there is, and the reason is logged once
    assert until(lambda: len(done) == 2)
    assert delivered == [1, 2]
    assert sender.lost["otlp_timeout"] == 1
    assert sum("the certificate is being replaced" in one for one in caplog.messages) == 1
    hang.set()
    sender.close()


def test_a_process_goes_on_sending_after_a_reading_has_failed(folder: Path) -> None:
    # GIVEN a program that replaces the system's clock for a while, as tests of programs do
    with collector.http() as received:
        process = started(EXPORTED, "failing_clock", received.url)
        # THEN what it records later arrives while it runs, and the reason is logged once
        assert until(lambda: received.spans("decode"))
        _, errors = process.communicate("\n", timeout=60)
    assert errors.count("the clock is replaced") == 1
    assert process.returncode == 0


def test_an_exporter_that_cannot_be_made_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "carrier pigeon")
    before = set(threading.enumerate())
    with pytest.raises(StagespanError, match="set it to grpc or http/protobuf"):
        otlp.Otlp("http://127.0.0.1:4318")
    # THEN the thread that would have sent spans has ended
    assert until(lambda: not {one for one in set(threading.enumerate()) - before if one.is_alive()})


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_a_collector_rejects_is_counted_and_told_once(folder: Path, protocol: str) -> None:
    with collector.RECEIVERS[protocol](rejected=3) as received:
        variables = {
            "OTEL_EXPORTER_OTLP_PROTOCOL": collector.PROTOCOLS[protocol],
            "OTEL_METRIC_EXPORT_INTERVAL": "1000000",
        }
        with exporter("--otlp", received.url, **variables) as (process, port):
            recorded = started(REQUESTS, "1")
            # WHEN figures and a request were sent THEN both are counted
            cause = {"cause": "otlp_rejected"}
            assert until(lambda: of(scraped(port), "stagespan_lost_total", **cause) == 6)
            end(recorded)
            process.terminate()
            _, errors = process.communicate(timeout=20)
    assert errors.count("\n") == 1
    assert "It says: the quota is used up" in errors


Reply = tuple[int, dict[str, str], bytes]
"""A status, headers, and a body."""


@contextmanager
def replying(reply: Reply) -> Iterator[tuple[str, list[str]]]:
    """Answer each request with the same; yield the address, and the paths that were asked for."""
    status, headers, body = reply
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()


NOT_DELIVERED: dict[str, tuple[Reply, str]] = {
    "301": ((301, {"Location": "https://user:key@collector.example/v1/traces"}, b""), ""),
    "302": ((302, {"Location": "https://collector.example:4318"}, b"moved"), ""),
    "303": ((303, {"Location": "//collector.example/in"}, b""), ""),
    "307": ((307, {"Location": "/elsewhere/v1/metrics?token=secret"}, b""), ""),
    "308": ((308, {"Location": "https://collector.example/a\x85b"}, b""), ""),
    "304": ((304, {}, b""), "the status 304, so nothing is delivered: pass the address of a"),
    "a page": ((200, {"Content-Type": "text/html; charset=utf-8"}, b"log in"), "a page of HTML"),
    "a page without a type": ((200, {}, b"  <!DOCTYPE html><p>log in"), "a page of HTML"),
    "a part of an answer": ((200, {"Content-Type": "application/x-protobuf"}, b"\x0a\x7f"), "OTLP"),
    "JSON of something else": ((200, {"Content-Type": "application/json"}, b"[1]"), "OTLP"),
}


@pytest.mark.parametrize("what", NOT_DELIVERED)
def test_only_the_answer_of_a_collector_is_a_delivery(folder: Path, what: str) -> None:
    reply, sentence = NOT_DELIVERED[what]
    with replying(reply) as (url, paths):
        recorded = started(REQUESTS, "1", STAGESPAN_JOB="svc")
        variables = {"OTEL_METRIC_EXPORT_INTERVAL": "1000"}
        with exporter("--otlp", url, **variables) as (process, port):
            # WHEN a request and figures are sent THEN they are counted as not delivered
            until(lambda: "/v1/traces" in paths)
            failed = {"cause": "otlp_failed"}
            until(lambda: (of(scraped(port), "stagespan_lost_total", **failed) or 0) >= 4)
            process.terminate()
            _, errors = process.communicate(timeout=20)
        end(recorded)
    # THEN one line says so, and names the other address without secrets
    assert errors.count("\n") == 1
    assert errors.startswith(f"{url} ")
    if location := reply[1].get("Location"):
        assert f"the status {reply[0]}, and leads to " in errors
        assert ("/elsewhere" if location.startswith("/e") else "//collector.example") in errors
        assert not {"token", "secret", "key", "v1", "\x85"} & set(re.split(r"[/:?=@. ]", errors))
    assert sentence in errors
    # THEN nothing else was asked, and nothing was sent twice
    assert set(paths) == {"/v1/traces", "/v1/metrics"}
    assert paths.count("/v1/traces") == 1


DELIVERED: dict[str, tuple[Reply, int]] = {
    "nothing": ((204, {}, b""), 0),
    "a text": ((202, {"Content-Type": "text/plain"}, b"accepted"), 0),
    "JSON": ((200, {"Content-Type": "application/json"}, b'{"partialSuccess":null}'), 0),
    "JSON that rejects": (
        (
            *(200, {"Content-Type": "application/json"}),
            b'{"partialSuccess":{"rejectedSpans":"1","errorMessage":"no\\nroom"},"more":1}',
        ),
        1,
    ),
}


@pytest.mark.parametrize("what", DELIVERED)
def test_other_answers_of_a_collector_are_read(what: str, caplog: pytest.LogCaptureFixture) -> None:
    reply, rejected = DELIVERED[what]
    with replying(reply) as (url, paths):
        answers = otlp_sending.Answers()
        made = otlp_sending.exporter_for("traces", url, answers)
        assert otlp_sending.deliver(made.export, [], answers) == 0
        assert otlp_sending.deliver(made.export, [], answers) == 0
    assert len(paths) == 2
    assert answers.rejected == 2 * rejected
    assert len(caplog.messages) == rejected
    assert not rejected or "It says: no\\nroom" in caplog.messages[0]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_that_cannot_be_sent_is_lost_alone(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", collector.PROTOCOLS[protocol])
    segments = [segment_of(number) for number in range(1, 20)]
    segments[4]["begin_ns"] = -1
    requests = [[part_of(segment, awaited=AWAITED_OTLP)] for segment in segments]
    requests[9][0].of.read = requests[9][0].of.read._replace(names=None)  # type: ignore[arg-type]
    with collector.RECEIVERS[protocol]() as received:
        sender = otlp.Otlp(received.url)
        sender.put_requests(requests)
        until(lambda: len(received.spans()) == 17)
        sender.close()
        numbers = {int.from_bytes(span.trace_id, "big") for span in received.spans()}
    assert numbers == {*range(1, 20)} - {5, 10}
    assert sender.lost()["otlp_failed"] == 2
    assert not any(part.awaited for parts in requests for part in parts)


def test_one_connection_is_kept_and_netrc_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a collector that asks for credentials, which are in ~/.netrc
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login user password key\n")
    monkeypatch.setenv("NETRC", str(file))
    connections, credentials = [], []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            connections.append(self.client_address)
            super().setup()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            credentials.append(self.headers["authorization"])
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answers = otlp_sending.Answers()
        made = otlp_sending.exporter_for(
            "traces", f"http://127.0.0.1:{server.server_port}", answers
        )
        # WHEN spans are sent again and again, and the file has gone meanwhile
        for _ in range(3):
            assert otlp_sending.deliver(made.export, [], answers) == 0
            file.unlink(missing_ok=True)
        server.shutdown()
    # THEN each call had the credentials, and one connection was made
    assert credentials == ["Basic dXNlcjprZXk="] * 3
    assert len(connections) == 1
