"""The scanner itself: using it again, and using it from two threads at once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from stagespan import _core

EVENT = b'{"ph": "X", "name": "op", "ts": 1, "dur": 2, "args": {"stream": 7, "note": "x"}},'


def test_results_can_be_taken_only_once() -> None:
    scanner = _core.TraceScanner()
    scanner.scan(EVENT * 2, 0)
    first = scanner.take()
    assert scanner.total == 0
    assert len(np.asarray(scanner.take()["events"]["name"])) == 0
    scanner.scan(EVENT * 3, 0)
    # THEN it reads like a new one
    second = scanner.take()
    assert [len(np.asarray(each["events"]["begin_ns"])) for each in (first, second)] == [2, 3]
    for key in ("names", "keys"):
        texts, others = first[key][0], second[key][0]
        assert bytes(memoryview(texts)) == bytes(memoryview(others))


@pytest.mark.parametrize("blank", [" ", "\t", "\r\n", "\n        "])
def test_any_number_of_blanks(blank: str) -> None:
    # GIVEN entries with 0 to 20 blanks between all their parts, also at the end of the buffer
    parts = [part.encode() for part in re.findall(r'"[^"]*"|[^" ]', EVENT.decode())]
    for count in range(21):
        data = (blank * count).encode().join([*parts, b"]"])
        scanner = _core.TraceScanner()
        assert scanner.scan(data, 0) == (len(data), _core.SCAN_CLOSED)
        events = scanner.take()["events"]
        begin, dur = (np.asarray(events[name]).tolist() for name in ("begin_ns", "dur_ns"))
        assert (begin, dur, len(events["arguments"])) == ([1_000], [2_000], 2)


def test_keys_that_begin_like_a_field() -> None:
    # GIVEN keys that are longer, shorter, or written with an escape
    others = "".join(f'"{key}": 9, ' for key in ("t", "tss", "ts ", "durs", "p", "phh", "arg", ""))
    scanner = _core.TraceScanner()
    scanner.scan(f'{{{others}"\\u0070h": "X", "name": "op", "ts": 1, "dur": 2}}]'.encode(), 0)
    events = scanner.take()["events"]
    assert np.asarray(events["begin_ns"]).tolist() == [1_000]
    assert np.asarray(events["dur_ns"]).tolist() == [2_000]


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("4611686018427386", 4_611_686_018_427_386_000),
        ("4611686018427387", None),
        ("18446744073709552", None),
        ("1844674407370955161600", None),
        ("2000000000000000.123", 2_000_000_000_000_000_123),
    ],
)
def test_the_largest_times(written: str, ns: int | None) -> None:
    scanner = _core.TraceScanner()
    scanner.scan(f'{{"ph": "X", "name": "op", "ts": {written}, "dur": 2}}]'.encode(), 0)
    found = np.asarray(scanner.take()["events"]["begin_ns"]).tolist()
    assert found == ([] if ns is None else [ns])


def test_calls_are_refused_while_another_thread_reads() -> None:
    scanner = _core.TraceScanner()
    data = EVENT * 400_000
    refused: dict[str, str] = {}
    asked: dict[str, Callable[[], object]] = {
        "total": lambda: scanner.total,
        "looks_like_a_trace": lambda: scanner.looks_like_a_trace,
        "leave_out": lambda: scanner.leave_out("cause", 0),
        "take": scanner.take,
    }
    limit = time.monotonic() + 60
    while len(refused) < len(asked) and time.monotonic() < limit:
        thread = threading.Thread(target=scanner.scan, args=(data, 0))
        thread.start()
        while thread.is_alive() and len(refused) < len(asked):
            for name, ask in asked.items():
                try:
                    ask()
                except RuntimeError as error:
                    refused[name] = str(error)
        thread.join()
        scanner.take()
    assert refused == dict.fromkeys(asked, "this scanner is in use by another thread")
