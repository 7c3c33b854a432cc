"""Timings of worker processes, for the report of the process that started them.

Each worker appends one line per run to its own file, in the folder that an environment variable
specifies. Only the process that set the variable removes the files.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from stagespan import _core
from stagespan.process import forks, run
from stagespan.report import exit as exit_reports

_VARIABLE = "_STAGESPAN_WORKER_TIMINGS"
_LATEST_NS = (1 << 63) - 1


class RankEntry(TypedDict):
    """The total time of one rank in a stage, and its highest memory."""

    rank: int
    duration_ms: float
    peak_memory_gb: float
    count: int


@dataclass(frozen=True)
class _Run:
    begin_ns: int
    end_ns: int
    peak_memory_gb: float


@dataclass
class _Stage:
    """The runs of a stage by rank, in order."""

    runs: dict[int, list[_Run]] = field(default_factory=dict)
    recorded: int = 0
    """The number of runs that have been recorded as spans of this process."""
    given: dict[int, dict[str, Any]] | None = None
    """Figures by rank that replace the runs, see `WorkerTimings.give`."""


_is_worker = False
_file: tuple[int, int, int] | None = None  # in a worker: process id, rank, file descriptor


def announce() -> None:
    """Set the folder for workers that this process starts from now on."""
    is_own, folder = _folder()
    # A worker uses its parent's folder. Other programs that a worker starts do not.
    if is_own or (folder and run.is_worker()):
        return
    name = f"stagespan-workers-{os.getpid()}-{secrets.token_hex(8)}"
    os.environ[_VARIABLE] = f"{os.getpid()} {Path(tempfile.gettempdir(), name)}"


def mark() -> None:
    """Make this process a worker, which writes no report when it ends."""
    global _is_worker
    _is_worker = True
    exit_reports.leave_out()


def is_worker() -> bool:
    """Whether this process has been marked as a worker."""
    return _is_worker


def write(stage: str, begin_ns: int, end_ns: int, peak_memory_gb: float) -> None:
    """Report one run to the process that started this worker. Raises OSError."""
    is_own, folder = _folder()
    if is_own or not folder:
        return  # nobody reads it
    global _file
    rank = run.rank()
    if _file is None or _file[:2] != (os.getpid(), rank):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = Path(folder, f"rank{rank}_{os.getpid()}.jsonl")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        _file = (os.getpid(), rank, os.open(path, flags, 0o600))
    line = json.dumps([stage, rank, begin_ns, end_ns, peak_memory_gb]) + "\n"
    os.write(_file[2], line.encode())


class WorkerTimings:
    """Adds the runs of workers to reports."""

    def __init__(self) -> None:
        self._stages: dict[str, _Stage] = {}
        self._read: dict[Path, int] = {}
        """The number of bytes that have been read from each file."""
        self._since_ns = 0

    def begin(self) -> None:
        """Remove all runs that began before now."""
        self._stages = {}
        self._since_ns = time.time_ns()

    def give(self, stage: str, ranks: dict[int, dict[str, Any]]) -> None:
        """Set figures by rank that the program measured."""
        self._stages.setdefault(stage, _Stage()).given = ranks

    def collect(self) -> None:
        """Record new runs: of the n-th runs of a stage in all ranks, the longest."""
        if _is_worker:
            return
        self._read_files()
        for name, stage in self._stages.items():
            most = max(map(len, stage.runs.values()), default=0)
            for number in range(stage.recorded, most):
                runs = [of[number] for of in stage.runs.values() if number < len(of)]
                slowest = max(runs, key=lambda run: run.end_ns - run.begin_ns)
                _core.record(name, slowest.begin_ns, slowest.end_ns)
            stage.recorded = most

    def complete(self, report: dict[str, Any]) -> None:
        """Set ``parallel_info`` in the report."""
        for name, info in self.parallel_info().items():
            if name in report["stages"]:
                report["stages"][name]["parallel_info"] = info

    def parallel_info(self) -> dict[str, dict[str, Any]]:
        """Return ``num_ranks`` and ``ranks`` of each stage that ran in workers."""
        stages: dict[str, dict[str, Any]] = {}
        for name, stage in self._stages.items():
            if stage.given is not None:
                ranks: list[Any] = [
                    {"rank": r, **given} for r, given in sorted(stage.given.items())
                ]
            else:
                ranks = [_entry(rank, runs) for rank, runs in sorted(stage.runs.items())]
            if ranks:
                stages[name] = {"num_ranks": len(ranks), "ranks": ranks}
        return stages

    def _read_files(self) -> None:
        is_own, folder = _folder()
        for path in sorted(Path(folder).glob("*.jsonl")) if is_own else ():
            try:
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    text = file.read()
            except OSError:
                continue
            whole = text[: text.rfind(b"\n") + 1]  # the last line may be incomplete
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            stage, rank, begin_ns, end_ns, peak_memory_gb = json.loads(line)
            run = _Run(int(begin_ns), int(end_ns), float(peak_memory_gb))
            if not self._since_ns <= run.begin_ns <= run.end_ns <= _LATEST_NS:
                return
            runs = self._stages.setdefault(str(stage), _Stage()).runs
            runs.setdefault(int(rank), []).append(run)
        except (ValueError, TypeError, OverflowError):  # the line is damaged
            return


def _entry(rank: int, runs: list[_Run]) -> RankEntry:
    return {
        "rank": rank,
        "duration_ms": sum(run.end_ns - run.begin_ns for run in runs) / 1e6,
        "peak_memory_gb": max(run.peak_memory_gb for run in runs),
        "count": len(runs),
    }


def _folder() -> tuple[bool, str]:
    """Return whether this process set the variable, and the folder in it; "" if it is not set."""
    owner, _, folder = os.environ.get(_VARIABLE, "").partition(" ")
    return owner == str(os.getpid()), folder


def remove() -> None:
    """Remove the folder of this process's workers, after the reports have been written."""
    is_own, folder = _folder()
    if is_own:
        shutil.rmtree(folder, ignore_errors=True)


def _forget_parent() -> None:
    global _file
    _file = None  # the descriptor belongs to the parent


forks.after_in_child(_forget_parent)
