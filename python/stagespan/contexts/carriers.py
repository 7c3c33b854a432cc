"""The dict of short texts that takes a request to another process.

It has the keys of W3C Trace Context, ``traceparent`` and ``tracestate``, and one key of our own,
``stagespan``. Its values are printable ASCII in lower case, so that HTTP headers, gRPC metadata and
pickled objects can carry it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from stagespan.process.imports import importing

KEYS = ("traceparent", "tracestate", "stagespan")
MOST_OWN_BYTES = 256
MOST_STATE_CHARACTERS = 2048
MOST_ATTEMPT = 65_535
_VERSION = "1"
_MOST_ID = 96
_MOST_QUEUE = 40
_MOST_BRANCH = 16
_MOST_TEXT_BYTES = 4 * _MOST_ID
# Later versions of the header may have more fields.
_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?",
    re.ASCII,
)
_STATE = re.compile(r"[ -~\t]*", re.ASCII)
_TEXT = "[0-9a-z._~%-]*"
_OWN = re.compile(
    rf"{_VERSION};({_TEXT});([0-9a-f]{{16}});([0-9a-f]{{16}});([0-9a-f]{{16}});([0-9a-f]{{16}});"
    rf"({_TEXT});([0-9]{{1,5}});({_TEXT})",
    re.ASCII,
)
_NOT_PLAIN = re.compile(r"[^0-9a-z._~-]", re.ASCII)
_LAST_CHARACTER = re.compile(
    r"(?:%[c-f][0-9a-f](?:%[89ab][0-9a-f]){0,3})?(?:%[0-9a-f]?)?\Z", re.ASCII
)


class Parent(NamedTuple):
    """What a ``traceparent`` says."""

    trace_id: str
    hop: int
    flags: int


class Sent(NamedTuple):
    """What the key ``stagespan`` says of a hop."""

    id: str
    monotonic_ns: int
    unix_ns: int
    clock: int
    """The identity of the sender's CLOCK_MONOTONIC."""
    segment: int
    queue: str
    attempt: int
    branch: str


def parent_in(text: object) -> Parent | None:
    """Return what a ``traceparent`` says; None if it is missing or malformed."""
    if not isinstance(text, str) or len(text) > MOST_OWN_BYTES:
        return None
    found = _PARENT.fullmatch(text.strip(" \t"))
    if found is None or (found[1] == "00" and found[5] is not None):
        return None
    return Parent(found[2], int(found[3], 16), int(found[4], 16))


def state_in(text: object) -> str:
    """Return a ``tracestate`` as it is to be passed on; empty if it cannot be."""
    if not isinstance(text, str) or len(text) > MOST_STATE_CHARACTERS or not _STATE.fullmatch(text):
        return ""
    return text


def sent_in(text: object) -> Sent | None:
    """Return what our own key says; None if it is missing, malformed or of another version."""
    if not isinstance(text, str) or len(text) > MOST_OWN_BYTES:
        return None
    found = _OWN.fullmatch(text)
    if found is None:
        return None
    id_, monotonic, unix, clock, segment, queue, attempt, branch = found.groups()
    times = int(monotonic, 16), int(unix, 16)
    if max(times) >= 1 << 62 or not 1 <= int(attempt) <= MOST_ATTEMPT:
        return None
    texts = _decoded(id_), _decoded(queue), _decoded(branch)
    if None in texts:
        return None
    return Sent(
        texts[0] or "",
        *times,
        int(clock, 16),
        int(segment, 16),
        texts[1] or "",
        int(attempt),
        texts[2] or "",
    )


def own_text(sent: Sent) -> str:
    """Return our own key's text, of at most 256 bytes."""
    return (
        f"{_VERSION};{_encoded(sent.id, _MOST_ID)};{sent.monotonic_ns:016x};{sent.unix_ns:016x};"
        f"{sent.clock:016x};{sent.segment:016x};{_encoded(sent.queue, _MOST_QUEUE)};"
        f"{sent.attempt};{_encoded(sent.branch, _MOST_BRANCH)}"
    )


def taken_from(carrier: Any) -> dict[str, str]:
    """Return the keys of a carrier that belong to a request, with names in lower case.

    A carrier is a mapping, or pairs of names and values, of str or bytes. A key that occurs twice
    with different values is left out.
    """
    if carrier is None:
        return {}
    if isinstance(carrier, Mapping):
        pairs: Iterable[Any] = carrier.items()
        plain = {key: carrier[key] for key in KEYS if key in carrier}
        # The usual carrier has the keys as `inject` wrote them.
        if plain and all(isinstance(value, str) for value in plain.values()):
            return plain
    elif isinstance(carrier, Iterable) and not isinstance(carrier, (str, bytes)):
        pairs = carrier
    else:
        raise TypeError(
            f"extract() takes a mapping, or pairs of names and values, not {type(carrier).__name__}"
        )
    found: dict[str, str] = {}
    twice = set()
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            continue
        name, value = _text(pair[0]).lower(), _text(pair[1])
        if name not in KEYS:
            continue
        if name == "tracestate" and name in found:
            found[name] += f",{value}"  # as HTTP joins headers
        elif found.setdefault(name, value) != value:
            twice.add(name)
    return {name: value for name, value in found.items() if name not in twice}


def _text(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("latin-1")
    return value if isinstance(value, str) else ""


def _encoded(text: str, most: int) -> str:
    """Return a text percent-encoded; cut, and ended by a hash of the whole, if it is too long."""
    if not _NOT_PLAIN.search(text) and len(text) <= most:
        return text
    raw = text.encode("utf-8", "backslashreplace")
    encoded = _NOT_PLAIN.sub(_percent, raw[: most + 1].decode("latin-1"))
    if len(encoded) <= most:
        return encoded
    with importing():
        import hashlib
    end = "~" + hashlib.blake2b(raw, digest_size=min(8, most // 4)).hexdigest()
    cut = encoded[: most - len(end)]
    # Not in the middle of a character: the last one is left out if it has several bytes.
    return _LAST_CHARACTER.sub("", cut) + end


def _percent(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02x}"


def _decoded(text: str) -> str | None:
    if "%" not in text:
        return text
    parts = text.split("%")
    try:
        raw = parts[0].encode() + b"".join(
            bytes([int(part[:2], 16)]) + part[2:].encode() for part in parts[1:]
        )
        return raw.decode()
    except ValueError:
        return None
