"""Values for any place in JSON, for tests of files that others have changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 31, 1 << 63, 1 << 64, 10**300, 1e308, -1e308, 0.5),
    *("", "stage", "\0", "7", "\ud7ff", [], {}, [[0, 1]], {"a": {"b": {"c": 1}}}),
)
Place = tuple[Any, ...]


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yield the place of each value in a value of JSON: the keys and indices that lead there."""
    yield at
    items = list(enumerate(value)) if isinstance(value, list) else []
    for key, one in value.items() if isinstance(value, dict) else items:
        yield from places(one, (*at, key))


def put(page: Any, place: Place, value: Any) -> None:
    """Put a value at a place."""
    for key in place[:-1]:
        page = page[key]
    page[place[-1]] = value
