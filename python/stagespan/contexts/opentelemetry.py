"""Makes the spans of OpenTelemetry's SDK inside of a request its children."""

from __future__ import annotations

from typing import Any

from stagespan import _core, settings
from stagespan.process import imports

_exporters: list[object] = []
"""Those of this process, which send the request that becomes a parent."""


def install() -> None:
    """Tell OpenTelemetry of requests, as the environment asks for."""
    _core.request_set_context(_enter, _leave)


def add_exporter(exporter: object) -> None:
    """Tell OpenTelemetry of requests from now on: this process exports them."""
    _exporters.append(exporter)
    _core.request_set_context(_enter, _leave)


def remove_exporter(exporter: object) -> None:
    """Undo `add_exporter`."""
    if exporter in _exporters:
        _exporters.remove(exporter)
    if not _exporters and not settings.get("STAGESPAN_OTEL_CONTEXT"):
        _core.request_set_context(None, _leave)


def _enter(request: _core.Request) -> tuple[Any, Any] | None:
    """Make a request the current span; returns the new context and the one before."""
    w3c = request._w3c
    if w3c is None:
        return None
    high, low, segment, flags = w3c
    trace, context = imports.load("opentelemetry.trace"), imports.load("opentelemetry.context")
    parent = trace.SpanContext(high << 64 | low, segment, False, trace.TraceFlags(flags & 1))
    before = context.get_current()
    span = trace.NonRecordingSpan(parent)
    span.is_of_request = True
    inside = trace.set_span_in_context(span, before)
    context.attach(inside)
    return inside, before


def _leave(request: _core.Request, entered: tuple[Any, Any] | None) -> None:
    """Make the context before current again, where the request is the current span.

    A token of OpenTelemetry can be used only in the task that it is from.
    """
    if entered is None:
        return
    inside, before = entered
    context = imports.load("opentelemetry.context")
    if context.get_current() is inside:
        context.attach(before)
