"""Broken traces: whatever the bytes, the reader returns a trace or one sentence."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from reading import trace_or_refusal
from stagespan.trace import breakdown, device_use

_EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 20,
     "args": {"External id": 1, "Input Dims": [[2, 3], []]}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 4,
     "dur": 3, "args": {"correlation": 7}},
    {"ph": "s", "id": 7, "cat": "ac2g", "pid": 1, "tid": 1, "ts": 4},
    {"ph": "X", "cat": "kernel", "name": 'g"e}, {m\\m', "pid": 0, "tid": 7, "ts": "9.125", "dur": 5,
     "args": {"correlation": 7, "stream": 7, "device": 0}},
    {"ph": "f", "id": 7, "cat": "ac2g", "pid": 0, "tid": 7, "ts": 9, "bp": "e"},
    {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 12, "s": "t"},
    {"ph": "B", "name": "b", "pid": 1, "tid": 2, "ts": 1}, {"ph": "E", "pid": 1, "tid": 2, "ts": 2},
]  # fmt: skip
_TRACE = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0}, {"id": 1}],
    "traceEvents": _EVENTS,
    "traceName": "x",
    "baseTimeNanoseconds": 1767189312000000000,
}
_SEEDS = [
    json.dumps(_TRACE).encode(),
    json.dumps(_TRACE, indent=2).encode(),
    json.dumps(_EVENTS).encode(),
    gzip.compress(json.dumps(_TRACE).encode(), mtime=0),
]
_PIECES = [
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\n", b"\x00", b"\xff", b"NaN", b"null", b"-",
    b"1e999", b"99999999999999999999", b'"traceEvents"', b'"traceEvents":[', b'"ph":"X"', b"}, {",
    b'"ts":"soon"', b'"dur":-1', b"true", b"]}", b"\\u", b"\\ud800", b"[" * 3000, b'{"a":' * 3000,
]  # fmt: skip


def survives(data: bytes, chunk_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        path.write_bytes(data)
        trace = trace_or_refusal(path, chunk_bytes)
    if isinstance(trace, str):
        assert trace.endswith(".")
        return
    # A trace that was read can be analysed, and everything that was lost is counted.
    breakdown(trace, "stage").to_dict()
    device_use(trace).to_dict()
    joined = trace.adjusted.get("begin and end, joined to one event", 0)
    tables = len(trace.events) + len(trace.instants) + len(trace.flows) + joined
    assert tables + sum(trace.left_out.values()) <= trace.total
    assert (trace.events.dur_ns >= 0).all()


@settings(max_examples=examples(300))
@given(st.binary(max_size=200), st.integers(1, 64))
def test_any_bytes(data: bytes, chunk_bytes: int) -> None:
    survives(data, chunk_bytes)


@settings(max_examples=examples(200))
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["traceEvents", "ph", "name", "ts", "dur", "pid", "args", "id", "cat"]
                ),
                inner | st.sampled_from(["X", "s", "M", "B", "E", "i", "process_name"]),
                max_size=8,
            )
        ),
        max_leaves=30,
    ),
    st.integers(1, 64),
)
def test_any_json(value: object, chunk_bytes: int) -> None:
    survives(json.dumps(value).encode(), chunk_bytes)
    survives(json.dumps({"traceEvents": [value, value]}).encode(), chunk_bytes)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_traces(seed: int) -> None:
    # GIVEN a trace in which a few bytes were changed, removed, inserted or repeated
    rng = random.Random(seed)
    for _ in range(400):
        data = bytearray(_SEEDS[seed])
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(5):
                case 0:
                    data[at : at + 1] = bytes([rng.randrange(256)])
                case 1:
                    del data[at : at + rng.randint(1, 40)]
                case 2:
                    data[at:at] = rng.choice(_PIECES)
                case 3:
                    data[at:at] = data[at : at + rng.randint(1, 200)]
                case _:
                    del data[at:]
            if not data:
                break
        survives(bytes(data), rng.choice([1, 7, 64, 500, 1 << 20]))


def test_mutations_inside_gzip() -> None:
    # GIVEN damaged traces inside a gzip file that is not damaged
    rng = random.Random(99)
    for _ in range(150):
        data = bytearray(_SEEDS[1])
        at = rng.randrange(len(data))
        data[at : at + rng.randint(0, 3)] = rng.choice(_PIECES)
        survives(gzip.compress(bytes(data), compresslevel=1), rng.choice([16, 1 << 20]))
