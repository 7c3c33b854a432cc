"""The spans of requests as objects of OpenTelemetry's SDK, and as its encoder encodes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.sdk.resources import Resource as OtelResource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from stagespan.device.environment import version
from stagespan.export.otlp_spans import Call, encoded, span_id_in, with_own
from stagespan.export.parts import Batch, Part, Resource
from stagespan.recording.segments import behind_others_ns
from stagespan.recording.spans import Span

_SCOPE = InstrumentationScope("stagespan", version())
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_HALF = (1 << 64) - 1
IS_REMOTE = 0x200
"""The flag of a span whose parent is in another process."""


def messages_of(parts: list[Part]) -> tuple[Any, Any]:
    """Return what is sent for parts, and what the official encoder makes of them."""
    official = encode_spans([span for part in parts for span in spans_of(part)])
    for part in parts:
        for batch in part.batches:
            batch.is_exported = False
    sent = Call([message for part in parts for message in encoded(part.of, [part.at]).messages])
    decoded = trace_service_pb2.ExportTraceServiceRequest.FromString(
        sent.SerializePartialToString()
    )
    return decoded, official


def spans_in(message: Any) -> list[Any]:
    """Return the spans of a message, ordered by their ids."""
    found = [
        span for of in message.resource_spans for scope in of.scope_spans for span in scope.spans
    ]
    return sorted(found, key=lambda span: (span.trace_id, span.span_id))


@lru_cache(maxsize=1024)
def _resource_of(resource: Resource) -> OtelResource:
    attributes: dict[str, str | int] = {
        "service.name": resource.service,
        "service.instance.id": resource.identity,
        "host.name": resource.host,
        "process.pid": resource.pid,
        "process.command": resource.program,
        "stagespan.pipeline": resource.pipeline,
    }
    if resource.rank:
        attributes["stagespan.rank"] = int(resource.rank)
    return with_own(attributes)


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, _SAMPLED)


def spans_of(part: Part, more: Mapping[str, Any] = MappingProxyType({})) -> Iterator[ReadableSpan]:
    """Yield the segment, the hops that came to it, and its spans.

    ``more`` are attributes of the segment.
    """
    segment = part.segment
    trace_id, own_id = int(segment["trace_id"] or "0", 16), int(segment["segment"] or "0", 16)
    resource = _resource_of(part.resource)
    context = _context(trace_id, own_id)
    # A part after the end of a request, or a request inside of another one.
    follows = segment["origin"] in ("root", "nested") and segment["parent_segment"] is not None
    received = part.returns if follows else (segment, *part.returns)
    hops = [hop for hop in received if hop["parent_segment"] is not None]
    for hop in hops:
        yield _hop(hop, trace_id, resource)
    parent = segment["parent_hop"]
    # In the order of `PartColumns.otlp`, because the official encoder keeps that of the dict.
    attributes: dict[str, Any] = dict(more)
    if part.batches:
        attributes["stagespan.batch.ids"] = [
            f"{_batch_context(hop, part).span_id:016x}" for hop in part.batches
        ]
        attributes["stagespan.batch.sizes"] = [hop.size for hop in part.batches]
    attributes |= {f"stagespan.field.{name}": one for name, one in segment["fields"].items()}
    attributes |= {
        "stagespan.request.id": segment["id"],
        "stagespan.status": segment["status"],
        "stagespan.origin": segment["origin"],
        "stagespan.complete": bool(part.of.is_whole[part.at])
        and all(hop.work is not None for hop in part.spans),
    }
    if segment["route"] is not None:
        attributes["http.route"] = segment["route"]
    if segment["exception"] is not None:
        attributes["error.type"] = segment["exception"]
    if segment["attempt"] > 1:
        attributes["stagespan.attempt"] = segment["attempt"]
    if segment["branch"] is not None:
        attributes["stagespan.branch"] = segment["branch"]
    if segment["queue"] is not None:
        attributes["stagespan.queue"] = segment["queue"]
    if segment["chunks"]:
        attributes["stagespan.chunks"] = segment["chunks"]
        attributes["stagespan.chunk_amount"] = segment["chunk_amount"]
        first_ns, begin_ns = segment["first_chunk_ns"], segment["begin_ns"]
        if first_ns is not None and begin_ns is not None:
            attributes["stagespan.part_time_to_first_chunk_s"] = (first_ns - begin_ns) / 1e9
        if first_ns is not None and segment["request_ns"] is not None:
            since_ns = first_ns - segment["request_ns"]
            attributes["stagespan.time_to_first_chunk_s"] = since_ns / 1e9
    linked = segment["link"]
    if segment["is_http"] and not follows:
        kind = SpanKind.SERVER
    elif parent is None or follows:
        kind = SpanKind.INTERNAL
    else:
        kind = SpanKind.CONSUMER if hops and hops[0] is segment else SpanKind.SERVER
    failed = segment["status"] not in ("ok", "unused")
    yield ReadableSpan(
        name=segment["route"] or segment["queue"] or segment["pipeline"],
        context=context,
        parent=None
        if parent is None
        else _context(trace_id, int(parent, 16), is_remote=not follows),
        resource=resource,
        attributes=attributes,
        links=() if linked is None else [Link(_context(*(int(one, 16) for one in linked)))],
        kind=kind,
        status=Status(StatusCode.ERROR, segment["status"]) if failed else Status(StatusCode.OK),
        start_time=part.begin_ns,
        end_time=part.end_ns,
        instrumentation_scope=_SCOPE,
    )
    inside = {span.id for span in part.spans}
    of_route = {} if segment["route"] is None else {"http.route": segment["route"]}
    for span in part.spans:
        above = span_id_in(own_id, span.parent) if span.parent in inside else own_id
        more = of_route if span.kind == "queue" else {}
        yield _stage(span, trace_id, span_id_in(own_id, span.id), above, resource, (), more)
    for batch in part.batches:
        if not batch.is_exported:
            batch.is_exported = True
            yield from _batch(batch, part, resource)


def _hop(segment: Any, trace_id: int, resource: OtelResource) -> ReadableSpan:
    received_ns = segment["received_ns"] or 0
    sent_ns = segment["sent_ns"] or segment["sent_unix_ns"]
    attributes: dict[str, Any] = {"stagespan.kind": "handoff"}
    if sent_ns is not None:
        behind_ns = behind_others_ns(segment, received_ns - sent_ns) or 0
        attributes["stagespan.handoff_s"] = (received_ns - sent_ns - behind_ns) / 1e9
        attributes["stagespan.behind_others_s"] = behind_ns / 1e9
    attributes["stagespan.same_clock"] = segment["sent_ns"] is not None
    return ReadableSpan(
        name=f"handoff {segment['queue'] or ''}".rstrip(),
        context=_context(trace_id, int(segment["parent_hop"] or "0", 16)),
        parent=_context(trace_id, int(segment["parent_segment"] or "0", 16), is_remote=True),
        resource=resource,
        attributes=attributes,
        kind=SpanKind.PRODUCER,
        status=Status(StatusCode.UNSET),
        start_time=min(received_ns, received_ns if sent_ns is None else sent_ns),
        end_time=received_ns,
        instrumentation_scope=_SCOPE,
    )


def _stage(
    span: Span,
    trace_id: int,
    own_id: int,
    parent_id: int | None,
    resource: OtelResource,
    links: Sequence[Link] = (),
    more: dict[str, Any] | None = None,
) -> ReadableSpan:
    attributes: dict[str, Any] = {
        "stagespan.kind": span.kind,
        "stagespan.span.id": span.id,
        "thread.id": span.thread,
        **(more or {}),
    }
    for unit, amount in (span.work or {}).items():
        attributes[f"stagespan.work.{unit}"] = amount
    if span.exception is not None:
        attributes["error.type"] = span.exception
    if span.suspended_ns:
        attributes["stagespan.suspended_s"] = span.suspended_ns / 1e9
    if span.device_elapsed_ns is not None:
        attributes["stagespan.device_elapsed_s"] = span.device_elapsed_ns / 1e9
    if span.cpu_ns is not None:
        attributes["stagespan.cpu_ms"] = span.cpu_ns / 1e6
    return ReadableSpan(
        name=span.stage,
        context=_context(trace_id, own_id),
        parent=None if parent_id is None else _context(trace_id, parent_id),
        resource=resource,
        attributes=attributes,
        links=links,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.exception_message or span.exception)
        if span.failed
        else Status(StatusCode.UNSET),
        start_time=span.begin_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )


def _batch_context(batch: Batch, part: Part) -> SpanContext:
    # A batch serves several traces, so it is one of its own. Both ids depend on the process.
    seed = int.from_bytes(_digest(part.resource.identity), "big")
    span_id = span_id_in(seed & _HALF, batch.span.id)
    return _context((seed & ~_HALF) | span_id, span_id)


@lru_cache(maxsize=1024)
def _digest(identity: str) -> bytes:
    return hashlib.sha256(identity.encode()).digest()[:16]


def _batch(batch: Batch, part: Part, resource: OtelResource) -> Iterator[ReadableSpan]:
    context = _batch_context(batch, part)
    links = [Link(_context(int(trace, 16), int(segment, 16))) for trace, segment in batch.links]
    more = {"stagespan.batch.size": batch.size}
    yield _stage(batch.span, context.trace_id, context.span_id, None, resource, links, more)
    seed = context.span_id ^ batch.span.id
    for span in batch.inner:
        above = context.span_id if span.parent == batch.span.id else span_id_in(seed, span.parent)
        yield _stage(span, context.trace_id, span_id_in(seed, span.id), above, resource)
