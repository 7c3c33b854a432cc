"""The key `stagespan` of a carrier, written and read without the package."""

from __future__ import annotations

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


def own_text(sent: Sent) -> str:
    """Return the key's text."""
    numbers = ";".join(f"{number:016x}" for number in sent[1:5])
    texts = [_encoded(text) for text in (sent.id, sent.queue, sent.branch)]
    return f"1;{texts[0]};{numbers};{texts[1]};{sent.attempt};{texts[2]}"


def sent_in(text: str) -> Sent:
    """Return what a key says that `inject` has written."""
    version, id_, *numbers, queue, attempt, branch = text.split(";")
    assert version == "1"
    assert [len(number) for number in numbers] == [16] * 4
    return Sent(
        unquote(id_, errors="strict"),
        *(int(number, 16) for number in numbers),
        unquote(queue, errors="strict"),
        int(attempt),
        unquote(branch, errors="strict"),
    )


def _encoded(text: str) -> str:
    plain = "0123456789abcdefghijklmnopqrstuvwxyz._~-"
    return "".join(
        c if c in plain else "".join(f"%{byte:02x}" for byte in c.encode()) for c in text
    )
