"""Writes the spans of recordings as a trace for Perfetto, or as JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.live.span_kinds import KINDS, RUNS
from stagespan.pages.escaping import csv_cell
from stagespan.process.files import json_bytes
from stagespan.recording import summary
from stagespan.recording.slices import (
    CATEGORIES,
    HANDOFF,
    OF_DEVICE,
    QUEUE,
    REQUEST,
    ProcessSlices,
    TimeLine,
)
from stagespan.recording.spans import OPEN_NS, with_open

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording, Segment
    from stagespan.recording.source import RequestSource


def columns(recording: RequestSource) -> dict[str, list[Any]]:
    """Return the columns of the finished spans ordered by begin, then of the open ones.

    Unknown values, such as the ends of open spans, are None.
    """
    names = recording.stage_names()
    threads = {thread["thread"]: thread["name"] for thread in recording.threads()}
    segments = [one for one in recording.segments() if one["origin"] != "return"]
    ids = {one["number"]: one["id"] for one in segments}
    traces = {one["number"]: one["trace_id"] for one in segments}
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
        "end_ns": _known(of_spans["end_ns"], is_open),
        **{name: of_spans[name] for name in ("id", "parent", "depth")},
        "request": [ids.get(number) for number in of_spans["request"]],
        "request_number": [number or None for number in of_spans["request"]],
        "trace_id": [traces.get(number) for number in of_spans["request"]],
        "error": [bool(flags & _core.FLAG_ERROR) for flags in of_spans["flags"]],
        "suspended_ns": _known(of_spans["suspended_ns"], is_open),
    }
    for name in ("cpu_ns", "device_elapsed_ns", "device_queue_ns", "device_tail_ns"):
        is_unknown = np.isnan(spans[name])
        rounded = np.rint(np.where(is_unknown, 0, spans[name])).astype(np.int64)
        values[name] = _known(rounded.tolist(), is_unknown.tolist())
    return values


def rows(recording: RequestSource) -> list[dict[str, Any]]:
    """Return the spans of `columns` as dicts."""
    found = columns(recording)
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def _known(values: list[int], is_unknown: list[bool]) -> list[int | None]:
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
    page = {
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
        names = ("category", "name", "pid", "begin_ns", "end_ns")
        columns = (line.slices[name][rows].tolist() for name in names)
        found = zip(rows.tolist(), line.tids[rows].tolist(), *columns, strict=True)
        for i, tid, category, name, pid, begin_ns, end_ns in found:
            process = bisect_right(line.first_slices, i) - 1
            yield {
                "ph": "X",
                "cat": CATEGORIES[category],
                "name": line.names[name],
                "pid": pid,
                "tid": tid,
                "ts": (begin_ns - base_ns) / 1e3,
                "dur": (end_ns - begin_ns) / 1e3,
                "args": arguments[process].of(i - line.first_slices[process]),
            }
    del arguments
    pids, tids = line.slices["pid"].tolist(), line.tids.tolist()
    ways = [
        _Way(process, first)
        for process, first in zip(line.processes, line.first_slices, strict=True)
    ]
    flows = (flow for way in ways for flow in way.flows())
    for number, flow in enumerate(itertools.chain(flows, _hop_flows(ways)), 1):
        places = [(pids[i], tids[i], (at_ns - base_ns) / 1e3) for at_ns, i in flow]
        yield from _arrows(number, places)


class _Arguments:
    """The arguments of the slices of a process."""

    def __init__(self, process: ProcessSlices) -> None:
        self._process = process
        self._amounts = process.recording.amounts()
        self._by_number = {
            one["number"]: one for one in process.segments if one["origin"] != "return"
        }
        names = "id", "parent", "request", "flags", "end_ns", "cpu_ns"
        self._spans = {name: process.spans[name].tolist() for name in names}
        self._rows = process.slices["row"].tolist()
        self._categories = process.slices["category"].tolist()

    def of(self, index: int) -> dict[str, Any]:
        """Return those of one slice."""
        row, category, spans = self._rows[index], self._categories[index], self._spans
        if index >= self._process.first_segment:
            segment = self._process.segments[row]
            args = {name: segment[key] for name, key in _OF_SEGMENT.items()}
            return args | ({} if segment["end_ns"] and category == REQUEST else {"open": True})
        args = {"id": spans["id"][row]}
        if category != OF_DEVICE:
            args["parent"] = spans["parent"][row]
            request = self._by_number.get(spans["request"][row])
            if request is not None:
                args["request"] = request["id"]
                if request["trace_id"] is not None:
                    args["trace_id"] = request["trace_id"]
            if args["id"] in self._amounts:
                args["work"] = self._amounts[args["id"]]
            if not math.isnan(spans["cpu_ns"][row]):
                args["cpu_ns"] = int(spans["cpu_ns"][row])
            if spans["flags"][row] & _core.FLAG_ERROR:
                args["error"] = True
            if spans["end_ns"][row] == OPEN_NS:
                args["open"] = True
        return args


_OF_SEGMENT = {"request": "id", "trace_id": "trace_id", "status": "status"}

_Flow = list[tuple[int, int]]
"""The slices along an arrow: a time inside of each, and its index."""


class _Way:
    """The slices of one process along which requests went."""

    def __init__(self, process: ProcessSlices, first_slice: int) -> None:
        self.process = process
        self._first = first_slice
        self._begin_ns, self._end_ns = (
            process.slices[name].tolist() for name in ("begin_ns", "end_ns")
        )
        self._outermost: defaultdict[int, list[int]] = defaultdict(list)
        """The outermost spans of each request, and its batches, by begin."""
        self._requests: dict[int, int] = {}
        self._waits: dict[tuple[int, int, int], int] = {}
        """Hand-offs and waits that have ended by request and end, other waits by begin."""
        self._add_spans()
        self._add_segments()
        for of_request in self._outermost.values():
            of_request.sort(key=lambda i: self._begin_ns[i])

    def _add_spans(self) -> None:
        process = self.process
        kinds = process.kinds.tolist()
        names = ("id", "parent", "request", "end_ns")
        ids, parents, numbers, ends_ns = (process.spans[one].tolist() for one in names)
        request_of = dict(zip(ids, numbers, strict=True))
        batches = {}
        for i, row in enumerate(process.slices["row"][: process.first_of_device].tolist()):
            kind, number = KINDS[kinds[row]], numbers[row]
            if kind == "batch":
                batches[ids[row]] = i
            if kind in RUNS and number and request_of.get(parents[row]) != number:
                self._outermost[number].append(i)
            elif kind == "queue" and number:
                self._waits[QUEUE, number, ends_ns[row]] = i
            elif kind == "handoff" and number:
                self._waits[HANDOFF, number, ends_ns[row]] = i
        for id_, number, _ in dict.fromkeys(process.recording.links()):
            if id_ in batches and request_of[id_] != number:
                self._outermost[number].append(batches[id_])

    def _add_segments(self) -> None:
        slices = self.process.slices
        for i in range(self.process.first_segment, len(slices)):
            segment = self.process.segments[slices["row"][i]]
            if slices["category"][i] == REQUEST:
                self._requests[segment["number"]] = i
            else:
                self._waits[QUEUE, segment["number"], segment["received_ns"] or 0] = i

    def _at(self, flow: _Flow) -> _Flow:
        """Return a flow with the indices of slices in the whole time line."""
        return [(at_ns, self._first + i) for at_ns, i in flow]

    def flows(self) -> Iterator[_Flow]:
        """Yield, for each request, its outermost spans."""
        for of_request in self._outermost.values():
            yield self._at([(self._begin_ns[i], i) for i in of_request])

    def sender(self, number: int, sent_ns: int) -> _Flow:
        """Return the slice from which a request was sent, and a time inside of it."""
        begins_ns, ends_ns = self._begin_ns, self._end_ns
        around = (i for i in self._outermost.get(number, ()) if ends_ns[i] >= sent_ns)
        slice_ = next((i for i in around if begins_ns[i] <= sent_ns), self._requests.get(number))
        if slice_ is None or begins_ns[slice_] > sent_ns:
            return []
        return self._at([(min(sent_ns, ends_ns[slice_]), slice_)])  # it may end before

    def arrival(self, hop: Segment) -> _Flow:
        """Return the slices of a hop in the process that received it, by time."""
        number, process = hop["number"], self.process
        received_ns = hop["received_ns"] or 0
        entered_ns = hop["begin_ns"] or received_ns
        ends_ns = ((HANDOFF, received_ns), (QUEUE, entered_ns))
        waits = [self._waits.get((category, number, end_ns)) for category, end_ns in ends_ns]
        handoff, queue = waits
        starts = [] if handoff is None else [(self._begin_ns[handoff], handoff)]
        if queue is not None:  # it may have waited behind others before
            arrived_ns = max(self._begin_ns[queue], received_ns + process.shift_ns)
            starts.append((arrived_ns, queue))
        if hop["begin_ns"] is not None:
            begin_ns = hop["begin_ns"] + process.shift_ns
            work = self._outermost.get(number, [])
            at = bisect_left([self._begin_ns[i] for i in work], begin_ns)
            end_ns = (hop["end_ns"] or process.until_ns) + process.shift_ns
            is_inside = at < len(work) and self._begin_ns[work[at]] <= end_ns
            first = work[at] if is_inside else self._requests.get(number)
            starts += [] if first is None else [(max(self._begin_ns[first], begin_ns), first)]
        # The times of a damaged recording can contradict each other.
        inside = [(at_ns, i) for at_ns, i in starts if at_ns <= self._end_ns[i]]
        return self._at(sorted(inside, key=lambda one: one[0]))


def _hop_flows(ways: Sequence[_Way]) -> list[_Flow]:
    """Return, for each hop, the slices from which it was sent and at which it arrived."""
    senders = {
        segment["segment"]: (way, segment["number"])
        for way in ways
        for segment in way.process.segments
        if segment["segment"] is not None and segment["origin"] != "return"
    }
    flows = []
    for way in ways:
        for hop in way.process.segments:
            if hop["received_ns"] is None:
                continue
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
