"""The spans that are open now, with the names of Python's threads."""

from __future__ import annotations

from typing import TypedDict, cast

from stagespan import _core
from stagespan.live.span_kinds import KINDS, Kind
from stagespan.process import threads


class AnyOpenSpan(TypedDict):
    """What is known about a span that has not ended, in this process and in a recording."""

    stage: str
    thread: int
    thread_name: str | None
    id: int
    parent: int
    depth: int
    begin_ns: int
    active_ns: int
    request: str | None
    request_number: int | None
    trace_id: str | None
    kind: Kind
    detached: bool
    suspended: bool


class OpenSpan(AnyOpenSpan):
    """A span that has not ended, as `open_spans` returns it."""

    elapsed_ns: int


def open_spans() -> list[OpenSpan]:
    """Return the spans that are open now: for each thread, outermost first.

    Each has ``stage``, ``thread`` (the system's id), ``thread_name``, ``id``, ``parent``,
    ``depth``, ``begin_ns`` (Unix time), ``active_ns`` (when it, or a span inside of it, last began
    or ended), ``elapsed_ns``, ``request`` (the id of its request, or None), ``request_number``
    (None outside of requests), ``trace_id`` (of its request, or None), ``kind`` (execution, queue,
    batch), ``detached`` and ``suspended``. A span is detached if no thread is inside it, as with
    tokens and suspended coroutines. Its ``thread_name`` is None then. It is suspended if it is
    known that its coroutine or generator does not run: it is between two turns, or other code of
    its thread has begun or ended a span since it did.
    """
    spans = _core.open_spans()
    if spans:
        # Before Python 3.14, the system does not know these names; later it knows 15 characters.
        by_native_id = threads.by_native_id()
        for span in spans:
            if span["thread_name"] is not None and span["thread"] in by_native_id:
                span["thread_name"] = by_native_id[span["thread"]].name
            span["kind"] = KINDS[span["kind"]]
            number = span["request"]
            id_, span["trace_id"] = _core.request_known(number) if number else ("", None)
            span["request"] = id_ or None
            span["request_number"] = number or None
    return cast("list[OpenSpan]", spans)
