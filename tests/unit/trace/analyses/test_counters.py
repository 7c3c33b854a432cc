"""Counters of a trace: means over time, lowest values and since when, with exact results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import checked

from stagespan.pages.result import Unavailable
from stagespan.trace import Trace, read_trace
from stagespan.trace.analyses import counters
from stagespan.trace.analyses.counters import Counters

US = 1_000


def value(name: str, at: float, pid: int = 2, **series: Any) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at, "args": series}


def trace_of(folder: Path, *entries: dict[str, Any]) -> Trace:
    work = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}
    path = folder / "counters.json"
    path.write_text(json.dumps([work | {"ts": 0, "dur": 1_000}, *entries]))
    return read_trace(path)


def test_a_clock_has_one_row_with_its_mean_over_time(tmp_path: Path) -> None:
    # GIVEN a clock of 1,800 MHz that falls to 900 at 600 µs, rises at 700, and falls again at 900
    trace = trace_of(
        tmp_path,
        *(value("AI Core Freq", at, MHz=mhz) for at, mhz in
          ((0, 1_800), (700, 1_800), (600, 900), (900, 900))),
        value("HBM", 0, **{"Read(MB/s)": 10.5, "Write(MB/s)": 2}),
        value("HBM", 500, **{"Read(MB/s)": 20.5, "Write(MB/s)": 2}),
    )  # fmt: skip
    found = checked(counters.analyze(trace), Counters)
    clock, read, write = found.counters
    assert (clock.name, clock.values, clock.lowest, clock.highest) == (
        "AI Core Freq: MHz", 4, 900, 1_800,
    )  # fmt: skip
    assert clock.mean == pytest.approx(0.8 * 1_800 + 0.2 * 900)
    assert (clock.lowest_since_ns, clock.lowest_ns) == (600 * US, 200 * US)
    assert (read.name, read.mean, read.lowest) == ("HBM: Read(MB/s)", 15.5, 10.5)
    assert (write.name, write.mean, write.lowest_ns) == ("HBM: Write(MB/s)", 2, 1_000 * US)
    (table,) = found.tables()
    assert len(table.rows) == 3


def test_the_same_counter_of_two_devices_has_two_rows(tmp_path: Path) -> None:
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"NPU {pid}"}}
        for pid in (2, 3)
    ]
    values = [value("Freq", 0, pid=pid, MHz=100 * pid) for pid in (2, 3)]
    found = checked(counters.analyze(trace_of(tmp_path, *names, *values)), Counters)
    assert [(each.process, each.mean) for each in found.counters] == [
        ("NPU 2", 200),
        ("NPU 3", 300),
    ]
    assert [heading for heading, _ in found.tables()[0].columns][:2] == ["counter", "process"]


@pytest.mark.parametrize(
    "odd",
    [
        value("clock", 5, MHz="fast"),
        value("clock", 5, MHz=None),
        value("clock", 5),
        {"ph": "C", "name": "clock", "ts": 5, "args": [1]},
        {"ph": "C", "name": "clock", "args": {"MHz": 1}},
        value("clock", 5_000_000, MHz=1),
    ],
)
def test_values_that_are_no_numbers_or_outside_of_the_trace_do_not_count(
    odd: dict[str, Any], tmp_path: Path
) -> None:
    found = counters.analyze(trace_of(tmp_path, odd))
    assert isinstance(found, Unavailable)
    assert found.code == "no_counters"
