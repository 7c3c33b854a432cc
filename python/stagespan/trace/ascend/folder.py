"""An Ascend result folder: which of its files exist, their contents, and their disagreements."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from stagespan.errors import TraceError
from stagespan.pages.result import Evidence, Finding, Severity
from stagespan.trace.read.csv_tables import CsvTable, bytes_of, read_table
from stagespan.trace.read.model import Trace
from stagespan.trace.read.sources import TABLE, with_table

OUTPUT = "ASCEND_PROFILER_OUTPUT"
TRACE = "trace_view.json"
METADATA = "profiler_metadata.json"
STEP_TRACE_TIME = "step_trace_time.csv"
KERNEL_DETAILS = TABLE
OP_STATISTIC = "op_statistic.csv"
API_STATISTIC = "api_statistic.csv"
OPERATOR_DETAILS = "operator_details.csv"
MEMORY_RECORD = "memory_record.csv"
OPERATOR_MEMORY = "operator_memory.csv"
# The columns that each table needs.
_NEEDED = {
    STEP_TRACE_TIME: ("computing",),
    KERNEL_DETAILS: ("duration",),
    OP_STATISTIC: ("op type", "count", "total time"),
    API_STATISTIC: ("api name", "count", "time"),
    OPERATOR_DETAILS: ("host self duration",),
    MEMORY_RECORD: ("total reserved",),
    OPERATOR_MEMORY: ("size",),
}
TABLES = tuple(_NEEDED)
COMMUNICATION_JSON, MATRIX_JSON = "communication.json", "communication_matrix.json"
DOCUMENTS = (COMMUNICATION_JSON, MATRIX_JSON)
_SUFFICIENT = (TRACE, KERNEL_DETAILS, STEP_TRACE_TIME, OP_STATISTIC)
_SUFFIX = re.compile(r"_ascend_(?:pt|ms)$")
# The folders of msprof's parsed files: of current CANN, and of versions before 7.
_OF_MSPROF = ("mindstudio_profiler_output", "device_*/summary")
_NAMES_OF_MSPROF = {
    TRACE: ("msprof_*.json",),
    KERNEL_DETAILS: ("op_summary*.csv",),
    OP_STATISTIC: ("op_statistic*.csv",),
    API_STATISTIC: ("api_statistic*.csv",),
}
"""What msprof calls the files. Their names end in a device, a model and an iteration, or a time."""
_OP_SUMMARY = re.compile(r"^op_summary.*\.csv(?:\.gz)?$", re.IGNORECASE)
# Columns of op_summary, by those of kernel_details.csv.
_COLUMNS = {
    "op name": "name",
    "op type": "type",
    "task type": "accelerator core",
    "task start time": "start time",
    "task duration": "duration",
    "task wait time": "wait time",
}
_INFO = re.compile(r"^profiler_info(?:_(\d+))?\.json$")


class AscendFolder(msgspec.Struct, frozen=True):
    """The contents of a folder. `problems` describes problems of its files."""

    path: Path
    output: Path
    """The folder of the parsed files: `path`, or the one within it."""
    trace: Trace | None
    tables: dict[str, CsvTable]
    """The tables by their usual file names, such as `kernel_details.csv`."""
    documents: dict[str, Any]
    """The decoded files of communication."""
    level: str | None
    """The profiler's level, such as `Level1`; None if unknown."""
    rank: int | None
    problems: list[str] = msgspec.field(default_factory=list)
    """Sentences about files that could not be read completely."""
    world_size: int | None = None
    """The number of ranks of the job; None if unknown."""
    pipeline_stage: int | None = None
    """The rank's place in its pipeline parallel group; None if unknown."""

    @property
    def missing(self) -> list[str]:
        """The usual files that are missing."""
        known = {**self.tables, **self.documents}
        names = [name for name in (*TABLES, *DOCUMENTS) if name not in known]
        return names if self.trace is not None else [TRACE, *names]


def is_ascend_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the result folder of one process: `..._ascend_pt`, or its subfolder."""
    folder = Path(path)
    try:
        if not folder.is_dir():
            return False
        if _SUFFIX.search(folder.resolve().name) or (folder / OUTPUT).is_dir():
            return True
        output = _output(folder)
        return any(_file_of(output, name) for name in _SUFFICIENT)
    except OSError:
        return False


def find_ascend_folder(path: str | os.PathLike[str]) -> Path | None:
    """Return the result folder at a path: the path itself, or the only one in it; otherwise None.

    The handler of torch_npu.profiler creates a folder for each process in the folder that is passed
    to it.
    """
    folder = Path(path)
    if is_ascend_folder(folder):
        return folder
    try:
        inside = [each for each in folder.iterdir() if _SUFFIX.search(each.name) and each.is_dir()]
    except OSError:
        return None
    return inside[0] if len(inside) == 1 else None


def read_ascend_folder(path: str | os.PathLike[str], names: Iterable[str] = TABLES) -> AscendFolder:
    """Read the files that exist: the trace, the documents, and the tables in `names`.

    Raises TraceError if no file can be read.
    """
    folder = Path(path)
    output = _output(folder)
    problems: list[str] = []
    trace = _trace(output, problems)
    tables: dict[str, CsvTable] = {}
    documents: dict[str, Any] = {}
    for name in names:
        file = _file_of(output, name)
        if file is not None:
            table = tables[name] = _table(file)
            lacking = [column for column in _NEEDED[name] if not table.has(column)]
            if table.problem:
                problems.append(table.problem)
            elif lacking:
                problems.append(
                    f"{file.name} does not have the profiler's format: it has no column"
                    f" {lacking[0]!r}."
                )
    for name in DOCUMENTS:
        file = _file_of(output, name)
        if file is not None:
            document = _document(file, problems)
            if document is not None:
                documents[name] = document
    if trace is None and not documents and not any(tables.values()):
        raise TraceError(_nothing(folder, output, problems))
    if trace is not None and KERNEL_DETAILS in tables:
        trace = with_table(trace, tables[KERNEL_DETAILS])
    level, rank = _info(folder, output)
    world, stage = _job(folder, output)
    return AscendFolder(
        folder, output, trace, tables, documents, level, rank, problems, world, stage
    )


def read_ascend_trace(path: str | os.PathLike[str]) -> Trace:
    """The trace of a folder, without its other files.

    Raises TraceError if it does not exist or cannot be read.
    """
    folder = Path(path)
    output = _output(folder)
    problems: list[str] = []
    trace = _trace(output, problems)
    if trace is None:
        raise TraceError(
            problems[0]
            if problems
            else f"{output} contains no {TRACE}: parse the folder so that it is written."
        )
    return trace


def is_op_summary(path: str | os.PathLike[str]) -> bool:
    """Whether a file has the name of msprof's table of operators."""
    return _OP_SUMMARY.match(Path(path).name) is not None


def read_op_summary(path: str | os.PathLike[str]) -> AscendFolder:
    """Read msprof's table of operators alone. Raises TraceError if it cannot be read."""
    file = Path(path)
    table = _table(file)
    if not table.has("duration"):
        raise TraceError(
            table.problem or f"{file} has no column 'Task Duration(us)', as msprof writes it."
        )
    problems = [table.problem] if table.problem else []
    return AscendFolder(file, file.parent, None, {KERNEL_DETAILS: table}, {}, None, None, problems)


def _table(file: Path) -> CsvTable:
    """Read a table. That of msprof gets the headings of kernel_details.csv."""
    table = read_table(file)
    if not is_op_summary(file):
        return table
    headings = {_COLUMNS.get(name, name): place for name, place in table.headings.items()}
    if "start time" in headings and not headings["start time"][1]:
        # Versions of CANN before 7 write it in nanoseconds, without a unit.
        headings["start time"] = headings["start time"][0], "ns"
    return structs.replace(table, headings=headings)


def _output(folder: Path) -> Path:
    """Return the folder of the parsed files: `folder`, or one within it."""
    if (folder / OUTPUT).is_dir():
        return folder / OUTPUT
    inside = (each for name in _OF_MSPROF for each in sorted(folder.glob(name)) if each.is_dir())
    return next(inside, folder)


def _file_of(folder: Path, name: str) -> Path | None:
    """Return the path of a file that may be compressed, or of what msprof writes instead of it.

    msprof adds files at each export, so the latest one counts.
    """
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    places = (folder, folder.parent / "timeline")  # of versions before 7
    of_msprof = [
        path
        for pattern in _NAMES_OF_MSPROF.get(name, ())
        for place in places
        for path in (*place.glob(pattern), *place.glob(f"{pattern}.gz"))
    ]
    return max(of_msprof, key=lambda each: (each.stat().st_mtime_ns, each.name), default=None)


def _trace(output: Path, problems: list[str]) -> Trace | None:
    from stagespan.trace.read.reader import read_trace

    file = _file_of(output, TRACE)
    if file is None:
        return None
    try:
        trace = read_trace(file)
    except TraceError as error:
        problems.append(str(error))
        return None
    if trace.incomplete:
        problems.append(trace.incomplete)
    return trace


def _document(file: Path, problems: list[str]) -> dict[str, Any] | None:
    data, problem = bytes_of(file)
    if problem is not None:
        problems.append(problem)
        return None
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problems.append(f"{file.name} is truncated or not JSON, and is skipped.")
        return None
    if not isinstance(document, dict):
        problems.append(f"{file.name} does not have the profiler's format, and is skipped.")
        return None
    return document


def _info(folder: Path, output: Path) -> tuple[str | None, int | None]:
    """Return the profiler's level and the rank."""
    for place in dict.fromkeys((folder, output, output.parent)):
        for file in sorted(place.glob("profiler_info*.json")):
            named = _INFO.match(file.name)
            if named is None:
                continue
            document = _document(file, []) or {}
            level: Any = document
            for key in ("config", "experimental_config", "_profiler_level"):
                level = level.get(key) if isinstance(level, dict) else None
            rank = _count(document.get("rank_id"))
            if rank is None and named[1]:
                rank = int(named[1])
            return level if isinstance(level, str) else None, rank
    return None, None


def _job(folder: Path, output: Path) -> tuple[int | None, int | None]:
    """Return the number of ranks and the rank's pipeline stage, from MindSpeed's data."""
    for place in dict.fromkeys((folder, output, output.parent)):
        file = place / METADATA
        document = _document(file, []) if file.is_file() else None
        if document is None:
            continue
        arguments, groups = document.get("distributed_args"), document.get("parallel_group_info")
        world = arguments.get("world_size") if isinstance(arguments, dict) else None
        stage = None
        for group in groups.values() if isinstance(groups, dict) else ():
            if isinstance(group, dict) and group.get("group_name") == "pp":
                stage = group.get("group_rank")
        return _count(world), _count(stage)
    return None, None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _nothing(folder: Path, output: Path, problems: list[str]) -> str:
    if problems:
        return f"No file of {folder} can be read: {' '.join(problems)}"
    if any(output.glob("*.db")):
        return (
            f"{folder} contains only databases: parse it with export_type Text, which writes"
            f" {TRACE} and tables."
        )
    if any(folder.glob("PROF_*")) or (folder / "FRAMEWORK").is_dir():
        return (
            f"{folder} contains only raw data: parse it with"
            " torch_npu.profiler.profiler.analyse(path) first."
        )
    return f"{folder} contains no files of torch_npu.profiler: check the path."


# --- Disagreement between two files ---


def disagreement(
    severity: Severity, what: str, differences: Sequence[str], code: str, used: str
) -> list[Finding]:
    """Return the finding that two sources, which `what` names, differ; [] without differences.

    ``used`` says which of them is used, and why.
    """
    if not differences:
        return []
    sentence = f"{what} do not agree: {differences[0]}."
    evidence = tuple(Evidence(each, None, None, "") for each in differences[:5])
    numbers = {"differences": len(differences)}
    details = f"The figures are those of {used}."
    return [Finding(severity, sentence, evidence, code, numbers=numbers, details=details)]
