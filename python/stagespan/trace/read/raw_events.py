"""Reads the events of a trace file as unchanged JSON, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from stagespan import _core
from stagespan.trace.read import json_repair as split
from stagespan.trace.read.reader import CHUNK_BYTES, ByteStream, EventReader

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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # Some part is not valid JSON or not an object, so take each entry separately.
    found: list[RawEvent] = []
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
