"""The run that this process belongs to: its rank, its workers, and its output folder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from stagespan import _core, settings
from stagespan.errors import SettingsError
from stagespan.files import safe_name

# --- ranks ------------------------------------------------------------------------------------


def explicit_rank() -> int | None:
    """Return the rank that a launcher or torch.distributed gave to this process, or None."""
    for spelling in ("RANK", "LOCAL_RANK"):
        number = _launcher_number(spelling)
        if number is not None:
            return number
    return _ask_distributed(lambda distributed: distributed.get_rank())


def rank() -> int:
    """Return the rank: ``RANK``, or else ``LOCAL_RANK``, or else torch.distributed's, or else 0."""
    return explicit_rank() or 0


def world_size() -> int:
    """Return the number of ranks: ``WORLD_SIZE``, or else torch.distributed's, or else 1."""
    number = _launcher_number("WORLD_SIZE")
    if number is None:
        number = _ask_distributed(lambda distributed: distributed.get_world_size())
    return max(number or 1, 1)


def rank_in_names() -> int | None:
    """Return the rank to put into file names, or None if this process is the only rank."""
    return rank() if world_size() > 1 else None


def _launcher_number(spelling: str) -> int | None:
    text = os.environ.get(spelling, "").strip()
    if not text:
        return None
    number = settings.whole_number(text)
    if number is None:
        settings.warn_once(
            spelling, text, f"{spelling}={text!r} is not a whole number and is ignored."
        )
    return number


def _ask_distributed(question: Callable[[Any], int]) -> int | None:
    # Only a torch.distributed that the application has imported and initialised knows the rank.
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(question(distributed))
    except Exception:
        pass
    return None


# --- the run and its output folder --------------------------------------------------------------

_RUN_VARIABLE = "_STAGESPAN_RUN"


class SharedRun(NamedTuple):
    """The data that a process shares with its workers, so that they use the same folder."""

    stamp: str
    """Minute in which the run began, YYYYMMDD_HHMM in local time."""
    began_s: int
    """The same in Unix seconds."""
    owner: int
    """Process id of the process that began the run."""
    owner_rank: int | None
    """Rank that a launcher gave to the owner, if any."""
    root: str
    """Folder against which relative output folders are resolved."""

    def encode(self) -> str:
        """Return one line for the environment; the folder is last: it can contain anything."""
        owner_rank = "-" if self.owner_rank is None else str(self.owner_rank)
        return f"{self.stamp} {self.began_s} {self.owner} {owner_rank} {self.root}"

    @staticmethod
    def decode(text: str) -> SharedRun | None:
        """Return the run that `encode` wrote, or None if the text is something else."""
        parts = text.split(" ", 4)
        if len(parts) != 5 or not parts[0] or safe_name(parts[0]) != parts[0]:
            return None
        began, owner = settings.whole_number(parts[1]), settings.whole_number(parts[2])
        owner_rank = None if parts[3] == "-" else settings.whole_number(parts[3])
        if began is None or owner is None or (owner_rank is None and parts[3] != "-"):
            return None
        return SharedRun(parts[0], began, owner, owner_rank, parts[4])


def _claim_run() -> SharedRun:
    """Join the run that this process works for, or begin one that later workers can join."""
    joined = SharedRun.decode(os.environ.get(_RUN_VARIABLE, "")) if _started_as_worker() else None
    if joined is not None:
        return joined
    began = _launcher_start_s() or time.time()
    stamp = time.strftime("%Y%m%d_%H%M", time.localtime(began))
    begun = SharedRun(stamp, int(began), os.getpid(), explicit_rank(), _working_folder())
    os.environ[_RUN_VARIABLE] = begun.encode()
    return begun


def _started_as_worker() -> bool:
    """Whether a pool of workers started this interpreter; any other program begins a run."""
    # multiprocessing's spawn and forkserver, and loky, start interpreters with these commands.
    marks = ("from multiprocessing.", "popen_loky")
    return any(mark in argument for argument in sys.orig_argv[1:] for mark in marks)


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder has been deleted under the process
        return "."


def _launcher_start_s() -> float | None:
    """Return when the torchrun agent of this rank started, in Unix seconds, or None.

    Ranks do not start in the same second, but they share the agent that started them.
    """
    return process_start_s(os.getppid()) if "TORCHELASTIC_RUN_ID" in os.environ else None


def process_start_s(pid: int) -> float | None:
    """Return when a process of this machine started, in Unix seconds; None if that is unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The second field is the command in parentheses, which can itself contain blanks.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/stat", encoding="utf-8") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        return boot_s + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


# Claimed at import, because a worker can start before the first report is written.
_run = _claim_run()
_output_dir: str | None = None
_pipeline_name: str | None = None


def current() -> SharedRun:
    """Return the run that this process belongs to."""
    return _run


def worker_in_names() -> int | None:
    """Return the process id to put into file names, or None if file names are unique without it.

    A launcher may have given a worker a rank other than its owner's. The rank is enough then.
    """
    shares_rank = rank_in_names() is None or explicit_rank() == _run.owner_rank
    return os.getpid() if is_worker() and shares_rank else None


def whose_file() -> str:
    """Return what distinguishes the file names of this process: "", "_rank1" or "_pid42"."""
    rank_number, worker = rank_in_names(), worker_in_names()
    return ("" if rank_number is None else f"_rank{rank_number}") + (
        "" if worker is None else f"_pid{worker}"
    )


def is_worker() -> bool:
    """Whether another process began this run and uses the plain file names."""
    return os.getpid() != _run.owner


def check_settings() -> None:
    """Warn early about invalid variables. The first process of a run also warns of unknown ones."""
    settings.check(unknown_names=not is_worker() and not explicit_rank())


def pipeline_name() -> str:
    """Return the name set by `set_pipeline_name`, or else the variable's."""
    return (
        _pipeline_name
        if _pipeline_name is not None
        else str(settings.get("STAGESPAN_PIPELINE_NAME"))
    )


def set_pipeline_name(name: str) -> None:
    """Set the name of the pipeline, also for processes that start from now on.

    Raises SettingsError if ``name`` is empty or not a string.
    """
    global _pipeline_name
    text = _text(name, "pipeline name")
    _export("STAGESPAN_PIPELINE_NAME", text)
    _pipeline_name = text
    _core.describe_process()


def output_dir() -> Path:
    """Return the folder for this run's files. It is created when the first file is written.

    It changes only if `set_profiler_output_dir` or `set_pipeline_name` is called. A relative path
    is resolved against the working folder in which the run began. It is returned as a relative path
    only while that is still the working folder.
    """
    chosen = _output_dir if _output_dir is not None else settings.get("STAGESPAN_OUTPUT_DIR")
    if chosen is None:
        folder = Path("work_dirs", "profiler_output", safe_name(pipeline_name()), _run.stamp)
    else:
        folder = expanded(chosen)
    return _from_root(folder)


def timing_report_path() -> Path:
    """Return the file of the report at exit: STAGESPAN_TIMING_REPORT, or else the folder's."""
    chosen = settings.get("STAGESPAN_TIMING_REPORT")
    if chosen is None:
        return output_dir() / "timing.json"
    return _from_root(expanded(chosen))


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home folder for ``~``, if the system knows it.

    `Path.expanduser` raises RuntimeError for unknown users, as in containers without their names.
    """
    return Path(os.path.expanduser(path))


def _from_root(path: Path) -> Path:
    if path.is_absolute() or _working_folder() == _run.root:
        return path
    return Path(_run.root) / path


def set_output_dir(path: str | os.PathLike[str] | None) -> None:
    """Set the output folder, also for processes that start from now on.

    None restores the default folder, and removes the variables that name another one. Raises
    SettingsError if ``path`` is empty or not a path.
    """
    global _output_dir
    if path is None:
        settings.unset("STAGESPAN_OUTPUT_DIR")
        _output_dir = None
        return
    folder = _text(os.fspath(path) if isinstance(path, os.PathLike) else path, "output folder")
    _export("STAGESPAN_OUTPUT_DIR", folder)
    _output_dir = folder


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise SettingsError(f"the {what} {value!r} must be a string with at least one character")
    return value


def _export(variable: str, value: str) -> None:
    try:
        os.environ[variable] = value
    except ValueError:  # not every string can be encoded for the environment
        raise SettingsError(
            f"{value!r} contains characters that are not allowed in a path here"
        ) from None
