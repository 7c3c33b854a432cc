"""Where the entries of a JSON list begin and end, without decoding them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_NEXT_ENTRY = re.compile(rb"\}\s*,\s*\{")
_STRAY = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[^\s,]+', re.DOTALL)
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(\[|[^\s\[])')

_WORD_OR_STRING = re.compile(
    rb'("[^"\\]*(?:\\.[^"\\]*)*")|-?\b(?:nan|inf|infinity)\b', re.DOTALL | re.IGNORECASE
)
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\', re.DOTALL)
_SURROGATE = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
# Kineto writes names without escaping the quotes in them. Such a name ends at the quote behind
# which the object ends, another key follows, or the line ends: names hold no line feeds.
_NAME = re.compile(
    rb"""("name":[ ]?")((?:[^"\\\n]|\\[^\n]|"(?!\s*(?:\}|,\s*"[^"\n]+"\s*:|,?[ \t]*$)))*)(?=")""",
    re.MULTILINE,
)
_BARE_QUOTE = re.compile(rb'(\\.)|"')
_CONTROLS = bytes(range(32))


def likely_boundary(buffer: bytes | bytearray) -> int:
    """Just behind the last `}` that is followed by `, {`, or -1.

    It may lie within an entry: it is a true boundary exactly when what stands before it, closed by
    `]`, is valid JSON, because a cut within a string or an object never is.
    """
    at = len(buffer)
    while (at := buffer.rfind(b"}", 0, at)) >= 0:
        if _NEXT_ENTRY.match(buffer, at):
            return at + 1
    return -1


def events_key(buffer: bytes | bytearray, start: int) -> tuple[int, int, bool] | None:
    """The next `"traceEvents":`: where it begins, where its value does, and if that is a list."""
    found = _EVENTS_KEY.search(buffer, start)
    return None if found is None else (found.start(), found.start(1), found[1] == b"[")


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan of a part of a list found."""

    entries: list[tuple[int, int]]
    """Begin and end of each whole object in the list."""
    strays: int
    """Values between the objects that are no objects."""
    closed_at: int
    """Just behind the `]` that ends the list, or -1."""
    rest: int
    """Where what is not part of a whole entry begins."""


def scan(buffer: bytes | bytearray) -> Scan:
    """Follow strings and brackets from a position within a list, before an entry."""
    entries: list[tuple[int, int]] = []
    depth, begin, rest, strays = 0, 0, 0, 0
    for token in _TOKEN.finditer(buffer):
        text = token[0]
        if text in b"{[":
            if depth == 0:
                strays += _strays(buffer, rest, token.start())
                begin = token.start()
            depth += 1
        elif text in b"}]":
            if depth == 0:
                strays += _strays(buffer, rest, token.start())
                if text == b"]":
                    return Scan(entries, strays, token.end(), token.end())
                strays += 1
                rest = token.end()
                continue
            depth -= 1
            if depth == 0:
                rest = token.end()
                entries.append((begin, rest))
        elif text == b'"':  # a string that does not end here
            break
    return Scan(entries, strays, -1, rest)


def _strays(buffer: bytes | bytearray, begin: int, end: int) -> int:
    return sum(1 for _ in _STRAY.finditer(buffer, begin, end))


def with_quotes_in_names_escaped(buffer: bytes | bytearray) -> tuple[bytes, int]:
    """The buffer with quotes within names escaped, and how many names that changed.

    Only whole lines are looked at: of a part one cannot tell where a name in it ends.
    """
    changed = 0
    lines = buffer.rfind(b"\n") + 1

    def escape(found: re.Match[bytes]) -> bytes:
        nonlocal changed
        if b'"' not in found[2]:
            return found[0]
        name = _BARE_QUOTE.sub(lambda quote: quote[1] or rb"\"", found[2])
        changed += name != found[2]
        return found[1] + name

    return _NAME.sub(escape, buffer[:lines]) + buffer[lines:], changed


def repaired(entry: bytes) -> bytes:
    """An entry with what writers are known to get wrong set right.

    NaN and Infinity become null; bytes that are no UTF-8, control characters, bad escapes and
    halves of surrogate pairs become something that JSON allows.
    """
    text = entry.decode("utf-8", "replace").encode()
    text = text.translate(bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS)))
    text = _WORD_OR_STRING.sub(lambda found: found[1] or b"null", text)
    text = _ESCAPE.sub(lambda found: found[0] if len(found[0]) > 1 else b"\\\\", text)
    return _SURROGATE.sub(lambda found: found[1] or rb"\ufffd", text)
