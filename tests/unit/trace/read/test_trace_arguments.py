"""Arguments of events as columns."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagespan.trace import Trace, read_trace

Write = Callable[..., Path]


def complete(ts: Any, args: Any, **others: Any) -> dict[str, Any]:
    return {"ph": "X", "name": "n", "ts": ts, "dur": 1, "args": args} | others


def values(trace: Trace, key: str) -> list[tuple[int, Any]]:
    found = trace.argument(key)
    if found is None:
        return []
    if found.numbers is not None:
        return list(zip(found.rows.tolist(), found.numbers.tolist(), strict=True))
    texts = [found.texts[code] for code in found.codes.tolist()]
    return list(zip(found.rows.tolist(), texts, strict=True))


def test_numbers_texts_and_lists(write_trace: Write) -> None:
    # GIVEN arguments of each kind, some of them absent or null
    entries = [
        complete(1, {"whole": 2**62, "part": 1, "flag": True, "word": "a", "dims": [[1, 2], []]}),
        complete(2, {"whole": -1, "part": 0.25, "word": 'q"\\é\n'}),
        complete(3, None),
        {"ph": "s", "id": 1, "ts": 3},
        complete(4, {"whole": None, "flag": False, "word": "a", "dims": {"x": "}"}}),
        complete(5, {"mixed": 7}),
        complete(6, {"mixed": "7"}),
        complete(7, {"mixed": [7]}),
    ]
    trace = read_trace(write_trace(entries))
    assert values(trace, "whole") == [(0, 2**62), (1, -1)]
    assert values(trace, "part") == [(0, 1.0), (1, 0.25)]
    assert values(trace, "flag") == [(0, 1), (3, 0)]
    assert values(trace, "word") == [(0, "a"), (1, 'q"\\é\n'), (3, "a")]
    assert values(trace, "dims") == [(0, "[[1, 2], []]"), (3, '{"x": "}"}')]
    assert values(trace, "mixed") == [(4, "7"), (5, "7"), (6, "[7]")]
    assert trace.argument("no such key") is None
    words = trace.argument("word")
    assert words is not None
    assert words.numbers is None
    assert len(words.texts) == 2
    whole = trace.argument("whole")
    assert whole is not None
    assert whole.numbers is not None
    assert whole.numbers.dtype == np.int64
    assert whole.texts == []


def test_instants_have_separate_arguments(write_trace: Write) -> None:
    entries = [complete(1, {"Bytes": 1}), {"ph": "i", "ts": 2, "args": {"Bytes": -512, "Addr": 3}}]
    trace = read_trace(write_trace(entries))
    assert values(trace, "Bytes") == [(0, 1)]
    found = trace.argument("Bytes", "instants")
    assert found is not None
    assert found.numbers is not None
    assert (found.rows.tolist(), found.numbers.tolist()) == ([0], [-512])
    assert trace.argument("Addr") is None


def test_rows_are_those_of_the_table(write_trace: Write) -> None:
    entries = [
        {"ph": "X", "name": "no time", "args": {"k": 0}},
        {"ph": "B", "ts": 1, "name": "joined", "args": {"k": 1}},
        complete(2, {"k": 2}, name="a"),
        17,
        complete(3, {"k": 3}, name="b", pid=1.5),
        {"ph": "E", "ts": 4, "args": {"k": 4}},
        complete(5, {"k": 5}, name="c"),
    ]
    trace = read_trace(write_trace(entries))
    names = {trace.names[trace.events.name[row]]: value for row, value in values(trace, "k")}
    assert names == {"joined": 1, "a": 2, "b": 3, "c": 5}


@pytest.mark.parametrize(
    "name", ["cuda_a100_sync_multi_stream", "rocm_mi300_triton_compile", "cuda_h100_bert"]
)
def test_every_argument_of_a_real_trace(traces: Path, name: str) -> None:
    path = traces / f"{name}.json.gz"
    entries = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    events = [entry.get("args") or {} for entry in entries if entry["ph"] == "X"]
    trace = read_trace(path)
    for key in {key for event in events for key in event}:
        found = trace.argument(key)
        expected = [(row, e[key]) for row, e in enumerate(events) if e.get(key) is not None]
        if not expected:
            assert found is None
            continue
        assert found is not None
        assert found.rows.tolist() == [row for row, _ in expected]
        if found.numbers is not None:
            assert found.numbers.tolist() == [value for _, value in expected]
        else:
            texts = [found.texts[code] for code in found.codes.tolist()]
            assert [
                text if isinstance(value, str) else json.loads(text)
                for text, (_, value) in zip(texts, expected, strict=True)
            ] == [value for _, value in expected]


def test_a_trace_keeps_its_arguments_when_it_is_sent_to_another_process(write_trace: Write) -> None:
    trace = read_trace(write_trace([complete(1, {"k": "word"}), complete(2, {"k": 3})]))
    there = pickle.loads(pickle.dumps(trace))
    assert values(there, "k") == [(0, "word"), (1, "3")]
    assert there.events.begin_ns.tolist() == [1000, 2000]
    assert there.events.stream.tolist() == trace.events.stream.tolist()


def test_quotes_in_names_near_and_far_from_each_other(write_trace: Write) -> None:
    # GIVEN names with unescaped quotes: a single one, many in a row, and one after a long line
    line = b'{"ph":"X","ts":%d,\n"name": "op %s",\n"args": {"k": "%s"}}'
    names = [b"plain"] * 60 + [b'a "b" c'] + [b"plain"] * 60 + [b'"x", y "z"'] * 30
    texts = [b"t"] * len(names) + [b"l" * 5000]
    names.append(b'the "last"')
    events = [
        line % (i, name, text) for i, (name, text) in enumerate(zip(names, texts, strict=True))
    ]
    for chunk_bytes in (50, 1000, 1 << 20):
        path = write_trace(b"[" + b",\n".join(events) + b"\n]")
        trace = read_trace(path, chunk_bytes=chunk_bytes)
        # THEN every name is as intended, and the corrected ones are counted
        found = [trace.names[code] for code in trace.events.name]
        assert found == ["op " + name.decode() for name in names]
        assert trace.adjusted["quotes in a name that were not escaped"] == 32
        assert trace.left_out == {}
        assert [value for _, value in values(trace, "k")] == [text.decode() for text in texts]
