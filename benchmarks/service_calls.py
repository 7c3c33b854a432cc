"""How the engine of tests/served_engine.py calls OpenTelemetry, in `benchmarks.service`.

It records by hand what stagespan records: a span for each request, each part of it in another
process, each hand-off, wait, stage and batch, links from a batch to its requests, and the
distributions of chunks. If OTEL_EXPORTER_OTLP_ENDPOINT is set, spans and distributions are sent
there, and OTEL_TRACES_SAMPLER chooses the requests; otherwise nothing is sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextvars import Token
from dataclasses import dataclass
from typing import Any

from opentelemetry import context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from served_engine import Calls, Carrier


class _Discard(SpanExporter):
    """Sends nothing, so that only the cost inside of the service is measured."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


@dataclass
class Traced:
    """A request in one process."""

    span: Any
    received_ns: int = 0
    queue: str = ""
    is_waiting: bool = False
    is_sent: bool = False
    attached: Token[Any] | None = None
    begin_s: float = 0.0
    last_chunk_s: float = 0.0
    chunks: int = 0


class WithOpenTelemetry(Calls):
    """Records everything with the SDK of OpenTelemetry."""

    def __init__(self, role: str) -> None:
        self._role = role
        provider = TracerProvider(shutdown_on_exit=False)
        exporter: SpanExporter = _Discard()
        reader: MetricReader = InMemoryMetricReader()
        if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
            from opentelemetry.exporter.otlp.proto.http import metric_exporter, trace_exporter

            exporter = trace_exporter.OTLPSpanExporter()
            reader = PeriodicExportingMetricReader(metric_exporter.OTLPMetricExporter())
        provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = provider.get_tracer("engine")
        self._carriers = TraceContextTextMapPropagator()
        meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("engine")
        self._first_chunk = meter.create_histogram("first_chunk", "s")
        self._between_chunks = meter.create_histogram("between_chunks", "s")

    def begin(self, id_: str) -> Any:
        span = self._tracer.start_span("request", attributes={"request.id": id_})
        request = Traced(span, begin_s=time.perf_counter())
        request.attached = context.attach(trace.set_span_in_context(span))
        return request

    def end(self, request: Any, status: str) -> None:
        request.span.set_attribute("request.status", status)
        request.span.end()
        context.detach(request.attached)

    def send(self, request: Any, queue: str, attempt: int = 1) -> Carrier:
        carrier = {"sent": str(time.time_ns()), "queue": queue, "attempt": str(attempt)}
        self._carriers.inject(carrier, trace.set_span_in_context(request.span))
        request.is_sent = True
        return carrier

    def receive(self, carrier: Carrier) -> Any:
        now_ns, queue = time.time_ns(), carrier["queue"]
        parent = self._carriers.extract(carrier)
        sent_ns = int(carrier["sent"])
        self._tracer.start_span(f"hand-off {queue}", parent, start_time=sent_ns).end(now_ns)
        if self._role == "front":  # a reply, whose request is open here
            return Traced(trace.get_current_span(), now_ns, queue, is_waiting=True)
        attributes = {"request.attempt": int(carrier["attempt"])}
        span = self._tracer.start_span(self._role, parent, attributes=attributes)
        begin_s = time.perf_counter()
        return Traced(span, now_ns, queue, is_waiting=True, begin_s=begin_s)

    def _start(self, request: Traced) -> None:
        if request.is_waiting:
            request.is_waiting = False
            parent = trace.set_span_in_context(request.span)
            wait = self._tracer.start_span(
                f"queue {request.queue}", parent, start_time=request.received_ns
            )
            wait.end()

    def enter(self, request: Any) -> None:
        self._start(request)
        request.attached = context.attach(trace.set_span_in_context(request.span))

    def leave(self, request: Any, status: str = "ok") -> None:
        context.detach(request.attached)
        if self._role != "front" and (request.is_sent or status != "ok"):
            request.span.set_attribute("request.status", status)
            request.span.set_attribute("request.chunks", request.chunks)
            request.span.end()

    def wait(self, request: Any) -> Any:
        return self._tracer.start_span("waiting")

    def waited(self, request: Any, token: Any) -> None:
        token.end()

    def open(self, request: Any, stage: str) -> Any:
        return self._tracer.start_span(stage)

    def close(self, request: Any, token: Any) -> None:
        token.end()

    def begin_batch(self, stage: str, requests: list[Any]) -> Any:
        for request in requests:
            self._start(request)
        links = [trace.Link(request.span.get_span_context()) for request in requests]
        return self._tracer.start_span(stage, context.Context(), links=links)

    def end_batch(self, requests: list[Any], token: Any) -> None:
        token.set_attribute("batch.size", len(requests))
        token.end()

    def chunk(self, request: Any) -> None:
        now_s = time.perf_counter()
        if request.chunks == 0:
            self._first_chunk.record(now_s - request.begin_s)
        else:
            self._between_chunks.record(now_s - request.last_chunk_s)
        request.last_chunk_s = now_s
        request.chunks += 1
