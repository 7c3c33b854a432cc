"""The key `stagespan` of a carrier, written and read without the package."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote


class Sent(NamedTuple):
    """What the key says of a hop."""

    id: str = "r-1"
    monotonic_ns: int = 5_000
    unix_ns: int = 6_000
    clock: int = 7
    segment: int = 8
    queue: str = "decode"
    attempt: int = 1
    branch: str = ""
    age: int | None = None
    """In ns; None in a text of version 1."""


def own_text(sent: Sent) -> str:
    """Return the key's text."""
    numbers = ";".join(f"{number:016x}" for number in sent[1:5])
    texts = [_encoded(text) for text in (sent.id, sent.queue, sent.branch)]
    own = f"{texts[0]};{numbers};{texts[1]};{sent.attempt};{texts[2]}"
    return f"1;{own}" if sent.age is None else f"2;{own};{sent.age:016x}"


def sent_in(text: str) -> Sent:
    """Return what a key says that `inject` has written."""
    version, id_, *rest = text.split(";")
    assert version == "2"
    numbers, (queue, attempt, branch, *age) = rest[:4], rest[4:]
    assert [len(number) for number in age] in ([], [16])
    assert [len(number) for number in numbers] == [16] * 4
    return Sent(
        unquote(id_, errors="strict"),
        *(int(number, 16) for number in numbers),
        unquote(queue, errors="strict"),
        int(attempt),
        unquote(branch, errors="strict"),
        int(age[0], 16) if age else None,
    )


def _encoded(text: str) -> str:
    plain = "0123456789abcdefghijklmnopqrstuvwxyz._~-"
    return "".join(
        c if c in plain else "".join(f"%{byte:02x}" for byte in c.encode()) for c in text
    )


def other_members(state: str | None) -> list[str]:
    """Return the members of a `tracestate` but our own one, which must be the first."""
    members = [one.strip(" \t") for one in (state or "").split(",")]
    assert not any(one.startswith("stagespan=") for one in members[1:])
    is_own = re.fullmatch("stagespan=[0-9a-f]{16}", members[0]) is not None
    return [one for one in members[is_own:] if one]
