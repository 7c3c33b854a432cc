"""Writes the spans of recordings as a trace for Perfetto, or as JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.live.kinds import KINDS
from stagespan.process.files import json_bytes
from stagespan.recording import summary
from stagespan.recording.timelines import timelines
from stagespan.text.escaping import csv_cell

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording, Segment
    from stagespan.recording.source import RequestSource

_BEYOND_IDS = 1 << 22
"""The first id of a track. Ids of processes and threads are smaller."""
_DAY_NS = 86_400 * 10**9
"""Times count from the start of a day, because microseconds since 1970 in a float have no ns."""
_COLUMNS = (
    *("stage", "kind", "thread", "thread_name", "begin_ns", "end_ns", "id", "parent", "depth"),
    *("request", "request_number", "trace_id", "error", "suspended_ns"),
    *("device_elapsed_ns", "device_queue_ns", "device_tail_ns"),
)


def rows(recording: RequestSource) -> Iterator[dict[str, Any]]:
    """Yield the finished spans ordered by begin, then the open ones, whose ``end_ns`` is None."""
    names = recording.stage_names()
    threads = {thread["thread"]: thread["name"] for thread in recording.threads()}
    segments = [one for one in recording.segments() if one["origin"] != "return"]
    ids = {one["number"]: one["id"] for one in segments}
    traces = {one["number"]: one["trace_id"] for one in segments}
    spans = recording.spans()
    columns = {name: spans[name].tolist() for name in spans.dtype.names or ()}
    for i in range(len(spans)):
        number = columns["request"][i]
        row = {
            "stage": names[columns["stage"][i]],
            "kind": KINDS[columns["flags"][i] >> _core.KIND_SHIFT],
            "thread": columns["thread"][i],
            "thread_name": threads.get(columns["thread"][i]),
            "request": ids.get(number),
            "request_number": number or None,
            "trace_id": traces.get(number),
            "error": bool(columns["flags"][i] & _core.FLAG_ERROR),
        }
        for name in ("begin_ns", "end_ns", "id", "parent", "depth", "suspended_ns"):
            row[name] = columns[name][i]
        for name in ("device_elapsed_ns", "device_queue_ns", "device_tail_ns"):
            value = columns[name][i]
            row[name] = None if math.isnan(value) else round(value)
        yield {name: row[name] for name in _COLUMNS}
    for span in recording.open_spans():
        open_row: dict[str, Any] = dict.fromkeys(_COLUMNS)
        for name in ("stage", "kind", "thread", "begin_ns", "id", "parent", "depth"):
            open_row[name] = span[name]  # type: ignore[literal-required]
        open_row["thread_name"] = span["thread_name"] or threads.get(span["thread"])
        for name in ("request", "request_number", "trace_id"):
            open_row[name] = span[name]  # type: ignore[literal-required]
        open_row["error"] = False
        yield open_row


def as_csv(recording: Recording) -> str:
    """Return CSV with one line per span. Unknown values are empty.

    Names are changed as by `csv_cell`, so that no program takes them for more than text.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows(recording):
        writer.writerow({k: csv_cell(v) if isinstance(v, str) else v for k, v in row.items()})
    return text.getvalue()


def as_json(recording: Recording) -> str:
    """Return JSON with the content of `stagespan recover --json` and all spans."""
    page = {**summary.as_dict(recording), "spans": list(rows(recording))}
    return _encoded(page)


def as_perfetto(*recordings: RequestSource) -> str:
    """Return a trace for https://ui.perfetto.dev of the spans of one or several processes.

    There is a track for each thread, each queue, each kind of hand-off, and the requests of a
    process, with arrows along each request and its hops. Spans of a track that overlap, such as
    those of asyncio tasks, get further tracks.
    """
    pids = _pids(recordings)
    shifts_ns = _shifts(recordings)
    processes = [
        _Process(one, pid, shift_ns)
        for one, pid, shift_ns in zip(recordings, pids, shifts_ns, strict=True)
    ]
    slices = [one for process in processes for one in process.slices]
    base_ns = min((one.begin_ns for one in slices), default=recordings[0].begin_ns)
    base_ns -= base_ns % _DAY_NS
    hosts = {one.host for one in recordings}
    names: dict[tuple[int, int | str], str] = {}
    labels: dict[int, str] = {}
    for process in processes:
        recording, pid = process.recording, process.pid
        label = recording.name
        label += "" if recording.rank is None else f", rank {recording.rank}"
        label += f", host {recording.host}" if len(hosts) > 1 else ""
        labels[pid] = label
        if any(one.pid != pid for one in process.slices):
            labels[pid + _BEYOND_IDS] = f"device of {label}"
        for thread in recording.threads():
            name = f"{thread['name'] or 'thread'} {thread['thread']}"
            names[pid, thread["thread"]] = names[pid + _BEYOND_IDS, thread["thread"]] = name
    events = [_name("process_name", pid, 0, label) for pid, label in labels.items()]
    for (pid, tid), (lane, number) in _tracks(slices).items():
        label = names.get((pid, lane)) or (lane if isinstance(lane, str) else f"thread {lane}")
        label += f", overlapping {number}" if number else ""
        events.append(_name("thread_name", pid, tid, label))
    events.extend(one.event(base_ns) for one in slices)
    flows = [flow for process in processes for flow in process.flows()] + _hop_flows(processes)
    for number, flow in enumerate(flows, 1):
        events.extend(_arrows(number, flow, base_ns))
    distinct = {one.identity: one for one in recordings}
    identities = [summary.identity(one) for one in distinct.values()]
    about = identities[0] if len(identities) == 1 else {"processes": identities}
    page = {
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base_ns,
        "otherData": {"stagespan": about},
        "traceEvents": events,
    }
    return _encoded(page)


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
    text = arrow.dictionary(arrow.int32(), arrow.string())
    types = dict.fromkeys(_COLUMNS, arrow.int64())
    types.update(dict.fromkeys(("stage", "kind", "thread_name", "request", "trace_id"), text))
    types["error"] = arrow.bool_()
    types.update({"id": arrow.uint64(), "parent": arrow.uint64(), "request_number": arrow.uint64()})
    identity = _encoded(summary.identity(recording)).strip()
    schema = arrow.schema(types.items(), metadata={"stagespan": identity})
    table = arrow.Table.from_pylist(list(rows(recording)), schema=schema)
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


# --- Perfetto -------------------------------------------------------------------------------------


@dataclass
class _Slice:
    """A span on a track."""

    name: str
    pid: int
    lane: int | str
    """The thread, or the name of another track."""
    begin_ns: int
    end_ns: int
    depth: int
    args: dict[str, Any]
    category: str = "user_annotation"
    """As torch calls ranges, so that `stagespan analyze` finds the stages."""
    tid: int = 0

    def event(self, base_ns: int) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": self.category,
            "name": self.name,
            "pid": self.pid,
            "tid": self.tid,
            "ts": (self.begin_ns - base_ns) / 1e3,
            "dur": (self.end_ns - self.begin_ns) / 1e3,
            "args": self.args,
        }


_Flow = list[tuple[int, _Slice]]
"""The slices along an arrow, each with a time inside of it."""


class _Process:
    """The slices of one process."""

    def __init__(self, recording: RequestSource, pid: int, shift_ns: int) -> None:
        self.recording = recording
        self.pid = pid
        self.shift_ns = shift_ns
        """What is added to its Unix times."""
        self.slices: list[_Slice] = []
        self._outermost: defaultdict[int, list[_Slice]] = defaultdict(list)
        """The outermost spans of each request, and its batches, by begin."""
        self._requests: dict[int, _Slice] = {}
        self._waits: dict[tuple[str, int, int], _Slice] = {}
        """Hand-offs by request and end, queues by request and begin."""
        self._add_spans()
        self._add_segments()
        for of_request in self._outermost.values():
            of_request.sort(key=lambda one: one.begin_ns)

    def _add_spans(self) -> None:
        all_rows = list(rows(self.recording))
        recording = self.recording
        until_ns = recording.read_ns if recording.state == "alive" else recording.end_ns
        self._until_ns = until_ns or max(
            (row["end_ns"] or row["begin_ns"] for row in all_rows), default=recording.begin_ns
        )
        self._amounts = recording.amounts()
        request_of = {row["id"]: row["request_number"] for row in all_rows}
        batches = {}
        shown = {one["number"] for one in recording.segments()}
        for row in all_rows:
            number = row["request_number"]
            if row["kind"] == "remote" and number in shown:
                continue  # drawn as a request
            one = self._slice(row)
            if row["kind"] in ("execution", "batch"):
                if row["kind"] == "batch":
                    batches[row["id"]] = one
                if number is not None and request_of.get(row["parent"]) != number:
                    self._outermost[number].append(one)
                self._add_device_time(row)
            elif number is not None:
                end = "end_ns" if row["kind"] == "handoff" else "begin_ns"
                self._waits[row["kind"], number, row[end] or 0] = one
        for id_, number, _ in dict.fromkeys(recording.links()):
            if id_ in batches and request_of[id_] != number:
                self._outermost[number].append(batches[id_])

    def _slice(self, row: dict[str, Any]) -> _Slice:
        args = {"id": row["id"], "parent": row["parent"]}
        for name in ("request", "trace_id"):
            if row[name] is not None:
                args[name] = row[name]
        if row["id"] in self._amounts:
            args["work"] = self._amounts[row["id"]]
        if row["error"]:
            args["error"] = True
        if row["end_ns"] is None:
            args["open"] = True
        lane, category = row["thread"], "user_annotation"
        if row["kind"] in _LANES:
            category = row["kind"]
            lane = f"{_LANES[category]} {row['stage']}"
        return self._added(
            row["stage"], lane, row["begin_ns"], row["end_ns"], args, category, row["depth"]
        )

    def _added(
        self,
        name: str,
        lane: int | str,
        begin_ns: int,
        end_ns: int | None,
        args: dict[str, Any],
        category: str,
        depth: int = 0,
    ) -> _Slice:
        """Add a slice; without ``end_ns`` it ends when the recording was read or last written."""
        begin_ns += self.shift_ns
        end_ns = max((self._until_ns if end_ns is None else end_ns) + self.shift_ns, begin_ns)
        one = _Slice(name, self.pid, lane, begin_ns, end_ns, depth, args, category)
        self.slices.append(one)
        return one

    def _add_device_time(self, row: dict[str, Any]) -> None:
        elapsed_ns, queue_ns = row["device_elapsed_ns"], row["device_queue_ns"]
        if elapsed_ns is None or queue_ns is None:
            return
        begin_ns = row["begin_ns"] + queue_ns
        place = row["stage"], row["thread"], begin_ns, begin_ns + max(elapsed_ns, 0)
        one = self._added(*place, {"id": row["id"]}, "gpu_user_annotation", row["depth"])
        one.pid += _BEYOND_IDS

    def _add_segments(self) -> None:
        for one in self.recording.segments():
            number, begin_ns = one["number"], one["begin_ns"]
            args: dict[str, Any] = {"request": one["id"], "trace_id": one["trace_id"]}
            args["status"] = one["status"]
            if one["status"] == "unused" or (begin_ns is None and one["received_ns"] is None):
                continue
            if begin_ns is None:  # it waits, or did when the process ended
                queue = one["queue"] or ""
                place = queue, f"{_LANES['queue']} {queue}", one["received_ns"] or 0, one["end_ns"]
                wait = self._added(*place, {**args, "open": True}, "queue")
                self._waits["queue", number, one["received_ns"] or 0] = wait
            elif one["origin"] != "return":
                args |= {} if one["end_ns"] else {"open": True}
                place = one["id"], _LANES["remote"], begin_ns, one["end_ns"]
                self._requests[number] = self._added(*place, args, "request")

    def flows(self) -> Iterator[_Flow]:
        """Yield, for each request, its outermost spans."""
        for of_request in self._outermost.values():
            yield [(one.begin_ns, one) for one in of_request]

    def sender(self, number: int, sent_ns: int) -> tuple[int, _Slice] | None:
        """Return the slice from which a request was sent, and a time inside of it."""
        around = (one for one in self._outermost.get(number, ()) if one.end_ns >= sent_ns)
        found = next((one for one in around if one.begin_ns <= sent_ns), self._requests.get(number))
        if found is None or found.begin_ns > sent_ns:
            return None
        return min(sent_ns, found.end_ns), found  # it may have been sent after the end

    def arrival(self, hop: Segment) -> _Flow:
        """Return the slices of a hop in the process that received it, by time."""
        number = hop["number"]
        found: _Flow = []
        received_ns = hop["received_ns"] or 0
        hand_off = self._waits.get(("handoff", number, received_ns))
        queue = self._waits.get(("queue", number, received_ns))
        found += [(one.begin_ns, one) for one in (hand_off, queue) if one is not None]
        if hop["begin_ns"] is not None:
            begin_ns = hop["begin_ns"] + self.shift_ns
            work = self._outermost.get(number, [])
            at = bisect_left([one.begin_ns for one in work], begin_ns)
            end_ns = (hop["end_ns"] or self._until_ns) + self.shift_ns
            is_inside = at < len(work) and work[at].begin_ns <= end_ns
            first = work[at] if is_inside else self._requests.get(number)
            found += [] if first is None else [(max(first.begin_ns, begin_ns), first)]
        # The times of a damaged recording can contradict each other.
        inside = ((at_ns, one) for at_ns, one in found if at_ns <= one.end_ns)
        return sorted(inside, key=lambda one: one[0])


_LANES = {"queue": "queue", "handoff": "hand-off", "remote": "requests"}
"""The tracks of what does not run on a thread."""


def _pids(recordings: Sequence[RequestSource]) -> list[int]:
    """Return the process id of each recording; other numbers if different processes have one id.

    Those of other containers can. What is kept of one process may be several recordings.
    """
    found: dict[str, int] = {}
    times: Counter[int] = Counter()
    for one in recordings:
        if one.identity not in found:
            found[one.identity] = one.pid + 2 * _BEYOND_IDS * times[one.pid]
            times[one.pid] += 1
    return [found[one.identity] for one in recordings]


def _shifts(recordings: Sequence[RequestSource]) -> list[int]:
    """Return what is added to the Unix times of each recording, so that all are on one time line.

    Each copy of a recording converts CLOCK_MONOTONIC by its own stamps of both clocks. Those of one
    clock get the same. Another clock is placed by the requests that cross to it, where they bound
    its offset, and else by its Unix time.
    """
    offsets_ns: dict[int, int] = {}
    for one in recordings:
        offsets_ns.setdefault(one.clock, one.unix_offset_ns)
    if len(offsets_ns) > 1:
        found = timelines(recordings)
        roots = Counter(one.segments[0].recording.clock for one in found)
        first = max(roots, key=lambda clock: roots[clock], default=0)
        errors_ns: dict[int, int] = {}
        of_first = [one for one in found if one.segments[0].recording.clock == first]
        for stretch in (stretch for one in of_first for stretch in one.segments):
            clock = stretch.recording.clock
            if clock == first or stretch.offset_ns is None:
                continue
            if stretch.error_ns < errors_ns.get(clock, stretch.error_ns + 1):
                errors_ns[clock] = stretch.error_ns
                offsets_ns[clock] = stretch.offset_ns + offsets_ns[first]
    return [offsets_ns[one.clock] - one.unix_offset_ns if one.clock else 0 for one in recordings]


def _hop_flows(processes: Sequence[_Process]) -> list[_Flow]:
    """Return, for each hop, the slices from which it was sent and at which it arrived."""
    senders = {
        segment["segment"]: (process, segment["number"])
        for process in processes
        for segment in process.recording.segments()
        if segment["segment"] is not None and segment["origin"] != "return"
    }
    found = []
    for process in processes:
        for hop in process.recording.segments():
            if hop["received_ns"] is None:
                continue
            flow = process.arrival(hop)
            sender, sent_ns = senders.get(hop["parent_segment"] or ""), hop["sent_monotonic_ns"]
            if sender is not None and sent_ns is not None:
                of, number = sender
                if hop["sent_ns"] is not None:  # as the hand-off begins
                    sent_ns = hop["sent_ns"] + process.shift_ns
                else:
                    sent_ns += of.recording.unix_offset_ns + of.shift_ns
                start = of.sender(number, sent_ns)
                if start is not None and (not flow or start[0] <= flow[0][0]):
                    flow.insert(0, start)
            found.append(flow)
    return found


@dataclass
class _Track:
    """A track of Perfetto, with the ends of the slices that contain its latest slice."""

    tid: int
    open_ends_ns: list[int] = field(default_factory=list)

    def takes(self, one: _Slice) -> bool:
        """Whether a slice is after or inside each slice of the track, so that it can be added."""
        while self.open_ends_ns and self.open_ends_ns[-1] <= one.begin_ns:
            self.open_ends_ns.pop()
        if not self.open_ends_ns:
            return True
        # Waits and requests that overlap are not nested, even if one contains another.
        return isinstance(one.lane, int) and one.end_ns <= self.open_ends_ns[-1]


def _tracks(slices: list[_Slice]) -> dict[tuple[int, int], tuple[int | str, int]]:
    """Sort the slices, and assign each to a track on which no slices partially overlap.

    Returns, by process and track id, the lane and the number of the track in this lane, from 0.
    """
    slices.sort(key=lambda one: (one.begin_ns, -one.end_ns, one.depth))
    by_lane: defaultdict[tuple[int, int | str], list[_Track]] = defaultdict(list)
    found: dict[tuple[int, int], tuple[int | str, int]] = {}
    for one in slices:
        of_lane = by_lane[one.pid, one.lane]
        track = next((track for track in of_lane if track.takes(one)), None)
        if track is None:
            is_thread = isinstance(one.lane, int) and not of_lane
            tid = one.lane if isinstance(one.lane, int) and is_thread else _BEYOND_IDS + len(found)
            track = _Track(tid)
            found[one.pid, track.tid] = (one.lane, len(of_lane))
            of_lane.append(track)
        track.open_ends_ns.append(one.end_ns)
        one.tid = track.tid
    return found


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _arrows(number: int, flow: _Flow, base_ns: int) -> Iterator[dict[str, Any]]:
    """Yield the arrows from each slice of a flow to the next one."""
    if len(flow) < 2:
        return
    for i, (at_ns, one) in enumerate(flow):
        phase = "s" if i == 0 else ("f" if i == len(flow) - 1 else "t")
        place = {"pid": one.pid, "tid": one.tid, "ts": (at_ns - base_ns) / 1e3}
        yield {"ph": phase, "cat": "request", "name": "request", "id": number, "bp": "e", **place}


def _encoded(page: dict[str, Any]) -> str:
    return json_bytes(page).decode() + "\n"


FORMATS: dict[str, Callable[[Recording], str | bytes]] = {
    "perfetto": as_perfetto,
    "csv": as_csv,
    "json": as_json,
    "parquet": as_parquet,
}
