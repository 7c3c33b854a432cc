"""A device that fails or captures: host time is measured, nothing raises, losses are counted."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
from standin import Standin

import stagespan
from stagespan import _core
from stagespan.device import times as wiring


def last_device_ns() -> float:
    assert stagespan.flush(30)
    return float(stagespan.spans()[-1]["device_elapsed_ns"])


def test_an_event_that_cannot_be_recorded(device: Standin) -> None:
    device.fail(records=1)
    with stagespan.span("unlucky"):
        device.kernel(1)
    # THEN its host time is there, its device time is not, and the cause is counted
    assert np.isnan(last_device_ns())
    assert stagespan.stats()["unlucky"].count == 1
    assert stagespan.stats()["unlucky"].device_elapsed_ns is None
    assert stagespan.lost()["device_failed"] == 1
    # AND the next one is timed again
    device.hold()
    with stagespan.span("unlucky"):
        device.kernel(2)
    device.hold(False)
    assert last_device_ns() == pytest.approx(2e6, rel=0.001)


def test_an_event_that_cannot_be_queried(device: Standin) -> None:
    device.hold()
    with stagespan.span("unasked"):
        device.kernel(1)
    device.fail(queries=1)
    device.hold(False)
    stagespan.flush(30)
    device.fail()
    with stagespan.span("asked"):
        device.kernel(1)
    assert np.isfinite(last_device_ns())
    assert stagespan.lost()["device_failed"] <= 1


def test_one_warning_never_repeated(device: Standin, caplog: pytest.LogCaptureFixture) -> None:
    wiring._has_warned = False
    with caplog.at_level(logging.WARNING, "stagespan"):
        for _ in range(3):
            device.fail(records=1)
            with stagespan.span("warned of"):
                device.kernel(0)
            stagespan.flush(30)
            wiring.watch()
    lines = [line for line in caplog.messages if "device time is not complete" in line]
    assert len(lines) == 1
    assert "stagespan doctor" in lines[0]


def test_captured_work_is_not_timed(device: Standin) -> None:
    queries = device.counts()["queries"]
    records = device.counts()["records"]
    device.capture(True)
    with stagespan.span("captured"):
        device.kernel(1)
    assert device.counts()["records"] == records
    assert device.counts()["queries"] == queries
    device.capture(False)
    assert np.isnan(last_device_ns())
    assert stagespan.spans()[-1]["flags"] & _core.FLAG_CAPTURED
    assert stagespan.lost()["device_captured"] == 1


def test_a_span_that_ends_in_another_thread(device: Standin) -> None:
    device.hold()
    tokens: list[stagespan.Token] = []
    thread = threading.Thread(target=lambda: tokens.append(stagespan.begin("handed on")))
    thread.start()
    thread.join()
    device.kernel(3)
    stagespan.end(tokens[0])
    device.hold(False)
    # THEN it has host time, and its device time is right or counted as unknown
    found = last_device_ns()
    assert stagespan.stats()["handed on"].count == 1
    if np.isnan(found):
        assert stagespan.lost()["device_elsewhere"] == 1
    else:
        assert found == pytest.approx(3e6, rel=0.01)


def test_many_pending_spans_in_bounded_memory(device: Standin) -> None:
    limit = _core.device_info()["event_pairs_limit"]
    device.hold()
    for _ in range(20_000):
        with stagespan.span("pending"):
            pass
    info = _core.device_info()
    assert info["event_pairs"] <= limit
    assert info["pending"] <= limit
    lost = stagespan.lost()["device_pool"]
    assert 0 < lost < 20_000
    device.hold(False)
    assert stagespan.flush(60)
    elapsed = stagespan.stats()["pending"].device_elapsed_ns
    assert elapsed is not None
    assert elapsed.count + stagespan.lost()["device_pool"] == 20_000
