"""Segments of recordings as rows and as dicts, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from stagespan import _core
from stagespan.process import imports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray


Fields = dict[str, int | float | str]
"""What was recorded of the metadata of a request, by name."""
Failures = dict[int, tuple[str, str | None]]
"""The type and the message of exceptions by the ids of their spans; None if not recorded."""


class Request(TypedDict):
    """A request in a recording; ``end_ns`` is None if the request had not ended.

    ``trace_id`` is the id of its distributed trace (32 hexadecimal digits), or None. ``status`` is
    open, ok, error, cancelled, discarded, abandoned (the process ended before the request did) or
    unused (received and never entered). ``begin_ns`` is None while a received request waits.
    """

    number: int
    id: str
    trace_id: str | None
    begin_ns: int | None
    end_ns: int | None
    status: str


class SegmentDetails(TypedDict, total=False):
    """What earlier versions have not kept of a segment."""

    pipeline: str
    is_http: bool
    route: str | None
    fields: Fields
    exception: str | None
    exception_message: str | None
    request_ns: int | None
    work_ns: int | None
    link: tuple[str, str] | None


class Segment(Request, SegmentDetails):
    """A segment: the part of a request in this process. Unknown values are None.

    ``segment`` is its id, ``parent_hop`` that of the hop that brought it, and ``parent_segment``
    that of the segment that sent it (16 hexadecimal digits each). In a part after the end of a
    request, such as background tasks, both are that request's segment. ``origin`` is ``"root"``
    (it began here), ``"remote"``, ``"return"`` (not a segment, but a hop that has come back to
    the segment with this number), ``"repeated"`` (the carrier was received before) or ``"nested"``
    (it began inside of another request, its parent). ``link`` is the trace and the segment of the
    request that it began in, also if that had ended. ``pipeline``
    is that of the request, or of the process; ``route`` is also the pipeline of a call that a route
    serves, and ``fields`` are what `record_request_fields` has named. ``exception`` is the type of
    the exception that it has ended with. ``sent_ns`` is on this process's clock, and None if
    it was sent on another one; so is ``request_ns``, when the request began, perhaps elsewhere.
    ``work_ns`` is when the thread that received it had last ended work for others: a span of
    another request or a batch, that was not suspended.
    """

    segment: str | None
    parent_hop: str | None
    parent_segment: str | None
    origin: str
    attempt: int
    branch: str | None
    queue: str | None
    sent_ns: int | None
    sent_monotonic_ns: int | None
    sent_unix_ns: int | None
    sent_clock: int
    received_ns: int | None
    hops_sent: int
    chunks: int
    chunk_amount: int
    first_chunk_ns: int | None
    last_chunk_ns: int | None
    trace_flags: int


def began_here(segment: Segment) -> bool:
    """Whether a segment is the first part of a request, as far as is known."""
    return segment["parent_segment"] is None and segment["origin"] in ("root", "remote")


class Details(NamedTuple):
    """What rows of segments refer to, besides the names of stages: both by number."""

    fields: dict[int, Fields]
    failures: Failures


def as_dicts(rows: NDArray[np.void], names: list[str], details: Details) -> list[Segment]:
    """Return rows of segments as dicts."""
    return cast("list[Segment]", _core.segment_dicts(rows, names, *details))


_TIMES = (
    *("begin_ns", "end_ns", "first_chunk_ns", "last_chunk_ns", "request_ns", "received_ns"),
    *("sent_ns", "work_ns", "sent_monotonic_ns", "sent_unix_ns"),
)
_NUMBERS = "number", "chunks", "chunk_amount", "hops_sent", "attempt", "sent_clock", "trace_flags"


def as_rows(
    segments: Sequence[Mapping[str, Any]], names: list[str], pipeline: str | None = None
) -> tuple[NDArray[np.void], Details]:
    """Return dicts as rows, and what they refer to; missing names are appended to ``names``.

    Unknown values, 0, and the pipeline if it is ``pipeline`` can be left out. Raises ValueError,
    TypeError or OverflowError if a value is not one that a recording can have.
    """
    numpy = imports.load("numpy")
    numbers = {name: number for number, name in enumerate(names)}

    def number_of(name: str | None) -> int:
        return _core.NO_NAME if name is None else numbers.setdefault(name, len(numbers))

    def column(key: str, default: Any = None) -> list[Any]:
        return [segment.get(key, default) for segment in segments]

    rows = numpy.zeros(len(segments), _core.segment_type())
    for name in _TIMES:
        rows[name] = [_core.UNKNOWN_NS if ns is None else ns for ns in column(name)]
    for name in _NUMBERS:
        rows[name] = column(name, 0)
    for name in ("segment", "parent_hop", "parent_segment"):
        rows[name] = [int(id_ or "0", 16) for id_ in column(name)]
    links = [link or ("0", "0") for link in column("link")]
    rows["link_segment"] = [int(segment, 16) for _, segment in links]
    for prefix, ids in (("", column("trace_id")), ("link_", [trace for trace, _ in links])):
        halves = [divmod(int(id_ or "0", 16), 1 << 64) for id_ in ids]
        rows[f"{prefix}trace_high"] = [high for high, _ in halves]
        rows[f"{prefix}trace_low"] = [low for _, low in halves]
    rows["status"] = list(map(_core.STATUSES.index, column("status")))
    rows["origin"] = list(map(_core.ORIGINS.index, column("origin")))
    rows["queue"] = list(map(number_of, column("queue")))
    rows["pipeline"] = [
        number_of(of.get("route") or of.get("pipeline", pipeline)) for of in segments
    ]
    is_routed = numpy.array([route is not None for route in column("route")], bool)
    is_http = numpy.array(column("is_http", False), bool)
    rows["traits"] = is_http * _core.TRAIT_HTTP | is_routed * _core.TRAIT_ROUTE
    rows["id"] = [id_.encode() for id_ in column("id")]
    rows["branch"] = [(branch or "").encode() for branch in column("branch")]
    is_return = rows["origin"] == _core.ORIGINS.index("return")
    hops = -(rows["parent_hop"] >> 1).astype("i8") - 1
    rows["key"] = numpy.where(is_return, hops, rows["number"].astype("i8"))
    names += list(numbers)[len(names) :]
    fields = {segment["number"]: segment["fields"] for segment in segments if segment.get("fields")}
    failures = {
        segment["number"]: (segment["exception"], segment.get("exception_message"))
        for segment in segments
        if segment.get("exception") is not None
    }
    return rows, Details(fields, failures)


def texts(ids: NDArray[np.bytes_]) -> list[str]:
    """Return the ids that the program has given the requests, as texts up to the first zero."""
    return [id_.partition(b"\0")[0].decode(errors="replace") for id_ in ids.tolist()]


def name_of(names: Sequence[str], code: int) -> str | None:
    """Return the name of a stage that a row refers to; None if there is none."""
    if code == _core.NO_NAME:
        return None
    return names[code] if code < len(names) else "(unknown)"


def first_known_ns(rows: NDArray[np.void], *names: str) -> NDArray[np.int64]:
    """Return the first of some times that is known, or 0, of each row."""
    numpy = imports.load("numpy")
    first_ns: NDArray[np.int64] = numpy.zeros(len(rows), "i8")
    for name in reversed(names):
        times_ns = rows[name]
        first_ns = numpy.where((times_ns != _core.UNKNOWN_NS) & (times_ns != 0), times_ns, first_ns)
    return first_ns


def have_begun_here(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return whether each is the first part of a request, as `reading.began_here` of a dict."""
    origins = [_core.ORIGINS.index(origin) for origin in ("root", "remote")]
    is_first = imports.load("numpy").isin(rows["origin"], origins)
    have_begun: NDArray[np.bool_] = is_first & (rows["parent_segment"] == 0)
    return have_begun


def open_meanwhile(rows: NDArray[np.void], number: int, begin_ns: int, end_ns: int) -> int:
    """Return how many other requests that have begun here were open between two Unix times."""
    numpy = imports.load("numpy")
    rows = rows[have_begun_here(rows) & (rows["number"] != number)]
    begins_ns, ends_ns = (
        numpy.where(times_ns == 0, end_ns, times_ns)  # what is unknown is the latest
        for times_ns in (
            first_known_ns(rows, "received_ns", "begin_ns"),
            first_known_ns(rows, "end_ns"),
        )
    )
    return int(((begins_ns < end_ns) & (ends_ns > begin_ns)).sum())


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
