"""Makes recordings, and parts of requests, of spans and segments whose times are known."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan import _core
from stagespan.export.parts import AWAITED_KEEP, Batch, Part, Parts, Resource
from stagespan.recording.requests_page import Requests
from stagespan.recording.segments import as_rows
from stagespan.recording.source import Columns, RequestSource
from stagespan.recording.spans import ReadSpans
from stagespan.recording.timelines import timelines

Spans = NDArray[np.void]
RESOURCE = Resource("svc", "default", "", 1, "host", "program", "identity")


def span_rows(count: int, **columns: Any) -> Spans:
    """Return rows of spans without CPU and device times, with these columns."""
    rows: Spans = np.zeros(count, _core.spans().dtype)
    for name in ("device_elapsed_ns", "device_queue_ns", "device_tail_ns", "cpu_ns"):
        rows[name] = np.nan
    for name, values in columns.items():
        rows[name] = values
    return rows


def read_spans(*names: str, rows: Spans | None = None) -> ReadSpans:
    """Return spans without work, whose stages have these names."""
    return ReadSpans(span_rows(0) if rows is None else rows, list(names), {}, {}, 0)


def segment_of(number: int, **values: Any) -> Any:
    """Return the segment of a request of one process that took 1 us, except for these values."""
    begin_ns = values.get("begin_ns", time.time_ns())
    return {
        "number": number,
        "id": f"r{number}",
        "trace_id": f"{number:032x}",
        "begin_ns": begin_ns,
        "end_ns": begin_ns + 1000,
        "status": "ok",
        "segment": f"{number:016x}",
        "parent_hop": None,
        "parent_segment": None,
        "origin": "root",
        "attempt": 1,
        "pipeline": "default",
        "trace_flags": 1,
        "fields": {},
        **values,
    }


def part_of(
    segment: Any,
    read: ReadSpans | None = None,
    *,
    resource: Resource = RESOURCE,
    returns: Sequence[Any] = (),
    batches: list[Batch] | None = None,
    is_whole: bool = True,
    awaited: int = AWAITED_KEEP,
) -> Part:
    """Return a part of a request."""
    read = read or read_spans()
    names = list(read.names)
    rows, details = as_rows([segment, *returns], names)
    spans = read.rows.copy()
    spans["request"] = segment["number"]
    parts = Parts(
        *(resource, rows[:1], read._replace(rows=spans, names=names), rows[1:], details),
        batches={0: batches} if batches else None,
        complete_ns=0 if is_whole else 1 << 62,
    )
    parts.await_only([0], awaited)
    return Part(parts, 0)


def large_request(number: int) -> list[Part]:
    """Return a request of one process that takes about 10 KB in a compressed file."""
    return [part_of(segment_of(number, fields={"large": os.urandom(8_800).hex()}))]


def recorded(
    spans: Sequence[tuple[str, int, int, int]], segments: Sequence[Any] = ()
) -> RequestSource:
    """Return a process with these executions and segments.

    An execution is the name of a stage, the number of a request, begin and end in ns.
    """
    stages, requests, begins_ns, ends_ns = zip(*spans, strict=True)
    names = list(dict.fromkeys(stages))
    rows = span_rows(
        len(spans),
        id=range(1, len(spans) + 1),
        stage=list(map(names.index, stages)),
        request=requests,
        begin_ns=begins_ns,
        end_ns=ends_ns,
    )
    segment_rows, details = as_rows(segments, names)
    links = np.zeros(0, [("span", "u8"), ("request", "u8"), ("size", "u4")])
    return RequestSource(
        **dict.fromkeys(("path", "identity", "host", "program", "name", "pipeline"), "default"),
        pid=1,
        columns=Columns(read_spans(*names, rows=rows), segment_rows, details, links, {}, 0),
    )


def requests_in(*sources: RequestSource) -> Requests:
    """Return the requests in recordings, the slowest first."""
    joined = timelines(sources)
    return Requests(joined, joined.slowest(len(joined)), {}, len(joined), in_detail=True)
