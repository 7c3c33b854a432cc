"""Keeps requests in files, and reads them as if they were recordings."""

from __future__ import annotations

import gzip
import logging
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.export import kept_parquet
from stagespan.export.requests import AWAITED_KEEP, Part, Resource, TimedSpan
from stagespan.live.kinds import KINDS, Kind, number_of
from stagespan.live.statistics import Stats, from_rings
from stagespan.process import imports
from stagespan.process.files import write_whole
from stagespan.recording.reading import Amounts, RecordedOpenSpan, Recording, Segment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LOGGER = logging.getLogger("stagespan")
_SCHEMA_VERSION = 1
_PREFIX, _SUFFIX = "requests-", ".jsonl.gz"
_FILE_BYTES = 4 << 20
_FILE_SECONDS = 10.0
_MOST_LINE_BYTES = 256 << 20


class _KeptPart(msgspec.Struct):
    resource: Resource
    clock: int
    unix_offset_ns: int
    is_whole: bool
    segment: Segment
    returns: list[Segment]
    spans: list[TimedSpan]
    batches: list[tuple[TimedSpan, int]]
    """Each batch that served the segment, and its size."""


class _KeptRequest(msgspec.Struct):
    schema_version: int
    trace_id: str
    parts: list[_KeptPart]


def _kept(part: Part) -> _KeptPart:
    return _KeptPart(
        part.resource,
        part.clock,
        part.unix_offset_ns,
        part.is_whole,
        part.segment,
        part.returns,
        part.spans,
        [(batch.span, batch.size) for batch in part.batches],
    )


class Keeper:
    """Writes requests to files in a folder. The oldest ones are removed if it gets too large."""

    def __init__(
        self, folder: str | os.PathLike[str], most_bytes: int, *, parquet: bool = False
    ) -> None:
        """Make the folder. Files are JSON lines, or Parquet.

        Raises StagespanError if the folder cannot be made, or if Parquet cannot be written.
        """
        if parquet:
            kept_parquet.check_writer()
        self._folder, self._most_bytes = Path(folder), most_bytes
        self._suffix = kept_parquet.SUFFIX if parquet else _SUFFIX
        self._lines: list[bytes] = []
        self._parts: list[Part] = []
        self._bytes = 0
        self._begun_at = time.monotonic()
        self._host = os.uname().nodename
        self._lost = 0
        self._files = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise StagespanError(
                f"Requests cannot be kept in {folder}: {error.strerror}. Name a folder that you "
                "may write to."
            ) from None

    def put(
        self, requests: Iterable[list[Part]], is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Add requests. They are in a file within 10 s, or once there are some MiB of them.

        When ``is_over`` returns True, the others are left to the next exporter.
        """
        for parts in requests:
            if is_over():
                break
            trace_id = parts[0].segment["trace_id"] or ""
            kept = _KeptRequest(_SCHEMA_VERSION, trace_id, list(map(_kept, parts)))
            line = msgspec.json.encode(kept)
            self._lines.append(line)
            self._parts += parts
            self._bytes += len(line)
        is_old = time.monotonic() - self._begun_at > _FILE_SECONDS
        if self._lines and (is_old or self._bytes > _FILE_BYTES):
            self.write()

    def write(self) -> None:
        """Write what was put to a new file."""
        self._begun_at = time.monotonic()
        if not self._lines:
            return
        self._files += 1
        name = f"{_PREFIX}{self._host}-{time.time_ns() // 1_000_000}-{self._files}{self._suffix}"
        if self._suffix == _SUFFIX:
            data = gzip.compress(b"\n".join(self._lines) + b"\n", compresslevel=3)
        else:
            whole = ((part, msgspec.json.encode(_kept(part))) for part in self._parts)
            data = kept_parquet.packed(whole)
        try:
            self._make_room(len(data))
            write_whole(self._folder / name, data)
        except OSError as error:
            if not self._lost:
                _LOGGER.warning(
                    "Requests cannot be kept in %s: %s. They are counted as lost.",
                    self._folder,
                    error.strerror,
                )
            self._lost += len(self._lines)
        for part in self._parts:
            part.awaited.discard(AWAITED_KEEP)
        self._lines.clear()
        self._parts.clear()
        self._bytes = 0

    def _make_room(self, size_bytes: int) -> None:
        own = []
        paths = [
            path
            for suffix in (_SUFFIX, kept_parquet.SUFFIX)
            for path in self._folder.glob(f"{_PREFIX}{self._host}-*{suffix}")
        ]
        for path in paths:
            status = path.stat()
            own.append((status.st_mtime_ns, status.st_size, path))
        own.sort()
        total_bytes = size_bytes + sum(size for _, size, _ in own)
        for _, size, path in own:
            if total_bytes <= self._most_bytes:
                break
            path.unlink(missing_ok=True)
            total_bytes -= size

    def lost(self) -> dict[str, int]:
        """Return how many requests could not be written."""
        return {"keep": self._lost}


# --- reading --------------------------------------------------------------------------------------


class KeptRecording(Recording):
    """What is kept of the recording of a process: segments with their spans.

    All of them have the same clock, and are either whole or not.
    """

    def __init__(self, parts: list[_KeptPart]) -> None:
        self._parts = parts
        first = parts[0]
        resource = first.resource
        self.path = f"{resource.host}:{resource.identity}"
        self.state, self.stop_signal = "exited", None
        self.pid, self.host, self.program = resource.pid, resource.host, resource.program
        self.pipeline, self.job = resource.pipeline, resource.service
        self.worker = None
        self.read_ns = self.end_ns = None
        self._segments = [one for part in parts for one in (part.segment, *part.returns)]
        times = [time for one in self._segments for time in (one["received_ns"], one["begin_ns"])]
        self.begin_ns = min((one for one in times if one is not None), default=0)
        self._timed = [(span, part.segment["number"]) for part in parts for span in part.spans]
        batches = {span.id: span for part in parts for span, _ in part.batches}
        self._timed += [(span, 0) for span in batches.values()]
        self._names = list(dict.fromkeys(span.stage for span, _ in self._timed))

    def segments(self) -> list[Segment]:
        """Return the segments, and the hops that have come back to them."""
        return self._segments

    def stage_names(self) -> list[str]:
        """Return the names of the stages; the ``stage`` column of `spans` is an index into it."""
        return self._names

    def spans(self) -> NDArray[np.void]:
        """Return the spans of the segments, and the batches that served them."""
        numpy = imports.load("numpy")
        numbers = {name: i for i, name in enumerate(self._names)}
        rows = numpy.zeros(len(self._timed), _core.spans().dtype)
        columns: dict[str, list[Any]] = {
            "id": [span.id for span, _ in self._timed],
            "parent": [span.parent for span, _ in self._timed],
            "stage": [numbers[span.stage] for span, _ in self._timed],
            "thread": [span.thread for span, _ in self._timed],
            "begin_ns": [span.begin_ns for span, _ in self._timed],
            "end_ns": [span.end_ns for span, _ in self._timed],
            "request": [number for _, number in self._timed],
            "suspended_ns": [span.suspended_ns for span, _ in self._timed],
            "depth": [span.depth for span, _ in self._timed],
            "flags": [
                KINDS.index(span.kind) << _core.KIND_SHIFT
                | (_core.FLAG_ERROR if span.failed else 0)
                for span, _ in self._timed
            ],
            "device_elapsed_ns": [
                numpy.nan if span.device_elapsed_ns is None else span.device_elapsed_ns
                for span, _ in self._timed
            ],
        }
        for name, column in columns.items():
            rows[name] = column
        rows["device_queue_ns"] = rows["device_tail_ns"] = numpy.nan
        found: NDArray[np.void] = rows
        return found

    def stats(self, *, kind: Kind = "execution") -> Stats:
        """Return the statistics of these spans, without work."""
        last_ns = self.last_ns or self.begin_ns
        names, number = self.stage_names(), number_of(kind)
        return from_rings(self.spans(), names, self.lost(), 0, last_ns, number)

    def links(self) -> list[tuple[int, int, int]]:
        """Return the batches that served the segments: (span id, request number, size)."""
        return [
            (span.id, part.segment["number"], size)
            for part in self._parts
            for span, size in part.batches
        ]

    def amounts(self, spans: set[int] | None = None) -> Amounts:
        """Return the work of the spans by span id and unit, as far as it is known."""
        return {
            span.id: span.work
            for span, _ in self._timed
            if span.work is not None and (spans is None or span.id in spans)
        }

    @property
    def amounts_since_ns(self) -> int:
        """The latest begin of a span whose work is not known; 0 if that of all is known."""
        unknown = (span.begin_ns for span, _ in self._timed if span.work is None)
        return max(unknown, default=0)

    def open_spans(self) -> list[RecordedOpenSpan]:
        """Return nothing: only requests that have ended are kept."""
        return []

    def lost(self) -> dict[str, int]:
        """Return nothing: what a process had lost by then is not known."""
        return Counter()

    @property
    def most_segments(self) -> int:
        """More than there are: no later request displaces one that is kept."""
        return len(self._segments) + 1

    @property
    def clock(self) -> int:
        """The identity of the process's CLOCK_MONOTONIC."""
        return self._parts[0].clock

    @property
    def unix_offset_ns(self) -> int:
        """What was added to CLOCK_MONOTONIC to get the Unix times."""
        return self._parts[0].unix_offset_ns

    @property
    def complete_ns(self) -> int:
        """0 if no span of the segments was overwritten, otherwise a time after them."""
        return 0 if self._parts[0].is_whole else 1 << 62

    @property
    def last_ns(self) -> int | None:
        """The latest end of a span."""
        return max((span.end_ns for span, _ in self._timed), default=None)


def recordings_of(parts: Iterable[_KeptPart]) -> list[Recording]:
    """Return parts of requests as recordings, one for each process and reading of its clock.

    Parts that an exporter has written again, because an earlier one was killed, count once.
    """
    groups: dict[tuple[str, int, int, bool], dict[int, _KeptPart]] = {}
    seen: set[tuple[str, int]] = set()
    for one in parts:
        identity, number = one.resource.identity, one.segment["number"]
        if (identity, number) in seen:
            continue
        seen.add((identity, number))
        group = identity, one.clock, one.unix_offset_ns, one.is_whole
        groups.setdefault(group, {})[number] = one
    return [KeptRecording(list(of.values())) for of in groups.values()]


class Kept(NamedTuple):
    """The requests in folders."""

    recordings: list[Recording]
    total: int | None
    """How many requests have the id and the status, if only the slowest of them were read."""


def read(
    folders: Sequence[Path], slowest: int, id_: str | None = None, status: str | None = None
) -> Kept:
    """Return the requests that exporters of any machines have kept in folders.

    Of Parquet, only the ``slowest`` requests are read with an id that the regular expression
    ``id_`` matches and with the ``status``; of JSON lines all of them.

    Raises StagespanError if a folder has none, if a file is damaged, or if there are both kinds.
    """
    lines: list[Path] = []
    tables: list[Path] = []
    for folder in folders:
        of_lines = sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))
        of_tables = sorted(folder.glob(f"{_PREFIX}*{kept_parquet.SUFFIX}"))
        if not of_lines and not of_tables:
            raise StagespanError(
                f"There are no kept requests in {folder}: pass a folder that `stagespan export "
                "--keep` has written to."
            )
        lines += of_lines
        tables += of_tables
    if not tables:
        return Kept(recordings_of(_parts_in(lines)), None)
    if lines:
        raise StagespanError(
            f"There are requests as JSON lines in {lines[0].parent}, and as Parquet in "
            f"{tables[0].parent}: pass folders of one kind at a time."
        )
    found = kept_parquet.select(tables, slowest, id_, status)
    decoder = msgspec.json.Decoder(_KeptPart)
    try:
        parts = [decoder.decode(part) for part in found.parts]
    except ValueError as error:
        raise StagespanError(
            f"The kept requests in {tables[0].parent} are damaged, or of another version ({error})."
        ) from None
    return Kept(recordings_of(parts), found.total)


def _parts_in(paths: Iterable[Path]) -> Iterator[_KeptPart]:
    decoder = msgspec.json.Decoder(_KeptRequest)
    for path in paths:
        try:
            with gzip.open(path) as file:
                for line in iter(partial(file.readline, _MOST_LINE_BYTES), b""):
                    request = decoder.decode(line)
                    if request.schema_version != _SCHEMA_VERSION:
                        raise ValueError(f"its version is {request.schema_version}")
                    yield from request.parts
        except FileNotFoundError:  # it was the oldest one
            continue
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise StagespanError(
                f"{path} is not a file of kept requests, or is damaged ({error}): remove it."
            ) from None
