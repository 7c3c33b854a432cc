"""Encodes the spans of finished requests as messages of OTLP."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from stagespan import _core
from stagespan.device.environment import version
from stagespan.errors import StagespanError
from stagespan.export.requests import Batch, Part, Resource
from stagespan.live.span_kinds import KINDS
from stagespan.recording.segments import behind_others_ns
from stagespan.recording.spans import Span

try:
    from opentelemetry.sdk.resources import Resource as OtelResource
except ImportError as error:
    raise StagespanError(
        "OpenTelemetry needs its SDK and exporters (the extra 'export'): install them with `pip "
        "install opentelemetry-exporter-otlp-proto-http`."
    ) from error

_HALF = (1 << 64) - 1
_SCOPE = "stagespan"
SPANS_OF_A_CALL = 2048
"""About the most spans that a collector is sent at once. One message has at most 512, and about
256 KiB."""

# The numbers of OTLP.
_INTERNAL, _SERVER, _PRODUCER, _CONSUMER = 1, 2, 4, 5
_UNSET, _OK, _ERROR = 0, 1, 2


class EncodedSpans(NamedTuple):
    """Some spans of a process, as a part of a ScopeSpans."""

    resource: Resource
    data: bytes
    spans: int


class Encoded(NamedTuple):
    """The spans of a part of a request."""

    messages: list[EncodedSpans]
    left_out: int
    """How many spans cannot be expressed in OTLP."""


def number_of_spans(message: EncodedSpans) -> int:
    """Return how many spans are in a message."""
    return message.spans


# --- resources ------------------------------------------------------------------------------------


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


def with_own(attributes: dict[str, Any]) -> OtelResource:
    """Return a resource, with the attributes that the user sets for all telemetry."""
    is_set = bool(os.environ.get("OTEL_RESOURCE_ATTRIBUTES"))
    return OtelResource.create(attributes) if is_set else OtelResource(attributes)


class Call:
    """What a collector is sent at once: an ExportTraceServiceRequest."""

    def __init__(self, messages: list[EncodedSpans]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return sum(map(number_of_spans, self._messages))

    def SerializePartialToString(self) -> bytes:
        """Return its bytes; the name is that of the method of messages of protobuf."""
        by_resource: dict[Resource, list[bytes]] = {}
        for message in self._messages:
            by_resource.setdefault(message.resource, []).append(message.data)
        found = []
        for resource, spans in by_resource.items():
            of = _resource_of(resource)
            scope = _SCOPE, version()
            found.append(
                _core.encode_resource_spans(dict(of.attributes), of.schema_url, *scope, spans)
            )
        return b"".join(found)


# --- spans ----------------------------------------------------------------------------------------


class _Span(NamedTuple):
    """A span that is not encoded from the columns of a recording, as `_core` takes it."""

    name: str
    trace_id: bytes
    id: int
    parent: int | None
    is_parent_remote: bool
    kind: int
    begin_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[tuple[bytes, int]]
    status: int = _UNSET
    status_message: str | None = None


def span_id_in(segment: int, span: int) -> int:
    """Return the id of a span for OpenTelemetry: that of its segment, xor its own one.

    A recording numbers the spans of its process; the id of a segment is random.
    """
    return (segment ^ span) & _HALF or 1


def encoded(part: Part, more: Mapping[str, Any] = MappingProxyType({})) -> Encoded:
    """Return the segment, the hops that came to it, and its spans.

    ``more`` are attributes of the segment. Each batch is encoded with the first part that it has
    served.
    """
    segment, read = part.segment, part.read_spans
    trace_id = bytes.fromhex(segment["trace_id"] or "0" * 32)
    own_id = int(segment["segment"] or "0", 16)
    others = list(_others(part, trace_id, own_id, more))
    work, failures, names = ({}, {}, []) if read is None else (read.work, read.errors, read.names)
    made = _core.encode_spans(
        None if read is None else read.rows,
        others,
        names,
        KINDS,
        trace_id,
        own_id,
        segment["route"],
        work,
        failures,
    )
    messages = [EncodedSpans(part.resource, data, number) for data, number in made]
    total = len(others) + part.number_of_spans
    return Encoded(messages, total - sum(map(number_of_spans, messages)))


def _others(part: Part, trace_id: bytes, own_id: int, more: Mapping[str, Any]) -> Iterator[_Span]:
    """Yield what is no row of a recording: hops, the segment, and batches."""
    segment = part.segment
    # A part after the end of a request, or a request inside of another one.
    follows = segment["origin"] in ("root", "nested") and segment["parent_segment"] is not None
    received = part.returns if follows else (segment, *part.returns)
    hops = [hop for hop in received if hop["parent_segment"] is not None]
    for hop in hops:
        yield _hop(hop, trace_id)
    parent = segment["parent_hop"]
    attributes: dict[str, Any] = {
        "stagespan.request.id": segment["id"],
        "stagespan.status": segment["status"],
        "stagespan.origin": segment["origin"],
        "stagespan.complete": part.is_whole and part.has_all_work,
        **more,
    }
    for name, value in segment["fields"].items():
        attributes[f"stagespan.field.{name}"] = value
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
    if part.batches:
        attributes["stagespan.batch.ids"] = [
            f"{_batch_ids(hop, part)[1]:016x}" for hop in part.batches
        ]
        attributes["stagespan.batch.sizes"] = [hop.size for hop in part.batches]
    linked = segment["link"]
    if segment["is_http"] and not follows:
        kind = _SERVER
    elif parent is None or follows:
        kind = _INTERNAL
    else:
        kind = _CONSUMER if hops and hops[0] is segment else _SERVER
    failed = segment["status"] not in ("ok", "unused")
    yield _Span(
        segment["route"] or segment["queue"] or segment["pipeline"],
        trace_id,
        own_id,
        None if parent is None else int(parent, 16),
        parent is not None and not follows,
        kind,
        part.begin_ns,
        part.end_ns,
        attributes,
        [] if linked is None else [_link(linked)],
        _ERROR if failed else _OK,
        segment["status"] if failed else None,
    )
    for batch in part.batches:
        if not batch.is_exported:
            batch.is_exported = True
            yield from _batch(batch, part)


def _link(ids: tuple[str, str]) -> tuple[bytes, int]:
    trace_id, segment = ids
    return bytes.fromhex(trace_id), int(segment, 16)


def _hop(segment: Any, trace_id: bytes) -> _Span:
    received_ns = segment["received_ns"] or 0
    sent_ns = segment["sent_ns"] or segment["sent_unix_ns"]
    attributes: dict[str, Any] = {"stagespan.kind": "handoff"}
    if sent_ns is not None:
        behind_ns = behind_others_ns(segment, received_ns - sent_ns) or 0
        attributes["stagespan.handoff_s"] = (received_ns - sent_ns - behind_ns) / 1e9
        attributes["stagespan.behind_others_s"] = behind_ns / 1e9
    attributes["stagespan.same_clock"] = segment["sent_ns"] is not None
    return _Span(
        f"handoff {segment['queue'] or ''}".rstrip(),
        trace_id,
        int(segment["parent_hop"] or "0", 16),
        int(segment["parent_segment"] or "0", 16),
        True,
        _PRODUCER,
        min(received_ns, received_ns if sent_ns is None else sent_ns),
        received_ns,
        attributes,
        [],
    )


def _batch_ids(batch: Batch, part: Part) -> tuple[bytes, int]:
    # A batch serves several traces, so it is one of its own. Both ids depend on the process.
    digest = _digest(part.resource.identity)
    span_id = span_id_in(int.from_bytes(digest[8:], "big"), batch.span.id)
    return digest[:8] + span_id.to_bytes(8, "big"), span_id


@lru_cache(maxsize=1024)
def _digest(identity: str) -> bytes:
    import hashlib

    return hashlib.sha256(identity.encode()).digest()[:16]


def _batch(batch: Batch, part: Part) -> Iterator[_Span]:
    trace_id, own_id = _batch_ids(batch, part)
    more = {"stagespan.batch.size": batch.size}
    links = [_link(ids) for ids in batch.links]
    yield _stage(batch.span, trace_id, own_id, None, links, more)
    seed = own_id ^ batch.span.id
    for span in batch.inner:
        above = own_id if span.parent == batch.span.id else span_id_in(seed, span.parent)
        yield _stage(span, trace_id, span_id_in(seed, span.id), above, [], {})


def _stage(
    span: Span,
    trace_id: bytes,
    own_id: int,
    parent: int | None,
    links: list[tuple[bytes, int]],
    more: dict[str, Any],
) -> _Span:
    attributes: dict[str, Any] = {
        "stagespan.kind": span.kind,
        "stagespan.span.id": span.id,
        "thread.id": span.thread,
        **more,
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
    return _Span(
        span.stage,
        trace_id,
        own_id,
        parent,
        False,
        _INTERNAL,
        span.begin_ns,
        span.end_ns,
        attributes,
        links,
        _ERROR if span.failed else _UNSET,
        (span.exception_message or span.exception) if span.failed else None,
    )
