"""Decoded events into growing numpy columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.model import MISSING, Codes, Events, Flows, Numbers
from stagespan.trace.schema import AnyEvent, Arguments, Id, arguments_of
from stagespan.trace.times import times_ns

_OLD_CATEGORIES = {
    "operator": "cpu_op",
    "runtime": "cuda_runtime",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "python function": "python_function",
}
_TWO_TO_64 = 1 << 64


def category_today(written: str) -> str:
    """A category in today's spelling: `Memcpy` is `gpu_memcpy`, `Operator` is `cpu_op`."""
    lower = written.lower()
    return _OLD_CATEGORIES.get(lower, lower)


class Codebook(dict[str, int]):
    """Word to code; a new word gets the next one."""

    def __init__(self, spelling: Callable[[str], str] | None = None) -> None:
        super().__init__()
        self.words: list[str] = []
        self.respelled = False
        """Whether some word came in another spelling than the one that it is known by."""
        self._spelling = spelling

    def __missing__(self, word: str) -> int:
        spelled = self._spelling(word) if self._spelling else word
        if spelled is not word and spelled != word:
            code = self[spelled]
            self.respelled = True
        else:
            code = len(self.words)
            self.words.append(word)
        self[word] = code
        return code

    def encode(self, words: Sequence[str]) -> Codes:
        """The codes of many words."""
        return np.fromiter(map(self.__getitem__, words), dtype=np.int32, count=len(words))


class Numbering(dict[Id, int]):
    """Id as written to int64: numbers and numerals as they are, other words as negative numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.named: dict[int, str] = {}

    def __missing__(self, written: Id) -> int:
        number: int | None = MISSING
        try:
            if written is not None:
                number = int(written, 0) if isinstance(written, str) else written
        except ValueError:
            # Numerals with leading zeros are numbers too, all else is a word.
            number = int(written) if isinstance(written, str) and written.isdecimal() else None
        if number is None or not -(1 << 63) <= number < _TWO_TO_64:
            number = -2 - len(self.named)
            self.named[number] = str(written)
        elif number >= 1 << 63:
            number -= _TWO_TO_64
        self[written] = number
        return number

    def encode(self, ids: Sequence[Id]) -> Numbers:
        """Many ids; the usual ones, small integers, without a look at each."""
        try:
            return np.fromiter(ids, dtype=np.int64, count=len(ids))
        except (TypeError, ValueError, OverflowError):
            return np.fromiter(map(self.__getitem__, ids), dtype=np.int64, count=len(ids))

    def encode_each(self, objects: Sequence[object], attribute: str) -> Numbers:
        """The ids that many objects have as an attribute."""
        get = attrgetter(attribute)
        try:
            return np.fromiter(map(get, objects), dtype=np.int64, count=len(objects))
        except (TypeError, ValueError, OverflowError):
            return self.encode(list(map(get, objects)))


class Column:
    """Pieces of one column; a run of missing values takes no memory until the end."""

    def __init__(self, dtype: type[np.signedinteger[Any] | np.bool_], missing: int) -> None:
        self._dtype = dtype
        self._missing = missing
        self._pieces: list[NDArray[Any] | int] = []

    def add(self, piece: NDArray[Any] | int) -> None:
        """Append values, or that many missing ones."""
        self._pieces.append(piece)

    def take(self) -> NDArray[Any]:
        """The whole column, once."""
        length = sum(p if isinstance(p, int) else len(p) for p in self._pieces)
        whole = np.empty(length, dtype=self._dtype)
        at = 0
        self._pieces.reverse()
        while self._pieces:
            piece = self._pieces.pop()
            if isinstance(piece, int):
                whole[at : at + piece] = self._missing
                at += piece
            else:
                whole[at : at + len(piece)] = piece
                at += len(piece)
        return whole


# Columns that come from an argument.
_ARGUMENT_COLUMNS = (
    "correlation",
    "external_id",
    "device",
    "stream",
    "python_id",
    "python_parent_id",
)
# Arguments that only events of one category have: without such events they are not looked at.
_ONLY_OF_CATEGORY = {"python_id": "python_function", "python_parent_id": "python_function"}


class EventColumns:
    """The columns of `Events` as they grow."""

    def __init__(self, names: Codebook, categories: Codebook, ids: Numbering) -> None:
        self._names, self._categories, self._ids = names, categories, ids
        self._columns = {
            "name": Column(np.int32, -1),
            "category": Column(np.int32, -1),
            "begin_ns": Column(np.int64, MISSING),
            "dur_ns": Column(np.int64, 0),
            "pid": Column(np.int64, MISSING),
            "tid": Column(np.int64, MISSING),
            **{column: Column(np.int64, MISSING) for column in _ARGUMENT_COLUMNS},
            "task_type": Column(np.int32, -1),
        }

    def add(self, events: Sequence[AnyEvent], begin_ns: Numbers, dur_ns: Numbers) -> None:
        """Append events with their times."""
        column, encode = self._columns, self._ids.encode_each
        column["name"].add(self._names.encode([event.name for event in events]))
        categories = self._categories.encode([event.cat for event in events])
        column["category"].add(categories)
        column["begin_ns"].add(begin_ns)
        column["dur_ns"].add(dur_ns)
        column["pid"].add(encode(events, "pid"))
        column["tid"].add(encode(events, "tid"))
        arguments = list(map(arguments_of, events))
        # Ascend's rows have no category, and two arguments of their own.
        ascend = self._has(categories, "")
        for name in _ARGUMENT_COLUMNS:
            only = _ONLY_OF_CATEGORY.get(name)
            if only is not None and not self._has(categories, only):
                column[name].add(len(events))
                continue
            values = encode(arguments, name)
            if name == "correlation" and ascend:
                values = self._filled(values, arguments, "connection_id")
            elif name == "external_id" and self._categories.respelled:
                values = self._filled(values, arguments, "old_external_id")
            column[name].add(values)
        types = [each.task_type for each in arguments] if ascend else []
        if any(types):
            codes = self._names.encode(types)
            codes[[not word for word in types]] = -1
            column["task_type"].add(codes)
        else:
            column["task_type"].add(len(events))

    def _has(self, categories: Codes, word: str) -> bool:
        code = self._categories.get(word)
        return code is not None and bool((categories == code).any())

    def _filled(self, values: Numbers, arguments: Sequence[Arguments], attribute: str) -> Numbers:
        others = self._ids.encode_each(arguments, attribute)
        return np.where(values == MISSING, others, values)

    def take(self, base_ns: int) -> Events:
        """The finished table; its times get `base_ns` added."""
        arrays = {name: column.take() for name, column in self._columns.items()}
        arrays["begin_ns"] += base_ns
        return Events(**arrays)


class FlowColumns:
    """The columns of `Flows` as they grow."""

    def __init__(self, categories: Codebook, ids: Numbering) -> None:
        self._categories, self._ids = categories, ids
        self._columns = {
            "id": Column(np.int64, MISSING),
            "category": Column(np.int32, -1),
            "starts": Column(np.bool_, 0),
            "begin_ns": Column(np.int64, MISSING),
            "pid": Column(np.int64, MISSING),
            "tid": Column(np.int64, MISSING),
        }

    def add(self, events: Sequence[AnyEvent], left_out: Counter[str]) -> None:
        """Append ends of arrows; those without a time are counted."""
        begin_ns = times_ns([event.ts for event in events])
        timed = begin_ns != MISSING
        if not timed.all():
            left_out["flow without a time"] += int((~timed).sum())
            events = [event for event, keep in zip(events, timed, strict=True) if keep]
            begin_ns = begin_ns[timed]
        column = self._columns
        column["id"].add(self._ids.encode_each(events, "id"))
        column["category"].add(self._categories.encode([event.cat for event in events]))
        column["starts"].add(np.array([event.ph == "s" for event in events], dtype=np.bool_))
        column["begin_ns"].add(begin_ns)
        column["pid"].add(self._ids.encode_each(events, "pid"))
        column["tid"].add(self._ids.encode_each(events, "tid"))

    def take(self, base_ns: int) -> Flows:
        """The finished table; its times get `base_ns` added."""
        arrays = {name: column.take() for name, column in self._columns.items()}
        arrays["begin_ns"] += base_ns
        return Flows(**arrays)
