"""Converts the columns of the scanner to a Trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan import _core
from stagespan.trace.read import old_autograd
from stagespan.trace.read.intervals import Codes
from stagespan.trace.read.model import (
    MISSING,
    ArgumentIds,
    ArgumentTable,
    CodedIds,
    Events,
    Flows,
    IdColumn,
    Shapes,
    Texts,
    Trace,
)

_OLD_CATEGORIES = {
    "operator": "cpu_op",
    "runtime": "cuda_runtime",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "python function": "python_function",
}
_TWO_TO_64 = 1 << 64
# Python refuses to parse numbers with thousands of digits.
_LONGEST_NUMERAL = 64


def category_today(written: str) -> str:
    """Return the current name of a category: `Memcpy` is `gpu_memcpy`, `Operator` is `cpu_op`."""
    lower = written.lower()
    return _OLD_CATEGORIES.get(lower, lower)


class Codebook:
    """Words, and their codes, which replace the scanner's numbers."""

    def __init__(self, words: Iterable[str]) -> None:
        self._codes: dict[str, int] = {}
        self._code_of = np.array([self.code(word) for word in words], dtype=np.int32)

    def code(self, word: str) -> int:
        """Return the code of a word. A new word gets the next code."""
        return self._codes.setdefault(word, len(self._codes))

    def encode(self, numbers: Codes) -> Codes:
        """Return the codes for the scanner's numbers."""
        # If all words are different, the numbers are already the codes.
        if len(self._codes) >= len(self._code_of):
            return numbers
        return self._code_of[numbers]

    @property
    def words(self) -> list[str]:
        """Return the words, ordered by code."""
        return list(self._codes)


class Ids:
    """Converts ids to int64: numbers and numerals keep their value, other texts become negative."""

    def __init__(self, named: dict[int, str]) -> None:
        self.named = named
        self._numbers = {word: number for number, word in named.items()}

    def of_text(self, written: str) -> int:
        """Return the number for an id that is written as a text."""
        try:
            number = int(written, 0)
        except ValueError:
            # Digits with leading zeros are numbers too. All other texts are words.
            is_short = len(written) <= _LONGEST_NUMERAL
            number = int(written) if is_short and written.isdecimal() else _TWO_TO_64
        if -(1 << 63) <= number < 1 << 63:
            return number
        if 1 << 63 <= number < _TWO_TO_64:
            return number - _TWO_TO_64
        if written not in self._numbers:
            self._numbers[written] = -2 - len(self.named)
            self.named[self._numbers[written]] = written
        return self._numbers[written]

    def column(self, table: ArgumentTable, key: str) -> IdColumn:
        """Return the ids in an argument; `MISSING` for events without it."""
        if table.is_whole(key):
            return ArgumentIds(table, key)
        argument = table.argument(key)
        if argument is None:
            return IdColumn(absent(len(table), np.int64(MISSING)))
        column = np.full(len(table), MISSING, dtype=np.int64)
        if argument.numbers is None:
            numbers = np.array(list(map(self.of_text, argument.texts)), dtype=np.int64)
            column[argument.rows] = numbers[argument.codes]
        else:
            column[argument.rows] = argument.numbers
        return IdColumn(column)

    def coded(self, table: ArgumentTable, key: str) -> IdColumn:
        """Return the same, for an argument with few different ids that is often read."""
        return table.coded(key, MISSING) or self.column(table, key)


def absent(length: int, value: np.signedinteger[Any]) -> NDArray[Any]:
    """Return a read-only column with the same value in all rows, which takes no memory."""
    return np.broadcast_to(value, length)


def whole_column(buffer: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """Return a buffer of the scanner as an array, without copying."""
    return np.asarray(buffer).view(dtype)


def coded_ids(parts: tuple[Any, Any]) -> CodedIds:
    """Return the ids that the scanner has collected."""
    return CodedIds(whole_column(parts[0], np.int64), np.asarray(parts[1]))


def collected_texts(parts: tuple[Any, Any]) -> Texts:
    """Return the texts that the scanner has collected."""
    return Texts(whole_column(parts[0], np.uint8), whole_column(parts[1], np.int64))


def events_of(
    events: Mapping[str, Any],
    table: ArgumentTable,
    names: Codebook,
    categories: Codebook,
    respelled: bool,
    ids: Ids,
    base_ns: int,
) -> Events:
    """Return the table of events or instants, with `base_ns` added to all times."""
    begin_ns = whole_column(events["begin_ns"], np.int64)
    begin_ns += base_ns
    category = categories.encode(np.asarray(events["category"]))
    name = names.encode(whole_column(events["name"], np.int32))
    correlation = ids.column(table, "correlation")
    external_id = ids.column(table, "External id")
    task_type = absent(len(table), np.int32(-1))
    # Ascend's rows have no category, but two special arguments.
    if "" in categories.words:
        correlation = _filled(correlation, ids.column(table, "connection_id"))
        types = table.argument("Task Type")
        if types is not None and types.numbers is None:
            task_type = task_type.copy()
            codes = [names.code(text) if text else -1 for text in types.texts]
            task_type[types.rows] = np.array(codes, dtype=np.int32)[types.codes]
    if respelled:
        external_id = _filled(external_id, ids.column(table, "external id"))
    return Events(
        name=name,
        category=category,
        begin_ns=begin_ns,
        dur_ns=whole_column(events["dur_ns"], np.int64),
        pid=coded_ids(events["pid"]),
        tid=coded_ids(events["tid"]),
        correlation=correlation,
        external_id=external_id,
        device=ids.coded(table, "device"),
        stream=ids.coded(table, "stream"),
        python_id=ids.column(table, "Python id"),
        task_type=task_type,
    )


def flows_of(flows: Mapping[str, Any], categories: Codebook, base_ns: int) -> Flows:
    """Return the table of flows, with `base_ns` added to all times."""
    begin_ns = whole_column(flows["begin_ns"], np.int64)
    begin_ns += base_ns
    return Flows(
        id=whole_column(flows["id"], np.int64),
        category=categories.encode(np.asarray(flows["category"])),
        starts=whole_column(flows["starts"], np.bool_),
        begin_ns=begin_ns,
        pid=coded_ids(flows["pid"]),
        tid=coded_ids(flows["tid"]),
    )


def _filled(column: IdColumn, others: IdColumn) -> IdColumn:
    missing = ~column.exist()
    # Most traces have only one of both.
    if not (missing & others.exist()).any():
        return column
    return IdColumn(np.where(missing, others.all(), column.all()))


# --- The trace ---


_LARGEST_BASE_NS = 2**62


def gather(
    scanner: _core.TraceScanner,
    path: str,
    metadata: dict[str, Any],
    adjusted: Counter[str],
    incomplete: str | None,
) -> Trace:
    """Return the trace from the scanner. `adjusted` counts repairs before scanning."""
    total = scanner.total
    scanned = scanner.take()
    adjusted.update(scanned["adjusted"])
    base = metadata.get("baseTimeNanoseconds")
    if not isinstance(base, int) or isinstance(base, bool) or not 0 <= base < _LARGEST_BASE_NS:
        if base is not None:
            adjusted["baseTimeNanoseconds that is not a time"] += 1
        base = None
    names = Codebook(collected_texts(scanned["names"]).all())
    written = collected_texts(scanned["categories"]).all()
    categories = Codebook(map(category_today, written))
    respelled = any(word != category_today(word) for word in written)
    shapes = Shapes(
        {key: number for number, key in enumerate(collected_texts(scanned["keys"]).all())},
        whole_column(scanned["shape_parents"], np.int32),
        whole_column(scanned["shape_keys"], np.int32),
    )
    texts = collected_texts(scanned["texts"])
    ids = Ids(scanned["named_ids"])
    tables, arguments = {}, {}
    for kind in ("events", "instants", "counters"):
        part = scanned[kind]
        values = {
            key: (is_text, np.asarray(column))
            for key, (is_text, column) in part["arguments"].items()
        }
        table = ArgumentTable(shapes, np.asarray(part["shape"]), texts, values)
        arguments[kind] = table
        tables[kind] = events_of(part, table, names, categories, respelled, ids, base or 0)
    flows = flows_of(scanned["flows"], categories, base or 0)
    # New categories come after all columns of codes.
    if old_autograd.has_old_processes(ids.named) and "" in categories.words:
        tables["events"] = old_autograd.with_categories(
            tables["events"], ids.named, categories.code, adjusted
        )
    process_names: dict[int, str] = {}
    process_labels: dict[int, str] = {}
    thread_names: dict[tuple[int, int], str] = {}
    for what, pid, tid, name in scanned["namings"]:
        if what == "process_name":
            process_names[pid] = name
        elif what == "process_labels":
            process_labels[pid] = name
        else:
            thread_names[pid, tid] = name
    return Trace(
        path=path,
        events=tables["events"],
        instants=tables["instants"],
        counters=tables["counters"],
        flows=flows,
        names=names.words,
        categories=categories.words,
        base_ns=base,
        total=total,
        metadata=metadata,
        process_names=process_names,
        process_labels=process_labels,
        thread_names=thread_names,
        named_ids=ids.named,
        left_out=scanned["left_out"],
        adjusted=dict(adjusted),
        no_duration=whole_column(scanned["events"]["no_duration"], np.int64),
        negative_duration=whole_column(scanned["events"]["negative_duration"], np.int64),
        incomplete=incomplete,
        arguments=arguments,
    )


def without_events(path: str, total: int = 0) -> Trace:
    """Return an empty trace, for a folder without a trace file. `total` counts other entries."""
    return replace(gather(_core.TraceScanner(), path, {}, Counter(), None), total=total)
