"""``stats()``: the lifetime, windows from snapshots and from rings, and what it says of them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import pytest

import stagespan
from stagespan import _core, service, statistics


@pytest.fixture(autouse=True)
def fresh() -> None:
    """A recorder that has seen nothing, and no snapshots of the past."""
    service.flush()
    _core.reset()
    service._service.history._kept.clear()


def spans(name: str, count: int, *, seconds: float = 0.0) -> None:
    for _ in range(count):
        with stagespan.span(name):
            time.sleep(seconds)


def no_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service._service, "_snapshot_if_due", lambda: None)
    service._service.history._kept.clear()


def test_the_lifetime_of_all_stages() -> None:
    spans("slow", 3, seconds=0.005)
    spans("fast", 10)
    with stagespan.span("slow") as span:
        span.add(tokens=7)
    with pytest.raises(KeyError), stagespan.span("slow"):
        raise KeyError

    found = stagespan.stats()

    assert list(found) == ["slow", "fast"]
    slow = found["slow"]
    assert (slow.count, slow.errors, slow.work) == (5, 1, {"tokens": 7.0})
    assert slow.total_ns >= 15_000_000
    assert slow.mean_ns == pytest.approx(slow.total_ns / 5)
    assert slow.min_ns is not None
    assert slow.max_ns is not None
    for quantile in (slow.p50_ns, slow.p95_ns, slow.p99_ns, slow.quantile_ns(0.25)):
        assert quantile is not None
        assert slow.min_ns - 1 <= quantile <= slow.max_ns + 1  # those are whole ns
    assert slow.device_elapsed_ns is slow.device_queue_ns is slow.device_tail_ns is None
    assert found.is_lifetime
    assert found.window_s is not None
    assert found.window_s > 0.01
    assert slow.lost == found.lost == _core.lost()


def test_it_is_a_mapping() -> None:
    spans("a", 1)
    found = stagespan.stats()
    assert isinstance(found, statistics.Stats)
    assert "a" in found
    assert "b" not in found
    assert len(found) == 1
    assert dict(found)["a"].name == "a"
    with pytest.raises(KeyError):
        found["b"]


def test_it_prints_as_a_table() -> None:
    spans("denoise", 1_234)
    spans("a\nb", 1)
    lines = str(stagespan.stats()).splitlines()
    assert lines[0].split()[:4] == ["stage", "count", "total", "ms"]
    assert any(line.startswith("denoise") and "1,234" in line for line in lines)
    assert any(line.startswith("a\\nb") for line in lines)
    assert len(lines) == 3
    assert "2 stages, lifetime" in repr(stagespan.stats())


def test_nothing_has_run() -> None:
    assert len(stagespan.stats()) == 0
    assert str(stagespan.stats()).startswith("stage")


@pytest.mark.parametrize("window_s", [0, -1, float("nan")])
def test_a_window_must_be_above_zero(window_s: float) -> None:
    with pytest.raises(ValueError, match="window_s"):
        stagespan.stats(window_s)


def test_a_window_from_the_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no snapshot of the past, and spans before and within the window
    no_snapshots(monkeypatch)
    spans("early", 5)
    spans("both", 3)
    time.sleep(0.4)
    began_ns = _core.now_ns() - 200_000_000  # in the midst of the pause
    spans("both", 2, seconds=0.005)
    with pytest.raises(KeyError), stagespan.span("both"):
        raise KeyError

    window_s = (_core.now_ns() - began_ns) / 1e9
    found = stagespan.stats(window_s)
    # THEN exactly what ended in the window is counted
    assert list(found) == ["both"]
    both = found["both"]
    assert (both.count, both.errors) == (3, 1)
    assert both.max_ns is not None
    assert both.max_ns >= 5_000_000
    assert both.p99_ns is not None
    assert both.p99_ns <= both.max_ns
    assert found.window_s == pytest.approx(window_s)
    assert not found.is_lifetime


def test_a_window_from_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a snapshot between two groups of spans
    no_snapshots(monkeypatch)
    spans("s", 100)
    earlier = _core.snapshot()
    service.history().add(earlier)
    time.sleep(0.2)
    spans("s", 7)
    # WHEN a window is asked for that begins near it
    before_s = (_core.now_ns() - earlier.time_ns) / 1e9
    found = stagespan.stats(1.1 * before_s)
    after_s = (_core.now_ns() - earlier.time_ns) / 1e9
    # THEN it begins at the snapshot, and says so
    assert found["s"].count == 7
    assert found.window_s is not None
    assert before_s - 1e-3 <= found.window_s <= after_s + 1e-3
    assert not found.is_lifetime


def test_a_window_longer_than_the_life_is_the_life() -> None:
    spans("s", 3)
    found = stagespan.stats(1e9)
    assert found.is_lifetime
    assert found["s"].count == 3


def test_when_the_rings_have_wrapped_the_nearest_truth_is_told() -> None:
    # GIVEN a process whose rings hold a hundred spans and lost the window's beginning
    code = """
        import json, stagespan, time
        from stagespan import service
        service._service._snapshot_if_due = lambda: None
        stagespan.stats()
        def spans(n):
            for _ in range(n):
                with stagespan.span("s"):
                    pass
        spans(1000)
        time.sleep(1.0)
        spans(1000)
        stats = stagespan.stats(0.9)
        print(json.dumps([stats["s"].count, stats.window_s, stats.is_lifetime, stats.lost]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**__import__("os").environ, "STAGESPAN_RING_SPANS": "128"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    count, window_s, is_lifetime, lost = json.loads(done.stdout)
    # THEN the figures are whole, for a longer time than asked, and they say so
    assert (count, is_lifetime) == (2000, True)
    assert window_s > 0.9
    assert lost["overwritten"] > 0


def test_spans_recorded_late_do_not_pass_for_old_ones() -> None:
    # GIVEN what the rings hold, the last of it recorded late
    now = _core.now_ns()
    spans("s", 2)
    _core.record("late", now - 10**10, now - 9 * 10**9)
    held: Any = _core.spans()
    # THEN it is no proof that the ring reaches back
    assert held["end_ns"].min() < now - 5 * 10**9
    assert not statistics._reach_back(held, now - 5 * 10**9)


def test_a_question_for_a_window_starts_the_snapshots() -> None:
    code = """
        import stagespan, threading
        with stagespan.span("s"):
            pass
        assert [t.name for t in threading.enumerate()] == ["MainThread"]
        stagespan.stats(60)
        assert "stagespan" in [t.name for t in threading.enumerate()]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_the_table_shows_work_and_waiting_where_there_is_any() -> None:
    # GIVEN a stage that counted work, and one that waited
    @stagespan.span("generate")
    def generate() -> Iterator[int]:
        yield 1

    with stagespan.span("decode") as span:
        time.sleep(0.01)
        span.add(tokens=230)
    items = generate()
    next(items)
    time.sleep(0.01)
    items.close()

    # WHEN the table is printed
    head, *rows = str(stagespan.stats()).splitlines()

    # THEN two more columns stand in it, filled for the stages that have something to say
    assert head.split()[-3:] == ["suspended", "ms", "work"]
    decode = next(row for row in rows if row.startswith("decode"))
    assert "tokens 230 (" in decode
    assert decode.endswith("/s)")
    assert float(next(row for row in rows if row.startswith("generate")).split()[-1]) >= 10.0
