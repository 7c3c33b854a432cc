"""Writes the spans of a recording as a trace for Perfetto, or as JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.process.files import json_bytes
from stagespan.recording import summary
from stagespan.text.escaping import csv_cell

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording

_BEYOND_IDS = 1 << 22
"""The first id of a track. Ids of processes and threads are smaller."""
_DAY_NS = 86_400 * 10**9
"""Times count from the start of a day, because microseconds since 1970 in a float have no ns."""
_COLUMNS = (
    *("stage", "thread", "thread_name", "begin_ns", "end_ns", "id", "parent", "depth"),
    *("request", "request_number", "trace_id", "error", "suspended_ns"),
    *("device_elapsed_ns", "device_queue_ns", "device_tail_ns"),
)


def rows(recording: Recording) -> Iterator[dict[str, Any]]:
    """Yield the finished spans ordered by begin, then the open ones, whose ``end_ns`` is None."""
    names = recording.stage_names()
    threads = {thread["thread"]: thread["name"] for thread in recording.threads()}
    ids = {request["number"]: request["id"] for request in recording.requests()}
    traces = {request["number"]: request["trace_id"] for request in recording.requests()}
    spans = recording.spans()
    columns = {name: spans[name].tolist() for name in spans.dtype.names or ()}
    for i in range(len(spans)):
        number = columns["request"][i]
        row = {
            "stage": names[columns["stage"][i]],
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
        for name in ("stage", "thread", "begin_ns", "id", "parent", "depth"):
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


def as_perfetto(recording: Recording) -> str:
    """Return a trace for https://ui.perfetto.dev: a track per thread, arrows along each request.

    Spans of a thread that overlap, such as those of asyncio tasks, get further tracks.
    """
    slices, requests = _slices(recording)
    base_ns = min((one.begin_ns for one in slices), default=recording.begin_ns)
    base_ns -= base_ns % _DAY_NS
    rank = "" if recording.rank is None else f", rank {recording.rank}"
    processes = {recording.pid: f"{recording.program}{rank}"}
    if any(one.pid != recording.pid for one in slices):
        processes[recording.pid + _BEYOND_IDS] = f"device of {recording.program}{rank}"
    events = [_name("process_name", pid, 0, name) for pid, name in processes.items()]
    names = {thread["thread"]: thread["name"] for thread in recording.threads()}
    tracks = _tracks(slices)
    for (pid, tid), (thread, number) in tracks.items():
        label = f"{names.get(thread) or 'thread'} {thread}"
        label += f", overlapping {number}" if number else ""
        events.append(_name("thread_name", pid, tid, label))
    events.extend(one.event(base_ns) for one in slices)
    for number, of_request in requests.items():
        events.extend(_flow(number, of_request, base_ns))
    page = {
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": base_ns,
        "otherData": {"stagespan": summary.identity(recording)},
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
    types.update(dict.fromkeys(("stage", "thread_name", "request", "trace_id"), text))
    types["error"] = arrow.bool_()
    types.update({"id": arrow.uint64(), "parent": arrow.uint64(), "request_number": arrow.uint64()})
    identity = _encoded(summary.identity(recording)).strip()
    schema = arrow.schema(types.items(), metadata={"stagespan": identity})
    table = arrow.Table.from_pylist(list(rows(recording)), schema=schema)
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


@dataclass
class _Slice:
    """A span on a track."""

    name: str
    pid: int
    thread: int
    begin_ns: int
    end_ns: int
    depth: int
    args: dict[str, Any]
    tid: int = 0

    def event(self, base_ns: int) -> dict[str, Any]:
        return {
            "ph": "X",
            # As torch calls ranges, so that `stagespan analyze` finds the stages.
            "cat": "gpu_user_annotation" if self.pid > _BEYOND_IDS else "user_annotation",
            "name": self.name,
            "pid": self.pid,
            "tid": self.tid,
            "ts": (self.begin_ns - base_ns) / 1e3,
            "dur": (self.end_ns - self.begin_ns) / 1e3,
            "args": self.args,
        }


def _slices(recording: Recording) -> tuple[list[_Slice], dict[int, list[_Slice]]]:
    """Return slices for all spans and their device times, and the outermost spans by request."""
    all_rows = list(rows(recording))
    until_ns = recording.read_ns if recording.state == "alive" else recording.end_ns
    until_ns = until_ns or max(
        (row["end_ns"] or row["begin_ns"] for row in all_rows), default=recording.begin_ns
    )
    found: list[_Slice] = []
    requests: defaultdict[int, list[_Slice]] = defaultdict(list)
    for row in all_rows:
        begin_ns = row["begin_ns"]
        args = {"id": row["id"], "parent": row["parent"]}
        if row["request"] is not None:
            args["request"] = row["request"]
        if row["trace_id"] is not None:
            args["trace_id"] = row["trace_id"]
        if row["error"]:
            args["error"] = True
        if row["end_ns"] is None:
            args["open"] = True
        end_ns = max(until_ns if row["end_ns"] is None else row["end_ns"], begin_ns)
        place = (row["stage"], recording.pid, row["thread"])
        one = _Slice(*place, begin_ns, end_ns, row["depth"], args)
        found.append(one)
        if row["request_number"] is not None and row["depth"] == 0:
            requests[row["request_number"]].append(one)
        if row["device_elapsed_ns"] is not None and row["device_queue_ns"] is not None:
            begin_ns += row["device_queue_ns"]
            end_ns = begin_ns + max(row["device_elapsed_ns"], 0)
            place = (row["stage"], recording.pid + _BEYOND_IDS, row["thread"])
            found.append(_Slice(*place, begin_ns, end_ns, row["depth"], {"id": row["id"]}))
    return found, requests


@dataclass
class _Track:
    """A track of Perfetto, with the ends of the slices that contain its latest slice."""

    tid: int
    open_ends_ns: list[int] = field(default_factory=list)

    def takes(self, one: _Slice) -> bool:
        """Whether a slice is after or inside each slice of the track, so that it can be added."""
        while self.open_ends_ns and self.open_ends_ns[-1] <= one.begin_ns:
            self.open_ends_ns.pop()
        return not self.open_ends_ns or one.end_ns <= self.open_ends_ns[-1]


def _tracks(slices: list[_Slice]) -> dict[tuple[int, int], tuple[int, int]]:
    """Sort the slices, and assign each to a track on which no slices partially overlap.

    Returns, by process and track id, the thread and the number of the track in this thread, from 0.
    """
    slices.sort(key=lambda one: (one.begin_ns, -one.end_ns, one.depth))
    by_thread: defaultdict[tuple[int, int], list[_Track]] = defaultdict(list)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for one in slices:
        of_thread = by_thread[one.pid, one.thread]
        track = next((track for track in of_thread if track.takes(one)), None)
        if track is None:
            track = _Track(_BEYOND_IDS + len(found) if of_thread else one.thread)
            found[one.pid, track.tid] = (one.thread, len(of_thread))
            of_thread.append(track)
        track.open_ends_ns.append(one.end_ns)
        one.tid = track.tid
    return found


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _flow(number: int, slices: list[_Slice], base_ns: int) -> Iterator[dict[str, Any]]:
    """Yield the arrows from each outermost span of a request to the next one."""
    if len(slices) < 2:
        return
    slices = sorted(slices, key=lambda one: one.begin_ns)
    for i, one in enumerate(slices):
        phase = "s" if i == 0 else ("f" if i == len(slices) - 1 else "t")
        arrow = {key: one.event(base_ns)[key] for key in ("pid", "tid", "ts")}
        arrow.update({"ph": phase, "cat": "request", "name": "request", "id": number, "bp": "e"})
        yield arrow


def _encoded(page: dict[str, Any]) -> str:
    return json_bytes(page).decode() + "\n"


FORMATS: dict[str, Callable[[Recording], str | bytes]] = {
    "perfetto": as_perfetto,
    "csv": as_csv,
    "json": as_json,
    "parquet": as_parquet,
}
