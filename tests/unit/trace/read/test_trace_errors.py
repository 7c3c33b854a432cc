"""Files that are not traces give one sentence; of truncated traces, complete events are read."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sqlite3
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run

from reading import trace_or_refusal
from stagespan.errors import StagespanError, TraceError
from stagespan.trace import read_trace

Write = Callable[..., Path]

EVENT = b'{"ph":"X","name":"op","ts":1,"dur":2}'


def refusal(path: Path | str) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def test_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.json").startswith("There is no file")
    assert "null" in refusal("a\0b")


def test_a_folder(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(write_trace: Write) -> None:
    path = write_trace(b"[]")
    path.chmod(0)
    assert "cannot be read" in refusal(path)


@pytest.mark.parametrize("data", [b"", b"  \n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file(write_trace: Write, data: bytes) -> None:
    assert "is empty" in refusal(write_trace(data))


@pytest.mark.parametrize("data", [b"hello", b"PK\x03\x04zip", b"17", b"\x00\x00", b"<html>"])
def test_not_json(write_trace: Write, data: bytes) -> None:
    assert "is not JSON" in refusal(write_trace(data))


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        ('{"traceEvents": []}'.encode("utf-16"), "convert it to UTF-8"),
        ('{"traceEvents": []}'.encode("utf-16-le"), "convert it to UTF-8"),
        ('{"traceEvents": []}'.encode("utf-32"), "convert it to UTF-8"),
        (b"PK\x03\x04\x14\x00rest of the archive", "unpack it, and pass the file in it"),
        (b"\n<!DOCTYPE html>\n<html><head>", "pass the JSON file from which it was made"),
        (b"BZh91AY&SY", "decompress it first"),
        ("[]".encode("utf-32-be"), "convert it to UTF-8"),
        (b"\0\x7f\x03\0binary", "pass the JSON file that was exported"),
        (b"\0\0\0\0", "pass the JSON file that was exported"),
    ],
)
def test_what_is_not_json_is_named_with_advice(
    write_trace: Write, data: bytes, advice: str
) -> None:
    assert f": {advice}." in refusal(write_trace(data))


@pytest.mark.parametrize(
    ("depth", "reason"),
    [
        (3, "an object with a name, a phase and a time"),
        (10_000, "contains no event that can be read"),
        (1_000_000, "contains no event that can be read"),
    ],
)
def test_nested_lists_are_not_a_trace(write_trace: Write, depth: int, reason: str) -> None:
    # THEN the reason is that there is no event, not how many entries there are
    assert reason in refusal(write_trace(b"[" * depth + b"]" * depth))


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"a":[1,2]}',
        b'{"a":{"traceEvents":[]}}',
        b'{"traceEvents":null}',
        b'{"traceEvents":{"a":1}}',
        b'[1,2,"x"]',
        b'[{"a":1}]',
        b'{"traceEvents":[{"stage":"denoise"}]}',
    ],
)
def test_json_that_is_not_a_trace(write_trace: Write, data: bytes) -> None:
    assert "not a trace" in refusal(write_trace(data))


def test_cut_off_before_the_events(write_trace: Write) -> None:
    assert "truncated or not JSON" in refusal(write_trace(b'{"schemaVersion": 1, "devi'))
    assert "before its first event" in refusal(write_trace(b'{"traceEvents": [{"ph":'))


def test_the_error_is_the_library_s_own() -> None:
    assert issubclass(TraceError, StagespanError)
    assert issubclass(TraceError, ValueError)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("chunk_bytes", [5, 1 << 20])
def test_cut_off_at_every_byte(write_trace: Write, as_list: bool, chunk_bytes: int) -> None:
    # GIVEN a small trace whose names contain text that looks like structure
    names = ["a", 'q"}, {"', "esc\\", "]}", "é"]
    entries = [
        {"ph": "X", "name": n, "ts": i, "dur": 1, "args": {"l": [{}]}} for i, n in enumerate(names)
    ]
    data = json.dumps(entries if as_list else {"v": 1, "traceEvents": entries, "t": "x"}).encode()
    whole = read_trace(write_trace(data))
    assert whole.incomplete is None
    seen = 0
    for length in range(len(data)):
        path = write_trace(data[:length])
        trace = trace_or_refusal(path, chunk_bytes)
        if isinstance(trace, str):
            # THEN there is a sentence if no event is complete
            assert seen == 0, length
            assert trace.endswith(".")
            continue
        # THEN otherwise every complete event is there, unchanged, and the trace says that it is
        # truncated
        assert trace.incomplete is not None
        assert len(trace.events) >= seen
        seen = len(trace.events)
        assert f"{seen} complete entries" in trace.incomplete
        assert [trace.names[code] for code in trace.events.name] == names[:seen]
        assert trace.left_out == {}
    assert seen == len(names)


def test_gzip_cut_off_at_every_byte(write_trace: Write) -> None:
    entries = [{"ph": "X", "name": f"name {i * 7919 % 1000}", "ts": i, "dur": i} for i in range(60)]
    data = gzip.compress(json.dumps(entries).encode())
    best = 0
    for length in range(3, len(data)):
        path = write_trace(data[:length])
        trace = trace_or_refusal(path, 200)
        if isinstance(trace, str):
            # THEN the sentence names the cause
            assert "gzip" in trace or "truncated" in trace
            continue
        assert trace.incomplete is not None
        assert "gzip data is truncated" in trace.incomplete
        unpacked = zlib.decompressobj(wbits=31).decompress(data[:length])
        assert len(trace.events) == unpacked.count(b"}")
        assert trace.events.begin_ns.tolist() == [i * 1000 for i in range(len(trace.events))]
        best = max(best, len(trace.events))
    assert best == len(entries)


def test_damaged_gzip(write_trace: Write) -> None:
    # GIVEN compressed events with a wrong bit in the middle, or a wrong checksum
    entries = [
        {"ph": "X", "name": f"name {i * 7919 % 1000}", "ts": i, "dur": i} for i in range(500)
    ]
    data = bytearray(gzip.compress(json.dumps(entries).encode()))
    data[-6] ^= 1
    trace = read_trace(write_trace(bytes(data)), chunk_bytes=100)
    assert trace.incomplete is not None
    assert "gzip data is damaged" in trace.incomplete


_EVENT = b'{"ph":"X","ts":1,"dur":1,"name":"a"}'
_TOO_LONG = {
    "blanks before the list": (b"", b" ", b'{"traceEvents":[' + _EVENT + b"]}", None),
    "a text before the list": (b'{"a":"', b"x", b'","traceEvents":[]}', TraceError),
    "keys before the list": (b"{", b'"a":1,', b'"traceEvents":[]}', TraceError),
    "lists before the list": (b'{"a":[', b'{"traceEvents":[]},', b"0]}", TraceError),
    "blanks in the list": (b'{"traceEvents":[', b" ", _EVENT + b"]}", None),
    "a name": (
        b'{"traceEvents":[' + _EVENT + b',{"ph":"X","ts":1,"dur":1,"name":"', b"x", b'"}]}',
        "longer than 64 MiB",
    ),
    "blanks in the first entry": (b'{"traceEvents":[{"ph":"X",', b" ", b'"ts":1}]}', TraceError),
    "blanks behind the list": (b'{"traceEvents":[' + _EVENT + b"]", b" ", b"}", None),
    "a text behind the list": (
        b'{"traceEvents":[' + _EVENT + b'],"a":"', b"x", b'"}', "longer than 64 MiB",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _TOO_LONG)
def test_a_small_file_that_decompresses_to_much_takes_little_memory(
    name: str, tmp_path: Path
) -> None:
    # GIVEN a small file that decompresses to much more than is kept of it; only blanks are read to
    # their end
    head, filler, tail, expected = _TOO_LONG[name]
    blocks, most = (200, 120 << 20) if expected is None else (400, 320 << 20)
    block = gzip.compress(filler * ((1 << 20) // len(filler)))
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(head) + blocks * block + gzip.compress(tail))
    assert path.stat().st_size < 4 << 20
    tracemalloc.start()
    try:
        if expected is TraceError:
            with pytest.raises(TraceError, match="MiB") as caught:
                read_trace(path)
            assert str(caught.value).count(". ") <= 1
        else:
            trace = read_trace(path)
            # THEN complete events are there, and what is too long is reported
            assert len(trace.events) == 1
            assert (expected or "") in (trace.incomplete or "")
            assert (expected is None) == (trace.incomplete is None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most


def test_text_after_the_end(write_trace: Write) -> None:
    # GIVEN a list with text after it, and an object whose end is not JSON
    for data in (b"[" + EVENT + b"] garbage", b'{"traceEvents":[' + EVENT + b"], oops}"):
        trace = read_trace(write_trace(data))
        assert len(trace.events) == 1
        assert trace.incomplete is not None


def entries(count: int) -> list[bytes]:
    return [
        b'{"ph": "X", "name": "op%d", "ts": %d, "dur": 2, "pid": 1, "args": {"a": [1, {"b": 2}]}}'
        % (at, at)
        for at in range(count)
    ]


@pytest.mark.parametrize("in_object", [False, True])
@pytest.mark.parametrize(
    ("was", "damaged"),
    [
        (b'"dur"', b"dur"),  # an old profiler forgot the first quote of a key
        (b'"dur": 2', b'dur": 2'),
        (b'"name": "op', b'"name": "o"p'),
        (b'"args": {', b'"args": '),
        (b"}]}}", b"}]}"),
        (b'"pid": 1', b'"pid": \0\0\0'),
    ],
)
def test_damage_is_reported_where_it_is(
    was: bytes, damaged: bytes, in_object: bool, write_trace: Write
) -> None:
    written = entries(9)
    assert was in written[4]
    written[4] = written[4].replace(was, damaged, 1)
    start = b'{"traceEvents": [' if in_object else b"["
    text = start + b", ".join(written) + (b"]}" if in_object else b"]")
    trace = read_trace(write_trace(text))
    names = [trace.names[code] for code in trace.events.name]
    assert names == [f"op{at}" for at in range(9) if at != 4]
    assert trace.left_out["malformed entry"] == 1
    assert trace.incomplete is not None
    at = text.index(written[4])
    assert f"damaged at byte {at}; the" in trace.incomplete
    assert "ends in the middle" not in trace.incomplete


def test_damage_after_corrected_names(write_trace: Write) -> None:
    quoted = b'{"ph": "X", "name": "a "b" c", "ts": 1, "dur": 2}'
    broken = b'{"ph": "X", "ts" 5}'
    text = b"[" + b",\n".join([quoted] * 3 + [broken] + [quoted] * 3) + b"\n]"
    trace = read_trace(write_trace(text))
    # THEN the place is that in the file, and the corrections are counted
    assert f"damaged at byte {text.index(broken)};" in str(trace.incomplete)
    assert trace.adjusted == {"quotes in a name that were not escaped": 6}
    assert len(trace.events) == 6


def test_a_second_trace_among_the_events(write_trace: Write) -> None:
    events = b", ".join(entries(40))
    first = b'{"distributedInfo": {"rank": 0}, "traceEvents": [' + events + b"]}"
    second = first.replace(b'"rank": 0', b'"rank": 1')
    text = first[:1_500] + second
    trace = read_trace(write_trace(text))
    assert "as if several ranks wrote into this file" in str(trace.incomplete)
    trace = read_trace(write_trace(first + b"\n" + second))
    assert f"a second trace begins at byte {len(first) + 2}" in str(trace.incomplete)
    assert len(trace.events) == 40


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ('{"traceEvents": []}'.encode("utf-16"), "convert it to UTF-8"),
        ("[]".encode("utf-16-le"), "convert it to UTF-8"),
        (b"PK\x03\x04" + bytes(50), "unpack it"),
        (b"\x28\xb5\x2f\xfd" + bytes(50), "zstd -d"),
    ],
)
def test_other_formats_and_what_to_do(content: bytes, advice: str, write_trace: Write) -> None:
    assert advice in refusal(write_trace(content))


# --- files of other tools ---


def _event(name: str, **fields: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": 10.0, "dur": 2.0, **fields}


def _process(name: str) -> dict[str, object]:
    return {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": name}}


@pytest.mark.parametrize(
    ("content", "tool"),
    [
        ([_event("load (app.py:3)", cat="FEE")], "VizTracer"),
        ({"traceEvents": [_event("f")], "viztracer_metadata": {"version": "1.1.1"}}, "VizTracer"),
        ([_event("model_run", cat="Session"), _event("Gemm", cat="Node")], "ONNX Runtime"),
        ([_event("get", cat="task:store_outputs"), _event("idle", cat="worker_idle")], "Ray"),
        (
            {"traceEvents": [_process("/host:CPU"), _event("PjitFunction(f)", pid=7), {}]},
            "JAX or TensorFlow",
        ),
        (
            [_process("/job:localhost/replica:0/task:0/cpu:0 Compute"), _event("NoOp", cat="Op")],
            "TensorFlow",
        ),
        ([_event("cuMemAlloc_v2"), _event("cuLaunchKernel", ts=20.0)], "eBPF"),
        ({"rocprofiler-sdk-tool": [{"buffer_records": {}}]}, "rocprofv3"),
    ],
)
def test_a_trace_of_another_tool_is_named(content: object, tool: str, write_trace: Write) -> None:
    said = refusal(write_trace(json.dumps(content).encode()))
    assert tool in said
    assert "torch.profiler" in said


@pytest.mark.parametrize(
    ("name", "content", "tool", "step"),
    [
        ("run.nsys-rep", b"\0\1\2\3", "Nsight Systems", "torch.profiler"),
        ("step.pftrace", b"\x0a\x32\x08\0", "Perfetto", "traceconv json"),
        ("host.xplane.pb", b"\x0a\x12\0", "protobuf", "torch.profiler"),
        ("gemm.ncu-rep", b"NVR\0", "Nsight Compute", "stagespan show FILE"),
    ],
)
def test_a_binary_file_of_another_tool_is_named(
    name: str, content: bytes, tool: str, step: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    said = refusal(path)
    assert tool in said
    assert step in said


@pytest.mark.parametrize(
    ("table", "tool"),
    [
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "Nsight Systems"),
        ("rocpd_kernel_dispatch_0a1b", "rocprofv3"),
        ("CANN_API", "export_type Text"),
        ("customers", "an SQLite database"),
    ],
)
def test_a_database_is_named_by_its_tables(table: str, tool: str, tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER)")
        database.execute(f"CREATE TABLE {table} (begin INTEGER)")
        database.commit()
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert tool in refusal(path)
    # The file and its folder are left as they are, except for the time at which it was read.
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_timeline_with_own_categories_gets_no_advice_for_torch(write_trace: Write) -> None:
    # GIVEN a timeline that a pipeline wrote by itself
    events = [_event("block 3", cat="forward"), _event("block 3", cat="backward", ts=20.0)]
    path = write_trace(json.dumps(events).encode())
    status, page, _ = run(path)
    assert status == 0
    assert "'backward', 'forward'" in page
    assert "with_stack" not in page
