"""The scanner itself: using it again, and using it from two threads at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

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
