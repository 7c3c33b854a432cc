"""Segments of recordings as rows and as dicts, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from stagespan import _core
from stagespan.process import imports

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagespan.recording.reading import Failures, Fields, Segment

_TIMES = (
    *("begin_ns", "end_ns", "first_chunk_ns", "last_chunk_ns", "request_ns", "received_ns"),
    *("sent_ns", "work_ns", "sent_monotonic_ns", "sent_unix_ns"),
)
_NUMBERS = (
    *("number", "chunks", "chunk_amount", "hops_sent", "attempt", "sent_clock", "trace_flags"),
)


class Details(NamedTuple):
    """What rows of segments refer to, besides the names of stages: both by number."""

    fields: dict[int, Fields]
    failures: Failures


def as_dicts(rows: NDArray[np.void], names: list[str], details: Details) -> list[Segment]:
    """Return rows of segments as dicts."""
    return cast("list[Segment]", _core.segment_dicts(rows, names, *details))


Trace = tuple[int, int]
"""The halves of the id of a trace, both 0 if there is none."""


def traces_of(rows: NDArray[np.void]) -> list[Trace]:
    """Return the traces of segments."""
    return list(zip(rows["trace_high"].tolist(), rows["trace_low"].tolist(), strict=True))


def trace_id(trace: Trace) -> str | None:
    """Return the id of a trace, as 32 hexadecimal digits; None if there is none."""
    return f"{trace[0]:016x}{trace[1]:016x}" if any(trace) else None


def behind_others_ns(segment: Segment, since_sent_ns: int | None) -> int | None:
    """Return how long a message waited because the thread that received it worked for others.

    That is until the end of the thread's last such work before it received the message.
    ``since_sent_ns`` is the time from sent to received; None if it is not known, as then is the
    wait.
    """
    received_ns, work_ns = segment["received_ns"], segment["work_ns"]
    if since_sent_ns is None or received_ns is None:
        return None
    if work_ns is None:
        return 0
    since_work_ns = received_ns - work_ns
    return since_sent_ns - since_work_ns if 0 <= since_work_ns < since_sent_ns else 0


def as_rows(segments: Sequence[Segment], names: list[str]) -> tuple[NDArray[np.void], Details]:
    """Return dicts as rows, and what they refer to; missing names are appended to ``names``.

    Raises ValueError, TypeError or OverflowError if a value is not one that a recording can have.
    """
    numbers = {name: number for number, name in enumerate(names)}

    def number_of(name: str | None) -> int:
        return _core.NO_NAME if name is None else numbers.setdefault(name, len(numbers))

    rows = imports.load("numpy").zeros(len(segments), _core.segment_type())
    fields, failures = {}, {}
    for row, one in zip(rows, segments, strict=True):
        values = cast("dict[str, Any]", one)
        for name in _TIMES:
            row[name] = _core.UNKNOWN_NS if values[name] is None else values[name]
        for name in _NUMBERS:
            row[name] = values[name]
        for name in ("segment", "parent_hop", "parent_segment"):
            row[name] = int(values[name] or "0", 16)
        for name, trace in (("", one["trace_id"]), ("link_", (one["link"] or ("",))[0])):
            number = int(trace or "0", 16)
            row[f"{name}trace_high"], row[f"{name}trace_low"] = divmod(number, 1 << 64)
        row["link_segment"] = int((one["link"] or ("", "0"))[1], 16)
        row["key"] = one["number"]
        if one["origin"] == "return":
            row["key"] = -(int(row["parent_hop"]) >> 1) - 1
        row["status"] = _core.STATUSES.index(one["status"])
        row["origin"] = _core.ORIGINS.index(one["origin"])
        row["queue"] = number_of(one["queue"])
        row["pipeline"] = number_of(one["pipeline"] if one["route"] is None else one["route"])
        row["traits"] = _core.TRAIT_HTTP if one["is_http"] else 0
        if one["route"] is not None:
            row["traits"] |= _core.TRAIT_ROUTE
        row["id"], row["branch"] = one["id"].encode(), (one["branch"] or "").encode()
        fields[one["number"]] = one["fields"]
        if one["exception"] is not None:
            failures[one["number"]] = one["exception"], one["exception_message"]
    names += list(numbers)[len(names) :]
    return rows, Details(fields, failures)
