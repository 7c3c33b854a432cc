"""From the scanner's columns to a trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from stagespan import _core
from stagespan.trace.arguments import ArgumentTable, Shapes
from stagespan.trace.columns import (
    Codebook,
    Ids,
    category_today,
    events_of,
    flows_of,
    texts_of,
    whole_column,
)
from stagespan.trace.model import Trace

_LARGEST_BASE_NS = 2**62


def gather(
    scanner: _core.TraceScanner,
    path: str,
    metadata: dict[str, Any],
    adjusted: Counter[str],
    incomplete: str | None,
) -> Trace:
    """The trace that the scanner has read; `adjusted` is what was set right before it read it."""
    total = scanner.total
    found = scanner.take()
    adjusted.update(found["adjusted"])
    base = metadata.get("baseTimeNanoseconds")
    if not isinstance(base, int) or isinstance(base, bool) or not 0 <= base < _LARGEST_BASE_NS:
        if base is not None:
            adjusted["baseTimeNanoseconds that is no time"] += 1
        base = None
    names = Codebook(texts_of(found["names"]).all())
    written = texts_of(found["categories"]).all()
    categories = Codebook(map(category_today, written))
    respelled = any(word != category_today(word) for word in written)
    shapes = Shapes(
        {key: number for number, key in enumerate(texts_of(found["keys"]).all())},
        whole_column(found["shape_parents"], np.int32),
        whole_column(found["shape_keys"], np.int32),
    )
    texts = texts_of(found["texts"])
    ids = Ids(found["named_ids"])
    tables, arguments = {}, {}
    for kind in ("events", "instants"):
        part = found[kind]
        values = {
            key: (is_text, np.asarray(column))
            for key, (is_text, column) in part["arguments"].items()
        }
        table = ArgumentTable(shapes, whole_column(part["shape"], np.int32), texts, values)
        arguments[kind] = table
        tables[kind] = events_of(part, table, names, categories, respelled, ids, base or 0)
    process_names: dict[int, str] = {}
    process_labels: dict[int, str] = {}
    thread_names: dict[tuple[int, int], str] = {}
    for what, pid, tid, name in found["namings"]:
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
        flows=flows_of(found["flows"], categories, base or 0),
        names=names.words,
        categories=categories.words,
        base_ns=base,
        total=total,
        metadata=metadata,
        process_names=process_names,
        process_labels=process_labels,
        thread_names=thread_names,
        named_ids=ids.named,
        left_out=found["left_out"],
        adjusted=dict(adjusted),
        incomplete=incomplete,
        arguments=arguments,
    )


def without_events(path: str, total: int = 0) -> Trace:
    """A trace that holds nothing, for what is no single file; `total` entries stand in others."""
    return replace(gather(_core.TraceScanner(), path, {}, Counter(), None), total=total)
