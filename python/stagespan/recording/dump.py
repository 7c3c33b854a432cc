"""Writes the spans of recordings as a trace for Perfetto, or as JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.live.span_kinds import KINDS, RUNS
from stagespan.pages.escaping import csv_cell
from stagespan.process.files import json_bytes
from stagespan.recording import summary
from stagespan.recording.segments import (
    Details,
    as_dicts,
    first_known_ns,
    texts,
    trace_id,
    traces_of,
)
from stagespan.recording.slices import (
    CATEGORIES,
    HANDOFF,
    OF_DEVICE,
    QUEUE,
    REQUEST,
    ProcessSlices,
    TimeLine,
)
from stagespan.recording.source import RequestSource, with_open
from stagespan.recording.spans import OPEN_NS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagespan.recording.reading import Recording
    from stagespan.recording.segments import Segment


def columns(recording: RequestSource) -> dict[str, list[Any]]:
    """Return the columns of the finished spans ordered by begin, then of the open ones.

    Unknown values, such as the ends of open spans, are None.
    """
    names = recording.stage_names()
    threads = {thread["thread"]: thread["name"] for thread in recording.threads()}
    segments = recording.segment_rows()
    segments = segments[segments["origin"] != _core.ORIGINS.index("return")]
    numbers = segments["number"].tolist()
    ids = dict(zip(numbers, texts(segments["id"]), strict=True))
    traces = dict(zip(numbers, map(trace_id, traces_of(segments)), strict=True))
    spans = with_open(recording)
    of_spans: dict[str, list[Any]] = {
        name: spans[name].tolist() for name in spans.dtype.names or ()
    }
    is_open = (spans["end_ns"] == OPEN_NS).tolist()
    values = {
        "stage": [names[code] for code in of_spans["stage"]],
        "kind": [KINDS[flags >> _core.KIND_SHIFT] for flags in of_spans["flags"]],
        "thread": of_spans["thread"],
        "thread_name": [threads.get(thread) for thread in of_spans["thread"]],
        "begin_ns": of_spans["begin_ns"],
        "end_ns": _none_where(of_spans["end_ns"], is_open),
        **{name: of_spans[name] for name in ("id", "parent", "depth")},
        "request": [ids.get(number) for number in of_spans["request"]],
        "request_number": [number or None for number in of_spans["request"]],
        "trace_id": [traces.get(number) for number in of_spans["request"]],
        "error": [bool(flags & _core.FLAG_ERROR) for flags in of_spans["flags"]],
        "suspended_ns": _none_where(of_spans["suspended_ns"], is_open),
    }
    for name in ("cpu_ns", "device_elapsed_ns", "device_queue_ns", "device_tail_ns"):
        is_unknown = np.isnan(spans[name])
        rounded = np.rint(np.where(is_unknown, 0, spans[name])).astype(np.int64)
        values[name] = _none_where(rounded.tolist(), is_unknown.tolist())
    return values


def rows(recording: RequestSource) -> list[dict[str, Any]]:
    """Return the spans of `columns` as dicts."""
    found = columns(recording)
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def _none_where(values: list[int], is_unknown: list[bool]) -> list[int | None]:
    return [None if no else value for value, no in zip(values, is_unknown, strict=True)]


def as_csv(recording: Recording) -> str:
    """Return CSV with one line per span. Unknown values are empty.

    Names are changed as by `csv_cell`, so that no program takes them for more than text.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    found = columns(recording)
    writer.writerow(found)
    for row in zip(*found.values(), strict=True):
        writer.writerow([csv_cell(value) if isinstance(value, str) else value for value in row])
    return text.getvalue()


def as_json(recording: Recording) -> str:
    """Return JSON with the content of `stagespan show --json` and all spans."""
    figures = summary.ProcessFigures.of(recording).to_dict()
    return _encoded({"schema_version": 1, **figures, "spans": rows(recording)})


def as_parquet(recording: Recording) -> bytes:
    """Return Parquet with one row per span and the columns of `as_csv`. Unknown values are null.

    Raises StagespanError if pyarrow is not installed.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise StagespanError(
            "--format parquet needs pyarrow (the extra 'parquet'): install it with "
            "`pip install pyarrow`, or choose --format csv."
        ) from None
    values = columns(recording)
    text = arrow.dictionary(arrow.int32(), arrow.string())
    types = dict.fromkeys(values, arrow.int64())
    types.update(dict.fromkeys(("stage", "kind", "thread_name", "request", "trace_id"), text))
    types["error"] = arrow.bool_()
    types.update({"id": arrow.uint64(), "parent": arrow.uint64(), "request_number": arrow.uint64()})
    identity = _encoded(summary.identity(recording).to_dict()).strip()
    schema = arrow.schema(types.items(), metadata={"stagespan": identity})
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pydict(values, schema=schema), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


# --- Perfetto -------------------------------------------------------------------------------------


def as_perfetto(*recordings: RequestSource) -> Iterator[bytes]:
    """Yield a trace for https://ui.perfetto.dev of the spans of one or several processes, in parts.

    It has the tracks of a `TimeLine`, with arrows along each request and its hops.
    """
    line = TimeLine(recordings)
    page: dict[str, Any] = {
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": line.base_ns,
        "otherData": {"stagespan": line.identity},
        "traceEvents": [],
    }
    yield json_bytes(page).removesuffix(b"]}")
    events = _events(line)
    separator = b""
    # Events become text in groups, because their objects are many times as large.
    while group := list(itertools.islice(events, _EVENTS_AT_ONCE)):
        yield separator + json_bytes(group)[1:-1]
        separator = b","
    yield b"]}\n"


_EVENTS_AT_ONCE = 4096


def _events(line: TimeLine) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace: names, slices, and the arrows between them."""
    base_ns = line.base_ns
    for pid, label in line.process_names.items():
        yield _name("process_name", pid, 0, label)
    for (pid, tid), label in line.track_names.items():
        yield _name("thread_name", pid, tid, label)
    arguments = list(map(_Arguments, line.processes))
    for first in range(0, len(line.order), _EVENTS_AT_ONCE):
        rows = line.order[first : first + _EVENTS_AT_ONCE]
        process_of = np.searchsorted(line.first_slices, rows, "right") - 1
        args: dict[int, dict[str, Any]] = {}
        for at in np.unique(process_of).tolist():
            own = rows[process_of == at]
            made = arguments[at].of(own - line.first_slices[at])
            args.update(zip(own.tolist(), made, strict=True))
        names = ("category", "name", "pid", "begin_ns", "end_ns")
        columns = (line.slices[name][rows].tolist() for name in names)
        found = zip(rows.tolist(), line.tids[rows].tolist(), *columns, strict=True)
        for i, tid, category, name, pid, begin_ns, end_ns in found:
            yield {
                "ph": "X",
                "cat": CATEGORIES[category],
                "name": line.names[name],
                "pid": pid,
                "tid": tid,
                "ts": (begin_ns - base_ns) / 1e3,
                "dur": (end_ns - begin_ns) / 1e3,
                "args": args[i],
            }
    del arguments
    pids, tids = line.slices["pid"], line.tids
    ways = [
        _Way(process, first)
        for process, first in zip(line.processes, line.first_slices, strict=True)
    ]
    flows = (flow for way in ways for flow in way.flows())
    for number, flow in enumerate(itertools.chain(flows, _hop_flows(ways)), 1):
        places = [(int(pids[i]), int(tids[i]), (at_ns - base_ns) / 1e3) for at_ns, i in flow]
        yield from _arrows(number, places)


class _Arguments:
    """The arguments of the slices of a process."""

    def __init__(self, process: ProcessSlices) -> None:
        self._process = process
        self._amounts = process.recording.amounts()
        segments = process.segments
        rows = np.flatnonzero(segments["origin"] != _core.ORIGINS.index("return"))
        self._rows = rows[segments["number"][rows].argsort(kind="stable")]
        self._numbers = segments["number"][self._rows]
        """Those of the requests in these rows, in order."""

    def of(self, indices: NDArray[np.intp]) -> list[dict[str, Any]]:
        """Return those of some slices."""
        process = self._process
        rows, categories = (process.slices[name][indices] for name in ("row", "category"))
        is_segment = indices >= process.first_segment
        args = np.empty(len(indices), object)
        args[~is_segment] = self._of_spans(
            process.spans[rows[~is_segment]], categories[~is_segment]
        )
        args[is_segment] = _of_segments(process.segments[rows[is_segment]], categories[is_segment])
        found: list[dict[str, Any]] = args.tolist()
        return found

    def _of_spans(
        self, spans: NDArray[np.void], categories: NDArray[np.int64]
    ) -> list[dict[str, Any]]:
        places = np.maximum(self._numbers.searchsorted(spans["request"], "right") - 1, 0)
        segments = self._process.segments[self._rows[places]] if len(self._rows) else spans[:0]
        is_known = segments["number"] == spans["request"] if len(segments) else [False] * len(spans)
        requests = _ids(segments) if len(segments) else [{}] * len(spans)
        names = "id", "parent", "flags", "end_ns", "cpu_ns"
        columns = (spans[name].tolist() for name in names)
        arguments = []
        for category, is_one, request, id_, parent, flags, end_ns, cpu_ns in zip(
            categories.tolist(), list(is_known), requests, *columns, strict=True
        ):
            args = {"id": id_}
            if category != OF_DEVICE:
                args["parent"] = parent
                args |= request if is_one else {}
                if id_ in self._amounts:
                    args["work"] = self._amounts[id_]
                if not math.isnan(cpu_ns):
                    args["cpu_ns"] = int(cpu_ns)
                if flags & _core.FLAG_ERROR:
                    args["error"] = True
                if end_ns == OPEN_NS:
                    args["open"] = True
            arguments.append(args)
        return arguments


def _ids(segments: NDArray[np.void]) -> list[dict[str, Any]]:
    """Return the ids of requests, and of their traces if they have one."""
    both = zip(texts(segments["id"]), map(trace_id, traces_of(segments)), strict=True)
    return [
        {"request": id_} if trace is None else {"request": id_, "trace_id": trace}
        for id_, trace in both
    ]


def _of_segments(segments: NDArray[np.void], categories: NDArray[np.int64]) -> list[dict[str, Any]]:
    ends_ns = first_known_ns(segments, "end_ns")
    has_ended = ((ends_ns != 0) & (categories == REQUEST)).tolist()
    statuses = [_core.STATUSES[code] for code in segments["status"].tolist()]
    return [
        {"request": id_, "trace_id": trace_id(trace), "status": status}
        | ({} if is_over else {"open": True})
        for id_, trace, status, is_over in zip(
            texts(segments["id"]), traces_of(segments), statuses, has_ended, strict=True
        )
    ]


_Flow = list[tuple[int, int]]
"""The slices along an arrow: a time inside of each, and its index."""


class _Way:
    """The slices of one process along which requests went."""

    def __init__(self, process: ProcessSlices, first_slice: int) -> None:
        self.process = process
        self._first = first_slice
        self._begin_ns, self._end_ns = process.slices["begin_ns"], process.slices["end_ns"]
        numbers, slices = self._outermost()
        order = np.lexsort((self._begin_ns[slices], numbers))
        self._slices = slices[order]
        """The outermost spans of each request, and its batches, by number and begin."""
        self._numbers, firsts, counts = np.unique(
            numbers[order], return_index=True, return_counts=True
        )
        self._bounds = np.append(firsts, len(order))
        # The first slice of a request that was found, before they were ordered by begin.
        first_found = np.full(len(self._numbers), len(order))
        np.minimum.at(first_found, np.arange(len(counts)).repeat(counts), order)
        self._in_order = first_found.argsort()

    def _outermost(self) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        """Return the numbers of requests, and the slices of their outermost spans and batches."""
        process = self.process
        spans, rows = process.spans, process.slices["row"][: process.first_of_device]
        ids, parents, requests = (spans[name] for name in ("id", "parent", "request"))
        by_id = ids.argsort(kind="stable")
        places = np.maximum(ids[by_id].searchsorted(parents[rows], "right") - 1, 0)
        around = by_id[places]
        is_inside = (ids[around] == parents[rows]) & (requests[around] == requests[rows])
        kinds = process.kinds[rows]
        is_run = np.isin(kinds, [KINDS.index(kind) for kind in RUNS])
        slices = np.flatnonzero(is_run & (requests[rows] != 0) & ~is_inside)
        batches = np.flatnonzero(kinds == KINDS.index("batch"))
        of_batches = dict(zip(ids[rows[batches]].tolist(), batches.tolist(), strict=True))
        served = [
            (number, of_batches[id_])
            for id_, number, _ in dict.fromkeys(process.recording.links().tolist())
            if id_ in of_batches and int(requests[rows[of_batches[id_]]]) != number
        ]
        numbers = np.array([number for number, _ in served], np.uint64)
        of_served = np.array([i for _, i in served], np.intp)
        return np.append(requests[rows[slices]], numbers), np.append(slices, of_served)

    def _of(self, number: int) -> list[int]:
        """Return the outermost spans of a request, and its batches, by begin."""
        code = self._numbers.dtype.type(number)
        at = self._numbers.searchsorted(code)
        if at == len(self._numbers) or self._numbers[at] != code:
            return []
        found: list[int] = self._slices[self._bounds[at] : self._bounds[at + 1]].tolist()
        return found

    @cached_property
    def _waits(self) -> dict[tuple[int, int, int], int]:
        """Hand-offs and waits that have ended by request and end, other waits by begin."""
        process = self.process
        rows = process.slices["row"][: process.first_of_device]
        waits: dict[tuple[int, int, int], int] = {}
        for category, kind in ((QUEUE, "queue"), (HANDOFF, "handoff")):
            is_wait = process.kinds[rows] == KINDS.index(kind)
            chosen = np.flatnonzero(is_wait & (process.spans["request"][rows] != 0))
            spans = process.spans[rows[chosen]]
            keys = zip(spans["request"].tolist(), spans["end_ns"].tolist(), strict=True)
            waits |= {(category, *key): i for key, i in zip(keys, chosen.tolist(), strict=True)}
        for i, segment in self._segments_of(QUEUE):
            waits[QUEUE, int(segment["number"]), int(segment["received_ns"])] = i
        return waits

    @cached_property
    def _requests(self) -> dict[int, int]:
        return {int(segment["number"]): i for i, segment in self._segments_of(REQUEST)}

    def _segments_of(self, category: int) -> Iterator[tuple[int, np.void]]:
        """Yield the slices of segments of a category, and the rows of these."""
        slices, first = self.process.slices, self.process.first_segment
        chosen = first + np.flatnonzero(slices["category"][first:] == category)
        rows = self.process.segments[slices["row"][chosen]]
        yield from zip(chosen.tolist(), rows, strict=True)

    def _at(self, flow: _Flow) -> _Flow:
        """Return a flow with the indices of slices in the whole time line."""
        return [(at_ns, self._first + i) for at_ns, i in flow]

    def flows(self) -> Iterator[_Flow]:
        """Yield, for each request, its outermost spans."""
        for at in self._in_order.tolist():
            slices = self._slices[self._bounds[at] : self._bounds[at + 1]]
            begins_ns = self._begin_ns[slices].tolist()
            yield self._at(list(zip(begins_ns, slices.tolist(), strict=True)))

    def sender(self, number: int, sent_ns: int) -> _Flow:
        """Return the slice from which a request was sent, and a time inside of it."""
        begins_ns, ends_ns = self._begin_ns, self._end_ns
        around = (i for i in self._of(number) if ends_ns[i] >= sent_ns)
        slice_ = next((i for i in around if begins_ns[i] <= sent_ns), self._requests.get(number))
        if slice_ is None or begins_ns[slice_] > sent_ns:
            return []
        return self._at([(min(sent_ns, int(ends_ns[slice_])), slice_)])  # it may end before

    def arrival(self, hop: Segment) -> _Flow:
        """Return the slices of a hop in the process that received it, by time."""
        number, process = hop["number"], self.process
        received_ns = hop["received_ns"] or 0
        entered_ns = hop["begin_ns"] or received_ns
        ends_ns = ((HANDOFF, received_ns), (QUEUE, entered_ns))
        waits = [self._waits.get((category, number, end_ns)) for category, end_ns in ends_ns]
        handoff, queue = waits
        starts = [] if handoff is None else [(int(self._begin_ns[handoff]), handoff)]
        if queue is not None:  # it may have waited behind others before
            arrived_ns = max(int(self._begin_ns[queue]), received_ns + process.shift_ns)
            starts.append((arrived_ns, queue))
        if hop["begin_ns"] is not None:
            begin_ns = hop["begin_ns"] + process.shift_ns
            work = self._of(number)
            at = bisect_left([int(self._begin_ns[i]) for i in work], begin_ns)
            end_ns = (hop["end_ns"] or process.until_ns) + process.shift_ns
            is_inside = at < len(work) and self._begin_ns[work[at]] <= end_ns
            first = work[at] if is_inside else self._requests.get(number)
            if first is not None:
                starts.append((max(int(self._begin_ns[first]), begin_ns), first))
        # The times of a damaged recording can contradict each other.
        inside = [(at_ns, i) for at_ns, i in starts if at_ns <= self._end_ns[i]]
        return self._at(sorted(inside, key=lambda one: one[0]))


def _hop_flows(ways: Sequence[_Way]) -> list[_Flow]:
    """Return, for each hop, the slices from which it was sent and at which it arrived."""
    hops = []
    for way in ways:
        segments = way.process.segments
        received = segments[segments["received_ns"] != _core.UNKNOWN_NS]
        recording = way.process.recording
        names, details = recording.stage_names(), Details({}, {})
        hops += [(way, hop) for hop in as_dicts(received, names, details)]
    wanted = {hop["parent_segment"] for _, hop in hops}
    senders = {}
    for way in ways if hops else ():
        segments = way.process.segments
        segments = segments[segments["origin"] != _core.ORIGINS.index("return")]
        ids, numbers = segments["segment"].tolist(), segments["number"].tolist()
        places = ((f"{id_:016x}", number) for id_, number in zip(ids, numbers, strict=True) if id_)
        senders.update({id_: (way, number) for id_, number in places if id_ in wanted})
    flows = []
    for way, hop in hops:
        flow = way.arrival(hop)
        sender, sent_ns = senders.get(hop["parent_segment"] or ""), hop["sent_monotonic_ns"]
        if sender is not None and sent_ns is not None:
            of, number = sender
            if hop["sent_ns"] is not None:  # as the hand-off begins
                sent_ns = hop["sent_ns"] + way.process.shift_ns
            else:
                sent_ns += of.process.recording.unix_offset_ns + of.process.shift_ns
            start = of.sender(number, sent_ns)
            if start and (not flow or start[0][0] <= flow[0][0]):
                flow = start + flow
        flows.append(flow)
    return flows


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _arrows(number: int, places: Sequence[tuple[int, int, float]]) -> Iterator[dict[str, Any]]:
    """Yield the arrows from each place (process, track, time) of a flow to the next one."""
    for i, (pid, tid, at_us) in enumerate(places if len(places) > 1 else ()):
        phase = "s" if i == 0 else ("f" if i == len(places) - 1 else "t")
        place = {"pid": pid, "tid": tid, "ts": at_us}
        yield {"ph": phase, "cat": "request", "name": "request", "id": number, "bp": "e", **place}


def _encoded(page: dict[str, Any]) -> str:
    return json_bytes(page).decode() + "\n"


FORMATS: dict[str, Callable[..., str | bytes | Iterator[bytes]]] = {
    "perfetto": as_perfetto,
    "csv": as_csv,
    "json": as_json,
    "parquet": as_parquet,
}
