"""A report's stages and its tree: the figures add up, however stages are nested."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import SEVERAL, Run, a_stage, figures_of, some_runs

from properties import examples
from stagespan.report import tree
from stagespan.report.stages import stage_entries, top_level_ns


def report_of(figures: dict[str, Any]) -> dict[str, Any]:
    entries = stage_entries(figures, lambda name: None, {})
    total = sum(top_level_ns(name, figures) for name in figures) / 1e6
    return {"stages": entries, "total_stages_ms": total}


@given(some_runs())
@settings(max_examples=examples(200))
def test_every_stage_is_its_children_and_the_unattributed_rest(runs: list[Run]) -> None:
    report = report_of(figures_of(runs))

    for entry in report["stages"].values():
        assert entry["unattributed_ms"] >= 0
        assert entry["children_ms"] + entry["unattributed_ms"] == pytest.approx(
            entry["duration_ms"]
        )
    assert report["total_stages_ms"] == pytest.approx(sum(r.total_ns for r in runs) / 1e6)
    shares = [e["percentage"] for e in report["stages"].values() if e["percentage"] is not None]
    if report["total_stages_ms"]:
        assert sum(shares) == pytest.approx(100)
    assert sum(e["unattributed_ms"] for e in report["stages"].values()) == pytest.approx(
        report["total_stages_ms"]
    )


@given(some_runs("abcdefgh"))
@settings(max_examples=examples(200))
def test_the_rows_below_a_row_add_up_to_it(runs: list[Run]) -> None:
    report = report_of(figures_of(runs))

    rows = tree.rows(report)
    opened = [row for row in rows if row.stage is not None]
    assert sorted(row.label for row in opened) == sorted(report["stages"])
    # and the rows directly below a row add up to it
    for i, row in enumerate(rows):
        below = []
        for other in rows[i + 1 :]:
            if _depth(other) <= _depth(row):
                break
            if _depth(other) == _depth(row) + 1:
                below.append(other)
        if below:
            assert sum(b.duration_ms for b in below) == pytest.approx(row.duration_ms, rel=1e-5)
    top = [row for row in rows if not row.guide and not row.is_sum]
    assert sum(row.duration_ms for row in top) == pytest.approx(report["total_stages_ms"])


def _depth(row: tree.TreeRow) -> int:
    return len(row.guide) // 3


def test_the_tree_of_a_pipeline() -> None:
    runs = [
        Run("pipeline", 5, [Run("encode", 15), Run("denoise", 10, [Run("step", 40)] * 2)]),
        Run("encode", 15, [Run("tokenize", 5)]),
    ]

    rows = tree.rows(report_of(figures_of(runs)))
    # THEN the stage with two parents is listed below both, and summed up at the end
    shown = [(row.guide + row.label, round(row.duration_ms * 1e6), row.count) for row in rows]
    assert shown == [
        ("pipeline", 110, 1),
        ("├─ denoise", 90, 1),
        ("│  ├─ step", 80, 2),
        ("│  └─ (unattributed)", 10, None),
        ("├─ encode", 15, 1),
        ("└─ (unattributed)", 5, None),
        ("encode", 20, 1),
        ("encode", 35, 2),
        ("├─ tokenize", 5, 1),
        ("└─ (unattributed)", 30, None),
    ]
    assert [row.is_sum for row in rows] == [False] * 7 + [True] + [False] * 2
    assert rows[1].share == pytest.approx(90 / 110)
    assert rows[7].share is None


def test_a_recursive_stage_adds_up() -> None:
    rows = tree.rows(report_of(figures_of([Run("fib", 3, [Run("fib", 21)])])))
    assert [(row.label, round(row.duration_ms * 1e6)) for row in rows] == [
        *(("fib", 24), ("fib", 45)),
        *(("fib", 21), (tree.UNATTRIBUTED, 24)),
    ]


def test_a_long_chain_of_stages() -> None:
    # GIVEN stages that are nested deeper than Python's limit for recursion
    names = [f"stage {depth}" for depth in range(3000)]
    figures = {
        name: a_stage(count=1, total_ns=10, children_ns=10, parents={parent: (1, 10)})
        for name, parent in zip(names, [None, *names], strict=False)
    }

    rows = tree.rows(report_of(figures))
    # THEN all are listed, the deepest ones at one depth
    assert [row.label for row in rows if row.label != tree.UNATTRIBUTED] == names
    assert max(map(_depth, rows)) == 31


def test_concurrent_children_do_not_exceed_their_parent() -> None:
    # GIVEN a parent of 100 that waited for two children of 90 each
    figures = {
        "gather": a_stage(count=1, total_ns=100, children_ns=95, parents={None: (1, 100)}),
        "task": a_stage(count=2, total_ns=180, parents={"gather": (2, 180)}),
    }

    rows = tree.rows(report_of(figures))
    # THEN the time during which both ran is subtracted once
    assert [(r.label, round(r.duration_ms * 1e6)) for r in rows] == [
        *(("gather", 100), ("task", 180)),
        *((tree.UNATTRIBUTED, 5), (tree.OVERLAP, -85)),
    ]


def test_parents_beyond_the_fourth_are_listed_elsewhere() -> None:
    figures = {
        "outer": a_stage(count=1, total_ns=100, children_ns=60, parents={None: (1, 100)}),
        "named": a_stage(count=1, total_ns=20, parents={"outer": (1, 20)}),
        "child": a_stage(count=9, total_ns=500, parents={SEVERAL: (9, 500)}),
    }
    report = report_of(figures)

    rows = tree.rows(report)

    assert [(row.label, round(row.duration_ms * 1e6)) for row in rows] == [
        *(("outer", 100), ("named", 20), (tree.UNATTRIBUTED, 40), (tree.ELSEWHERE, 40)),
        ("child", 500),
    ]
    assert report["stages"]["child"]["percentage"] is None


def test_a_parent_that_still_runs_leaves_its_children_at_the_top() -> None:
    # GIVEN a report that is made inside a stage, which a snapshot does not contain yet
    figures = {
        "encode": a_stage(count=1, total_ns=30, parents={"pipeline": (1, 30)}),
        "decode": a_stage(count=1, total_ns=70, parents={"pipeline": (1, 70)}),
    }
    report = report_of(figures)
    # THEN the known figures add up
    assert list(report["stages"]) == ["decode", "encode"]
    assert report["stages"]["decode"]["percentage"] == pytest.approx(70)
    assert report["stages"]["decode"]["parent"] == "pipeline"
    assert [row.label for row in tree.rows(report)] == ["decode", "encode"]


def test_a_cycle_of_stages_is_still_shown() -> None:
    figures = {
        "a": a_stage(count=1, total_ns=10, children_ns=4, parents={"b": (1, 10)}),
        "b": a_stage(count=1, total_ns=10, children_ns=10, parents={"a": (1, 10)}),
    }
    rows = tree.rows(report_of(figures))
    assert [row.label for row in rows if row.stage is not None] == ["a", "b"]


def test_a_child_longer_than_its_parent_gives_no_negative_figures() -> None:
    figures = {"p": a_stage(count=1, total_ns=10, children_ns=12, parents={None: (1, 10)})}
    entry = report_of(figures)["stages"]["p"]
    assert entry["unattributed_ms"] == 0
    assert entry["children_ms"] == pytest.approx(10e-6)


def test_unknown_figures_are_null() -> None:
    entry = report_of({"s": a_stage(count=1, parents={None: (1, 0)})})["stages"]["s"]
    for key in ("device_elapsed_ms", "device_queue_ms", "device_tail_mean_ms", "device_runs"):
        assert entry[key] is None, key
    assert entry["percentage"] is None
    assert entry["memory"] is None


def test_every_key_of_the_format_exists() -> None:
    keys = {
        *("duration_ms", "percentage", "count", "mean_ms", "min_ms", "max_ms", "p50_ms", "p95_ms"),
        *("p99_ms", "errors", "suspended_ms", "unattributed_ms", "device_elapsed_ms", "work"),
        *("device_queue_ms", "device_tail_ms", "memory", "parent", "signatures", "parallel_info"),
    }
    figures = {
        "decode": a_stage(
            count=2,
            total_ns=2_000_000_000,
            mean_ns=1e9,
            suspended_ns=500_000,
            parents={None: (2, 2_000_000_000)},
            work={"tokens": 230.0},
            device_elapsed_ns=a_stage(count=2, total_ns=1_500_000),
            device_queue_ns=None,
        )
    }
    signatures = {"decode": [{"key": "ab12", "count": 2, "p50_ms": 1.0}]}
    entry = stage_entries(figures, lambda name: {"peak_rss_mb": 1.0}, signatures)["decode"]
    assert keys <= set(entry)
    assert entry["work_per_s"] == {"tokens": 115.0}
    assert entry["suspended_ms"] == 0.5
    assert entry["device_elapsed_ms"] == 1.5
    assert entry["device_queue_ms"] is None
    assert entry["signatures"] == signatures["decode"]
    assert entry["memory"] == {"peak_rss_mb": 1.0}


@given(st.dictionaries(st.text(max_size=5), st.integers(0, 10**6), max_size=5))
def test_files_without_parents_are_flat(durations: dict[str, int]) -> None:
    report = {"stages": {name: {"duration_ms": float(ms)} for name, ms in durations.items()}}
    rows = tree.rows(report)
    assert sorted(row.label for row in rows) == sorted(durations)
    assert [row.duration_ms for row in rows] == sorted(durations.values(), reverse=True)
    assert {row.guide for row in rows} <= {""}
