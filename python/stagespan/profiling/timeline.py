"""Adds the spans of stagespan to an exported trace, at their times."""

from __future__ import annotations

import gzip
import mmap
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stagespan import _core
from stagespan.process import threads
from stagespan.process.files import json_bytes

PROCESS = "stagespan"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
# torch_npu writes no categories for its operators, so its traces always match.
_WORK = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|kernel|gpu_\w+|\w*_runtime|\w*_driver)"|"name"\s*:\s*"(?:aten::|CANN)'
)
_GZIP = b"\x1f\x8b"
_EDGE_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
_NUMBERS = ("begin_ns", "thread", "id", "parent", "request")


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """One span for the timeline, with times in Unix ns."""

    stage: str
    begin_ns: int
    end_ns: int
    thread: int
    id: int
    parent: int
    request: int
    unfinished: bool = False
    """It was still open when the trace was written, so it ends at the end of the window."""
    thread_name: str | None = None


def recorded_spans(begin_ns: int, end_ns: int) -> list[TimelineSpan]:
    """Return the spans that overlap the window, including those still open."""
    spans, names, still_open = _core.spans(), _core.stage_names(), _core.open_spans()
    names_of_threads = {id_: thread.name for id_, thread in threads.by_native_id().items()}
    in_window = spans[(spans["begin_ns"] < end_ns) & (spans["end_ns"] > begin_ns)]

    def on_timeline(span: Any, stage: str, end_ns: int, unfinished: bool) -> TimelineSpan:
        numbers = {name: int(span[name]) for name in _NUMBERS}
        thread_name = names_of_threads.get(numbers["thread"])
        return TimelineSpan(
            stage, end_ns=end_ns, **numbers, unfinished=unfinished, thread_name=thread_name
        )

    unfinished = [
        on_timeline(span, span["stage"], end_ns, True)
        for span in still_open
        if span["begin_ns"] < end_ns
    ]
    return unfinished + [
        on_timeline(span, names[int(span["stage"])], int(span["end_ns"]), False)
        for span in in_window
    ]


def compressed_with_spans(trace: Path, spans: Iterable[TimelineSpan]) -> bytes:
    """Return a trace as gzip, with `spans` as a separate process; see `compressed_with_events`."""
    return compressed_with_events(trace, lambda base_ns: _events(spans, base_ns))


def compressed_with_events(trace: Path, events: Callable[[int], Iterable[bytes]]) -> bytes:
    """Return a trace (JSON, or JSON as gzip) as gzip, with more events.

    `events` returns them as JSON. Its argument is the Unix time in ns from which the times of the
    trace count.

    Raises ValueError if the file does not end like a trace, because it is incomplete, and OSError
    if it cannot be read.
    """
    with open(trace, "rb") as file:
        if file.read(2) != _GZIP:
            return _with_events(file, events)
        file.seek(0)
        with tempfile.TemporaryFile() as plain:
            with gzip.open(file) as unpacked:
                shutil.copyfileobj(unpacked, plain, _CHUNK_BYTES)
            return _with_events(plain, events)


def _with_events(file: IO[bytes], events: Callable[[int], Iterable[bytes]]) -> bytes:
    file.seek(0)
    head = file.read(_EDGE_BYTES)
    size = file.seek(0, 2)
    file.seek(max(0, size - _EDGE_BYTES))
    tail = file.read()
    opening = _EVENTS.search(head)
    is_list = head.lstrip()[:1] == b"["
    if tail.rstrip()[-1:] != (b"]" if is_list else b"}") or not (opening or is_list):
        raise ValueError("the profiler did not write it completely")
    base = _BASE.search(tail) or _BASE.search(head)
    at = opening.end() if opening else head.index(b"[") + 1
    file.seek(at)
    empty = file.read(_EDGE_BYTES).lstrip()[:1] == b"]"
    added = b",\n".join(events(int(base[1]) if base else 0))
    file.seek(0)
    packer = zlib.compressobj(level=6, wbits=31)
    packed = [packer.compress(piece) for piece in _pieces(file, at, added, empty)]
    packed.append(packer.flush())
    return b"".join(packed)


def shows_work(trace: Path) -> bool:
    """Whether the JSON file `trace` contains operators, kernels or calls of a device's runtime."""
    with open(trace, "rb") as file:
        if file.seek(0, 2) == 0:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _WORK.search(content) is not None


def _pieces(file: IO[bytes], at: int, events: bytes, empty: bool) -> Iterator[bytes]:
    yield file.read(at)
    if events:
        yield b"\n" + events + (b"" if empty else b",")
    while piece := file.read(_CHUNK_BYTES):
        yield piece


def _events(spans: Iterable[TimelineSpan], base_ns: int) -> Iterator[bytes]:
    threads: dict[int, str | None] = {}
    for span in spans:
        threads[span.thread] = span.thread_name
        args: dict[str, object] = {
            "id": span.id,
            "parent": span.parent,
            "request": span.request,
        }
        if span.unfinished:
            args["unfinished"] = True
        yield (
            b'{"ph": "X", "cat": "user_annotation", "name": %s, "pid": "%s", "tid": %d, '
            b'"ts": %s, "dur": %s, "args": %s}'
            % (
                json_bytes(span.stage.encode("utf-8", "replace").decode()),
                PROCESS.encode(),
                span.thread,
                microseconds(span.begin_ns - base_ns),
                microseconds(span.end_ns - span.begin_ns),
                json_bytes(args),
            )
        )
    if threads:
        yield _metadata("process_name", 0, {"name": PROCESS})
        yield _metadata("process_labels", 0, {"labels": "spans"})
        yield _metadata("process_sort_index", 0, {"sort_index": -1})
    for thread, name in sorted(threads.items()):
        yield _metadata("thread_name", thread, {"name": f"{name or 'thread'} {thread}"})


def _metadata(name: str, thread: int, args: dict[str, object]) -> bytes:
    return json_bytes(
        {"ph": "M", "name": name, "pid": PROCESS, "tid": thread, "ts": 0, "args": args}
    )


def microseconds(nanoseconds: int) -> bytes:
    """Return a time as the text of a number of microseconds with three decimals."""
    sign, whole = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    return f"{sign}{whole // 1000}.{whole % 1000:03d}".encode()
