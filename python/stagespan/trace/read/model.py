"""A trace in memory: numpy columns with one row per event, and its arguments by key."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, overload

import msgspec
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from stagespan import _core
from stagespan.trace.read.groups import numbered, pairs, parts, values_of
from stagespan.trace.read.intervals import ROW, Codes, Mask, Numbers, Rows, looked_up

MISSING = int(np.iinfo(np.int64).min)
"""The value in an integer column if the event does not have the field."""
_NONE = np.empty(0, dtype=np.int64)
_DISTURBED = 2.0
"""A profiled iteration that took more than this many times its median time is told of first."""


class MadeColumn(NDArrayOperatorsMixin):
    """A column of integers of 64 bits that are computed when they are used, to save memory.

    Operators and functions of numpy take it as an array of all of them.
    """

    __slots__ = ()

    @abstractmethod
    def all(self) -> Numbers:
        """Return the integers of all rows."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Numbers:
        return np.array(self.all(), dtype=dtype, copy=bool(copy) or None)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (each.all() if isinstance(each, MadeColumn) else each for each in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> np.int64: ...
    @overload
    def __getitem__(self, rows: NDArray[Any] | slice) -> Numbers: ...
    def __getitem__(self, rows: Any) -> Any:
        return self.all()[rows]

    def tolist(self) -> list[int]:
        """Return the integers of all rows."""
        numbers: list[int] = self.all().tolist()
        return numbers


class IdColumn(MadeColumn):
    """Ids of events; `MISSING` for an event without one."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Numbers) -> None:
        self._ids = ids

    def all(self) -> Numbers:
        """Return the ids of all rows."""
        return self._ids

    def having(self, ids: Any) -> Mask:
        """Return which rows have an id that is one of `ids`."""
        result: Mask = np.isin(self.all(), ids)
        return result

    def exist(self) -> Mask:
        """Return which rows have an id."""
        result: Mask = self.all() != MISSING
        return result

    def chosen(self, keep: Mask) -> IdColumn:
        """Return the ids of the rows of a mask."""
        return IdColumn(self[keep])


_MOST_PAIRS = 1 << 16


class CodedIds(IdColumn):
    """Ids as indices into the different ones, with as few bits as are needed."""

    __slots__ = ("_codes", "_different")

    def __init__(self, different: Numbers, codes: NDArray[np.signedinteger[Any]]) -> None:
        self._different, self._codes = different, codes

    def __getitem__(self, rows: Any) -> Any:
        return self._different[self._codes[rows]]

    def all(self) -> Numbers:
        """Return the ids of all rows."""
        result: Numbers = self._different[self._codes]
        return result

    def having(self, ids: Any) -> Mask:
        """Return which rows have an id that is one of `ids`."""
        wanted = set(np.asarray(ids).tolist())
        # They are few: this takes less time than `np.isin`.
        chosen = [id_ in wanted for id_ in self._different.tolist()]
        return looked_up(np.array(chosen, dtype=np.bool_), self._codes)

    def exist(self) -> Mask:
        """Return which rows have an id."""
        return ~self.having([MISSING])

    def chosen(self, keep: Mask) -> CodedIds:
        """Return the ids of the rows of a mask."""
        return CodedIds(self._different, self._codes[keep])

    def pairs(self, other: CodedIds, rows: Any) -> tuple[NDArray[np.int64], NDArray[Any]] | None:
        """Return the same as `id_pairs`; None if there may be too many pairs for a table."""
        count = len(other._different)
        if len(self._different) * count > _MOST_PAIRS:
            return None
        index = self._codes[rows].astype(ROW)
        index *= ROW(count)
        index += other._codes[rows]
        codes = values_of(index)
        different, place = pairs(self._different[codes // count], other._different[codes % count])
        place_of = np.zeros(len(self._different) * count, dtype=ROW)
        place_of[codes] = place
        for some in parts(len(index)):
            index[some] = place_of[index[some]]
        return different, index


def id_pairs(
    first: IdColumn, second: IdColumn, rows: Any
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the different pairs of ids of some rows, ascending, and the index of each row's."""
    if isinstance(first, CodedIds) and isinstance(second, CodedIds):
        found = first.pairs(second, rows)
        if found is not None:
            return found
    return pairs(first[rows], second[rows])


class EndTimes(MadeColumn):
    """The ends of events in nanoseconds."""

    __slots__ = ("_begin_ns", "_dur_ns")

    def __init__(self, begin_ns: Numbers, dur_ns: Numbers) -> None:
        self._begin_ns, self._dur_ns = begin_ns, dur_ns

    def __getitem__(self, rows: Any) -> Any:
        return self._begin_ns[rows] + self._dur_ns[rows]

    def all(self) -> Numbers:
        """Return the ends of all events."""
        return self._begin_ns + self._dur_ns


@dataclass(frozen=True)
class Events:
    """Events as columns of one length; times in integer nanoseconds.

    `name`, `category` and `task_type` are codes into the trace's `names`, `categories` and `names`
    (`task_type` is -1 where the event has none). Ids that exceed signed 64 bits keep their bit
    pattern.
    """

    name: Codes
    category: Codes
    begin_ns: Numbers
    dur_ns: Numbers
    pid: IdColumn
    tid: IdColumn
    correlation: IdColumn
    external_id: IdColumn
    device: IdColumn
    stream: IdColumn
    python_id: IdColumn
    task_type: Codes

    def __len__(self) -> int:
        return len(self.begin_ns)

    def chosen(self, keep: Mask) -> Events:
        """Return the events of a mask, in the same order."""
        columns: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(Events)}
        for name, column in columns.items():
            columns[name] = column.chosen(keep) if isinstance(column, IdColumn) else column[keep]
        return Events(**columns)

    @property
    def end_ns(self) -> EndTimes:
        """The end of each event in nanoseconds."""
        return EndTimes(self.begin_ns, self.dur_ns)


@dataclass(frozen=True, slots=True)
class Flows:
    """Flows between events, with one row per end. `id` joins the ends within a category."""

    id: Numbers
    category: Codes
    starts: Mask
    """True if a flow starts here, False if it passes or ends."""
    begin_ns: Numbers
    pid: IdColumn
    tid: IdColumn

    def __len__(self) -> int:
        return len(self.id)


class Argument(msgspec.Struct, frozen=True):
    """One argument (`args[key]`) of those rows of a table that have it.

    `rows` ascend. An argument that is `null`, or NaN, counts as absent. If all values are numbers
    or booleans, they are in `numbers`, and `texts` is empty. Otherwise, `numbers` is None.
    """

    rows: Numbers
    """Rows of `Trace.events` (or another table) that have this argument, ascending."""
    texts: list[str]
    """The different texts: strings without quotes, lists and objects as the JSON in the file."""
    codes: Codes
    """The index into `texts` for each of `rows`; empty if the values are numbers."""
    numbers: Numbers | NDArray[np.float64] | None
    """The number of each of `rows`: int64, or float64 if some value has a fraction."""


class Texts(msgspec.Struct, frozen=True):
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


class Shapes(msgspec.Struct, frozen=True):
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


class ArgumentTable(msgspec.Struct, frozen=True):
    """The arguments of one table: values by key, in the order of the rows that have them."""

    shapes: Shapes
    shape: Codes
    """The number of each row's shape."""
    texts: Texts
    values: Mapping[int, tuple[bool, NDArray[Any]]]
    """Whether the values are numbers of texts, and the values, by key."""

    def __len__(self) -> int:
        return len(self.shape)

    def chosen(self, keep: Mask) -> ArgumentTable:
        """Return the arguments of the rows of a mask, in the same order."""
        values = {}
        for key, (is_text, column) in self.values.items():
            left = column[keep[self._having(key)]]
            if len(left):
                values[key] = (is_text, left)
        return ArgumentTable(self.shapes, self.shape[keep], self.texts, values)

    def having(self, key: str) -> Mask:
        """Return which rows have the argument `key`."""
        return self._having(self.shapes.keys[key])

    def _having(self, number: int) -> Mask:
        return looked_up(self.shapes.having(number), self.shape)

    def is_whole(self, key: str) -> bool:
        """Whether some rows have the argument `key`, and all its values are whole numbers."""
        is_text, values = self.values.get(self.shapes.keys.get(key, -1), (True, _NONE))
        return not is_text and values.dtype.kind == "i"

    def coded(self, key: str, missing: int) -> CodedIds | None:
        """Return the same as `column`, as indices into the different numbers."""
        if not self.is_whole(key):
            return None
        different, index = numbered(self.values[self.shapes.keys[key]][1])
        # The last of the different ones is for the rows without the argument.
        codes = np.full(len(self), len(different), np.min_scalar_type(-len(different) - 1))
        codes[self.having(key)] = index
        return CodedIds(np.append(different, missing), codes)

    def column(self, key: str, missing: int) -> Numbers | None:
        """Return whole numbers in the argument `key`, and `missing` for the rows without it.

        None if no row has it, or if its values are of another type.
        """
        if not self.is_whole(key):
            return None
        number = self.shapes.keys[key]
        values = self.values[number][1]
        column = np.empty(len(self), dtype=np.int64)
        _core.trace_spread(self.shapes.having(number), self.shape, values, missing, column)
        return column

    def argument(self, key: str) -> Argument | None:
        """Return the argument `key`; None if no row has it."""
        number = self.shapes.keys.get(key, -1)
        if number not in self.values:
            return None
        is_text, values = self.values[number]
        rows = np.flatnonzero(self._having(number))
        if not is_text:
            kind = np.int64 if values.dtype.kind == "i" else np.float64
            numbers: NDArray[Any] = values.astype(kind)
            return Argument(rows, [], np.empty(0, dtype=np.int32), numbers)
        used = np.zeros(len(self.texts), dtype=np.bool_)
        used[values] = True
        codes = (np.cumsum(used, dtype=np.int32) - 1)[values]
        return Argument(rows, self.texts.chosen(np.flatnonzero(used)), codes, None)


class ArgumentIds(IdColumn):
    """Ids that are the whole numbers of an argument, which only some rows have."""

    __slots__ = ("_key", "_table")

    def __init__(self, table: ArgumentTable, key: str) -> None:
        """The argument has a `column`."""
        self._table, self._key = table, key

    def all(self) -> Numbers:
        """Return the ids of all rows."""
        ids = self._table.column(self._key, MISSING)
        assert ids is not None
        return ids

    def exist(self) -> Mask:
        """Return which rows have an id."""
        return self._table.having(self._key)


@dataclass(frozen=True, slots=True)
class Settled:
    """A time of a device that two sources state differently; the one with more is used."""

    what: str
    """What the device did, as a verb: "computed"."""
    device: str
    """The label of the device; "" if it has none."""
    time_ns: int
    source: str
    """The source that is used."""
    other_ns: int
    other: str
    """The source with less."""
    beside_ns: int = 0
    """The time that only this other source shows. It is used as well."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The content of one trace file."""

    path: str
    events: Events
    """Events with a duration, in the file's order."""
    instants: Events
    """Events without a duration, such as `[memory]`."""
    counters: Events
    """Values of counters, such as a clock; each is an argument."""
    flows: Flows
    names: list[str]
    """Names exactly as in the file. `Events.name` contains indices into this list."""
    categories: list[str]
    """Categories with current names (`Kernel` of old traces is `kernel`); "" means none."""
    base_ns: int | None
    """Unix time of the file's time 0, already added to all times; None if the file has none."""
    total: int
    """The number of entries in the file's list of events, used or not."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The file's other top-level values."""
    process_names: dict[int, str] = field(default_factory=dict)
    process_labels: dict[int, str] = field(default_factory=dict)
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)
    named_ids: dict[int, str] = field(default_factory=dict)
    """Ids that are words (`"pid": "Spans"`), by the negative numbers that replace them."""
    left_out: dict[str, int] = field(default_factory=dict)
    """The number of entries that are not in any table, by cause."""
    adjusted: dict[str, int] = field(default_factory=dict)
    """The number of entries that were changed, by cause."""
    no_duration: Rows = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The rows of `events` whose duration is absent or not a number; their `dur_ns` is 0."""
    negative_duration: Rows = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The rows of `events` whose duration is negative; their `dur_ns` is 0."""
    ignored_ns: dict[str, int] = field(default_factory=dict)
    """The time in ns that is not used because it cannot be true, by the cause in `left_out` or
    `adjusted`; for events far outside of all others, the longest distance to these. Only a view has
    such causes: see `plausibility`."""
    doubtful: Numbers = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    """Begin and end in ns, one row each, of the times in which a device's work is unknown, because
    the duration of an event cannot be true. Only a view has such times."""
    settled: tuple[Settled, ...] = ()
    """What two sources state differently. Only a view has such times: see `sources`."""
    incomplete: str | None = None
    """A sentence if the file is truncated or damaged, otherwise None."""
    arguments: Mapping[str, ArgumentTable] = field(default_factory=dict, repr=False, compare=False)
    """The arguments of `events`, of `instants` and of `counters`, for `argument`."""

    @property
    def profiled_ratio(self) -> float | None:
        """How many times its median time without the profiler the profiled iteration took.

        Only traces of replays contain it.
        """
        replay = self.metadata.get("stagespan_replay")
        ratio = replay.get("profiled_ratio") if isinstance(replay, dict) else None
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)):
            return None
        return float(ratio) if 0 < ratio < math.inf else None

    @property
    def caveat(self) -> str | None:
        """What a reader must know before all else: how the file, or what it shows, is damaged."""
        ratio = self.profiled_ratio
        slowed = (
            f"The profiled iteration took {ratio:.2f} x its median time without the profiler, so "
            f"other work on the machine, or the profiler, decides its times: replay the stage "
            f"again on a calmer machine before you trust them."
            if ratio is not None and ratio > _DISTURBED
            else None
        )
        return " ".join(filter(None, (slowed, self.incomplete))) or None

    def argument(
        self, key: str, of: Literal["events", "instants", "counters"] = "events"
    ) -> Argument | None:
        """Return the argument `key` of the events (or others) that have it; None if none has it.

        `key` can be any key in the file. Each call creates new arrays, which takes some
        milliseconds per million rows.
        """
        table = self.arguments.get(of)
        return None if table is None else table.argument(key)

    def category_codes(self, names: Iterable[str]) -> list[int]:
        """Return the codes of those of `names` that occur in this trace."""
        requested = set(names)
        return [code for code, name in enumerate(self.categories) if name in requested]

    def rows_of(self, names: Iterable[str]) -> Mask:
        """Return a mask of the rows of `events` whose category is one of `names`."""
        return self.in_categories(names, self.events.category)

    def in_categories(self, names: Iterable[str], category: Codes) -> Mask:
        """Return which of a column of categories, such as that of `flows`, are one of `names`."""
        chosen = np.zeros(len(self.categories) + 1, dtype=np.bool_)
        chosen[self.category_codes(names)] = True
        return looked_up(chosen, category)
