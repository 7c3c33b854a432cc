"""The entries of a trace as they stand in the file, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from stagespan import _core
from stagespan.trace import split
from stagespan.trace.reader import _Reader
from stagespan.trace.stream import CHUNK_BYTES, ByteStream

Entry = dict[str, msgspec.Raw]
_entries = msgspec.json.Decoder(list[Entry])
_entry = msgspec.json.Decoder(Entry)


def copy_entries(path: Path, take: Callable[[list[Entry]], None]) -> None:
    """Give all whole entries to `take`, in pieces and in their order.

    `path` is a file or an Ascend result folder. Raises TraceError as `read_trace` does.
    """
    _Copying(ByteStream(_file_of(path), CHUNK_BYTES), take).copy()


def _file_of(path: Path) -> Path:
    """The file with the events of a path that may be a result folder."""
    if not path.is_dir():
        return path
    from stagespan.trace.ascend.folder import OUTPUT, TRACE

    named = [below / f"{TRACE}{end}" for below in (path, path / OUTPUT) for end in ("", ".gz")]
    return next((file for file in named if file.is_file()), named[0])


class _Tap:
    """A scanner of which only what it takes for whole entries is of use."""

    def __init__(self, take: Callable[[list[Entry]], None]) -> None:
        self._take = take
        self.total = 0
        self.looks_like_a_trace = True

    def scan(self, buffer: bytes, start: int) -> tuple[int, int]:
        """As `TraceScanner.scan`; its columns are dropped at once."""
        behind, state = _core.TraceScanner().scan(buffer, start)
        piece = buffer[start:behind].strip(b" \t\r\n,")
        if state == _core.SCAN_CLOSED:
            piece = piece.removesuffix(b"]").rstrip(b" \t\r\n,")
        if piece:
            self._take(_decoded(piece))
        return behind, state

    def leave_out(self, cause: str, count: int) -> None:
        """Counted where the trace was read for its figures."""


class _Copying(_Reader):
    def __init__(self, stream: ByteStream, take: Callable[[list[Entry]], None]) -> None:
        super().__init__(stream)
        self._scanner = _Tap(take)  # type: ignore[assignment]

    def copy(self) -> None:
        """Read all of the file."""
        if self._first_character() == b"{":
            self._read_head()
        else:
            self._buffer = self._buffer[1:]
        self._read_events()


def _decoded(piece: bytes) -> list[Entry]:
    try:
        return _entries.decode(b"[" + piece + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # Something in it is not quite JSON, or no object: take each entry by itself.
    found: list[Entry] = []
    at = 0
    while (begin := piece.find(b"{", at)) >= 0:
        end = split.entry_end(piece, begin)
        if end is None:
            break
        for text in (piece[begin:end], split.repaired(piece[begin:end])):
            try:
                found.append(_entry.decode(text))
                break
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
        at = end
    return found
