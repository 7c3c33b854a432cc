"""Sums of work over columns: one small table, every figure by hand."""

from __future__ import annotations

import numpy as np

from stagespan.pages.figures import Count, Figures, Ns
from stagespan.trace.derived.work_table import Column, WorkTable

STAGES, KERNELS = ["load", "run"], ["mm", "add", "copy"]
TABLE = WorkTable(
    time_ns=np.array([10, 30, 20, 40, 100]),
    call=np.array([7, 7, 8, -1, -1]),
    columns={
        "stage": Column(np.array([1, 1, 0, 1, -1]), STAGES),
        "kernel": Column(np.array([0, 1, 0, 0, 2]), KERNELS),
        "number": Column(np.array([4, 4, 4, 9, 9])),
    },
)


class OfStage(Figures, frozen=True):
    stage: str | None
    kernel: str | None
    time_ns: Ns
    percent: float
    count: Count
    calls: Count | None
    min_ns: Ns
    max_ns: Ns


class OfNumber(Figures, frozen=True):
    number: int
    kernel: str | None
    time_ns: Ns


def test_one_column_with_the_text_that_prevails_in_another() -> None:
    assert TABLE.by(OfStage, "stage", main=("kernel",)) == [
        OfStage(None, "copy", 100, 50.0, 1, None, 100, 100),
        OfStage("run", "mm", 80, 40.0, 3, 1, 10, 40),
        OfStage("load", "mm", 20, 10.0, 1, 1, 20, 20),
    ]


def test_some_rows_by_two_columns() -> None:
    rows = TABLE.by(OfStage, "kernel", "stage", where=np.array([1, 1, 1, 1, 0], dtype=np.bool_))
    assert [(row.kernel, row.stage, row.time_ns, row.percent, row.calls) for row in rows] == [
        ("mm", "run", 50, 25.0, 1),
        ("add", "run", 30, 15.0, 1),
        ("mm", "load", 20, 10.0, 1),
    ]


def test_a_column_without_texts() -> None:
    rows = TABLE.by(OfNumber, "number")
    assert rows == [OfNumber(9, None, 140), OfNumber(4, None, 60)]


def test_of_equal_times_the_lower_codes_are_first() -> None:
    times = np.array([5, 5, 5, 5])
    codes = Column(np.array([1, 0, -1, 0]), STAGES), Column(np.array([0, 2, 1, 1]), KERNELS)
    table = WorkTable(times, times, {"stage": codes[0], "kernel": codes[1]})
    rows = table.by(OfStage, "stage", main=("kernel",))
    assert [(row.stage, row.kernel) for row in rows] == [
        ("load", "add"),
        (None, "add"),
        ("run", "mm"),
    ]


def test_no_rows() -> None:
    nothing = np.zeros(5, dtype=np.bool_)
    assert TABLE.by(OfStage, "stage", where=nothing, main=("kernel",)) == []
