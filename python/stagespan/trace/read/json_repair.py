"""Find the end of entries that are not valid JSON, and repair them."""

from __future__ import annotations

import itertools
import re

import msgspec

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
# The same, with the brackets next to each other in one token.
_RUN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|"|[{\[]+|[}\]]+', re.DOTALL)
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(\[|[^\s\[])')

_WORD_OR_STRING = re.compile(
    rb'("[^"\\]*(?:\\.[^"\\]*)*")|-?\b(?:nan|inf|infinity)\b', re.DOTALL | re.IGNORECASE
)
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\', re.DOTALL)
_SURROGATE = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
# Kineto writes names without escaping the quotes in them. Such a name ends at the quote after
# which the object ends, another key follows, or the line ends: names contain no line feeds.
_NAME = re.compile(
    rb"""("name":[ ]?")((?:[^"\\\n]|\\[^\n]|"(?!\s*(?:\}|,\s*"[^"\n]+"\s*:|,?[ \t]*$)))*)(?=")""",
    re.MULTILINE,
)
_BARE_QUOTE = re.compile(rb'(\\.)|"')
_CONTROLS = bytes(range(32))
# The begin of an entry that follows another object, and the number of these that are tried.
_NEXT_ENTRY = re.compile(rb'\}\s*,\s*(?=\{\s*"[^"\n]{1,40}"\s*:)\{')
_MOST_TRIES = 64


def events_key(buffer: bytes | bytearray, start: int) -> tuple[int, int, bool] | None:
    """Find the next `"traceEvents":`. Returns its begin, that of its value, and if it is a list."""
    found = _EVENTS_KEY.search(buffer, start)
    return None if found is None else (found.start(), found.start(1), found[1] == b"[")


class Depths:
    """Computes the bracket depth at ascending positions of a buffer."""

    def __init__(self) -> None:
        self._at = 0
        self._depth = 0

    def at(self, buffer: bytes, place: int) -> int:
        """Return the depth at a position outside of strings."""
        while self._at < place:
            token = _TOKEN.search(buffer, self._at, place)
            if token is None:
                self._at = place
                break
            self._depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
            self._at = token.end()
        return self._depth


def entry_end(buffer: bytes, start: int) -> int | None:
    """Return the end of the list's entry that begins at `start`, using only brackets and strings.

    None if it does not end in the buffer.
    """
    depth = 0
    for token in _RUN.finditer(buffer, start):
        text = token[0]
        if text[:1] in b"{[":
            depth += len(text)
        elif text[:1] in b"}]":
            if 0 < depth <= len(text):
                return token.start() + depth
            depth -= len(text)
        elif text == b'"':  # the string does not end in the buffer
            return None
    return None


def next_entry(buffer: bytes, start: int, end: int) -> int | None:
    """Return the begin of the first entry after a damaged one, between two positions.

    This is an event that follows another object. None if there is none that ends in the buffer.
    """
    for found in itertools.islice(_NEXT_ENTRY.finditer(buffer, start, end), _MOST_TRIES):
        begin = found.end() - 1
        stop = entry_end(buffer, begin)
        if stop is None:
            continue
        try:
            entry = msgspec.json.decode(buffer[begin:stop])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(entry.get("ph"), str):
            return begin
    return None


def with_quotes_in_names_escaped(
    buffer: bytes, start: int, end: int
) -> tuple[bytes, list[tuple[int, int]], int]:
    """Return the buffer with quotes inside names escaped, the changes, and the end.

    Each change is the position of a name in the new buffer, and how many bytes were added to it.
    Changes only whole lines, from `start` to the line that contains `end`: in a part of a line, the
    end of a name is unknown.
    """
    changes: list[tuple[int, int]] = []
    grown = 0
    lines = (buffer.find(b"\n", end) if end < len(buffer) else -1) + 1
    if lines == 0:
        lines = buffer.rfind(b"\n") + 1

    def escape(match: re.Match[bytes]) -> bytes:
        nonlocal grown
        if b'"' not in match[2]:
            return match[0]
        name = _BARE_QUOTE.sub(lambda quote: quote[1] or rb"\"", match[2])
        added = len(name) - len(match[2])
        if added:
            changes.append((start + match.start(2) + grown, added))
            grown += added
        return match[1] + name

    if lines <= start:
        return buffer, [], start
    right = _NAME.sub(escape, buffer[start:lines])
    return b"".join((buffer[:start], right, buffer[lines:])), changes, start + len(right)


def repaired(entry: bytes) -> bytes:
    """Return an entry with the known errors of writers corrected.

    NaN and Infinity become null; bytes that are not UTF-8, control characters, bad escapes and
    halves of surrogate pairs become something that JSON allows.
    """
    text = entry.decode("utf-8", "replace").encode()
    text = text.translate(bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS)))
    text = _WORD_OR_STRING.sub(lambda found: found[1] or b"null", text)
    text = _ESCAPE.sub(lambda found: found[0] if len(found[0]) > 1 else b"\\\\", text)
    return _SURROGATE.sub(lambda found: found[1] or rb"\ufffd", text)
