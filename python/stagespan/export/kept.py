"""Keeps requests in files, and reads them as if they were recordings."""

from __future__ import annotations

import errno
import gzip
import itertools
import logging
import os
import re
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stagespan import _core
from stagespan.errors import StagespanError
from stagespan.export import kept_parquet
from stagespan.export.otlp_sending import LONGEST_END_S, Sender
from stagespan.export.parts import AWAITED_KEEP, Part, Parts, Resource, by_reading
from stagespan.export.stores import (
    LINES_SUFFIX,
    PREFIX,
    TABLES_SUFFIX,
    ObjectStore,
    store_of,
)
from stagespan.live.quantiles import quantile
from stagespan.live.span_kinds import KINDS
from stagespan.process import imports
from stagespan.process.messages import message_of
from stagespan.recording.segments import Segment, as_rows, first_known_ns, have_begun_here
from stagespan.recording.slowness import Slowness
from stagespan.recording.source import Columns, RequestSource, Surroundings
from stagespan.recording.spans import BATCH, OPEN_NS, ReadSpans, Span, joined, kinds_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_LOGGER = logging.getLogger("stagespan")
_SCHEMA_VERSION = 1
_KEPT_FIELDS = Span._fields.index("cpu_ns") + 1
_UNKNOWN = Surroundings({}, None)
_FILE_BYTES = 4 << 20
_FILE_INTERVAL_S = 10.0
_MOST_LINE_BYTES = 256 << 20
_MOST_SLOW_BYTES = 64 << 10
"""Of a request that was kept because it was slow: the shortest of its spans are left out."""
_MOST_UPLOAD_BYTES = 64 << 20
_ENCODED_AT_ONCE = 256


class _KeptPart(msgspec.Struct):
    resource: Resource
    clock: int
    unix_offset_ns: int
    is_whole: bool
    segment: Segment
    returns: list[Segment]
    spans: list[Span]
    batches: list[tuple[Span, int]]
    """Each batch that served the segment, and its size."""
    slowness: Slowness | None = None
    """None unless the request was too slow beside others."""


class _KeptRequest(msgspec.Struct):
    schema_version: int
    trace_id: str
    parts: list[_KeptPart]


def _encoded_parts(of: Parts, indices: list[int], least_ns: int = 0) -> list[bytes]:
    """Return parts as `_KeptPart` has them, with spans and batches of at least that length.

    The number of the others is noted as missing.
    """
    encode = msgspec.json.encode
    head = b'{"resource":%b,"clock":%d,"unix_offset_ns":%d,"is_whole":' % (
        encode(of.resource),
        of.clock,
        of.unix_offset_ns,
    )
    batches = {
        at: encode(
            [
                (one.span[:_KEPT_FIELDS], one.size)
                for one in of.batches[at]
                if one.span.end_ns - one.span.begin_ns >= least_ns
            ]
        )
        for at in of.batches.keys() & indices
    }
    noted = {
        at: encode(_with_missing(of.slowness.get(at), _shorter(Part(of, at), least_ns)))
        for at in (indices if least_ns else of.slowness.keys() & indices)
    }
    return of.columns.kept(indices, head, batches, noted, least_ns)


def _lengths_ns(part: Part) -> NDArray[np.int64]:
    """Return the lengths of the spans and batches of a part."""
    of_batches = [batch.span.end_ns - batch.span.begin_ns for batch in part.batches]
    numpy, rows = imports.load("numpy"), part.rows
    of_spans = rows["end_ns"] - rows["begin_ns"]
    lengths_ns: NDArray[np.int64] = numpy.append(of_spans, numpy.array(of_batches, "i8"))
    return lengths_ns


def _shorter(part: Part, least_ns: int) -> int:
    return int((_lengths_ns(part) < least_ns).sum()) if least_ns else 0


def _with_missing(slowness: Slowness | None, left_out: int) -> Slowness | None:
    if not left_out:
        return slowness
    slowness = slowness or Slowness()
    missing = [*slowness.missing, f"the shortest {left_out:,} spans, which are not kept"]
    return msgspec.structs.replace(slowness, missing=missing)


def _line(parts: Iterable[bytes], trace_id: str) -> bytes:
    """Return the line of a request, as `_KeptRequest` has it."""
    head = b'{"schema_version":%d,"trace_id":"%b","parts":[' % (_SCHEMA_VERSION, trace_id.encode())
    return head + b",".join(parts) + b"]}"


def _shortened(parts: list[Part], line: bytes) -> bytes:
    """Return the line of a request without its shortest spans, if it is slow and too large."""
    if len(line) <= _MOST_SLOW_BYTES or all(part.slowness is None for part in parts):
        return line
    lengths_ns = sorted(ns for part in parts for ns in _lengths_ns(part).tolist())
    while len(line) > _MOST_SLOW_BYTES and lengths_ns:
        stay = int(0.95 * len(lengths_ns) * _MOST_SLOW_BYTES / len(line))
        least_ns = lengths_ns[-stay - 1] + 1
        lengths_ns = [length_ns for length_ns in lengths_ns if length_ns >= least_ns]
        kept = (_encoded_parts(part.of, [part.at], least_ns)[0] for part in parts)
        line = _line(kept, parts[0].trace_id or "")
    return line


class _PendingRequest(NamedTuple):
    parts: list[Part]
    line: bytes


class _PendingFile:
    """Requests that will be written to one file."""

    def __init__(self, requests: list[_PendingRequest]) -> None:
        self.requests = requests
        self.size_bytes = sum(len(one.line) for one in requests)
        self.written = 0
        """How many of them are in a file."""


class Keeper:
    """Writes requests to files in one place. The oldest ones are removed if it gets too large.

    Files in an object store are written by a thread, so that a slow network delays nothing.
    """

    def __init__(
        self, place: str | os.PathLike[str], most_bytes: int, *, parquet: bool = False
    ) -> None:
        """Take a folder, which is made, or a URL. Files are JSON lines, or Parquet.

        Raises StagespanError if files cannot be written there, or if Parquet cannot be written.
        """
        if parquet:
            kept_parquet.check_writer()
        self._place, self._most_bytes = place, most_bytes
        self._suffix = TABLES_SUFFIX if parquet else LINES_SUFFIX
        self._requests: list[_PendingRequest] = []
        self._begun_at = time.monotonic()
        self._prefix = f"{PREFIX}{os.uname().nodename}-"
        # Another host's name may begin with the name of this one and a hyphen.
        suffixes = "|".join(map(re.escape, (LINES_SUFFIX, TABLES_SUFFIX)))
        self._own_names = re.compile(rf"{re.escape(self._prefix)}\d+-\d+(?:{suffixes})")
        self._store = store_of(place)
        self._lost = 0
        self._number = 0
        self._is_told = False
        self._uploading: list[_PendingFile] = []
        self._changing = threading.Lock()
        self._uploads: Sender | None = None
        if isinstance(self._store, ObjectStore):
            self._uploads = Sender(lambda: self._store, self._upload, batch=1)

    def put(
        self, requests: Iterable[list[Part]], is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """Add requests. They are in a file within 10 s, or once there are some MiB of them.

        When ``is_over`` returns True, the others are left to the next exporter.
        """
        chosen = list(requests)
        for first in range(0, len(chosen), _ENCODED_AT_ONCE):
            if is_over():
                break
            self._requests += self._encoded(chosen[first : first + _ENCODED_AT_ONCE])
        is_old = time.monotonic() - self._begun_at > _FILE_INTERVAL_S
        is_large = sum(len(one.line) for one in self._requests) > _FILE_BYTES
        if self._requests and (is_old or is_large):
            self.write()

    def _encoded(self, requests: list[list[Part]]) -> list[_PendingRequest]:
        """Return requests with their lines; those that cannot be encoded count as lost."""
        encoded: dict[tuple[int, int], bytes] = {}
        try:
            for of, indices in by_reading([part for parts in requests for part in parts]):
                keys = zip(itertools.repeat(id(of)), indices)
                encoded.update(zip(keys, _encoded_parts(of, indices), strict=True))
            lines = [
                _line([encoded[id(part.of), part.at] for part in parts], parts[0].trace_id or "")
                for parts in requests
            ]
            return [
                _PendingRequest(parts, _shortened(parts, line))
                for parts, line in zip(requests, lines, strict=True)
            ]
        except ValueError as error:  # such as a text that is not valid
            if len(requests) > 1:
                return [one for parts in requests for one in self._encoded([parts])]
            self._tell_of(error)
            with self._changing:
                self._lost += 1
            _forget(requests[0])
            return []

    def write(self) -> None:
        """Write what was put to a new file."""
        self._begun_at = time.monotonic()
        if not self._requests:
            return
        file = _PendingFile(self._requests)
        self._requests = []
        if self._uploads is None:
            try:
                self._write(file)
            finally:
                self._end(file)
            return
        with self._changing:
            self._uploading.append(file)
            is_full = sum(one.size_bytes for one in self._uploading) > _MOST_UPLOAD_BYTES
        if is_full:
            self._end(file)
        else:
            self._uploads.put([file], partial(self._end, file))

    def _upload(self, _: Any, batch: list[_PendingFile]) -> int:
        for file in batch:
            self._write(file)
        return 0

    def _write(self, file: _PendingFile) -> None:
        """Write a file, and note that it is written. The first failure is logged."""
        self._number += 1
        name = f"{self._prefix}{time.time_ns() // 1_000_000}-{self._number}{self._suffix}"
        requests, data = self._packed(file.requests)
        if not requests:
            return
        try:
            self._make_room(len(data))
            self._store.write(name, data)
            file.written = len(requests)
        except self._store.errors as error:
            self._tell_of(error)

    def _packed(self, requests: list[_PendingRequest]) -> tuple[list[_PendingRequest], bytes]:
        """Return the content of a file, and the requests that are in it.

        Those that cannot be in one are left out.
        """
        if self._suffix == LINES_SUFFIX:
            return requests, gzip.compress(b"\n".join(one.line for one in requests) + b"\n", 3)
        try:
            whole = (
                (part, _encoded_parts(part.of, [part.at])[0])
                for one in requests
                for part in one.parts
            )
            return requests, kept_parquet.packed(whole)
        except Exception as error:  # pyarrow has many, for values that do not fit in a column
            if len(requests) <= 1:
                self._tell_of(error)
                return [], b""
        half = len(requests) // 2
        fit = self._packed(requests[:half])[0] + self._packed(requests[half:])[0]
        return self._packed(fit) if fit else ([], b"")

    def _tell_of(self, error: Exception) -> None:
        """Log the first failure."""
        if not self._is_told:
            self._is_told = True
            _LOGGER.warning(
                "Requests cannot be kept in %s: %s. They are counted as lost.",
                self._place,
                getattr(error, "strerror", None) or message_of(error),
            )

    def _end(self, file: _PendingFile) -> None:
        """Count the requests that were not written as lost, and await none of them any longer."""
        with self._changing:
            self._lost += len(file.requests) - file.written
            if file in self._uploading:
                self._uploading.remove(file)
        _forget([part for request in file.requests for part in request.parts])

    def _make_room(self, size_bytes: int) -> None:
        own = self._store.files(self._own_names)
        total_bytes = size_bytes + sum(one.size_bytes for one in own)
        for file in own:
            if total_bytes <= self._most_bytes:
                break
            self._store.remove(file.name)
            total_bytes -= file.size_bytes

    def close(self, longest_s: float = LONGEST_END_S) -> None:
        """Write what was put. What an object store has not taken by then is counted as lost."""
        self.write()
        if self._uploads is not None:
            self._uploads.close(longest_s)
            with self._changing:
                self._lost += sum(len(one.requests) - one.written for one in self._uploading)
                self._uploading.clear()

    def lost(self) -> dict[str, int]:
        """Return how many requests could not be written."""
        return {"keep": self._lost}


def _forget(parts: list[Part]) -> None:
    for of, indices in by_reading(parts):
        of.done(indices, AWAITED_KEEP)


# --- reading --------------------------------------------------------------------------------------


def _source_of(parts: list[_KeptPart], around: _Around) -> RequestSource:
    """Return parts of one process and clock that are all whole, or all not, as one source.

    Raises OverflowError if a number is not one that a recording can have.
    """
    numpy = imports.load("numpy")
    first, resource = parts[0], parts[0].resource
    spans = [span for part in parts for span in part.spans]
    numbers = numpy.repeat(
        numpy.array([part.segment["number"] for part in parts], numpy.uint64),
        [len(part.spans) for part in parts],
    )
    spans += {span.id: span for part in parts for span, _ in part.batches}.values()
    names = list(dict.fromkeys(span.stage for span in spans))
    rows = _rows(spans, names)
    rows["request"][: len(numbers)] = numbers
    read = ReadSpans(
        rows=rows,
        names=names,
        work={span.id: span.work for span in spans if span.work},
        errors={
            span.id: (span.exception, span.exception_message)
            for span in spans
            if span.exception is not None
        },
        amounts_since_ns=max((span.begin_ns for span in spans if span.work is None), default=0),
    )
    segments = [segment for part in parts for segment in (part.segment, *part.returns)]
    links = [
        (span.id, part.segment["number"], size) for part in parts for span, size in part.batches
    ]
    noted = {part.segment["number"]: part.slowness for part in parts if part.slowness is not None}
    source = RequestSource(
        path=f"{resource.host}:{resource.identity}",
        identity=resource.identity,
        pid=resource.pid,
        host=resource.host,
        program=resource.program,
        name=resource.name or resource.program,
        rank=int(resource.rank) if resource.rank else None,
        pipeline=resource.pipeline,
        clock=first.clock,
        unix_offset_ns=first.unix_offset_ns,
        columns=Columns(
            read,
            *as_rows(segments, names, resource.pipeline),  # earlier versions kept only this one
            links=numpy.array(links, _LINK),
            slowness=noted,
            complete_ns=0 if first.is_whole else 1 << 62,  # a time after all spans
        ),
        read_surroundings=lambda: around.surroundings,
    )
    around.recordings.append(source)
    return source


_LINK = [("span", "u8"), ("request", "u8"), ("size", "u4")]


def _rows(spans: list[Span], names: list[str]) -> NDArray[np.void]:
    """Return spans as a recording returns them, without the numbers of their requests."""
    numpy = imports.load("numpy")
    rows: NDArray[np.void] = numpy.zeros(len(spans), _core.spans().dtype)
    rows["device_queue_ns"] = rows["device_tail_ns"] = rows["cpu_ns"] = numpy.nan
    if not spans:
        return rows
    columns = dict(zip(Span._fields, zip(*spans, strict=True), strict=True))
    for name in _SAME_COLUMNS:
        rows[name] = columns[name]
    numbers = {name: i for i, name in enumerate(names)}
    rows["stage"] = [numbers[name] for name in columns["stage"]]
    kinds = numpy.array([KINDS.index(kind) for kind in columns["kind"]], numpy.int64)
    failed = numpy.array(columns["failed"], bool)
    rows["flags"] = kinds << _core.KIND_SHIFT | numpy.where(failed, _core.FLAG_ERROR, 0)
    for name in ("device_elapsed_ns", "cpu_ns"):
        rows[name] = numpy.array(columns[name], float)  # None is nan
    return rows


_SAME_COLUMNS = ("id", "parent", "thread", "begin_ns", "end_ns", "suspended_ns", "depth")


class _Around:
    """What all parts of a process say, whatever its clock was when they were read."""

    def __init__(self, surroundings: Surroundings | None) -> None:
        self.recordings: list[RequestSource] = []
        """What is kept of the process."""
        if surroundings is not None:
            self.surroundings = surroundings

    @cached_property
    def surroundings(self) -> Surroundings:
        """The medians of its stages, and when its requests were open."""
        numpy = imports.load("numpy")
        runs_ns: defaultdict[tuple[str, str], list[NDArray[np.int64]]] = defaultdict(list)
        batches: set[int] = set()
        for one in self.recordings:
            rows, names = one.spans(), one.stage_names()
            ids = rows["id"].tolist()
            is_known = numpy.array([id_ in batches for id_ in ids], bool)
            is_batch = kinds_of(rows) == BATCH
            rows = rows[~(is_batch & is_known)]
            batches.update(itertools.compress(ids, is_batch.tolist()))
            codes = kinds_of(rows) * len(names) + rows["stage"]
            for code in numpy.unique(codes).tolist():
                of_stage = rows[codes == code]
                key = KINDS[code // len(names)], names[code % len(names)]
                runs_ns[key].append(of_stage["end_ns"] - of_stage["begin_ns"])
        of_stages = {stage: numpy.concatenate(times) for stage, times in runs_ns.items()}
        medians_ns = {
            stage: float(quantile(sorted(times.tolist()), 0.5))
            for stage, times in of_stages.items()
            if len(times) > 1
        }
        rows = joined(one.segment_rows() for one in self.recordings)
        rows = rows[have_begun_here(rows)]
        ends_ns = first_known_ns(rows, "end_ns")
        times_ns = (
            first_known_ns(rows, "received_ns", "begin_ns", "end_ns"),
            numpy.where(ends_ns == 0, OPEN_NS, ends_ns),
        )
        return Surroundings(medians_ns, times_ns)


def recordings_of(
    parts: Iterable[_KeptPart], surroundings: Mapping[str, Surroundings] | None = None
) -> list[RequestSource]:
    """Return parts of requests as recordings, one for each process and reading of its clock.

    ``surroundings`` are given by process if only some requests were read. Parts that an exporter
    has written again, because an earlier one was killed, count once.
    """
    groups: dict[tuple[str, int, int, bool], dict[int, _KeptPart]] = {}
    seen: set[tuple[str, int]] = set()
    for part in parts:
        identity, number = part.resource.identity, part.segment["number"]
        if (identity, number) in seen:
            continue
        seen.add((identity, number))
        group = identity, part.clock, part.unix_offset_ns, part.is_whole
        groups.setdefault(group, {})[number] = part
    around = {
        identity: _Around(None if surroundings is None else surroundings.get(identity, _UNKNOWN))
        for identity, *_ in groups
    }
    return [_source_of(list(of.values()), around[group[0]]) for group, of in groups.items()]


class KeptRequests(NamedTuple):
    """The requests in folders."""

    recordings: list[RequestSource]
    total: int | None
    """How many requests have the id and the status, if only the slowest of them were read."""


def read(
    places: Mapping[str, Path], slowest: int, id_: str | None = None, status: str | None = None
) -> KeptRequests:
    """Return the requests that exporters of any machines have kept in folders or single files.

    ``places`` are their paths, each with the name that the user gave it.

    Of Parquet, only the ``slowest`` requests are read with an id that the regular expression
    ``id_`` matches and with the ``status``; of JSON lines all of them.

    Raises StagespanError if a folder has none, if a file is damaged or cannot be read, or if there
    are both kinds.
    """
    lines: list[tuple[str, Path]] = []
    tables: list[tuple[str, Path]] = []
    for name, place in places.items():
        files = _files_in(name, place)
        of_lines = [path for path in files if path.name.endswith(LINES_SUFFIX)]
        of_tables = [path for path in files if path.name.endswith(TABLES_SUFFIX)]
        if not of_lines and not of_tables:
            raise StagespanError(
                f"There are no kept requests in {name}: pass a folder that `stagespan export "
                "--keep` has written to."
            )
        lines += [(name, path) for path in of_lines]
        tables += [(name, path) for path in of_tables]
    if not tables:
        return KeptRequests(_recordings_in(", ".join(places), _parts_in(lines)), None)
    if lines:
        raise StagespanError(
            f"There are requests as JSON lines in {lines[0][0]}, and as Parquet in "
            f"{tables[0][0]}: pass folders of one kind at a time."
        )
    first = tables[0][0]
    selected = kept_parquet.select(first, [path for _, path in tables], slowest, id_, status)
    decoder = msgspec.json.Decoder(_KeptPart)
    parts = map(decoder.decode, selected.parts)
    recordings = _recordings_in(", ".join(places), parts, selected.surroundings)
    return KeptRequests(recordings, selected.total)


def _recordings_in(
    place: str,
    parts: Iterable[_KeptPart],
    surroundings: Mapping[str, Surroundings] | None = None,
) -> list[RequestSource]:
    try:
        return recordings_of(parts, surroundings)
    except (OverflowError, TypeError, ValueError) as error:  # of msgspec, of numpy, or a rank
        raise StagespanError(
            f"The kept requests in {place} are damaged, or of another version ({error})."
        ) from None


def _files_in(name: str, place: Path) -> list[Path]:
    """Return the files of kept requests in a folder, or the single file that ``place`` is.

    Raises StagespanError if the folder or one of the files cannot be read.
    """
    try:
        # Path.glob would return nothing for a folder that cannot be read.
        files = [place] if place.is_file() else sorted(place.iterdir())
        files = [path for path in files if path.name.startswith(PREFIX)]
        for path in files:
            if path.exists() and not os.access(path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise StagespanError(
            f"The kept requests in {name} cannot be read: {error.strerror}. Let the user who runs "
            "this command read the folder and its files."
        ) from None
    return files


def _parts_in(files: Iterable[tuple[str, Path]]) -> Iterator[_KeptPart]:
    decoder = msgspec.json.Decoder(_KeptRequest)
    for place, path in files:
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
                f"{path.name} in {place} is not a file of kept requests, or is damaged ({error}): "
                "remove it."
            ) from None
