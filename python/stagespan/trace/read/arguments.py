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

    `rows` ascend. An argument that is `null`, or NaN, counts as absent. If all values are numbers
    or booleans, they are in `numbers`, and `texts` is empty. Otherwise, `numbers` is None.
    """

    rows: Numbers
    """Rows of `Trace.events` (or `Trace.instants`) that have this argument, ascending."""
    texts: list[str]
    """The different texts: strings without quotes, lists and objects as the JSON in the file."""
    codes: Codes
    """The index into `texts` for each of `rows`; empty if the values are numbers."""
    numbers: Numbers | NDArray[np.float64] | None
    """The number of each of `rows`: int64, or float64 if some value has a fraction."""


@dataclass(frozen=True)
class Texts:
    """Many texts in one buffer."""

    utf8: NDArray[np.uint8]
    ends: Numbers

    def __len__(self) -> int:
        return len(self.ends)

    def chosen(self, numbers: NDArray[np.integer[Any]]) -> list[str]:
        """Return the texts with these numbers."""
        ends = self.ends[numbers]
        begins = np.where(numbers > 0, self.ends[np.maximum(numbers, 1) - 1], 0)
        memory = self.utf8.data
        return [
            str(memory[begin:end], "utf-8", "replace")
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]

    def all(self) -> list[str]:
        """Return all texts, in order."""
        return self.chosen(np.arange(len(self)))


@dataclass(frozen=True)
class Shapes:
    """The sets of argument keys of events, numbered as shapes.

    Shapes form a tree. A shape has its own key and those of its ancestors; shape 0 has none.
    """

    keys: dict[str, int]
    """The number of each key."""
    parent: Codes
    key: Codes

    def having(self, key: int) -> Mask:
        """Return which shapes have the key."""
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
    """The number of each row's shape."""
    texts: Texts
    values: Mapping[int, tuple[bool, NDArray[Any]]]
    """Whether the values are numbers of texts, and the values, by key."""

    def __len__(self) -> int:
        return len(self.shape)

    def argument(self, key: str) -> Argument | None:
        """Return the argument `key`; None if no row has it."""
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
