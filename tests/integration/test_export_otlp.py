"""Tests of `stagespan export --otlp`: a receiver gets each span once, as it was recorded."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from exporting import TWO_PROCESSES, otlp_exporter
from recorded_process import start, started

from running import PROGRAMS, end, ended, free_port, start_command, until
from stagespan import recording

EXPORTED = PROGRAMS / "exported.py"

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="there is no OTLP exporter")
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="there is no OTLP over gRPC")
collector = pytest.importorskip("collector")

pytestmark = pytest.mark.slow


def ids(span: Any) -> tuple[str, str, str]:
    return span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()


@pytest.mark.parametrize(
    ("protocol", "how"),
    [
        ("http", "return"),
        pytest.param("http", "exit", marks=pytest.mark.full),
        pytest.param("http", "term", marks=pytest.mark.full),
        pytest.param("http", "kill", marks=pytest.mark.full),
        ("grpc", "kill"),
    ],
)
def test_each_span_arrives_once_as_it_was_recorded(folder: Path, protocol: str, how: str) -> None:
    with collector.RECEIVERS[protocol]() as received:
        with otlp_exporter(received.url, OTEL_EXPORTER_OTLP_PROTOCOL=collector.PROTOCOLS[protocol]):
            process = started(TWO_PROCESSES, how, STAGESPAN_JOB="svc", STAGESPAN_RECORDING="keep")
            # WHEN it is complete THEN its spans arrive: the segments, the hops, what ran in them
            until(lambda: len(received.spans("step")) >= 98)
            until(lambda: len(received.spans("render")) >= 1)
            time.sleep(1)  # nothing more may come
        end(process)
        spans = received.spans()
        assert len({span.span_id for span in spans}) == len(spans)
        assert len({span.trace_id for span in spans}) == 1
        by_id = {span.span_id: span for span in spans}
        roots = [span for span in spans if not span.parent_span_id]
        assert len(roots) == 1
        assert all(span.parent_span_id in by_id for span in spans if span not in roots)
        names = [span.name for span in spans]
        waits = names.count("tasks") - 1 + names.count("replies")
        expected = {"work": 1, "step": 98, "parse": 1, "render": 1, "check": 1, "default": 1}
        expected |= {"handoff tasks": 1, "handoff replies": 1}
        assert {name: names.count(name) for name in expected} == expected
        assert len(spans) == sum(expected.values()) + 1 + waits
        copies = [recording.open(path) for path in folder.glob("*.stagespan")]
        segments = [one for copy in copies for one in copy.segments()]
        for one in segments:
            if one["origin"] != "return":
                found = by_id[bytes.fromhex(one["segment"])]
                parent = one["parent_hop"] or ""
                assert ids(found) == (one["trace_id"], one["segment"], parent)
            if one["parent_segment"] is not None:
                hop = by_id[bytes.fromhex(one["parent_hop"])]
                assert hop.parent_span_id.hex() == one["parent_segment"]
                assert (hop.start_time_unix_nano, hop.end_time_unix_nano) == (
                    pytest.approx(one["sent_ns"], abs=5000),
                    pytest.approx(one["received_ns"], abs=5000),
                )
        step = received.spans("step")[0]
        assert by_id[step.parent_span_id].name == "work"
        assert received.spans("check")[0].status.code == 2
        assert {one["service.name"] for one in received.resources()} == {"svc"}
        assert len({one["service.instance.id"] for one in received.resources()}) == 2


def test_a_batch_keeps_all_its_links(folder: Path) -> None:
    # GIVEN a batch of 1,000 requests
    with collector.http() as received:
        with otlp_exporter(received.url):
            process = started(EXPORTED, "large_batch", STAGESPAN_RING_SPANS="8192")
            until(lambda: len(received.spans("default")) >= 2000, 40)
            until(lambda: received.spans("forward"))
        end(process)
        (batch,) = received.spans("forward")
        segments = [span for span in received.spans("default") if not span.parent_span_id]
        assert len(segments) == 1000
        assert {(link.trace_id, link.span_id) for link in batch.links} == {
            (span.trace_id, span.span_id) for span in segments
        }
        assert (len(batch.links), batch.dropped_links_count) == (1000, 0)
        (kernel,) = received.spans("kernel")
        assert (kernel.trace_id, kernel.parent_span_id) == (batch.trace_id, batch.span_id)
        own = collector.attributes(segments[0])
        assert own["stagespan.batch.ids"] == [batch.span_id.hex()]
        assert own["stagespan.batch.sizes"] == [1000]


def test_batches_of_many_threads_are_told_apart(folder: Path) -> None:
    # GIVEN batches in the last of many threads, whose ids differ by one and do not fit into a
    # double, and every other batch has no requests
    with collector.http() as received:
        with otlp_exporter(received.url):
            process = started(EXPORTED, "batches_of_threads", STAGESPAN_RING_SPANS="8192")
            until(lambda: len(received.spans("default")) >= 400, 40)
            until(lambda: len(received.spans("forward")) >= 200)
        end(process)
        batches = received.spans("forward")
    assert len(batches) == 200
    assert {len(batch.links) for batch in batches} == {1}
    assert not received.spans("empty")


def work_of(span: Any) -> dict[str, Any]:
    """Return the work among the attributes of a span."""
    prefix = "stagespan.work."
    found = collector.attributes(span).items()
    return {name.removeprefix(prefix): n for name, n in found if name.startswith(prefix)}


@pytest.mark.parametrize(("protocol", "how"), [("http", "kill"), ("grpc", "exit")])
def test_the_work_of_each_span_is_among_its_attributes(
    folder: Path, protocol: str, how: str
) -> None:
    # GIVEN two processes, one of which was forked and killed, with work of spans in two units:
    # from asyncio tasks, another thread, and batches
    with collector.RECEIVERS[protocol]() as received:
        with otlp_exporter(received.url, OTEL_EXPORTER_OTLP_PROTOCOL=collector.PROTOCOLS[protocol]):
            process = started(EXPORTED, "working", how)
            until(lambda: len(received.spans("outer")) >= 40 and len(received.spans("kernel")) >= 2)
            until(lambda: len(received.spans("default")) >= 46)
        end(process)
    # THEN each span has its own amounts, once, and integers are exact
    by_trace: dict[bytes, list[Any]] = {}
    for span in received.spans("inner"):
        by_trace.setdefault(span.trace_id, []).append(work_of(span))
    outer = [(span.trace_id, work_of(span)) for span in received.spans("outer")]
    assert len(outer) == len({trace for trace, _ in outer}) == 40
    assert sorted(one["bytes"] - 2**53 - 1 for _, one in outer) == sorted([*range(20)] * 2)
    for trace, one in outer:
        n = one["bytes"] - 2**53 - 1
        assert one == {"images": n + 3, "bytes": 2**53 + 1 + n}
        assert sorted(one["tokens"] for one in by_trace[trace]) == [n + 1, n + 101]
        assert {one["seconds"] for one in by_trace[trace]} == {0.25}
    assert [work_of(one) for one in received.spans("forward")] == [{"images": 3}] * 2
    assert [work_of(one) for one in received.spans("kernel")] == [{"flops": 10**12}] * 2
    # THEN a whole number is an integer, and a span without work has none
    (first, *_) = received.spans("outer")
    kinds = {one.key: one.value.WhichOneof("value") for one in first.attributes}
    assert kinds["stagespan.work.images"] == kinds["stagespan.work.bytes"] == "int_value"
    assert all(not work_of(span) for span in received.spans("default"))
    complete = [collector.attributes(one).get("stagespan.complete") for one in received.spans()]
    assert complete.count(True) == 46
    assert False not in complete


def test_work_that_may_have_been_overwritten_is_left_out(folder: Path) -> None:
    # GIVEN a process with room for 512 amounts, and a request with more of them
    with collector.http() as received:
        with otlp_exporter(received.url):
            process = started(
                EXPORTED, "many_amounts", STAGESPAN_REQUESTS="64", STAGESPAN_RING_SPANS="2048"
            )
            until(lambda: len(received.spans("default")) == 2)
            until(lambda: len(received.spans("inner")) == 610)
        end(process)
    # THEN spans that began before the last amount that is gone have none, and the request says so
    first, second = sorted(received.spans("default"), key=lambda one: one.start_time_unix_nano)
    is_complete = [collector.attributes(one)["stagespan.complete"] for one in (first, second)]
    assert is_complete == [False, True]
    (of_first, of_second) = (
        [work_of(one) for one in received.spans() if one.trace_id == of.trace_id]
        for of in (first, second)
    )
    known = [one["tokens"] for one in of_first if one]
    assert sorted(known) == list(range(600 - len(known), 600))
    assert 0 < len(known) < 512
    assert sorted(one["tokens"] for one in of_second if one) == sorted([1, *range(10)])


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ((), {"plain": 200, "failed": 3, "slow": 1, "wanted": 20}, {"unwanted": 0}),
        (("--sample", "0"), {"failed": 3}, {"plain": 0, "slow": 0, "wanted": 0, "unwanted": 0}),
        (("--sample", "0", "--no-failed", "--slowest", "1"), {"slow": 1}, {"plain": 0}),
        (("--sample", "4"), {"plain": 20, "failed": 3}, {"plain": 90, "unwanted": 0}),
    ],
)
def test_rules_choose_requests(
    folder: Path, options: tuple[str, ...], least: dict[str, int], most: dict[str, int]
) -> None:
    with collector.http() as received:
        with otlp_exporter(received.url, *options):
            process = started(EXPORTED, "sampled", STAGESPAN_RING_SPANS="1024")
            time.sleep(2.5)
            end(process)
        names = [span.name for span in received.spans()]
    for name, number in least.items():
        assert names.count(name) >= number
    for name, number in most.items():
        assert names.count(name) <= number


def test_figures_have_the_counts_of_the_recording(folder: Path) -> None:
    with collector.http() as received:
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": "x-team=vision"}
        with otlp_exporter(received.url, **headers):
            process = started(EXPORTED, "decoding", STAGESPAN_JOB="svc", RANK="1", WORLD_SIZE="2")
            found = until(lambda: received.points("stagespan.stage.duration"))
            stats = recording.open(process.pid).stats()["decode"]
            open_ = {
                (name, collector.attributes(point).get("stagespan.stage")): point.as_int
                for name in ("stagespan.stage.running", "stagespan.queue.waiting")
                for _, point in received.points(name)
            }
            ((_, oldest),) = received.points("stagespan.request.oldest_age")
            end(process)
        # The stage that is open has a series from the start on.
        ((resource, point),) = [
            one for one in found if collector.attributes(one[1])["stagespan.stage"] == "decode"
        ]
        assert resource["service.name"] == "svc"
        assert resource["stagespan.rank"] == 1
        assert collector.attributes(point) == {"stagespan.stage": "decode"}
        assert point.count == sum(point.bucket_counts) == stats.count == 100
        assert point.sum == pytest.approx(stats.total_ns / 1e9, rel=1e-4)
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        ((_, work),) = received.points("stagespan.stage.work")
        assert (collector.attributes(work)["unit"], work.as_double or work.as_int) == (
            "tokens",
            300,
        )
        assert open_ == {
            ("stagespan.stage.running", "decode"): 0,
            ("stagespan.stage.running", "outer"): 1,
            ("stagespan.queue.waiting", "replica"): 1,
        }
        assert oldest.as_double > 0
        assert received.headers[-1]["x-team"] == "vision"


def test_conventions_for_generative_ai_are_added(folder: Path) -> None:
    # GIVEN the names in OpenTelemetry's own package, and a process with streamed requests
    genai = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    metrics = pytest.importorskip("opentelemetry.semconv._incubating.metrics.gen_ai_metrics")
    with collector.http() as received:
        with otlp_exporter(received.url, "--genai", "chat"):
            process = started(
                EXPORTED, "chunks", STAGESPAN_JOB="svc", STAGESPAN_PIPELINE_NAME="wan"
            )
            until(lambda: len(received.spans("wan")) == 6)
            until(
                lambda: (
                    sum(
                        point.count
                        for _, point in received.points(metrics.GEN_AI_SERVER_REQUEST_DURATION)
                    )
                    == 6
                )
            )
            durations = received.points(metrics.GEN_AI_SERVER_REQUEST_DURATION)
            parts = received.points("stagespan.part.time_to_first_chunk")
            first_tokens = received.points(metrics.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN)
            stats = recording.open(process.pid).stats(kind="per_token")["wan"]
            end(process)
        # THEN the first token counts since the request began, as the part did here
        ((_, of_parts),), ((_, of_requests),) = parts, first_tokens
        assert of_parts.count == of_requests.count == 5
        assert of_requests.sum == pytest.approx(of_parts.sum, abs=1e-4)
        common = {
            genai.GEN_AI_OPERATION_NAME: "chat",
            genai.GEN_AI_PROVIDER_NAME: "svc",
            genai.GEN_AI_REQUEST_MODEL: "wan",
        }
        *streamed, failed = (collector.attributes(span) for span in received.spans("wan"))
        for one in streamed:
            found = {name: value for name, value in one.items() if name.startswith("gen_ai.")}
            first_s = found.pop(genai.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK)
            assert first_s == pytest.approx(one["stagespan.part_time_to_first_chunk_s"], abs=1e-5)
            assert found == {
                **common,
                genai.GEN_AI_REQUEST_STREAM: True,
                genai.GEN_AI_USAGE_OUTPUT_TOKENS: 6,
            }
            assert "error.type" not in one
        assert failed["error.type"] == "ValueError"
        assert failed[genai.GEN_AI_REQUEST_STREAM] is False
        assert genai.GEN_AI_USAGE_OUTPUT_TOKENS not in failed
        counts = {
            collector.attributes(point).get("error.type"): point.count for _, point in durations
        }
        assert counts == {None: 5, "error": 1}
        ((_, between),) = received.points(metrics.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN)
        assert collector.attributes(between) == common
        assert between.count == stats.count


def test_a_process_sends_its_own_requests(folder: Path) -> None:
    with collector.http() as received:
        process = start(EXPORTED, "sending_itself", received.url)
        out, errors = process.communicate(timeout=60)
        assert (out, errors, process.returncode) == ("", "", 0)
        assert len(received.spans("decode")) == 10


@contextmanager
def rotel(to: str) -> Iterator[str]:
    """A collector of another project, which passes on what it gets."""
    package = pytest.importorskip("rotel", reason="rotel is not installed")
    agent = Path(package.__file__).with_name("rotel-agent")
    http_port, grpc_port = free_port(), free_port()
    command = [
        *(str(agent), "start", "--exporter", "otlp", "--otlp-exporter-endpoint", to),
        *("--otlp-exporter-protocol", "grpc", "--batch-timeout", "200ms"),
        *("--otlp-http-endpoint", f"127.0.0.1:{http_port}"),
        *("--otlp-grpc-endpoint", f"127.0.0.1:{grpc_port}"),
    ]
    process = start_command(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: can_connect(http_port))
    yield f"http://127.0.0.1:{http_port}"
    process.terminate()
    ended(process)


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_real_collector_passes_on_all(folder: Path) -> None:
    with collector.over_grpc() as received, rotel(received.url) as url, otlp_exporter(url):
        process = started(TWO_PROCESSES, "kill", STAGESPAN_JOB="svc", STAGESPAN_RECORDING="keep")
        until(lambda: len(received.spans("step")) >= 98)
        until(lambda: received.spans("render"))
        points = until(lambda: received.points("stagespan.stage.duration"))
        end(process)
        spans = received.spans()
    assert len({span.span_id for span in spans}) == len(spans)
    by_id = {span.span_id for span in spans}
    assert sum(span.parent_span_id not in by_id for span in spans) == 1
    counts = {collector.attributes(p)["stagespan.stage"]: p.count for _, p in points}
    assert counts["step"] == 98
