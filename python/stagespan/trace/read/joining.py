"""Joins traces of several files into one table of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagespan.trace.read.model import (
    MISSING,
    ArgumentTable,
    Events,
    Flows,
    IdColumn,
    Shapes,
    Texts,
    Trace,
)

# The distance between the ids of two files.
_FILE = 1 << 40


def joined(first: Trace, others: Sequence[Trace]) -> Trace:
    """Return `first` with the events of other traces after its own.

    The codes of names and categories of `first` stay the same. Processes, correlations, external
    ids and flows of each other trace get numbers of their own, and its times are moved so that it
    begins when `first` does: clocks of other files may be years apart.
    """
    names, categories = list(first.names), list(first.categories)
    tables = [first.events]
    flows = [first.flows]
    arguments = first.arguments["events"]
    for number, other in enumerate(others, 1):
        name_of, category_of = _added(names, other.names), _added(categories, other.categories)
        later_ns = _first_begin_ns(first) - _first_begin_ns(other)
        tables.append(_moved(other.events, name_of, category_of, number * _FILE, later_ns))
        flows.append(_moved_flows(other.flows, category_of, number * _FILE, later_ns))
        arguments = _both(arguments, other.arguments["events"])
    return replace(
        first,
        events=Events(**_columns(Events, tables)),
        flows=Flows(**_columns(Flows, flows)),
        names=names,
        categories=categories,
        arguments={**first.arguments, "events": arguments},
    )


def _added(words: list[str], others: list[str]) -> NDArray[np.int32]:
    """Add the words that are new to `words`, and return the code of each of the others."""
    codes = {word: code for code, word in enumerate(words)}
    added = []
    for word in others:
        code = codes.setdefault(word, len(words))
        if code == len(words):
            words.append(word)
        added.append(code)
    # The last one is for code -1, which is no name.
    return np.array([*added, -1], dtype=np.int32)


def _columns(of: type[Any], tables: Sequence[Any]) -> dict[str, Any]:
    """Return the columns of the dataclass `of`, each with the rows of all tables in order."""
    columns = {each.name: [getattr(table, each.name) for table in tables] for each in fields(of)}
    return {
        name: IdColumn(np.concatenate([each.all() for each in parts]))
        if isinstance(parts[0], IdColumn)
        else np.concatenate(parts)
        for name, parts in columns.items()
    }


def _first_begin_ns(trace: Trace) -> int:
    """Return when the first event of a trace begins, in ns; 0 without events."""
    return int(trace.events.begin_ns.min()) if len(trace.events) else 0


def _moved(
    events: Events,
    name_of: NDArray[np.int32],
    category_of: NDArray[np.int32],
    offset: int,
    later_ns: int,
) -> Events:
    """Return events with the codes and ids of a joined trace, at times that are `later_ns` later.

    `name_of` and `category_of` have the new code of each old one, and `offset` is added to ids.
    """
    return replace(
        events,
        name=name_of[events.name],
        category=category_of[events.category],
        begin_ns=events.begin_ns + later_ns,
        pid=IdColumn(events.pid.all() + offset),
        correlation=_other_ids(events.correlation, offset),
        external_id=_other_ids(events.external_id, offset),
        task_type=name_of[events.task_type],
    )


def _moved_flows(flows: Flows, category_of: NDArray[np.int32], offset: int, later_ns: int) -> Flows:
    """Return flows with the codes, ids and times of a joined trace, as `_moved`."""
    return replace(
        flows,
        id=flows.id + offset,
        category=category_of[flows.category],
        begin_ns=flows.begin_ns + later_ns,
        pid=IdColumn(flows.pid.all() + offset),
    )


def _other_ids(ids: IdColumn, offset: int) -> IdColumn:
    """Return ids that no other file has; `MISSING` stays."""
    return IdColumn(np.where(ids.exist(), ids.all() + offset, MISSING))


# --- Arguments ---


def _both(first: ArgumentTable, second: ArgumentTable) -> ArgumentTable:
    """Return the arguments of the rows of both tables."""
    keys = dict(first.shapes.keys)
    key_of = np.array([keys.setdefault(key, len(keys)) for key in second.shapes.keys] + [-1])
    by_number = {number: key for key, number in second.shapes.keys.items()}
    offset = len(first.shapes.parent)
    # Shape 0 of both is the root.
    shapes = Shapes(
        keys,
        np.concatenate((first.shapes.parent, _other_shapes(second.shapes.parent[1:], offset))),
        np.concatenate((first.shapes.key, key_of[second.shapes.key[1:]])),
    )
    texts, text_of = _all_texts(first.texts, second.texts)
    values: dict[int, tuple[bool, NDArray[Any]]] = {
        number: (is_text, column) for number, (is_text, column) in first.values.items()
    }
    extra: list[str] = []
    for number, (is_text, column) in second.values.items():
        key = keys[by_number[number]]
        column = text_of[column] if is_text else column
        if key in values:
            was_text, before = values[key]
            if was_text != is_text:
                # Rare: the same key has numbers in one file and texts in the other.
                column = column if is_text else _written(column, len(texts), extra)
                before = before if was_text else _written(before, len(texts), extra)
            is_text, column = was_text or is_text, np.concatenate((before, column))
        values[key] = (is_text, column)
    texts = _appended(texts, extra)
    shape = np.concatenate((first.shape, _other_shapes(second.shape, offset)))
    return ArgumentTable(shapes, shape, texts, values)


def _other_shapes(shape: NDArray[np.int32], offset: int) -> NDArray[np.int32]:
    """Return the numbers of the second table's shapes after `offset` shapes of the first one."""
    shape = shape.astype(np.int32)
    result: NDArray[np.int32] = np.where(shape > 0, shape + np.int32(offset - 1), np.int32(0))
    return result


def _all_texts(first: Texts, second: Texts) -> tuple[Texts, NDArray[np.int64]]:
    """Return the different texts of both, and the number of each text of the second."""
    number_of = {text: number for number, text in enumerate(first.all())}
    count = len(first)
    added: list[str] = []
    numbers = np.empty(len(second), dtype=np.int64)
    for at, text in enumerate(second.all()):
        number = number_of.setdefault(text, count + len(added))
        if number == count + len(added):
            added.append(text)
        numbers[at] = number
    return _appended(first, added), numbers


def _appended(texts: Texts, more: Sequence[str]) -> Texts:
    """Return `texts` followed by `more`."""
    encoded = [text.encode() for text in more]
    last = texts.ends[-1] if len(texts) else 0
    ends = last + np.cumsum([len(each) for each in encoded], dtype=np.int64)
    added = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return Texts(np.concatenate((texts.utf8, added)), np.concatenate((texts.ends, ends)))


def _written(column: NDArray[Any], first: int, extra: list[str]) -> NDArray[np.int64]:
    """Return the numbers of a column as texts, which are added to `extra`.

    The first text of `extra` has the number `first`.
    """
    begin = first + len(extra)
    extra += map(str, column.tolist())
    return np.arange(begin, begin + len(column))
