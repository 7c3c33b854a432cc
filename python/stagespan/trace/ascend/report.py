"""Lists the files of an Ascend result folder, and analyses those other than the trace."""

from __future__ import annotations

from stagespan.pages.figures import Count
from stagespan.pages.result import Result, StructResult, Table, Unavailable
from stagespan.trace.ascend import steps
from stagespan.trace.ascend.api import calls
from stagespan.trace.ascend.communication import CollectiveStats, collectives
from stagespan.trace.ascend.folder import (
    API_STATISTIC,
    DOCUMENTS,
    KERNEL_DETAILS,
    OPERATOR_DETAILS,
    STEP_TRACE_TIME,
    TABLES,
    TRACE,
    AscendFolder,
)
from stagespan.trace.ascend.memory import memory
from stagespan.trace.ascend.operators import (
    ascend_host_operators,
    operators,
)
from stagespan.trace.read.columns import without_events


class Files(StructResult, frozen=True):
    """The files of an Ascend folder that exist."""

    path: str
    output: str
    level: str | None
    rank: int | None
    read: dict[str, Count]
    """The number of rows or entries of each file."""
    missing: list[str]
    problems: list[str]

    def tables(self) -> list[Table]:
        """A table of the files."""
        rows = [(name, self.read.get(name)) for name in (TRACE, *TABLES, *DOCUMENTS)]
        level = f"The profiler's level was {self.level}." if self.level else ""
        rank = "" if self.rank is None else f" The folder is of rank {self.rank}."
        note = f"Rows or entries; - means that the file is missing. {level}{rank}".strip()
        return [Table("Files", (("file", ""), ("rows", "")), rows, note)]


def _files(folder: AscendFolder) -> Files:
    read = {} if folder.trace is None else {TRACE: folder.trace.total}
    read |= {name: len(table) for name, table in folder.tables.items()}
    return Files(
        path=str(folder.path),
        output=str(folder.output),
        level=folder.level,
        rank=folder.rank,
        read=read | {name: len(document) for name, document in folder.documents.items()},
        missing=folder.missing,
        problems=list(folder.problems),
    )


def analyze_files(folder: AscendFolder) -> dict[str, Result | Unavailable]:
    """Return the results of the folder's files, by the names of the analyses."""
    tables, trace = folder.tables, folder.trace
    communication = collectives(folder.documents, trace)
    return {
        "ascend_steps": steps.analyze(
            without_events(str(folder.path)) if trace is None else trace,
            tables.get(STEP_TRACE_TIME),
            tables.get(KERNEL_DETAILS),
            communication if isinstance(communication, CollectiveStats) else None,
        ),
        "ascend_operators": operators(tables),
        "ascend_api": calls(tables.get(API_STATISTIC), trace),
        "ascend_collectives": communication,
        "ascend_memory": memory(tables),
        "ascend_host_operators": ascend_host_operators(tables.get(OPERATOR_DETAILS)),
        "ascend_files": _files(folder),
    }
