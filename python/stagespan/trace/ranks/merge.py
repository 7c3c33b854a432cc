"""Merge the timelines of many ranks into one file for Perfetto, rank after rank."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from stagespan.errors import StagespanError
from stagespan.process.files import whole_file
from stagespan.trace.ascend.folder import OUTPUT, TRACE
from stagespan.trace.ranks.combined import JobTraces
from stagespan.trace.read.reader import RawEvent, copy_raw_events

# Ids from here on (64-bit patterns) are renumbered; smaller ones are shifted.
_LARGE_ID = 1 << 40
# Arguments with ids that connect the events of one process.
_JOINING = (
    "correlation",
    "connection_id",
    "External id",
    "external id",
    "Python id",
    "Python parent id",
    "Python module id",
)
# Quotes within strings are escaped, so that no part of a string can match this.
_JOINED = re.compile(
    rb'("(?:%s)"\s*:\s*)(-?\d+|"[^"\\]*")(?=\s*[,}])' % "|".join(_JOINING).encode()
)
# The phases of flows, and of other events with ids.
_WITH_ID = frozenset(b'"%c"' % phase for phase in b"stfbneNODSTFp")
_LARGEST = 1 << 62
_NOTHING = msgspec.Raw()
# The distance between the first sort indices of two ranks.
_PER_RANK = 10_000
_GZIP_LEVEL = 4


def merge(job: JobTraces, target: str | os.PathLike[str]) -> int:
    """Write the timelines of all ranks, on the common clock, to one file.

    Returns the number of entries. The file is compressed if the name of `target` ends in .gz. Ids
    of processes, threads, flows and calls are renumbered so that no two ranks share one; processes
    are named and sorted by rank. Every event is kept with all its arguments. The file is renamed to
    `target` when it is complete.

    Raises StagespanError if the file cannot be written, and TraceError if a trace no longer exists.
    """
    path = Path(target)
    try:
        with whole_file(path) as raw:
            if not path.name.endswith(".gz"):
                return _write(job, raw)
            with gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, 0) as packed:
                return _write(job, packed)
    except OSError as error:
        raise StagespanError(
            f"{path} cannot be written ({error.strerror or error}): choose another file."
        ) from error


def _write(job: JobTraces, file: BinaryIO | gzip.GzipFile) -> int:
    is_unix = all(summary.unix_clock for summary in job.summaries)
    base = job.window_begin_ns // 10**9 * 10**9 if is_unix else 0
    file.write(b'{"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": %d,' % base)
    merged = [
        {
            "rank": summary.rank,
            # Names of files may contain bytes that are not valid UTF-8.
            "path": summary.path.encode("utf-8", "replace").decode(),
            "clock_offset_ns": int(offset),
        }
        for summary, offset in zip(job.summaries, job.clocks.offset_ns, strict=True)
    ]
    file.write(b'\n"merged_ranks": ' + msgspec.json.encode(merged) + b',\n"traceEvents": [')
    count = 0

    def write(entries: Sequence[Any]) -> None:
        nonlocal count
        if not entries:
            return
        file.write((b",\n" if count else b"\n") + msgspec.json.encode(entries)[1:-1])
        count += len(entries)

    numbers = _Numbers()
    for summary, offset in zip(job.summaries, job.clocks.offset_ns, strict=True):
        rank = _Rank(summary.rank or 0, numbers, write)
        rank.copy(Path(summary.path), summary.base_ns - int(offset) - base)
    file.write(b"\n]}\n")
    return count


class _Numbers:
    """Ids that are in use, so that ranks never share one."""

    def __init__(self) -> None:
        self.process = 0
        self.thread = 0
        self.highest = 0
        """The highest id of flows and calls so far."""


class _Rank:
    """Rewrites one rank's entries."""

    def __init__(
        self, rank: int, numbers: _Numbers, write: Callable[[Sequence[Any]], None]
    ) -> None:
        self._rank, self._numbers, self._write = rank, numbers, write
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._named: set[int] = set()
        self._named_threads: set[int] = set()
        self._sort: dict[int, float] = {}
        self._move = numbers.highest + 1
        self._large: dict[bytes, int] = {}
        self._as_written: dict[bytes, tuple[int, msgspec.Raw]] = {}
        self._threads_as_written: dict[tuple[bytes, bytes], msgspec.Raw] = {}

    def copy(self, path: Path, shift_ns: int) -> None:
        """Copy all entries with shifted times, and name the processes."""

        def take(entries: list[RawEvent]) -> None:
            self._write([each for each in entries if self._rewrite(each, shift_ns)])

        copy_raw_events(_file_of(path), take)
        self._write(self._about_processes())

    def _rewrite(self, entry: RawEvent, shift_ns: int) -> bool:
        """Change an entry in place; False if it is to be skipped."""
        phase = bytes(entry.get("ph", _NOTHING))
        pid = entry.get("pid")
        written = b"" if pid is None else bytes(pid)
        process = None
        if pid is not None:
            process, entry["pid"] = self._new_pid(written)
        of_process = phase == b'"M"' and bytes(entry.get("name", b"")).startswith(b'"process_')
        if of_process:
            entry["tid"] = _raw(0)
        elif "tid" in entry:
            entry["tid"] = self._new_tid(written, bytes(entry["tid"]))
        if phase == b'"M"':
            entry.pop("ts", None)
            return self._metadata(entry, process)
        if "ts" in entry:
            time = _time_ns(bytes(entry["ts"]))
            if time is not None:
                entry["ts"] = _microseconds(time + shift_ns)
        if "id" in entry and phase in _WITH_ID:
            entry["id"] = msgspec.Raw(self._id(bytes(entry["id"])))
        if "bind_id" in entry:
            entry["bind_id"] = msgspec.Raw(self._id(bytes(entry["bind_id"])))
        args = entry.get("args")
        if args is not None:
            entry["args"] = msgspec.Raw(_JOINED.sub(self._joined, bytes(args)))
        return True

    def _joined(self, match: re.Match[bytes]) -> bytes:
        return match[1] + self._id(match[2])

    def _new_pid(self, written: bytes) -> tuple[int, msgspec.Raw]:
        """The new number of a pid that is given as in the file, and this number as JSON."""
        text = self._as_written.get(written)
        if text is None:
            number = self._process(_text(written))
            text = self._as_written[written] = (number, _raw(number))
        return text

    def _new_tid(self, process: bytes, written: bytes) -> msgspec.Raw:
        """The new number of a tid of a process, as JSON."""
        text = self._threads_as_written.get((process, written))
        if text is None:
            text = _raw(self._thread(_text(process), _text(written)))
            self._threads_as_written[process, written] = text
        return text

    def _metadata(self, entry: RawEvent, process: int | None) -> bool:
        name = _text(bytes(entry.get("name", _NOTHING)))
        if process is None or name not in ("process_name", "process_sort_index", "thread_name"):
            return True
        try:
            args = msgspec.json.decode(entry.get("args", b"{}"))
        except msgspec.DecodeError:
            return True
        if not isinstance(args, dict):
            return True
        if name == "process_sort_index":
            index = args.get("sort_index")
            if not isinstance(index, (int, float)) or not abs(index) < _LARGEST:
                index = 0
            self._sort[process] = float(index)
            return False
        if name == "thread_name":
            self._named_threads.add(int(bytes(entry.get("tid", b"-1"))))
            return True
        args["name"] = f"rank {self._rank}: {args.get('name', '')}"
        entry["args"] = msgspec.Raw(msgspec.json.encode(args))
        self._named.add(process)
        return True

    def _about_processes(self) -> list[dict[str, Any]]:
        """Entries that name unnamed processes, and that sort all by rank, then as in the trace."""
        made: list[dict[str, Any]] = []

        def add(what: str, pid: int, tid: int, **args: Any) -> None:
            made.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})

        order = sorted(self._processes.values(), key=lambda pid: (self._sort.get(pid, 0.0), pid))
        written_pid = {pid: written for written, pid in self._processes.items()}
        for position, pid in enumerate(order):
            if pid not in self._named:
                add("process_name", pid, 0, name=f"rank {self._rank}: {written_pid[pid]}")
            add("process_sort_index", pid, 0, sort_index=self._rank * _PER_RANK + position)
        for (process, thread), tid in self._threads.items():
            if tid not in self._named_threads:
                add("thread_name", self._processes[process], tid, name=thread)
        return made

    def _process(self, written: str) -> int:
        """The number of a process, by its pid in the file."""
        number = self._processes.get(written)
        if number is None:
            self._numbers.process += 1
            number = self._processes[written] = self._numbers.process
        return number

    def _thread(self, process: str, written: str) -> int:
        """The number of a thread, by pid and tid in the file."""
        number = self._threads.get((process, written))
        if number is None:
            self._process(process)
            self._numbers.thread += 1
            number = self._threads[process, written] = self._numbers.thread
        return number

    def _id(self, written: bytes) -> bytes:
        """The new id of a flow, a call or an object; both are as in the file."""
        numbers = self._numbers
        try:
            value = int(written) if written[:1] != b'"' else int(_text(written), 0)
        except ValueError:
            value = -1
        if 0 <= value < _LARGE_ID:
            moved = value + self._move
        else:
            # Above all shifted ids, so that no two ranks share an id.
            number = self._large.get(written)
            if number is None:
                number = self._large[written] = len(self._large)
            moved = self._move + _LARGE_ID + number
        if moved > numbers.highest:
            numbers.highest = moved
        return b"%d" % moved


def _text(written: bytes) -> str:
    """A number or string as it is in the file, without quotes."""
    return written.decode("utf-8", "replace").strip('"')


def _raw(number: int) -> msgspec.Raw:
    return msgspec.Raw(b"%d" % number)


def _time_ns(written: bytes) -> int | None:
    """Convert microseconds, as in the file, to ns; None if they are not a valid time."""
    whole, point, rest = written.partition(b".")
    if whole.isdigit() and len(whole) <= 16 and (rest.isdigit() or not point) and len(rest) <= 3:
        return int(whole) * 1000 + (int(rest.ljust(3, b"0")) if rest else 0)
    try:
        exact = Decimal(written.strip(b'"').decode("utf-8", "replace")) * 1000
        return int(exact.to_integral_value()) if abs(exact) < _LARGEST else None
    except (DecimalException, ValueError, OverflowError):
        return None


def _microseconds(time_ns: int) -> msgspec.Raw:
    sign = b"-" if time_ns < 0 else b""
    whole, rest = divmod(abs(time_ns), 1000)
    return msgspec.Raw(b"%s%d.%03d" % (sign, whole, rest))


def _file_of(path: Path) -> Path:
    """The file with the events of a path that may be a result folder."""
    if not path.is_dir():
        return path
    named = [below / f"{TRACE}{end}" for below in (path, path / OUTPUT) for end in ("", ".gz")]
    return next((file for file in named if file.is_file()), named[0])
