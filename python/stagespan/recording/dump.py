"""A recording's spans in formats of other tools: Perfetto's (Chrome JSON), JSON, CSV, Parquet."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.recording import summary

if TYPE_CHECKING:
    from stagespan.recording.reading import Recording

_COLUMNS = (
    *("stage", "thread", "thread_name", "begin_ns", "end_ns", "id", "parent", "depth"),
    *("request", "request_number", "trace_id", "error", "suspended_ns"),
    *("device_elapsed_ns", "device_queue_ns", "device_tail_ns"),
)


def rows(recording: Recording) -> Iterator[dict[str, Any]]:
    """The finished spans by begin, then those that are open, whose ``end_ns`` is None."""
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
    """A line a span; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(recording))
    return text.getvalue()


def as_json(recording: Recording) -> str:
    """What `stagespan recover --json` shows, and all spans."""
    page = {**summary.as_dict(recording), "spans": list(rows(recording))}
    return _encoded(page)


def as_perfetto(recording: Recording) -> str:
    """A trace that https://ui.perfetto.dev opens: a track a thread, arrows along each request."""
    all_rows = list(rows(recording))
    pid = recording.pid
    until_ns = recording.read_ns if recording.state == "alive" else recording.end_ns
    until_ns = until_ns or max(
        (row["end_ns"] or row["begin_ns"] for row in all_rows), default=recording.begin_ns
    )
    rank = "" if recording.rank is None else f", rank {recording.rank}"
    events: list[dict[str, Any]] = [_name("process_name", pid, 0, f"{recording.program}{rank}")]
    for thread in recording.threads():
        label = f"{thread['name']} {thread['thread']}"
        events.append(_name("thread_name", pid, thread["thread"], label))
    requests: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    device_pid = pid + (1 << 22)  # beyond any process id
    has_device = False
    for row in all_rows:
        end_ns = row["end_ns"] if row["end_ns"] is not None else max(until_ns, row["begin_ns"])
        args = {"id": row["id"], "parent": row["parent"]}
        if row["request"] is not None:
            args["request"] = row["request"]
        if row["trace_id"] is not None:
            args["trace_id"] = row["trace_id"]
        if row["error"]:
            args["error"] = True
        if row["end_ns"] is None:
            args["open"] = True
        event = _slice(row["stage"], pid, row["thread"], row["begin_ns"], end_ns, args)
        events.append(event)
        if row["request_number"] is not None and row["depth"] == 0:
            requests[row["request_number"]].append(event)
        if row["device_elapsed_ns"] is not None and row["device_queue_ns"] is not None:
            begin = row["begin_ns"] + row["device_queue_ns"]
            end = begin + row["device_elapsed_ns"]
            args = {"id": row["id"]}
            events.append(_slice(row["stage"], device_pid, row["thread"], begin, end, args))
            has_device = True
    if has_device:
        events.append(_name("process_name", device_pid, 0, f"device of {recording.program}{rank}"))
    for number, of_request in requests.items():
        events.extend(_flow(number, of_request))
    page = {
        "displayTimeUnit": "ns",
        "otherData": {"stagespan": summary.identity(recording)},
        "traceEvents": events,
    }
    return _encoded(page)


def as_parquet(recording: Recording) -> bytes:
    """A row a span, with the columns of `as_csv`; what is not known is null.

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


def _slice(
    name: str, pid: int, tid: int, begin_ns: int, end_ns: int, args: dict[str, Any]
) -> dict[str, Any]:
    category = "device" if pid > 1 << 22 else "stage"
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": begin_ns / 1e3,
        "dur": max(end_ns - begin_ns, 0) / 1e3,
        "args": args,
    }


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _flow(number: int, slices: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Arrows from each outermost span of a request to the next one."""
    if len(slices) < 2:
        return
    slices = sorted(slices, key=lambda event: event["ts"])
    for i, event in enumerate(slices):
        phase = "s" if i == 0 else ("f" if i == len(slices) - 1 else "t")
        arrow = {key: event[key] for key in ("pid", "tid", "ts")}
        arrow.update({"ph": phase, "cat": "request", "name": "request", "id": number, "bp": "e"})
        yield arrow


def _encoded(page: dict[str, Any]) -> str:
    import msgspec

    return msgspec.json.encode(page).decode() + "\n"


FORMATS: dict[str, Callable[[Recording], str | bytes]] = {
    "perfetto": as_perfetto,
    "csv": as_csv,
    "json": as_json,
    "parquet": as_parquet,
}
