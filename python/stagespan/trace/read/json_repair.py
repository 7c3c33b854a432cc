"""Find the end of entries that are not valid JSON, and repair them."""

from __future__ import annotations

import re

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
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
    for token in _TOKEN.finditer(buffer, start):
        text = token[0]
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
            if depth == 0:
                return token.end()
        elif text == b'"':  # the string does not end in the buffer
            return None
    return None


def with_quotes_in_names_escaped(buffer: bytes, start: int, end: int) -> tuple[bytes, int, int]:
    """Return the buffer with quotes inside names escaped, the number of names, and the end.

    Changes only whole lines, from `start` to the line that contains `end`: in a part of a line, the
    end of a name is unknown.
    """
    changed = 0
    lines = (buffer.find(b"\n", end) if end < len(buffer) else -1) + 1
    if lines == 0:
        lines = buffer.rfind(b"\n") + 1

    def escape(found: re.Match[bytes]) -> bytes:
        nonlocal changed
        if b'"' not in found[2]:
            return found[0]
        name = _BARE_QUOTE.sub(lambda quote: quote[1] or rb"\"", found[2])
        changed += name != found[2]
        return found[1] + name

    if lines <= start:
        return buffer, 0, start
    right = _NAME.sub(escape, buffer[start:lines])
    return b"".join((buffer[:start], right, buffer[lines:])), changed, start + len(right)


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
