"""``stats()``: the lifetime, and windows from snapshots and from rings, with their lengths."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import stagespan
from running import ran
from stagespan import _core
from stagespan.live import service, statistics
from stagespan.process import run


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Start with an empty recorder, and without earlier snapshots."""
    service.flush()
    _core._reset()
    service._service.history._kept.clear()


def spans(name: str, count: int, *, seconds: float = 0.0) -> None:
    for _ in range(count):
        with stagespan.span(name):
            time.sleep(seconds)


def no_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service._service, "_snapshot_if_due", lambda: None)
    service._service.history._kept.clear()


def has_lived(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(run, "process_start_s", lambda pid: time.time() - seconds)


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
    assert found.lost == _core.lost()


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


def test_a_name_that_is_not_there_is_answered_with_similar_ones() -> None:
    for name in ("decode", "forward"):
        with stagespan.span(name):
            pass
    stats = stagespan.stats()
    with pytest.raises(KeyError) as missing:
        stats["decod"]
    assert str(missing.value) == "no stage 'decod' has run; similar names: decode"
    with pytest.raises(KeyError) as missing:
        stats["xyz"]
    assert str(missing.value) == "no stage 'xyz' has run; 2 other stages have run"
    assert missing.value.args == ("xyz",)
    assert stats.get("xyz") is None
    assert "xyz" not in stats
    assert "decode" in stats


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
    no_snapshots(monkeypatch)
    has_lived(monkeypatch, 1_000)
    early_ns = _core.now_ns() - 10 * 10**9
    for name in ("early", "both", "both"):
        _core.record(name, early_ns, early_ns + 10**9)
    spans("both", 2, seconds=0.005)
    with pytest.raises(KeyError), stagespan.span("both"):
        raise KeyError

    found = stagespan.stats(5)
    assert stagespan.stats()["both"].count == 5
    assert list(found) == ["both"]
    both = found["both"]
    assert (both.count, both.errors) == (3, 1)
    assert both.max_ns is not None
    assert both.max_ns >= 5_000_000
    assert both.p99_ns is not None
    assert both.p99_ns <= both.max_ns
    assert found.window_s == pytest.approx(5)
    assert not found.is_lifetime


def test_a_window_of_stages_with_known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no earlier snapshot, and spans with given times, which end after the window begins
    no_snapshots(monkeypatch)
    now_ns = _core.now_ns()
    for name, seconds in (("short", 2), ("long", 5), ("long", 6)):
        _core.record(name, now_ns, now_ns + seconds * 10**9)

    found = stagespan.stats(0.1)

    # THEN the longest stage comes first, with figures that are exact but for the rate of the clock,
    # which may be measured anew between the readings (some ppm)
    assert list(found) == ["long", "short"]
    stage = found["long"]
    assert stage.count == 2
    figures = (stage.min_ns, stage.max_ns, stage.mean_ns, stage.p50_ns, stage.quantile_ns(0.25))
    assert figures == pytest.approx((5e9, 6e9, 5.5e9, 5e9, 5e9), rel=1e-5)
    assert stage.total_ns == pytest.approx(11 * 10**9, rel=1e-5)


def test_a_snapshot_far_from_the_window_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    no_snapshots(monkeypatch)
    has_lived(monkeypatch, 1_000)
    spans("s", 3)
    service.history().add(_core.snapshot().pack())
    spans("s", 7)

    found = stagespan.stats(100)

    assert found["s"].count == 10
    assert not found.is_lifetime


def test_a_window_from_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    no_snapshots(monkeypatch)
    spans("s", 100)
    earlier = _core.snapshot()
    service.history().add(earlier.pack())
    time.sleep(0.2)
    spans("s", 7)
    before_s, after_s = 0.0, 1.0
    while after_s > 1.1 * before_s:  # if the machine paused here, the window began later
        before_s = (_core.now_ns() - earlier.time_ns) / 1e9
        found = stagespan.stats(1.1 * before_s)
        after_s = (_core.now_ns() - earlier.time_ns) / 1e9
    assert found["s"].count == 7
    assert found.window_s is not None
    assert before_s - 1e-3 <= found.window_s <= after_s + 1e-3
    assert not found.is_lifetime


@pytest.mark.parametrize(
    ("age_ns", "window_s"), [(3 * 10**9, 3.0), (0, None), (-1, None), (None, None)]
)
def test_the_length_of_a_recording(age_ns: int | None, window_s: float | None) -> None:
    # GIVEN the figures of a recording, and when it began, or 0 if that is unknown
    snapshot = _core.snapshot()
    begin_ns = 0 if age_ns is None else snapshot.time_ns - age_ns

    # WHEN / THEN its length is known if it began before its end
    found = statistics.of_recording(snapshot, {"threads": 2}, begin_ns)
    assert (found.window_s, found.is_lifetime, found.lost) == (window_s, True, {"threads": 2})


def test_a_window_longer_than_the_life_is_the_life() -> None:
    spans("s", 3)
    found = stagespan.stats(1e9)
    assert found.is_lifetime
    assert found["s"].count == 3


def printed_after_a_thousand_spans(code: str) -> list[Any]:
    """Return the lines of a program whose rings hold 128 spans, as JSON.

    The program has no snapshots but its own. It has run 1,000 spans of the stage `s`, and runs more
    with `spans`. `has_lived` sets the age of its process.
    """
    begin = """
        import json, stagespan, time
        from stagespan import _core
        from stagespan.process import run
        from stagespan.live import service
        service._service._snapshot_if_due = lambda: None
        stagespan.stats()
        def spans(n):
            for _ in range(n):
                with stagespan.span("s"):
                    pass
        def has_lived(life_s):
            run.process_start_s = lambda pid: time.time() - life_s
        spans(1000)
    """
    done = ran(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(code)],
        status=0,
        STAGESPAN_RING_SPANS="128",
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_when_the_rings_have_wrapped_a_longer_window_is_used() -> None:
    code = """
        has_lived(10_000)
        stats = stagespan.stats(1_000)
        print(json.dumps([stats["s"].count, stats.window_s, stats.is_lifetime, stats.lost]))
    """
    ((count, window_s, is_lifetime, lost),) = printed_after_a_thousand_spans(code)
    # THEN the figures are complete, for a longer time than requested, and say so
    assert (count, is_lifetime) == (1000, True)
    assert window_s == pytest.approx(10_000, abs=60)
    assert lost["overwritten"] > 0


def test_when_the_rings_have_wrapped_the_nearer_beginning_is_taken() -> None:
    code = """
        service.history().add(_core.snapshot().pack())
        spans(1000)
        for life_s in (10_000, 1_000_000):
            has_lived(life_s)
            stats = stagespan.stats(9_000)
            print(json.dumps([stats["s"].count, stats.is_lifetime]))
    """
    # WHEN a window is requested that is nearly as long as the process's life, or much shorter
    printed = printed_after_a_thousand_spans(code)
    assert printed == [[2000, True], [1000, False]]


def test_spans_recorded_late_are_not_taken_for_old_ones() -> None:
    # GIVEN a process whose rings lost spans, and contain one that was recorded late
    code = """
        has_lived(10_000)
        now_ns = _core.now_ns()
        stagespan.record("late", now_ns - 10 * 10**9, now_ns - 9 * 10**9)
        stats = stagespan.stats(5)
        print(json.dumps([stats["s"].count, stats["late"].count, stats.is_lifetime]))
    """
    # THEN this does not prove that the rings reach back to the beginning of the window
    assert printed_after_a_thousand_spans(code) == [[1000, 1, True]]


def test_the_first_request_for_a_window_starts_the_snapshots() -> None:
    code = """
        import stagespan, threading
        with stagespan.span("s"):
            pass
        assert [t.name for t in threading.enumerate()] == ["MainThread"]
        stagespan.stats(60)
        assert "stagespan" in [t.name for t in threading.enumerate()]
    """
    ran([sys.executable, "-c", textwrap.dedent(code)], status=0)


def test_the_table_shows_work_and_waiting_if_there_is_any() -> None:
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

    head, *rows = str(stagespan.stats()).splitlines()

    # THEN more columns are in it, filled for the stages that have values
    assert head.split()[-5:] == ["suspended", "ms", "work", "a", "run"]
    decode = next(row for row in rows if row.startswith("decode"))
    assert "tokens 230 (" in decode
    assert decode.endswith("/s)  tokens 230, p95 230")
    assert float(next(row for row in rows if row.startswith("generate")).split()[-1]) >= 10.0


def test_a_table_of_known_figures() -> None:
    times: dict[str, Any] = {
        "mean_ns": 4e6,
        "min_ns": 1,
        "max_ns": 9_000_000,
        "quantile_ns": {0.5: 3e6, 0.95: 8e6, 0.99: 8.5e6}.get,
    }
    host: list[Any] = [
        SimpleNamespace(count=2_500, total_ns=10_000_000_000, **times),
        SimpleNamespace(count=1, total_ns=0, **times),
    ]
    device: Any = SimpleNamespace(mean_ns=1_500_000.0)
    first = statistics.StageStats(
        name="a", host=host[0], errors=1_000, suspended_ns=2_500_000_000,
        cpu_total_ns=None, cpu_count=0,
        work={"rows": 4_600.0}, amounts={}, batch_size=None, device_elapsed_ns=device,
        device_queue_ns=None, device_tail_ns=None,
    )  # fmt: skip
    second = replace(first, host=host[1], errors=0, suspended_ns=0, work={}, device_elapsed_ns=None)
    lost = {"threads": 0, "overwritten": 1_234}
    found = statistics.Stats({"a": first, "bb": second}, lost, 60.0, is_lifetime=False)

    # THEN columns without figures are left out
    head = "stage count total ms mean ms p50 ms p95 ms p99 ms max ms errors suspended ms"
    assert [" ".join(line.split()) for line in str(found).splitlines()] == [
        f"{head} device mean ms work",
        "a 2,500 10,000 4.00 3.00 8.00 8.50 9.00 1,000 2,500 1.50 rows 4,600 (460/s)",
        "bb 1 0 4.00 3.00 8.00 8.50 9.00 0",
        "lost: overwritten 1,234",
    ]
    assert len({len(line) for line in str(found).splitlines()[:2]}) == 1
    assert repr(found).startswith("<Stats of 2 stages, last 60.0 s>")
