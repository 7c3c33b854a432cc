"""The run that this process belongs to: its rank, its workers, and its output folder.

A worker is recognised by its own command and state, because its parent may not use stagespan.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from stagespan import _core, settings
from stagespan.errors import SettingsError
from stagespan.process import claims, forks, termination, times
from stagespan.process.files import safe_name

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


# --- how this process was started -------------------------------------------------------------

# The commands with which multiprocessing, libraries derived from it, and loky start workers and the
# servers that fork them.
_COMMAND = re.compile(
    r"(?:import sys; *)?from (?:multiprocessing|multiprocess|billiard)\.(\w+) import \w+; *\w+\("
    r"|.*\bpopen_loky_\w+$"
)
_MOST_ANCESTORS = 16


def _has_pool_started() -> bool:
    """Whether a pool of workers started this process, or forked it before this import."""
    if any(_COMMAND.match(argument) for argument in sys.orig_argv[1:4]):
        return True
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _ancestors() -> list[int]:
    """Return the processes that started this one, up to the one that the user started.

    The last one is the process whose command names the program; the others are those of commands
    of pools. It is this process if no pool started it.
    """
    ancestors = [os.getpid()]
    while len(ancestors) < _MOST_ANCESTORS:
        arguments = _arguments_of(ancestors[-1])
        if not any(_COMMAND.match(argument) for argument in arguments[1:4]):
            break
        parent = _parent_of(ancestors[-1])
        if parent is None:
            break
        ancestors.append(parent)
    return ancestors


def _arguments_of(pid: int) -> list[str]:
    """Return the arguments with which a process was started; an empty list if they are unknown.

    A process title (of the package setproctitle, for example) overwrites /proc/PID/cmdline, so this
    process's own arguments are Python's copy of them. Another process whose command is one text has
    a title, or no arguments. multiprocessing tells its workers the script of the program.
    """
    if pid == os.getpid():
        return sys.orig_argv
    arguments = _read(pid, "cmdline").rstrip("\0").split("\0")
    if len(arguments) > 1:
        return arguments
    return [sys.executable, sys.argv[0]] if sys.argv[0] else []


def _variable_at_start(pid: int, name: str) -> str:
    """Return an environment variable with which a process was started; "" if it is unknown."""
    found = (text for text in _read(pid, "environ").split("\0") if text.startswith(f"{name}="))
    return next(found, "").partition("=")[2]


def _parent_of(pid: int) -> int | None:
    for line in _read(pid, "status").splitlines():
        if line.startswith("PPid:"):
            parent = int(line.split()[1])
            return parent if parent > 0 else None
    return None


def _read(pid: int, what: str) -> str:
    try:
        with open(f"/proc/{pid}/{what}", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


# --- the run and its output folder --------------------------------------------------------------

_RUN_VARIABLE = "_STAGESPAN_RUN"
_MOST_COPIES = 100


class SharedRun(NamedTuple):
    """The data that a process shares with its workers, so that they use the same folder."""

    stamp: str
    """Minute in which the run began, YYYYMMDD_HHMM in local time."""
    began_s: int
    """The same in Unix seconds."""
    owner: int
    """Process id of the latest process that passes the run on: it began the run, or was forked."""
    owner_rank: int | None
    """Rank that a launcher gave to the owner, if any. In a forked child, the rank at the fork."""
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
    joined = _joined_run()
    if joined is not None:
        return joined
    # If the process that started this worker does not use stagespan, all of its workers still begin
    # their runs in the same minute, and thus use the same folder.
    if _is_worker:
        began = _common_start_s(_program_pid) or time.time()
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        # Ranks do not start in the same second, but they share the agent that started them.
        began = _common_start_s(os.getppid()) or time.time()
    else:
        began = time.time()
    stamp = time.strftime("%Y%m%d_%H%M", time.localtime(began))
    rank_there = _rank_at_start() if _is_worker else explicit_rank()
    begun = SharedRun(stamp, int(began), os.getpid(), rank_there, _working_folder())
    os.environ[_RUN_VARIABLE] = begun.encode()
    return begun


def _joined_run() -> SharedRun | None:
    """Return the run of a process that started this worker; None if none of them has begun one.

    Programs that such a process starts inherit the variable, but have runs of their own.
    """
    found = SharedRun.decode(os.environ.get(_RUN_VARIABLE, "")) if _is_worker else None
    return found if found is not None and found.owner in _started_by else None


def _rank_at_start() -> int | None:
    """Return the rank with which a launcher started the program that this process belongs to."""
    for spelling in ("RANK", "LOCAL_RANK"):
        number = settings.whole_number(_variable_at_start(_program_pid, spelling))
        if number is not None:
            return number
    return None


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder has been deleted under the process
        return "."


def process_start_s(pid: int) -> float | None:
    """Return when a process of this machine started, in Unix seconds; None if that is unknown.

    It is exact to about a tick of the system, which is 10 ms.
    """
    ticks = times.start_ticks(pid)
    if ticks is None:
        return None
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / times.TICKS_PER_S
    return time.time() - age_s


def _common_start_s(pid: int) -> float | None:
    """Return the same within a second, but the same number in all processes that ask for it."""
    boot_s, ticks = times.boot_s(), times.start_ticks(pid)
    if boot_s is None or ticks is None:
        return None
    return boot_s + ticks / times.TICKS_PER_S


def script_begin_ns() -> int:
    """Return when the program began, in Unix ns: when stagespan was imported, or later.

    A forked child begins at the fork. The script of `stagespan run` begins when it is executed.
    """
    return _script_begin_ns


def begin_script() -> None:
    """Let the time of the program count from now on."""
    global _script_begin_ns
    _script_begin_ns = _core.now_ns()


_script_begin_ns = _core.now_ns()
forks.after_in_child(begin_script)
# Claimed at import, because a worker can start before the first report is written.
_is_worker = _has_pool_started()
_started_by = _ancestors() if _is_worker else [os.getpid()]
_program_pid = _started_by[-1]
_has_joined = _joined_run() is not None
_run = _claim_run()
_output_dir: str | None = None
_pipeline_name: str | None = None


def current() -> SharedRun:
    """Return the run that this process belongs to."""
    return _run


def whose_file(folder: Path) -> str:
    """Return what distinguishes this process's files in a folder: "", "_rank1", "_pid42" or "_2".

    A worker adds its process id, unless a launcher gave it a rank other than its parent's. So does
    a program if another one, which is alive or ended after this one began, writes files of the same
    names to the folder. In a folder that is named by its minute, a program that begins after
    another one has ended adds "_2", "_3" and so on, so that it overwrites nothing. The answer does
    not change.
    """
    number = rank_in_names()
    rank_part = "" if number is None else f"_rank{number}"
    shares_rank = number is None or explicit_rank() == _run.owner_rank
    with_pid = f"{rank_part}_pid{os.getpid()}"
    # In another container, a process can have the same id.
    unique = [with_pid, *(f"{with_pid}_{copy}" for copy in range(2, _MOST_COPIES))]
    if is_worker() and shares_rank:
        return claims.first_free(folder, unique)
    is_default = named_output_dir() is None and folder == output_dir()
    reruns = [f"{rank_part}_{number}" for number in range(2, _MOST_COPIES)] if is_default else ()
    return claims.first_free(folder, [rank_part, *unique], reruns)


def is_worker() -> bool:
    """Whether another process started this one as its worker, and uses the plain file names."""
    return _is_worker


def _become_worker() -> None:
    global _is_worker, _run
    _is_worker = True
    _run = _run._replace(owner=os.getpid(), owner_rank=explicit_rank())
    os.environ[_RUN_VARIABLE] = _run.encode()  # for the workers of this one


forks.after_in_child(_become_worker)


def _describe_worker() -> None:
    """Write to the recording which worker this process is, if it is one."""
    if is_worker():
        _core.recording_describe_worker(_rank_at_start())


def describe(version: str) -> None:
    """Describe this process in its recording, which also says how the process ends."""
    # Those with which the user started the program, each ended by a zero byte.
    arguments = b"".join(os.fsencode(text) + b"\0" for text in _arguments_of(_program_pid))
    _core.recording_describe_program(version, arguments)
    _describe_worker()
    forks.after_in_child(_describe_worker)
    if settings.get("STAGESPAN_RECORDING") != "off":
        termination.watch_signal_calls()
    _core.recording_set_tell_fault(_tell_fault)
    # This runs after the exit handler of the service, which still writes spans.
    forks.at_worker_exit(_core.recording_end, priority=0)


def _tell_fault() -> None:
    """Say once that this process and those that it forks have no file that others can read."""
    place = _core.recording_place()
    why = place["why"] or "STAGESPAN_RECORDING=memfd is set"
    what = "is in no file" if place["kind"] == "memfd" else "cannot be read by other programs"
    settings.warn_once(
        "STAGESPAN_RECORDING",
        "no file",
        f"The recording of this process {what} because {why}. "
        + (
            "`stagespan export` does not find it if STAGESPAN_RECORDING_DIR is set, and it is lost "
            "when the process dies."
            if place["kind"] == "memfd"
            else "`stagespan ps` and `stagespan export` do not see the process."
        ),
    )


def check_settings() -> None:
    """Warn early about invalid variables. The first process of a run also warns of unknown ones."""
    settings.check(unknown_names=not _has_joined and not explicit_rank())


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
    _core.request_set_pipeline(text)
    _core.recording_describe_process()


def output_dir() -> Path:
    """Return the folder for this run's files. It is created when the first file is written.

    It changes only if `set_profiler_output_dir` or `set_pipeline_name` is called. A relative path
    is resolved against the working folder in which the run began. It is returned as a relative path
    only while that is still the working folder.
    """
    named = named_output_dir()
    if named is not None:
        return named
    return _from_root(Path("work_dirs", "profiler_output", safe_name(pipeline_name()), _run.stamp))


def named_output_dir() -> Path | None:
    """Return the folder set by `set_profiler_output_dir`, or else the variable's, or else None."""
    chosen = _output_dir if _output_dir is not None else settings.get("STAGESPAN_OUTPUT_DIR")
    return None if chosen is None else _from_root(expanded(chosen))


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
