"""The arguments of a trace's events as columns, one key at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.read.intervals import Codes, Mask, Numbers


@dataclass(frozen=True)
class Argument:
    """One argument (`args[key]`) of those rows of a table that have it.

    `rows` ascend. An argument that is `null`, or NaN, counts as absent.
    Values that are all numbers or booleans stand in `numbers`, and `texts` is empty; all others are
    text-like, and `numbers` is None.
    """

    rows: Numbers
    """Rows of `Trace.events` (or `Trace.instants`) that have this argument, ascending."""
    texts: list[str]
    """Each text once: strings without their quotes, lists and objects as the JSON in the file."""
    codes: Codes
    """For each of `rows` the index into `texts`; empty when the values are numbers."""
    numbers: Numbers | NDArray[np.float64] | None
    """For each of `rows` its number: int64, or float64 when some value has a fraction."""


@dataclass(frozen=True)
class Texts:
    """Many texts in one piece of memory."""

    utf8: NDArray[np.uint8]
    ends: Numbers

    def __len__(self) -> int:
        return len(self.ends)

    def chosen(self, numbers: NDArray[np.integer[Any]]) -> list[str]:
        """The texts with these numbers."""
        ends = self.ends[numbers]
        begins = np.where(numbers > 0, self.ends[np.maximum(numbers, 1) - 1], 0)
        memory = self.utf8.data
        return [
            str(memory[begin:end], "utf-8", "replace")
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]

    def all(self) -> list[str]:
        """All texts, in order."""
        return self.chosen(np.arange(len(self)))


@dataclass(frozen=True)
class Shapes:
    """Which keys an event has, by the number of its shape.

    Shapes are a tree: a shape has its own key and those of the shapes above it; 0 has none.
    """

    keys: dict[str, int]
    """Number of each key."""
    parent: Codes
    key: Codes

    def having(self, key: int) -> Mask:
        """Which shapes have the key."""
        has: Mask = self.key == key
        above = self.parent
        while above.any():
            has = has | has[above]
            above = above[above]
        return has


@dataclass(frozen=True)
class ArgumentTable:
    """The arguments of one table: values by key, in the order of the rows that have them."""

    shapes: Shapes
    shape: Codes
    """For each row the number of its shape."""
    texts: Texts
    values: Mapping[int, tuple[bool, NDArray[Any]]]
    """By key: whether the values are numbers of texts, and the values."""

    def __len__(self) -> int:
        return len(self.shape)

    def argument(self, key: str) -> Argument | None:
        """The argument `key`; None when no row has it."""
        number = self.shapes.keys.get(key, -1)
        if number not in self.values:
            return None
        is_text, values = self.values[number]
        rows = np.flatnonzero(self.shapes.having(number)[self.shape])
        if not is_text:
            kind = np.int64 if values.dtype.kind == "i" else np.float64
            numbers: NDArray[Any] = values.astype(kind)
            return Argument(rows, [], np.empty(0, dtype=np.int32), numbers)
        used = np.zeros(len(self.texts), dtype=np.bool_)
        used[values] = True
        codes = (np.cumsum(used, dtype=np.int32) - 1)[values]
        return Argument(rows, self.texts.chosen(np.flatnonzero(used)), codes, None)
