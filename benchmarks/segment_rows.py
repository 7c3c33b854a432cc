"""Rows of segments that were not read from a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stagespan import _core
from stagespan.recording.segments import Details

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagespan.recording.reading import Segment

_TIMES = (
    *("begin_ns", "end_ns", "first_chunk_ns", "last_chunk_ns", "request_ns", "received_ns"),
    *("sent_ns", "work_ns", "sent_monotonic_ns", "sent_unix_ns"),
)
_NUMBERS = (
    *("number", "chunks", "chunk_amount", "hops_sent", "attempt", "sent_clock", "trace_flags"),
)


def as_rows(segments: Sequence[Segment], names: list[str]) -> tuple[NDArray[np.void], Details]:
    """Return dicts as rows, and what they refer to; missing names are appended to ``names``.

    Raises ValueError, TypeError or OverflowError if a value is not one that a recording can have.
    """
    numbers = {name: number for number, name in enumerate(names)}

    def number_of(name: str | None) -> int:
        return _core.NO_NAME if name is None else numbers.setdefault(name, len(numbers))

    rows = np.zeros(len(segments), _core.segment_type())
    fields, failures = {}, {}
    for row, segment in zip(rows, segments, strict=True):
        values = cast("dict[str, Any]", segment)
        for name in _TIMES:
            row[name] = _core.UNKNOWN_NS if values[name] is None else values[name]
        for name in _NUMBERS:
            row[name] = values[name]
        for name in ("segment", "parent_hop", "parent_segment"):
            row[name] = int(values[name] or "0", 16)
        for name, trace in (("", segment["trace_id"]), ("link_", (segment["link"] or ("",))[0])):
            number = int(trace or "0", 16)
            row[f"{name}trace_high"], row[f"{name}trace_low"] = divmod(number, 1 << 64)
        row["link_segment"] = int((segment["link"] or ("", "0"))[1], 16)
        row["key"] = segment["number"]
        if segment["origin"] == "return":
            row["key"] = -(int(row["parent_hop"]) >> 1) - 1
        row["status"] = _core.STATUSES.index(segment["status"])
        row["origin"] = _core.ORIGINS.index(segment["origin"])
        row["queue"] = number_of(segment["queue"])
        row["pipeline"] = number_of(
            segment["pipeline"] if segment["route"] is None else segment["route"]
        )
        row["traits"] = _core.TRAIT_HTTP if segment["is_http"] else 0
        if segment["route"] is not None:
            row["traits"] |= _core.TRAIT_ROUTE
        row["id"], row["branch"] = segment["id"].encode(), (segment["branch"] or "").encode()
        fields[segment["number"]] = segment["fields"]
        if segment["exception"] is not None:
            failures[segment["number"]] = segment["exception"], segment["exception_message"]
    names += list(numbers)[len(names) :]
    return rows, Details(fields, failures)
