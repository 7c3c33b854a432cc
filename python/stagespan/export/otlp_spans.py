"""Encodes the spans of finished requests as messages of OTLP."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from stagespan import _core
from stagespan.device.environment import version
from stagespan.errors import StagespanError
from stagespan.export.parts import Batch, Parts, Resource
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
BYTES_OF_A_CALL = 2 << 20
"""About the most that a collector is sent at once. By gRPC, collectors take 4 MiB, unless they are
told otherwise. One message has at most 512 spans, and about 256 KiB."""
BYTES_OF_QUEUE = 32 << 20
"""The most that waits to be sent: some 100,000 spans."""

# The numbers of OTLP.
_INTERNAL = 1
_UNSET, _ERROR = 0, 2


class EncodedSpans(NamedTuple):
    """Some spans of a process, as a part of a ScopeSpans."""

    resource: Resource
    data: bytes
    spans: int


class Encoded(NamedTuple):
    """The spans of parts of requests."""

    messages: list[EncodedSpans]
    ends: list[int]
    """By message: how many of the parts are in it and those before it completely."""
    left_out: int
    """How many spans cannot be expressed in OTLP."""


def number_of_spans(message: EncodedSpans) -> int:
    """Return how many spans are in a message."""
    return message.spans


def number_of_bytes(message: EncodedSpans) -> int:
    """Return how many bytes a message has."""
    return len(message.data)


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
        messages = []
        for resource, spans in by_resource.items():
            of = _resource_of(resource)
            scope = _SCOPE, version()
            messages.append(
                _core.encode_resource_spans(dict(of.attributes), of.schema_url, *scope, spans)
            )
        return b"".join(messages)


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


def encoded(
    parts: Parts, indices: Sequence[int], more: Mapping[int, dict[str, Any]] = MappingProxyType({})
) -> Encoded:
    """Return the segments of some parts, the hops that came to them, and their spans.

    ``more`` are attributes of segments, by index. Each batch is encoded with the first part that it
    has served.
    """
    attributes = dict(more)
    others: dict[int, list[_Span]] = {}
    if parts.batches:
        for at in indices:
            if batches := parts.batches.get(at):
                attributes[at] = {**attributes.get(at, {}), **_of_batches(batches, parts.resource)}
                others[at] = list(_unexported(batches, parts.resource))
    made, left_out = parts.columns.otlp(indices, attributes, others)
    messages = [EncodedSpans(parts.resource, data, number) for data, number, _ in made]
    return Encoded(messages, [end for *_, end in made], left_out)


def _of_batches(batches: list[Batch], resource: Resource) -> dict[str, Any]:
    return {
        "stagespan.batch.ids": [f"{_batch_ids(one, resource)[1]:016x}" for one in batches],
        "stagespan.batch.sizes": [one.size for one in batches],
    }


def _unexported(batches: list[Batch], resource: Resource) -> Iterator[_Span]:
    for batch in batches:
        if not batch.is_exported:
            batch.is_exported = True
            yield from _batch(batch, resource)


def _link(ids: tuple[str, str]) -> tuple[bytes, int]:
    trace_id, segment = ids
    return bytes.fromhex(trace_id), int(segment, 16)


def _batch_ids(batch: Batch, resource: Resource) -> tuple[bytes, int]:
    # A batch serves several traces, so it is one of its own. Both ids depend on the process.
    digest = _digest(resource.identity)
    span_id = span_id_in(int.from_bytes(digest[8:], "big"), batch.span.id)
    return digest[:8] + span_id.to_bytes(8, "big"), span_id


@lru_cache(maxsize=1024)
def _digest(identity: str) -> bytes:
    import hashlib

    return hashlib.sha256(identity.encode()).digest()[:16]


def _batch(batch: Batch, resource: Resource) -> Iterator[_Span]:
    trace_id, own_id = _batch_ids(batch, resource)
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
