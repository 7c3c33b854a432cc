"""Reads a file of torch.profiler or torch_npu.profiler piece by piece, into columns or as JSON."""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import msgspec

from stagespan import _core
from stagespan.errors import NotJsonError, TraceError
from stagespan.process.files import what_it_is
from stagespan.trace.read import json_repair
from stagespan.trace.read.columns import gather
from stagespan.trace.read.model import Trace
from stagespan.trace.read.other_tools import what_bytes_are, what_events_are

CHUNK_BYTES = 512 << 10
_GZIP_MAGIC = b"\x1f\x8b"
_COMPRESSED_BYTES = 256 << 10


class ByteStream:
    """The decompressed bytes of a file. After reading, `damage` describes any problem."""

    def __init__(self, path: str | os.PathLike[str], chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = Path(path)
        self.damage: str | None = None
        """The problem of the compressed data, as the end of a sentence, or None."""
        self._chunk_bytes = chunk_bytes

    def chunks(self) -> Iterator[bytes]:
        """Yield the decompressed bytes in order. Raises TraceError if the file cannot be read."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                start = file.read(max(self._chunk_bytes, len(_GZIP_MAGIC)))
                if start[:2] == _GZIP_MAGIC:
                    pieces = self._gunzip(start, file)
                    # To unpack a small file takes less time than to start a thread.
                    is_small = os.fstat(file.fileno()).st_size < _COMPRESSED_BYTES
                    yield from pieces if is_small else _one_ahead(pieces)
                    return
                while start:
                    yield start
                    start = file.read(self._chunk_bytes)
        except IsADirectoryError:
            raise TraceError(
                f"{self.path} is a folder: pass one trace file (.json or .json.gz) in it."
            ) from None
        except FileNotFoundError:
            raise TraceError(f"There is no file {self.path}: check the path.") from None
        except OSError as error:
            raise TraceError(
                f"{self.path} cannot be read ({error.strerror or error}): check its permissions."
            ) from error
        except ValueError as error:  # the path contains a NUL
            raise TraceError(f"{str(self.path)!r} is not the path of a file: {error}.") from error

    def _gunzip(self, start: bytes, file: FileIO) -> Iterator[bytes]:
        member = zlib.decompressobj(wbits=31)
        data, started = start, False
        while True:
            if not data:
                data = file.read(_COMPRESSED_BYTES)
                if not data:
                    if started:
                        rest = member.flush()  # a full output buffer can hold back the last bytes
                        if rest:
                            yield rest
                        if not member.eof:
                            self.damage = "its gzip data is truncated"
                    return
            started = True
            try:
                out = member.decompress(data, self._chunk_bytes)
            except zlib.error as error:
                self.damage = f"its gzip data is damaged ({error})"
                return
            if out:
                yield out
            data = member.unconsumed_tail
            if member.eof:
                # More members can follow, or zeros that some writers use for padding.
                data = (member.unused_data or file.read(_COMPRESSED_BYTES)).lstrip(b"\0")
                member, started = zlib.decompressobj(wbits=31), False


def _one_ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces. Another thread creates the next one while a piece is in use."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="stagespan-gunzip") as thread:
        try:
            coming = thread.submit(next, pieces, None)
        except RuntimeError:  # no thread can be started while the interpreter shuts down
            yield from pieces
            return
        while (piece := coming.result()) is not None:
            coming = thread.submit(next, pieces, None)
            yield piece


# --- Reading ---


_BOM = b"\xef\xbb\xbf"
# What may be before the text, which is not a part of it.
_BLANKS = re.compile(b"(?:" + _BOM + rb")?\s*")
_WINDOW_BYTES = 1024
_MALFORMED = "malformed entry"
# The text before the list of events.
_HEAD = re.compile(rb'"(?:traceEvents|schemaVersion|distributedInfo|deviceProperties)"\s*:')
MOST_BYTES = 64 << 20
"""The most bytes of one entry, of the text before the list of events, and of the text after it.

No profiler writes as much, but a small compressed file can contain any number of bytes.
"""
_MOST_KEYS = 1_000
_MOST_HEADS = 16
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_trace(path: str | os.PathLike[str], *, chunk_bytes: int = CHUNK_BYTES) -> Trace:
    """Read a trace file, `.json` or gzip (by its content), into columns; times in integer ns.

    The list of events may be at the top level or under `traceEvents`. Times may be numbers or
    strings. `Trace.left_out` counts entries that cannot become a row, `Trace.adjusted` counts
    entries that were changed to become one. All whole entries of a truncated file are read, and
    `Trace.incomplete` says that it is truncated. Memory use is that of the columns and of
    `chunk_bytes` of JSON at a time, at most a few times `MOST_BYTES`.

    Raises TraceError, with a sentence that says what to do, if the file does not exist, or if it is
    a folder, empty, not JSON, not a trace, of another tool, cut off before its first whole event,
    or too large for the memory.
    """
    try:
        scanner = _core.TraceScanner()
        reader = EventReader(ByteStream(path, chunk_bytes), scanner)
        is_closed = reader.read_events()
        broken = reader.read_tail() if is_closed else None
        return _finished(reader, scanner, is_closed, broken)
    except MemoryError:
        raise TraceError(
            f"{path} needs more memory than there is: record fewer steps, or read it on a machine"
            " with more memory."
        ) from None


class EventScanner(Protocol):
    """Takes the entries of the list of events, as `TraceScanner` does."""

    def scan(self, buffer: bytes, start: int) -> tuple[int, int]:
        """Scan the complete entries of `buffer` from `start` on.

        Returns the begin of the first entry that was not scanned, and the reason: `SCAN_MORE`,
        `SCAN_ODD` or `SCAN_CLOSED`.
        """

    def leave_out(self, cause: str, count: int) -> None:
        """Count entries that could not be scanned."""


class EventReader:
    """Finds the list of events in a trace file, and passes its text to a scanner.

    The methods raise TraceError like `read_trace`.
    """

    def __init__(self, stream: ByteStream, scanner: EventScanner) -> None:
        self.stream = stream
        self.metadata: dict[str, Any] = {}
        """The values next to the list of events."""
        self.adjusted: Counter[str] = Counter()
        """The number of changes that made the text valid JSON, by cause."""
        self.problem: str | None = None
        """Why reading stopped before the end of the events, or None."""
        self._scanner = scanner
        self._chunks = stream.chunks()
        self._buffer = b""
        self._ended = False
        self._in_object = False
        self._names_right_to = 0
        """The position in the buffer up to which quotes in names are escaped."""
        self._window = _WINDOW_BYTES
        """The number of bytes ahead in which such quotes are searched."""
        self._behind = 0
        """The number of bytes of the file that are no longer in the buffer."""
        self._added: list[tuple[int, int]] = []
        """Positions in the buffer at which bytes were added, and their numbers."""
        self.damaged_at: int | None = None
        """The position in the file of the first entry that is damaged, or None."""
        self.damaged = 0
        """The number of these entries."""
        self.second_at: int | None = None
        """The position in the file at which another trace begins among the events, or None."""

    def read_events(self) -> bool:
        """Read to the end of the list of events; False if the file ends before it."""
        self._in_object = self._first_character() == b"{"
        return self._scan_events(self._read_head() if self._in_object else 1)

    def _discard(self, count: int) -> None:
        """Remove bytes from the begin of the buffer."""
        self._buffer = self._buffer[count:]
        self._behind = self._position(count)
        self._added = [(at - count, size) for at, size in self._added if at >= count]
        self._names_right_to = max(self._names_right_to - count, 0)

    def _position(self, at: int) -> int:
        """Return the position in the (decompressed) file of a position in the buffer."""
        return self._behind + at - sum(size for place, size in self._added if place < at)

    def _more(self) -> bool:
        """Read more of the file into the buffer. Returns False at the end.

        Reads one chunk, or as much as half of the remaining buffer, so that an entry of many chunks
        is not scanned again for each chunk.
        """
        # Without an empty piece, one chunk is not copied.
        pieces, grown = [self._buffer] if self._buffer else [], 0
        while not self._ended and grown <= len(self._buffer) // 2:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._ended = True
            else:
                pieces.append(chunk)
                grown += len(chunk)
        self._buffer = b"".join(pieces)
        return grown > 0

    def _first_character(self) -> bytes:
        while True:
            self._discard(next(_BLANKS.finditer(self._buffer)).end())
            text = self._buffer[:64]
            if text and text != _BOM[: len(text)]:
                break
            if not self._more():
                if self.stream.damage:
                    raise TraceError(f"{self._where} cannot be read: {self.stream.damage}.")
                raise TraceError(f"{self._where} is empty: export the trace again.")
        if (other := what_bytes_are(self.stream.path, text)) is not None:
            raise TraceError(f"{self._where} is {other}.")
        if (other := what_it_is(text)) is not None:
            raise TraceError(f"{self._where} is not JSON but {other}.")
        if text[:1] not in b"{[":
            raise NotJsonError(
                f"{self._where} is not JSON (it begins with {text[:12]!r}): pass the .json or"
                " .json.gz that the profiler exported."
            )
        return text[:1]

    def _read_head(self) -> int:
        """Read the text before the list of events, and return where in the buffer that begins."""
        start, keys, tried, depths = 0, 0, 0, json_repair.Depths()
        while True:
            events_at = json_repair.events_key(self._buffer, start)
            keys += events_at is not None
            if (events_at is None and len(self._buffer) > MOST_BYTES) or keys > _MOST_KEYS:
                raise TraceError(
                    f"{self._where} is not a trace: its first {MOST_BYTES >> 20} MiB contain no "
                    f"list `traceEvents` at the top level. Pass the file that the profiler "
                    f"exported."
                )
            if events_at is None:
                # The end of the chunk may split the key.
                start = max(start, len(self._buffer) - 64)
                if self._more():
                    continue
                raise TraceError(self._why_no_events())
            key, value, is_list = events_at
            head = None
            if depths.at(self._buffer, key) == 1 and tried < _MOST_HEADS:
                tried += 1
                head = _decode_object(self._buffer[:key] + b'"":null}')
            if head is None:  # this key is inside another value
                start = key + 1
                continue
            if not is_list:
                raise TraceError(f"{self._where} is not a trace: its `traceEvents` is not a list.")
            del head[""]
            self.metadata = head
            return value + 1

    def _why_no_events(self) -> str:
        try:
            msgspec.json.decode(self._buffer)
        except _UNDECODABLE as error:
            if self.stream.damage:
                return f"{self._where} cannot be read: {self.stream.damage} before its events."
            return (
                f"{self._where} is truncated or not JSON, and no `traceEvents` was found in it"
                f" ({error}): export the trace again."
            )
        return (
            f"{self._where} is JSON but not a trace: it has no `traceEvents`."
            " Pass the file that the profiler exported."
        )

    def _scan_events(self, at: int) -> bool:
        while True:
            at, state = self._scanner.scan(self._buffer, at)
            if state == _core.SCAN_ODD:
                after = self._read_invalid(at)
                if after is not None:
                    at = after
                    continue
            self._discard(at)
            at = 0
            if state == _core.SCAN_CLOSED:
                return True
            if len(self._buffer) > MOST_BYTES:
                self.problem = f"its next entry is longer than {MOST_BYTES >> 20} MiB"
                return False
            if not self._more():
                return False

    def _read_invalid(self, at: int) -> int | None:
        """Correct the entry that begins at `at`, or skip it; return where to continue.

        Returns None if the end of the entry is not in the buffer yet.
        """
        # If such names are close together, many are corrected at once, otherwise only this one.
        close = at - self._names_right_to < self._window
        self._window = min(self._window * 2, len(self._buffer)) if close else _WINDOW_BYTES
        if self._escape_names(at, self._window) or self._escape_names(at, len(self._buffer)):
            return at
        end = json_repair.entry_end(self._buffer, at)
        # A quote too many or too few hides where the entry ends.
        last = len(self._buffer) if end is None else end
        following = json_repair.next_entry(self._buffer, at + 1, last)
        end = end if following is None else following
        if end is not None:
            self._scanner.leave_out(_MALFORMED, 1)
            self.damaged += 1
            if self.damaged_at is None:
                self.damaged_at = self._position(at)
            if self.second_at is None:
                found = _HEAD.search(self._buffer, at, end)
                self.second_at = None if found is None else self._position(found.start())
        return end

    def _escape_names(self, at: int, window: int) -> bool:
        """Escape quotes in names from `at` on. Returns whether there were any."""
        start = max(at, self._names_right_to)
        self._buffer, changes, self._names_right_to = json_repair.with_quotes_in_names_escaped(
            self._buffer, start, start + window
        )
        if changes:
            self._added += changes
            self.adjusted["quotes in a name that were not escaped"] += len(changes)
        return bool(changes)

    def read_tail(self) -> str | None:
        """Read the text after the list of events.

        Returns a clause about a problem of the text, or None.
        """
        while self._more():
            # There may be many blanks at the end, which are ignored.
            if len(self._buffer) > MOST_BYTES // 2:
                self._buffer = self._buffer.strip()
            if len(self._buffer) > MOST_BYTES:
                return f"the text after its events is longer than {MOST_BYTES >> 20} MiB"
        behind = self._buffer.strip()
        if not self._in_object:
            return "there is text after its list of events" if behind else None
        tail = _decode_object(b'{"":null' + behind)
        if tail is None:
            second = _HEAD.search(self._buffer, self._buffer.find(b"}") + 1)
            if second is not None:
                at = self._position(second.start())
                return f"a second trace begins at byte {at}, which is not read"
            return "the text after its events is truncated or not JSON"
        del tail[""]
        again = tail.pop("traceEvents", None)
        if again is not None:
            count = len(again) if isinstance(again, list) else 1
            self._scanner.leave_out("entry of a second `traceEvents`", count)
        self.metadata.update(tail)
        return None

    @property
    def _where(self) -> str:
        return str(self.stream.path)


def _finished(
    reader: EventReader, scanner: _core.TraceScanner, is_closed: bool, broken: str | None
) -> Trace:
    """Return the trace. Raises TraceError if the file is not a trace."""
    path, damage = str(reader.stream.path), reader.stream.damage
    count, problem = scanner.total, broken
    if not is_closed:
        problem = reader.problem or damage or "the file ends in the middle of its events"
        if reader.damaged_at is not None:
            problem = f"{_damaged(reader)}, and {problem}"
        if count == 0:
            raise TraceError(
                f"{path} has no complete event ({problem}): export it again."
                if reader.problem
                else f"{path} is truncated before its first event ({problem}): export it again."
            )
    elif damage:
        problem = damage
    elif reader.damaged_at is not None:
        problem = _damaged(reader)
    if count and count == reader.damaged:
        raise TraceError(
            f"{path} contains no event that can be read: {_damaged(reader)}. Export it again."
        )
    if count and not scanner.looks_like_a_trace:
        raise TraceError(
            f"{path} is JSON but not a trace: none of its {count} entries is an event, an object "
            f"with a name, a phase and a time."
        )
    incomplete = None
    if problem:
        whole = count - reader.damaged
        incomplete = f"{path} is incomplete: {problem}; the {whole} complete entries were read."
    trace = gather(scanner, path, reader.metadata, reader.adjusted, incomplete)
    if (other := what_events_are(trace)) is not None:
        raise TraceError(f"{path} is {other}.")
    return trace


def _damaged(reader: EventReader) -> str:
    """Return a clause about damaged entries among the events."""
    count = reader.damaged
    clause = f"it is damaged at byte {reader.damaged_at}"
    if count > 1:
        clause += f" and at {count - 1:,} more {'place' if count == 2 else 'places'}"
    if reader.second_at is not None:
        clause += (
            f", and another trace begins at byte {reader.second_at}, as if several ranks wrote"
            " into this file"
        )
    return clause


def _decode_object(text: bytes) -> dict[str, Any] | None:
    for attempt in (text, None):
        try:
            value = msgspec.json.decode(json_repair.repaired(text) if attempt is None else attempt)
        except _UNDECODABLE:
            continue
        return value if isinstance(value, dict) else None
    return None


# --- Events as unchanged JSON ---


RawEvent = dict[str, msgspec.Raw]
_entries = msgspec.json.Decoder(list[RawEvent])
_entry = msgspec.json.Decoder(RawEvent)


def copy_raw_events(path: Path, take: Callable[[list[RawEvent]], None]) -> None:
    """Pass all complete entries to `take`, in pieces and in order.

    Raises TraceError like `read_trace`.
    """
    EventReader(ByteStream(path, CHUNK_BYTES), _Tap(take)).read_events()


class _Tap:
    """Passes the text of complete entries to `take`."""

    def __init__(self, take: Callable[[list[RawEvent]], None]) -> None:
        self._take = take

    def scan(self, buffer: bytes, start: int) -> tuple[int, int]:
        """Do the same as `TraceScanner.scan`, but discard its columns at once."""
        behind, state = _core.TraceScanner().scan(buffer, start)
        piece = buffer[start:behind].strip(b" \t\r\n,")
        if state == _core.SCAN_CLOSED:
            piece = piece.removesuffix(b"]").rstrip(b" \t\r\n,")
        if piece:
            self._take(_decoded(piece))
        return behind, state

    def leave_out(self, cause: str, count: int) -> None:
        """Do nothing, because `read_trace` counts these entries."""


def _decoded(piece: bytes) -> list[RawEvent]:
    try:
        return _entries.decode(b"[" + piece + b"]")
    except _UNDECODABLE:
        pass
    # Some part is not valid JSON or not an object, so take each entry separately.
    decoded: list[RawEvent] = []
    at = 0
    while (begin := piece.find(b"{", at)) >= 0:
        end = json_repair.entry_end(piece, begin)
        if end is None:
            break
        for text in (piece[begin:end], json_repair.repaired(piece[begin:end])):
            try:
                decoded.append(_entry.decode(text))
                break
            except _UNDECODABLE:
                continue
        at = end
    return decoded
