"""Operators of the framework by their time on host and device, from operator_details.csv."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from stagespan.trace.analysis.result import Finding, Nothing, Table
from stagespan.trace.ascend.cells import scaled
from stagespan.trace.ascend.tables import CsvTable

DETAILS = "operator_details.csv"
_COLUMNS = (
    "host self duration",
    "host total duration",
    "device self duration",
    "device total duration",
)
_TOP = 50


@dataclass(frozen=True, slots=True)
class HostOperator:
    """All calls of one operator; ns, None where the file does not say.

    What it calls itself is in total, not in self.
    """

    name: str
    calls: int
    host_self_ns: int | None
    host_total_ns: int | None
    device_self_ns: int | None
    device_total_ns: int | None


@dataclass(frozen=True, slots=True)
class HostOperators:
    """Operators, those with the most time of their own on the host first."""

    operators: list[HostOperator]
    unread: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        return {
            "operators": [
                {
                    "name": each.name,
                    "calls": each.calls,
                    "host_self_us": _us(each.host_self_ns),
                    "host_total_us": _us(each.host_total_ns),
                    "device_self_us": _us(each.device_self_ns),
                    "device_total_us": _us(each.device_total_ns),
                }
                for each in self.operators
            ],
            "unread_rows": self.unread,
        }

    def findings(self) -> list[Finding]:
        """None: why the device was free is told from the trace."""
        return []

    def tables(self) -> list[Table]:
        """Host and device side by side."""
        rows = [
            (
                each.name,
                each.calls,
                each.host_self_ns,
                each.host_total_ns,
                each.device_self_ns,
                each.device_total_ns,
            )
            for each in self.operators[:_TOP]
        ]
        columns = (
            ("operator", ""),
            ("calls", ""),
            ("host, itself", "ns"),
            ("host, with what it calls", "ns"),
            ("device, itself", "ns"),
            ("device, with what it calls", "ns"),
        )
        return [Table("Operators of the framework", columns, rows, f"From {DETAILS}.")]


def host_operators(table: CsvTable | None) -> HostOperators | Nothing:
    """Sum up by name; Nothing without rows."""
    calls: dict[str, int] = defaultdict(int)
    sums: dict[str, list[int | None]] = defaultdict(lambda: [None] * len(_COLUMNS))
    unread = 0
    if table is not None and table.has(_COLUMNS[0]):
        units = [table.unit(name, "us") for name in _COLUMNS]
        cells = zip(table.texts("name"), *(table.texts(name) for name in _COLUMNS), strict=True)
        for name, *texts in cells:
            times = [scaled(text, unit) for text, unit in zip(texts, units, strict=True)]
            if times[0] is None:
                unread += 1
                continue
            calls[name] += 1
            row = sums[name]
            for at, time in enumerate(times):
                if time is not None:
                    row[at] = (row[at] or 0) + time
    if not sums:
        return Nothing(
            f"The folder has no {DETAILS} with rows: record with the CPU's activity and"
            " record_shapes=True."
        )
    found = [HostOperator(name, calls[name], *row) for name, row in sums.items()]
    found.sort(key=lambda each: (-(each.host_self_ns or 0), each.name))
    return HostOperators(found, unread)


def _us(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1000
