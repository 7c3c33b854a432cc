"""Recordings with names that spreadsheets and terminals would run, dumped for other programs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from recorded_process import command_here, started

from running import PROGRAMS, end
from stagespan.pages.escaping import csv_cell

LIVE = PROGRAMS / "live.py"

NAMES = [
    "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", "a,b\n=1",
    "\x1b]0;title\x07", "\x9b31m", "\u202efdp.exe", "\u2028", "plain",
]  # fmt: skip
CONTROLS = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u202e", "\u2028"} - {"\n"}
FORMULAS = ("=", "+", "-", "@", "\uff1d")


def test_dumps_are_safe_for_spreadsheets_and_terminals(folder: Path) -> None:
    process = started(LIVE, "names_of_all_kinds", json.dumps(NAMES))
    table = command_here("dump", str(process.pid), "--format", "csv").stdout
    spans = command_here("dump", str(process.pid), "--format", "json").stdout
    trace = command_here("dump", str(process.pid)).stdout
    page = command_here("show", str(process.pid), "--json").stdout
    end(process)
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [row["stage"] for row in rows] == [*map(csv_cell, NAMES), "open"]
    assert [row["request"] for row in rows] == [*map(csv_cell, NAMES), ""]
    assert [
        cell for row in rows for cell in row.values() if cell.strip().startswith(FORMULAS)
    ] == []
    assert all(int(row["end_ns"]) >= int(row["begin_ns"]) for row in rows[:-1])
    for text in (table, spans, trace, page):
        assert not CONTROLS & set(text)
    assert [row["stage"] for row in json.loads(spans)["spans"]] == [*NAMES, "open"]
    events = [event["name"] for event in json.loads(trace)["traceEvents"] if event["ph"] == "X"]
    assert set(events) == {*NAMES, "open"}
