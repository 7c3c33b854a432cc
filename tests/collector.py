"""A receiver of OTLP over HTTP and gRPC, which keeps what it was sent."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc


class Received:
    """What a receiver was sent."""

    def __init__(self) -> None:
        self.url = ""
        self._lock = threading.Lock()
        self._spans: list[tuple[dict[str, Any], Any]] = []
        self.metrics: list[metrics_pb.ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []

    def add_spans(self, request: trace_pb.ExportTraceServiceRequest) -> None:
        """Take spans."""
        with self._lock:
            for one in request.resource_spans:
                resource = attributes(one.resource)
                for scope in one.scope_spans:
                    self._spans += [(resource, span) for span in scope.spans]

    def add_metrics(self, request: metrics_pb.ExportMetricsServiceRequest) -> None:
        """Take metrics."""
        with self._lock:
            self.metrics.append(request)

    def spans(self, name: str | None = None) -> list[Any]:
        """Return the spans, in the order in which they came; only those with a name if given."""
        with self._lock:
            return [span for _, span in self._spans if name in (None, span.name)]

    def resources(self) -> list[dict[str, Any]]:
        """Return the resource of each span."""
        with self._lock:
            return [resource for resource, _ in self._spans]

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return the latest points of a metric, each with the attributes of its resource."""
        found = []
        with self._lock:
            for one in self.metrics[-1].resource_metrics if self.metrics else ():
                for scope in one.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name == name:
                            kind = metric.WhichOneof("data")
                            points = getattr(metric, kind).data_points
                            found += [(attributes(one.resource), point) for point in points]
        return found


def attributes(holder: Any) -> dict[str, Any]:
    """Return attributes as plain values."""
    return {one.key: _value(one.value) for one in holder.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


def _answer_of(kind: Any, rejected: int) -> Any:
    """Return an answer that rejects so many spans or data points, and says so."""
    answer = kind()
    if rejected:
        partial = answer.partial_success
        partial.error_message = "the quota is used up"
        if kind is trace_pb.ExportTraceServiceResponse:
            partial.rejected_spans = rejected
        else:
            partial.rejected_data_points = rejected
    return answer


Pair = tuple[Path, Path]
"""The file of a certificate and that of its key."""


@contextmanager
def http(
    answer: Callable[[], int] = lambda: 200, *, rejected: int = 0, pair: Pair | None = None
) -> Iterator[Received]:
    """Receive OTLP over HTTP, or over HTTPS with a pair of a certificate and its key.

    ``answer`` returns the status of the next answer. Each answer says that so many spans or data
    points were ``rejected``.
    """
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            received.paths.append(self.path)
            received.headers.append({k.lower(): v for k, v in self.headers.items()})
            status, said = answer(), b""
            if status == 200 and self.path == "/v1/traces":
                received.add_spans(trace_pb.ExportTraceServiceRequest.FromString(body))
                said = _answer_of(trace_pb.ExportTraceServiceResponse, rejected).SerializeToString()
            elif status == 200 and self.path == "/v1/metrics":
                received.add_metrics(metrics_pb.ExportMetricsServiceRequest.FromString(body))
                said = _answer_of(
                    metrics_pb.ExportMetricsServiceResponse, rejected
                ).SerializeToString()
            self.send_response(status)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*pair)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        received.url = f"{'https' if pair else 'http'}://127.0.0.1:{server.server_port}"
        yield received
        server.shutdown()


@contextmanager
def over_grpc(*, rejected: int = 0, pair: Pair | None = None) -> Iterator[Received]:
    """Receive OTLP over gRPC, with TLS if there is a pair of a certificate and its key.

    Each answer says that so many were ``rejected``.
    """
    received = Received()

    class Traces(trace_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            received.add_spans(request)
            return _answer_of(trace_pb.ExportTraceServiceResponse, rejected)

    class Metrics(metrics_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            received.add_metrics(request)
            return _answer_of(metrics_pb.ExportMetricsServiceResponse, rejected)

    server = grpc.server(ThreadPoolExecutor(4))
    trace_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    if pair is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        certificate, key = (path.read_bytes() for path in pair)
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    received.url = f"{'https' if pair else 'http'}://127.0.0.1:{port}"
    try:
        yield received
    finally:
        server.stop(0)


RECEIVERS = {"http": http, "grpc": over_grpc}
PROTOCOLS = {"http": "http/protobuf", "grpc": "grpc"}
"""What OTEL_EXPORTER_OTLP_PROTOCOL is set to for each of the receivers."""
