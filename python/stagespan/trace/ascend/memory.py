"""Device memory over time, from memory_record.csv and operator_memory.csv."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

import msgspec

from stagespan.pages.amounts import in_percent, in_words
from stagespan.pages.figures import Count, Figures, Ns, first
from stagespan.pages.result import Evidence, Finding, StructResult, Table, Unavailable, share
from stagespan.trace.ascend.folder import MEMORY_RECORD, OPERATOR_MEMORY
from stagespan.trace.read.csv_tables import CsvTable

_TOP = 30
# Memory that is unused at the peak is reported from these limits on.
_UNUSED_BYTES = 2**30
_UNUSED_PERCENT = 30.0


class Peak(Figures, frozen=True):
    """One component's memory on one device; None if unknown."""

    component: str
    device: str | None
    reserved_bytes: int | None
    allocated_bytes: int | None
    allocated_at_ns: Ns | None
    """When it was highest, from the file's first record."""
    records: Count


class Allocations(Figures, frozen=True):
    """All allocations of one operator."""

    name: str
    count: Count = msgspec.field(name="allocations")
    total_bytes: Count
    largest_bytes: Count
    kept: Count | None = msgspec.field(name="not_released")
    """The number of allocations that were not released within the profile; None if unknown."""


class AscendMemory(StructResult, frozen=True):
    """Peaks by component, and operators that allocate, the most first."""

    peaks: list[Peak]
    operators: Annotated[list[Allocations], first(_TOP)]
    unread: Count = msgspec.field(name="unread_rows")

    def findings(self) -> list[Finding]:
        """Findings about reserved memory that is not used at the peak."""
        findings = []
        seen = set()
        for peak in self.peaks:
            reserved, allocated = peak.reserved_bytes, peak.allocated_bytes
            same = peak.device, reserved, allocated
            if reserved is None or allocated is None or same in seen:
                continue
            seen.add(same)  # PTA and PTA+GE are the same where GE has none
            unused = reserved - allocated
            percent = share(unused, reserved)
            if unused >= _UNUSED_BYTES and percent >= _UNUSED_PERCENT:
                findings.append(
                    Finding(
                        "low",
                        f"{peak.component} reserved {in_words(reserved, 'bytes')} and never"
                        f" used more than {in_words(allocated, 'bytes')} of it"
                        f" ({in_percent(percent)} unused): its memory is fragmented, or held in"
                        " reserve.",
                        (Evidence(f"reserved by {peak.component}", None, reserved, "bytes"),),
                        "ascend.memory_unused",
                        numbers={
                            "reserved_bytes": reserved,
                            "allocated_bytes": allocated,
                            "unused_percent": percent,
                        },
                    )
                )
        return findings

    def tables(self) -> list[Table]:
        """Peaks, then operators."""
        tables = (
            Table.of(
                "Peaks of memory",
                self.peaks,
                ("component", "component", ""),
                ("device", "device", ""),
                ("reserved_bytes", "reserved", "bytes"),
                ("allocated_bytes", "allocated", "bytes"),
                ("allocated_at_ns", "highest at", "ns"),
                note=f"From {MEMORY_RECORD}.",
            ),
            Table.of(
                "Operators that allocate",
                self.operators[:_TOP],
                ("name", "operator", ""),
                ("count", "allocations", ""),
                ("total_bytes", "total", "bytes"),
                ("largest_bytes", "largest", "bytes"),
                ("kept", "not released", ""),
                note=f"From {OPERATOR_MEMORY}.",
            ),
        )
        return [table for table in tables if table.rows]


def memory(tables: dict[str, CsvTable]) -> AscendMemory | Unavailable:
    """Analyse the files that exist."""
    peaks, unread = _peaks(tables[MEMORY_RECORD]) if MEMORY_RECORD in tables else ([], 0)
    operators, odd = _operators(tables[OPERATOR_MEMORY]) if OPERATOR_MEMORY in tables else ([], 0)
    if not peaks and not operators:
        return Unavailable(
            f"The folder has neither {MEMORY_RECORD} nor {OPERATOR_MEMORY} with rows: record with"
            " profile_memory=True.",
            "no_files",
        )
    return AscendMemory(peaks, operators, unread + odd)


def _peaks(table: CsvTable) -> tuple[list[Peak], int]:
    rows: dict[tuple[str, str], list[tuple[int | None, int | None, int | None]]] = defaultdict(list)
    unread = 0
    cells = zip(
        table.texts("component"),
        table.texts("device type", "device id", "device"),
        *(table.amounts(name, "mb") for name in ("total reserved", "total allocated")),
        table.amounts("timestamp", "us"),
        strict=True,
    )
    for component, device, reserved, allocated, time in cells:
        if reserved is None and allocated is None:
            unread += 1
        else:
            rows[component, device].append((reserved, allocated, time))
    times = [time for records in rows.values() for *_, time in records if time is not None]
    begin = min(times, default=0)
    peaks = []
    for (component, device), records in rows.items():
        most = [(allocated, time) for _, allocated, time in records if allocated is not None]
        highest, at = max(most, key=lambda each: each[0], default=(None, None))
        peaks.append(
            Peak(
                component,
                device or None,
                max((r for r, *_ in records if r is not None), default=None),
                highest,
                None if at is None else at - begin,
                len(records),
            )
        )
    peaks.sort(key=lambda peak: -(peak.reserved_bytes or peak.allocated_bytes or 0))
    return peaks, unread


def _operators(table: CsvTable) -> tuple[list[Allocations], int]:
    sizes: dict[str, list[int]] = defaultdict(list)
    # Without the column, this is unknown.
    kept: dict[str, int] | None = defaultdict(int) if table.has("release time") else None
    unread = 0
    sizes_read, releases = table.amounts("size", "kb"), table.texts("release time")
    for name, size, release in zip(table.texts("name"), sizes_read, releases, strict=True):
        if size is None:
            unread += 1
        elif size > 0:
            sizes[name].append(size)
            if kept is not None:
                kept[name] += not release
    operators = [
        Allocations(name, len(each), sum(each), max(each), None if kept is None else kept[name])
        for name, each in sizes.items()
    ]
    return sorted(operators, key=lambda each: -each.total_bytes), unread
