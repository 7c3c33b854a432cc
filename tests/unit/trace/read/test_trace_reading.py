"""Reading each form of events and files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagespan.trace import MISSING, Trace, read_trace

Write = Callable[..., Path]


def complete(name: str = "op", ts: Any = 1, dur: Any = 2, **others: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 2,
        "ts": ts,
        "dur": dur,
    } | others


def accounted(trace: Trace) -> int:
    """Return the number of entries of the file, by what happened to them."""
    joined = trace.adjusted.get("begin and end, joined to one event", 0)
    named = len(trace.process_names) + len(trace.process_labels) + len(trace.thread_names)
    tables = len(trace.events) + len(trace.instants) + len(trace.counters) + len(trace.flows)
    return tables + joined + named + sum(trace.left_out.values())


def test_an_event_becomes_a_row_with_every_column(write_trace: Write) -> None:
    arguments = {"correlation": 7, "External id": 8, "device": 0, "stream": 5, "grid": [1, 2, 3]}
    path = write_trace([complete("gemm", 10.5, 2.001, cat="kernel", args=arguments)])
    trace = read_trace(path)
    # THEN each is there, exactly, and absent ones are missing
    events = trace.events
    assert len(events) == trace.total == 1
    assert trace.names[events.name[0]] == "gemm"
    assert trace.categories[events.category[0]] == "kernel"
    assert (events.begin_ns[0], events.dur_ns[0], events.end_ns[0]) == (10500, 2001, 12501)
    assert (events.pid[0], events.tid[0]) == (1, 2)
    assert (events.correlation[0], events.external_id[0]) == (7, 8)
    assert (events.device[0], events.stream[0]) == (0, 5)
    assert events.python_id[0] == MISSING
    assert events.task_type[0] == -1
    assert (trace.left_out, trace.adjusted, trace.incomplete) == ({}, {}, None)


@pytest.mark.parametrize(
    ("written", "nanoseconds"),
    [
        ("1736408883688177.930", 1736408883688177930),
        ("1712195495505582.988", 1712195495505582988),
        ("6869181224115.277", 6869181224115277),
        ("8796093022207.999", 8796093022207999),
        ("8796093022208.001", 8796093022208001),
        ("1683564901540885", 1683564901540885000),
        ("0.001", 1),
        ("-5.25", -5250),
        ("1.2345678e3", 1234568),
        ("0.0004", 0),
        ("0.0006", 1),
        ("1e15", 10**18),
    ],
)
@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("neighbour", ["12.5", "3", '"4.125"', "1712195495505582.5"])
def test_times_keep_their_nanoseconds(
    write_trace: Write, written: str, nanoseconds: int, quoted: bool, neighbour: str
) -> None:
    ts = f'"{written}"' if quoted else written
    events = b",".join(
        b'{"ph":"X","name":"n","ts":%s,"dur":1}' % value.encode() for value in (ts, neighbour, ts)
    )
    trace = read_trace(write_trace(b'{"traceEvents":[' + events + b"]}"))
    assert trace.events.begin_ns[[0, 2]].tolist() == [nanoseconds] * 2


def test_the_base_time_makes_unix_time(write_trace: Write) -> None:
    # GIVEN times relative to a base that is after the events in the file
    path = write_trace(
        [complete(ts=1.5), {"ph": "i", "ts": 2, "name": "mark"}, {"ph": "s", "id": 1, "ts": 3}],
        baseTimeNanoseconds=1767189312000000000,
    )
    trace = read_trace(path)
    assert trace.base_ns == 1767189312000000000
    assert trace.events.begin_ns[0] == 1767189312000001500
    assert trace.instants.begin_ns[0] == 1767189312000002000
    assert trace.flows.begin_ns[0] == 1767189312000003000


@pytest.mark.parametrize("base", ["soon", -1, 1.5, True, 2**70])
def test_an_invalid_base_time_is_counted(write_trace: Write, base: Any) -> None:
    trace = read_trace(write_trace([complete(ts=1)], baseTimeNanoseconds=base))
    assert trace.base_ns is None
    assert trace.events.begin_ns[0] == 1000
    assert trace.adjusted == {"baseTimeNanoseconds that is not a time": 1}


def test_old_categories_get_current_names(write_trace: Write) -> None:
    # GIVEN the spellings of 2021
    old = ["Kernel", "Memcpy", "Memset", "Operator", "Runtime", "Trace"]
    trace = read_trace(write_trace([complete(cat=cat) for cat in [*old, "kernel"]]))
    today = [trace.categories[code] for code in trace.events.category]
    assert today == [
        "kernel", "gpu_memcpy", "gpu_memset", "cpu_op", "cuda_runtime", "trace", "kernel"
    ]  # fmt: skip
    assert trace.rows_of(["kernel"]).tolist() == [True, *[False] * 5, True]


def test_ids_beyond_a_double_are_distinct(write_trace: Write) -> None:
    ids = [2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**40]
    trace = read_trace(write_trace([complete(args={"correlation": each}) for each in ids]))
    found = trace.events.correlation.tolist()
    assert found[:3] == ids[:3]
    assert found[3:5] == [2**63 - 2**64, -1]
    assert len(set(found)) == len(ids)
    assert [trace.named_ids[each] for each in found[5:]] == [str(2**64), str(10**40)]


def test_ids_that_are_words_or_numerals(write_trace: Write) -> None:
    # GIVEN threads named by numeral, by number and by word, as in old traces
    tids = ["25738", 25738, "stream 7", "stream 7", "0x10", "007", None]
    trace = read_trace(write_trace([complete(tid=tid) for tid in tids]))
    found = trace.events.tid.tolist()
    assert found[:2] == [25738, 25738]
    assert found[2] == found[3] < 0
    assert trace.named_ids[found[2]] == "stream 7"
    assert found[4:] == [16, 7, MISSING]


def test_a_numeral_with_too_many_digits_is_a_word(write_trace: Write) -> None:
    endless = "1" * 5_000
    trace = read_trace(write_trace([complete(tid=endless), complete(tid="8")]))
    found = trace.events.tid.tolist()
    assert trace.named_ids[found[0]] == endless
    assert found[1] == 8


def test_negative_zero_and_missing_durations(write_trace: Write) -> None:
    events = [complete(dur=-3), complete(dur=0), complete(dur=5), complete(dur="soon")]
    events.append({"ph": "X", "name": "op", "ts": 1})
    trace = read_trace(write_trace(events))
    # THEN no event is lost, and each correction is counted by cause
    assert trace.events.dur_ns.tolist() == [0, 0, 5000, 0, 0]
    assert trace.adjusted == {"negative duration, taken as 0": 1, "no duration, taken as 0": 2}
    assert accounted(trace) == trace.total == 5


def test_phases_are_stored_in_their_tables(write_trace: Write) -> None:
    entries: list[Any] = [
        complete(),
        {"ph": "i", "name": "[memory]", "ts": 1, "args": {"Bytes": 4}},
        {"ph": "s", "id": 9, "cat": "ac2g", "ts": 1, "pid": 0, "tid": 7},
        {"ph": "f", "id": 9, "cat": "ac2g", "ts": 2, "pid": 0, "tid": 7, "bp": "e"},
        {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 5, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "thread_name", "pid": 5, "tid": 6, "args": {"name": "main"}},
        {"ph": "M", "name": "process_sort_index", "pid": 5, "args": {"sort_index": 1}},
        {"ph": "C", "name": "memory", "ts": 1, "args": {"value": 3}},
        {"ph": "b", "id": 1, "name": "async", "ts": 1},
        {"ph": "?", "name": "strange"},
        {"name": "no phase"},
        {"ph": "X", "name": "no time"},
        {"ph": "f", "id": 3},
        17,
        None,
        [1],
        "word",
    ]
    trace = read_trace(write_trace(entries))
    assert (len(trace.events), len(trace.instants), len(trace.flows)) == (1, 1, 2)
    assert len(trace.counters) == 1
    assert trace.flows.id.tolist() == [9, 9]
    assert trace.flows.starts.tolist() == [True, False]
    assert trace.process_names == {5: "python"}
    assert trace.process_labels == {5: "GPU 0"}
    assert trace.thread_names == {(5, 6): "main"}
    assert trace.left_out == {
        "metadata entry": 1,
        "async event": 1,
        "entry of an unknown phase": 2,
        "event without a time": 1,
        "flow without a time": 1,
        "entry that is not an object": 4,
    }
    assert accounted(trace) == trace.total == len(entries)


def test_begin_and_end_become_one_event(write_trace: Write) -> None:
    def half(ph: str, ts: float, tid: int, name: str = "") -> dict[str, Any]:
        return {"ph": ph, "ts": ts, "tid": tid, "pid": 1, "name": name}

    entries = [
        half("B", 1, 1, "outer"), half("B", 2, 2, "other"), half("B", 3, 1, "inner"),
        half("E", 4, 1), half("E", 6.5, 1), half("E", 7, 2), half("E", 8, 2), half("B", 9, 1),
    ]  # fmt: skip
    trace = read_trace(write_trace(entries))
    # THEN pairs are events and the rest is counted
    rows = {
        trace.names[name]: (begin, dur)
        for name, begin, dur in zip(
            trace.events.name, trace.events.begin_ns, trace.events.dur_ns, strict=True
        )
    }
    assert rows == {"outer": (1000, 5500), "inner": (3000, 1000), "other": (2000, 5000)}
    assert trace.left_out == {
        "end event without a begin event": 1,
        "begin event without an end event": 1,
    }
    assert accounted(trace) == trace.total == 8


def test_an_end_before_its_begin(write_trace: Write) -> None:
    # GIVEN a pair whose end has the earlier time
    entries = [{"ph": "B", "ts": 5, "name": "n"}, {"ph": "E", "ts": 4}]
    trace = read_trace(write_trace(entries))
    # THEN its length is 0, and this is counted
    assert trace.events.dur_ns.tolist() == [0]
    assert trace.adjusted["negative duration, taken as 0"] == 1


def test_fields_of_the_wrong_type_do_not_lose_the_event(write_trace: Write) -> None:
    odd = [
        complete(name=17), complete(name=None), complete(cat=["x"]), complete(pid=1.0),
        complete(pid=1.5), complete(args=[1]), complete(args={"stream": {"a": 1}}),
        complete(args={"stream": "7", "correlation": 3.0}), complete(tid=True),
    ]  # fmt: skip
    trace = read_trace(write_trace([complete("a", ts=5), *odd, complete("b", ts="1.001")]))
    assert len(trace.events) == len(odd) + 2
    assert trace.names[trace.events.name[1]] == "17"
    assert trace.events.pid[4] == 1
    assert (trace.events.stream[8], trace.events.correlation[8]) == (7, 3)
    assert trace.events.begin_ns[[0, -1]].tolist() == [5000, 1001]
    assert sum(trace.adjusted.values()) == 6
    assert trace.left_out == {}


@pytest.mark.parametrize(
    "broken",
    [
        b'{"ph":"X","name":"broken","ts":1,"dur":2,"args":{"bandwidth":inf,"b":-nan,"c":NaN}}',
        b'{"ph":"X","name":"broken","ts":1,"dur":2,"args":{"text":"\xff\xfe"}}',
        b'{"ph":"X","name":"broken","ts":1,"dur":2,"args":{"path":"C:\\Users\\x"}}',
        b'{"ph":"X","name":"broken","ts":1,"dur":2,"args":{"text":"two\nlines\x00"}}',
        b'{"ph":"X","name":"broken","ts":1,"dur":2,"args":{"text":"\\ud800 half"}}',
    ],
)
def test_known_faults_of_writers_are_corrected(write_trace: Write, broken: bytes) -> None:
    usual = json.dumps(complete("usual")).encode()
    path = write_trace(b'{"traceEvents":[' + usual + b",\n" + broken + b", " + usual + b"]}")
    trace = read_trace(path)
    assert [trace.names[code] for code in trace.events.name] == ["usual", "broken", "usual"]
    assert (trace.left_out, trace.incomplete) == ({}, None)


def test_only_a_malformed_entry_is_lost(write_trace: Write) -> None:
    usual = json.dumps(complete("usual")).encode()
    path = write_trace(b"[" + usual + b', {"ph":"X" "name":1}, oops, ' + usual + b"]")
    trace = read_trace(path)
    assert len(trace.events) == 2
    assert trace.left_out == {"malformed entry": 1, "entry that is not an object": 1}


def test_a_deeply_nested_argument_does_not_crash(write_trace: Write) -> None:
    deep = b'{"ph":"X","name":"deep","ts":1,"args":{"a":' + b"[" * 50000 + b"]" * 50000 + b"}}"
    trace = read_trace(
        write_trace(b"[" + json.dumps(complete("flat")).encode() + b"," + deep + b"]")
    )
    assert len(trace.events) == 1
    assert trace.left_out == {"malformed entry": 1}


def test_top_level_forms(write_trace: Write) -> None:
    # GIVEN the same events as a list, after a byte order mark, and with an unusual spelling of the
    # key
    events = json.dumps([complete("a"), complete("b")]).encode()
    forms = [
        events,
        b"\xef\xbb\xbf \n" + events,
        b'{"traceEvents"\n:\t' + events + b"}\n\n",
        b'{"z":{"traceEvents":[]},"s":"\\"traceEvents\\":[","traceEvents":' + events + b"}",
        b'{"deviceProperties":[{"id":0},{"id":1}],"traceEvents":' + events + b',"INFO":["}, {"]}',
        b'{"traceEvents":' + events + b',"deviceProperties":[{"id":0}, {"id":1}]}',
        b'{"limit":NaN,"traceEvents":' + events + b',"top":Infinity}',
    ]
    for form in forms:
        for chunk_bytes in (1 << 20, 7):
            trace = read_trace(write_trace(form), chunk_bytes=chunk_bytes)
            assert [trace.names[code] for code in trace.events.name] == ["a", "b"], form
            assert trace.incomplete is None
            assert trace.total == 2


def test_other_values_are_kept(write_trace: Write) -> None:
    path = write_trace(
        b'{"schemaVersion":1,"distributedInfo":{"rank":3},"traceEvents":[{"ph":"M"}],"traceName":"x"}'
    )
    trace = read_trace(path)
    assert trace.metadata == {"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceName": "x"}


def test_a_second_list_of_events_is_counted(write_trace: Write) -> None:
    # GIVEN a file with the key twice
    path = write_trace(b'{"traceEvents":[{"ph":"X","ts":1}],"traceEvents":[1,2,3]}')
    trace = read_trace(path)
    assert len(trace.events) == 1
    assert trace.left_out == {"entry of a second `traceEvents`": 3}
    assert "traceEvents" not in trace.metadata


def test_an_empty_list_of_events_is_a_trace(write_trace: Write) -> None:
    trace = read_trace(write_trace([]))
    assert (trace.total, len(trace.events), trace.incomplete) == (0, 0, None)


@pytest.mark.parametrize("chunk_bytes", [1, 2, 13, 100, 1000, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_chunks_do_not_matter(write_trace: Write, chunk_bytes: int, packed: bool) -> None:
    names = ['a"}, {"b', "c]}", "d\\", '\\\\"', "e}\n,{", "", "[{", "é漢", "re", "Pi"]
    entries = [
        complete(name, ts=i, args={"deep": [{"x": [{}, {}]}, {}]}) for i, name in enumerate(names)
    ]
    path = write_trace(entries, packed=packed, baseTimeNanoseconds=5, tail=[{"a": "}, {"}, {}])
    trace = read_trace(path, chunk_bytes=chunk_bytes)
    assert [trace.names[code] for code in trace.events.name] == names
    assert trace.events.begin_ns.tolist() == [i * 1000 + 5 for i in range(len(names))]
    assert (trace.left_out, trace.adjusted, trace.incomplete) == ({}, {}, None)
    assert trace.metadata["tail"] == [{"a": "}, {"}, {}]


def test_gzip_of_several_members_and_padding(write_trace: Write) -> None:
    # GIVEN a file compressed in parts, with zeros at the end, and a name without a suffix
    data = json.dumps([complete(str(i), ts=i) for i in range(1000)]).encode()
    packed = gzip.compress(data[:500]) + gzip.compress(data[500:]) + b"\0" * 100
    trace = read_trace(write_trace(packed), chunk_bytes=64)
    assert trace.events.begin_ns.tolist() == [i * 1000 for i in range(1000)]
    assert trace.incomplete is None


def test_columns_of_absent_arguments(write_trace: Write) -> None:
    entries = [complete(ts=i, args={"stream": i} if i % 40 < 20 else {}) for i in range(200)]
    trace = read_trace(write_trace(entries), chunk_bytes=600)
    expected = [i if i % 40 < 20 else MISSING for i in range(200)]
    assert trace.events.stream.tolist() == expected
    assert np.all(trace.events.device == MISSING)
