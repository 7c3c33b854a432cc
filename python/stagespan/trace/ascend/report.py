"""All that is found out about an Ascend result folder, as an Analysis like that of a trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stagespan.trace.analysis import ASCEND, Analysis, analyze, ascend_steps
from stagespan.trace.analysis.result import Finding, Nothing, Result, Table
from stagespan.trace.ascend.api import API, calls
from stagespan.trace.ascend.communication import Collectives, collectives
from stagespan.trace.ascend.folder import DOCUMENTS, TABLES, TRACE, AscendFolder
from stagespan.trace.ascend.host_operators import DETAILS, host_operators
from stagespan.trace.ascend.memory import memory
from stagespan.trace.ascend.operators import Operators, operators
from stagespan.trace.gather import without_events


@dataclass(frozen=True, slots=True)
class Files:
    """Which of the folder's files are there."""

    folder: AscendFolder

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        folder = self.folder
        return {
            "path": str(folder.path),
            "output": str(folder.output),
            "level": folder.level,
            "rank": folder.rank,
            "read": self._read(),
            "missing": folder.missing,
            "problems": list(folder.problems),
        }

    def findings(self) -> list[Finding]:
        """None: what could not be read stands at the head of every page."""
        return []

    def tables(self) -> list[Table]:
        """File by file."""
        read = self._read()
        rows = [
            (name, read[name]) if name in read else (name, None)
            for name in (TRACE, *TABLES, *DOCUMENTS)
        ]
        level = f"The profiler's level was {self.folder.level}." if self.folder.level else ""
        rank = "" if self.folder.rank is None else f" The folder is of rank {self.folder.rank}."
        note = f"Rows or entries; - is a file that is not there. {level}{rank}".strip()
        return [Table("Files", (("file", ""), ("rows", "")), rows, note)]

    def _read(self) -> dict[str, int]:
        folder = self.folder
        found = {} if folder.trace is None else {TRACE: folder.trace.total}
        found |= {name: len(table) for name, table in folder.tables.items()}
        return found | {name: len(document) for name, document in folder.documents.items()}


def analyze_ascend(folder: AscendFolder) -> Analysis:
    """Run the analyses of the trace, where there is one, and those of each file that is there."""
    tables, trace = folder.tables, folder.trace
    results: dict[str, Result | Nothing] = {}
    if trace is not None:
        results = dict(analyze(trace).results)
    communication = collectives(folder.documents, trace)
    times = ascend_steps.analyze(
        without_events(str(folder.path)) if trace is None else trace,
        tables.get("step_trace_time.csv"),
        tables.get("kernel_details.csv"),
        communication if isinstance(communication, Collectives) else None,
    )
    ours: dict[str, Result | Nothing] = {
        "ascend_operators": operators(tables),
        "ascend_api": calls(tables.get(API), trace),
        "ascend_collectives": communication,
        "ascend_memory": memory(tables),
        "ascend_host_operators": host_operators(tables.get(DETAILS)),
        "ascend_files": Files(folder),
    }
    by_type = ours["ascend_operators"]
    if isinstance(by_type, Operators) and any(each.core for each in by_type.types):
        results.pop("ascend_cores", None)  # which says less
    first = {name: results[name] for name in ("verdict", *ASCEND) if name in results}
    shown = without_events(str(folder.path)) if trace is None else trace
    shown = replace(shown, incomplete=" ".join(folder.problems) or shown.incomplete)
    results |= {**ours, "ascend_steps": times}
    return Analysis(shown, {**first, "ascend_steps": times, **results})
