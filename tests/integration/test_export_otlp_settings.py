"""Tests of addresses, variables and certificates for `stagespan export --otlp`."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from exporting import REQUESTS, exporter, of, otlp_exporter, scraped
from recorded_process import start, started

from running import PROGRAMS, end, ran, tell, until

EXPORTED = PROGRAMS / "exported.py"

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="there is no OTLP exporter")
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="there is no OTLP over gRPC")
collector = pytest.importorskip("collector")
otlp = pytest.importorskip("stagespan.export.otlp")
otlp_sending = pytest.importorskip("stagespan.export.otlp_sending")

pytestmark = pytest.mark.slow

METRICS = "OTEL_EXPORTER_OTLP_METRICS"


def test_conventions_without_a_collector_are_refused(folder: Path) -> None:
    done = ran(
        [sys.executable, "-m", "stagespan", "export", "--prometheus", "0", "--genai"], status=2
    )
    assert "pass --otlp URL too" in done.stderr


@pytest.mark.parametrize(
    "url", ["localhost:4318", "ftp://x", "http://h:otlp", "http://h:99999", "http://[::1", ""]
)
def test_an_address_that_is_none_is_refused(folder: Path, url: str) -> None:
    done = ran([sys.executable, "-m", "stagespan", "export", "--otlp", url], status=2)
    assert "is not an address for OTLP" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("setting", "port", "sentence"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL=http/json", 4318, "set it to grpc or http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=GRPC", 4317, "set it to grpc or http/protobuf"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION=zip", 4317, "OTEL_EXPORTER_OTLP_COMPRESSION"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT=soon", 4317, "correct the variables OTEL_EXPORTER_OTLP_"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE=/no/such.pem", 4318, "name a file in PEM format"),
        ("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY=/no/such", 4317, "name a file in PEM format"),
        (f"{METRICS}_TEMPORALITY_PREFERENCE=deltas", 4318, "to cumulative, delta or lowmemory"),
        (
            f"{METRICS}_DEFAULT_HISTOGRAM_AGGREGATION=base2_exponential_bucket_histogram",
            *(4317, "histograms have fixed bounds"),
        ),
        ("OTEL_METRIC_EXPORT_INTERVAL=1m", 4318, "set it to a number of milliseconds"),
    ],
)
def test_a_variable_with_a_wrong_value_is_refused(
    folder: Path, setting: str, port: int, sentence: str
) -> None:
    done = ran(
        [sys.executable, "-m", "stagespan", "export", "--otlp", f"http://127.0.0.1:{port}"],
        **dict([setting.split("=")]),
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert sentence in done.stderr


def test_headers_compression_and_attributes_of_the_environment_hold(folder: Path) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20dXNlcjpr,x-team=two words",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,service.name=of-the-node",
        "OTEL_SERVICE_NAME": "of-the-exporter",
    }
    with collector.http() as received, otlp_exporter(received.url, **variables):
        process = started(REQUESTS, "1", STAGESPAN_JOB="svc")
        until(lambda: received.spans("decode"))
        points = until(lambda: received.points("stagespan.stage.duration"))
        end(process)
    assert received.headers[-1]["authorization"] == "Basic dXNlcjpr"
    assert received.headers[-1]["x-team"] == "two words"
    assert received.headers[-1]["content-encoding"] == "gzip"
    for resource in (*received.resources(), points[0][0]):
        assert resource["deployment.environment.name"] == "prod"
        assert resource["service.name"] == "svc"
        assert resource["host.name"] == os.uname().nodename


def sums(received: Any, name: str) -> Counter[str]:
    """Return the sum of all points of a metric that were sent, by service."""
    found: Counter[str] = Counter()
    for request in list(received.metrics):
        for one in request.resource_metrics:
            service = collector.attributes(one.resource)["service.name"]
            for scope in one.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        points = getattr(metric, metric.WhichOneof("data")).data_points
                        kind = type(points[0]).__name__
                        of_point = "count" if kind == "HistogramDataPoint" else "as_double"
                        found[service] += sum(getattr(point, of_point) for point in points)
    return found


@pytest.mark.parametrize("preference", ["delta", " LowMemory"])
def test_differences_sum_to_the_figures(folder: Path, preference: str) -> None:
    variables = {
        f"{METRICS}_TEMPORALITY_PREFERENCE": preference,
        f"{METRICS}_DEFAULT_HISTOGRAM_AGGREGATION": "explicit_bucket_histogram",
        "OTEL_METRIC_EXPORT_INTERVAL": "300",
    }
    process = started(EXPORTED, "worker", STAGESPAN_JOB="svc")

    duration, tokens = "stagespan.stage.duration", "stagespan.stage.work"
    statuses = cycle([200, 200, 400])
    with collector.http(lambda: next(statuses)) as received:
        with otlp_exporter(received.url, **variables):
            total = 0
            for runs in (5, 40, 7):
                tell(process, runs)
                total += runs
                until(lambda of=total: sums(received, duration)["svc"] == of)
            assert sums(received, tokens)["svc"] == 2 * total
        # WHEN the next exporter goes on THEN it sends only what is new
        with otlp_exporter(received.url, **variables):
            tell(process, 3)
            until(lambda: sums(received, duration)["svc"] >= total + 3)
            before = len(received.metrics)
            until(lambda: len(received.metrics) > before + 4)
            assert sums(received, duration)["svc"] == total + 3
    end(process)
    ends: dict[str, int] = {}
    for request in received.metrics:
        for one in request.resource_metrics:
            for scope in one.scope_metrics:
                for metric in scope.metrics:
                    if metric.name not in (duration, tokens):
                        continue
                    data = getattr(metric, metric.WhichOneof("data"))
                    (point,) = data.data_points
                    assert data.aggregation_temporality == 1
                    begin = point.start_time_unix_nano
                    assert begin >= ends.get(metric.name, 0)
                    ends[metric.name] = point.time_unix_nano


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_no_metric_is_sent_without_data(folder: Path, protocol: str) -> None:
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": collector.PROTOCOLS[protocol]}
    with collector.RECEIVERS[protocol]() as received, otlp_exporter(received.url, **variables):
        until(lambda: len(received.metrics) > 1)
        assert not received.points("stagespan.process.up")
        process = start("import stagespan; stagespan.begin('s'); print('ready'); input()")
        until(lambda: received.points("stagespan.process.up"))
        end(process)
        until(lambda: received.points("stagespan.process.up")[0][1].as_int == 0)
    for request in received.metrics:
        for one in request.resource_metrics:
            assert one.scope_metrics
            for scope in one.scope_metrics:
                assert scope.metrics
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    assert kind is not None, metric.name
                    assert getattr(metric, kind).data_points


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_endpoint_can_be_that_of_the_environment(folder: Path, protocol: str) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": collector.PROTOCOLS[protocol],
        "STAGESPAN_JOB": "svc",
    }
    with collector.RECEIVERS[protocol]() as received:
        variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = received.url
        with exporter("--otlp", **variables):
            process = started(REQUESTS, "1", **variables)
            until(lambda: received.spans("decode"))
            until(lambda: received.points("stagespan.stage.duration"))
            end(process)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Return a certificate that has signed itself, and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl on PATH: it makes the certificate")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = [
        *(program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(key), "-out", str(certificate)),
    ]
    ran(command, status=0)
    return certificate, key


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_collector_with_a_certificate_of_its_own(
    folder: Path, protocol: str, pair: tuple[Path, Path]
) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": collector.PROTOCOLS[protocol],
        "STAGESPAN_JOB": "svc",
    }
    started(REQUESTS, "1", STAGESPAN_JOB="svc")
    with collector.RECEIVERS[protocol](pair=pair) as received:
        # WHEN the certificate is not known THEN nothing is delivered, which is told in few lines
        with exporter("--otlp", received.url, **variables) as (side_car, port):
            until(lambda: of(scraped(port), "stagespan_lost_total", cause="otlp_failed"), 40)
            side_car.terminate()
            _, errors = side_car.communicate(timeout=20)
        assert not received.spans()
        assert 1 <= errors.count("\n") <= 4
        assert errors.startswith("OpenTelemetry's exporter says: ")
        variables["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(pair[0])
        with otlp_exporter(received.url, **variables):
            again = started(REQUESTS, "1", STAGESPAN_JOB="svc")
            until(lambda: received.spans("decode"))
            end(again)


@pytest.mark.parametrize("end", ["", "/", "/v1/traces", "/v1/metrics/"])
def test_an_address_with_a_path_has_a_path_for_each_signal(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL", raising=False)
    with collector.http() as received:
        for signal_name in ("traces", "metrics"):
            exporter_of = otlp_sending.exporter_for(
                signal_name, f"{received.url}/otlp{end}", otlp_sending.Answers()
            )
            # WHEN something is sent THEN it arrives where a collector expects it
            exporter_of.export([] if signal_name == "traces" else otlp.points.MetricsData([]))
        assert received.paths == ["/otlp/v1/traces", "/otlp/v1/metrics"]
