"""Work as a table: the time of each row, coded columns, and sums over any of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from stagespan.pages.figures import Figures
from stagespan.pages.result import share
from stagespan.trace.read.groups import distinct, pairs, sums
from stagespan.trace.read.intervals import Codes, Mask, Numbers, Rows

_T = TypeVar("_T", bound=Figures)


class Column(NamedTuple):
    """A text for each row, as a code; without texts, a number for each row."""

    codes: Numbers | Codes
    """The index of each row's text, shape (rows,); negative if the text is unknown."""
    texts: Sequence[str] | None = None

    def values(self, codes: Numbers) -> list[Any]:
        """Return the texts of some codes, None for unknown ones; without texts, the codes."""
        if self.texts is None:
            return [*codes.tolist()]
        return [None if code < 0 else self.texts[code] for code in codes.tolist()]


class WorkTable(msgspec.Struct, frozen=True):
    """Rows of work, such as device events or calls of operators."""

    time_ns: Numbers
    """Shape (rows,), in ns."""
    call: Rows
    """The number of the call that each row belongs to, shape (rows,); negative if unknown."""
    columns: dict[str, Column]

    def by(
        self, into: type[_T], *columns: str, where: Mask | None = None, main: Sequence[str] = ()
    ) -> list[_T]:
        """Return a struct for the rows that have the same texts in some columns, longest first.

        The fields of `into` are names of these columns; of columns in `main`, of which the text
        with the most time counts; of other columns, which are None; and figures:

        - `time_ns`, `min_ns`, `max_ns`: the sum, the shortest and the longest time of the rows
        - `percent`: the sum in percent of the time of all rows of the table
        - `count`, `calls`: the number of rows, and of different calls (None if none is known)

        Of equal times, the one with the lower codes is first. Only rows in `where` count.
        """
        rows = slice(None) if where is None else np.flatnonzero(where)
        time, call = self.time_ns[rows], self.call[rows]
        if len(time) == 0:
            return []
        codes = {name: self.columns[name].codes[rows] for name in (*columns, *main)}
        keys, group = distinct(*(codes[name] for name in columns))
        count = len(keys)
        total = sums(group, time, count)
        longest_first = np.argsort(-total, kind="stable")

        def values(field: str) -> list[Any]:
            """Return the value of a field for each struct."""
            if field in columns:
                return self.columns[field].values(keys[longest_first, columns.index(field)])
            if field in main:
                key = _prevailing(group, codes[field], time, count)[longest_first]
                return self.columns[field].values(key)
            if field in self.columns:
                return [None] * count
            if field == "percent":
                whole = int(self.time_ns.sum())
                return [share(each, whole) for each in total[longest_first].tolist()]
            if field == "count":
                figure = np.bincount(group, minlength=count)
            elif field == "calls":
                figure = _calls(group, call, count)
            else:
                figure = total if field == "time_ns" else _extreme(field, group, time, count)
            found = figure[longest_first].tolist()
            return [each or None for each in found] if field == "calls" else found

        return [into(*row) for row in zip(*map(values, into.__struct_fields__), strict=True)]


def _prevailing(group: Numbers, code: Numbers | Codes, time_ns: Numbers, count: int) -> Numbers:
    """Return for each of `count` groups the known code with the most time, or -1."""
    known = code >= 0
    different, pair = pairs(group[known], code[known])
    time = sums(pair, time_ns[known], len(different))
    # The last assignment to a group remains: that of the most time and, if equal, the lowest code.
    order = np.lexsort((-different[:, 1], time))
    result = np.full(count, -1, dtype=np.int64)
    result[different[order, 0]] = different[order, 1]
    return result


def _calls(group: Numbers, call: Rows, count: int) -> Numbers:
    """Return the number of different known calls of each of `count` groups."""
    different, _ = pairs(group[call >= 0], call[call >= 0])
    return np.bincount(different[:, 0], minlength=count)


def _extreme(field: str, group: Numbers, time_ns: Numbers, count: int) -> Numbers:
    """Return the `min_ns` or the `max_ns` of each of `count` groups."""
    function = {"min_ns": np.minimum, "max_ns": np.maximum}[field]
    result = np.empty(count, dtype=np.int64)
    result[group] = time_ns
    function.at(result, group, time_ns)
    return result
