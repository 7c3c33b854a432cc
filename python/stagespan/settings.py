"""Every variable that stagespan reads, in one table; the rank; the run and its output folder."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from stagespan import _core
from stagespan.errors import SettingsError
from stagespan.files import safe_name

_LOGGER = logging.getLogger("stagespan")

Kind = Literal["switch", "text", "names", "count", "choice"]


class Variable(NamedTuple):
    """One environment variable: its name, its other spellings, and what its value may be."""

    name: str
    aliases: tuple[str, ...]
    kind: Kind
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()
    least: int = 1
    most: int = 10**9


VARIABLES: tuple[Variable, ...] = (
    Variable(
        "STAGESPAN_DEBUG",
        ("TELEFUSER_PROFILE_DEBUG",),
        "switch",
        False,
        "debug mode: debug contexts run, and the reports are written at exit",
    ),
    Variable(
        "STAGESPAN_PIPELINE_NAME",
        ("TELEFUSER_PIPELINE_NAME",),
        "text",
        "default",
        "name of the pipeline, a part of the output folder",
    ),
    Variable(
        "STAGESPAN_OUTPUT_DIR",
        ("TELEFUSER_PROFILER_OUTPUT_DIR",),
        "text",
        None,
        "output folder; by default work_dirs/profiler_output/{pipeline}/{YYYYMMDD_HHMM}",
    ),
    Variable(
        "STAGESPAN_PROFILER_NAMES",
        ("ENABLE_PROFILER_NAMES",),
        "names",
        (),
        "stages that run under torch.profiler, separated by commas; * stands for all",
    ),
    Variable(
        "STAGESPAN_PROFILER_RUNS",
        (),
        "count",
        1,
        "how many runs of each of these stages are profiled",
    ),
    Variable(
        "STAGESPAN_REDACT",
        (),
        "choice",
        "none",
        "what signatures leave out; strings leaves out the content of strings, bytes and paths",
        ("none", "strings"),
    ),
    Variable(
        "STAGESPAN_ENABLED",
        (),
        "switch",
        True,
        "whether the recorder is on when the process starts",
    ),
    Variable(
        "STAGESPAN_PROPAGATE_TO_THREADS",
        (),
        "switch",
        False,
        "whether threads and thread pools keep the request and the span of the code that "
        "starts them",
    ),
    Variable(
        "STAGESPAN_CLOCK",
        (),
        "choice",
        "auto",
        "the recorder's clock; read when the extension is loaded",
        ("auto", "tsc", "monotonic"),
    ),
    Variable(
        "STAGESPAN_RING_SPANS",
        (),
        "count",
        _core.RING_SPANS_DEFAULT,
        "how many spans each thread's ring keeps, rounded up to a power of two; read when the "
        "extension is loaded",
        least=_core.RING_SPANS_LEAST,
        most=_core.RING_SPANS_MOST,
    ),
    Variable(
        "STAGESPAN_DEVICE_EVERY",
        (),
        "count",
        1,
        "measure the device time of every n-th span of a stage in a thread; 0 turns it off",
        least=0,
    ),
)

_BY_NAME = {variable.name: variable for variable in VARIABLES}
# What the project's own tests and builds read.
_NOT_SETTINGS = ("STAGESPAN_TEST_", "STAGESPAN_TRACES")
# The extension trims what it reads by itself in the same way: csrc/stagespan/variables.h.
_BLANKS = " \t\n\r\f\v"
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off"))
_warned: set[tuple[str, str]] = set()


def get(name: str) -> Any:
    """Value of the variable ``name`` (its ``STAGESPAN_`` spelling), read from the environment now.

    An empty value counts as not set. A value that cannot be used gives the default and one warning
    a process. Raises KeyError for a name that is not in the table.
    """
    variable = _BY_NAME[name]
    for spelling in (variable.name, *variable.aliases):
        text = os.environ.get(spelling, "").strip(_BLANKS)
        if text:
            return _parse(variable, spelling, text)
    return variable.default


def check() -> None:
    """Read every variable once, to warn early about wrong values, and about names not known."""
    for variable in VARIABLES:
        get(variable.name)
    if is_worker() or explicit_rank():
        return  # the first process of the run has warned
    for name in sorted(os.environ):
        if (
            name.startswith("STAGESPAN_")
            and name not in _BY_NAME
            and not name.startswith(_NOT_SETTINGS)
        ):
            _warn_once(name, "", _unknown(name))


def _unknown(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.75)
    hint = f"did you mean {close[0]}?" if close else "docs/settings.md lists the variables."
    return f"{name} is ignored because stagespan has no variable of this name; {hint}"


def _parse(variable: Variable, spelling: str, text: str) -> Any:
    if variable.kind == "text":
        return text
    if variable.kind == "names":
        return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if variable.kind == "switch":
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        expected = "true or false"
    elif variable.kind == "choice":
        if text.lower() in variable.choices:
            return text.lower()
        expected = " or ".join(variable.choices)
    else:
        number = _whole_number(text)
        if number is not None and variable.least <= number <= variable.most:
            return number
        expected = f"a whole number from {variable.least:,} to {variable.most:,}"
    _warn_once(
        spelling,
        text,
        f"{spelling}={text!r} cannot be used: set it to {expected}. "
        f"The default {variable.default!r} is used.",
    )
    return variable.default


def _whole_number(text: str) -> int | None:
    # The extension's own rules. int() also takes "1_000" and digits of other scripts.
    return _core.whole_number(text) if text.isascii() else None


def _warn_once(spelling: str, text: str, sentence: str) -> None:
    if (spelling, text) not in _warned:
        _warned.add((spelling, text))
        _LOGGER.warning("[Profiler] %s", sentence)


# --- ranks ------------------------------------------------------------------------------------


def explicit_rank() -> int | None:
    """Rank that a launcher or torch.distributed gave to this process; None when nobody did."""
    for spelling in ("RANK", "LOCAL_RANK"):
        number = _launcher_number(spelling)
        if number is not None:
            return number
    return _ask_distributed(lambda distributed: distributed.get_rank())


def rank() -> int:
    """Rank of this process: ``RANK``, else ``LOCAL_RANK``, else torch.distributed's, else 0."""
    return explicit_rank() or 0


def world_size() -> int:
    """How many ranks there are: ``WORLD_SIZE``, else torch.distributed's, else 1."""
    number = _launcher_number("WORLD_SIZE")
    if number is None:
        number = _ask_distributed(lambda distributed: distributed.get_world_size())
    return max(number or 1, 1)


def rank_in_names() -> int | None:
    """Rank to put into file names: None where this process is the only rank."""
    return rank() if world_size() > 1 else None


def _launcher_number(spelling: str) -> int | None:
    text = os.environ.get(spelling, "").strip()
    if not text:
        return None
    number = _whole_number(text)
    if number is None:
        _warn_once(spelling, text, f"{spelling}={text!r} is not a whole number and is ignored.")
    return number


def _ask_distributed(question: Callable[[Any], int]) -> int | None:
    # Only a torch.distributed that the application has imported and set up can know.
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(question(distributed))
    except Exception:
        pass
    return None


# --- the run and its output folder --------------------------------------------------------------

_RUN_VARIABLE = "_STAGESPAN_RUN"


class Run(NamedTuple):
    """What a process shares with its workers, so that their files meet in one folder."""

    stamp: str
    """Minute in which the run began, YYYYMMDD_HHMM in local time."""
    began_s: int
    """The same in Unix seconds."""
    owner: int
    """Process id of the process that began the run."""
    owner_rank: int | None
    """Rank that the owner was given, if any."""
    root: str
    """Folder that relative output folders start from."""

    def encode(self) -> str:
        """One line for the environment; the folder comes last, because it may hold anything."""
        given = "-" if self.owner_rank is None else str(self.owner_rank)
        return f"{self.stamp} {self.began_s} {self.owner} {given} {self.root}"

    @staticmethod
    def decode(text: str) -> Run | None:
        """The run that `encode` wrote, or None when the text is something else."""
        parts = text.split(" ", 4)
        if len(parts) != 5 or not parts[0] or safe_name(parts[0]) != parts[0]:
            return None
        began, owner = _whole_number(parts[1]), _whole_number(parts[2])
        given = None if parts[3] == "-" else _whole_number(parts[3])
        if began is None or owner is None or (given is None and parts[3] != "-"):
            return None
        return Run(parts[0], began, owner, given, parts[4])


def _claim_run() -> Run:
    """Join the run that this process works for, or begin one and let later workers know."""
    joined = Run.decode(os.environ.get(_RUN_VARIABLE, "")) if _started_as_worker() else None
    if joined is not None:
        return joined
    began = _launcher_start_s() or time.time()
    stamp = time.strftime("%Y%m%d_%H%M", time.localtime(began))
    begun = Run(stamp, int(began), os.getpid(), explicit_rank(), _working_folder())
    os.environ[_RUN_VARIABLE] = begun.encode()
    return begun


def _started_as_worker() -> bool:
    """Whether a pool of workers started this interpreter; any other program begins a run."""
    # multiprocessing's spawn and forkserver, and loky, start interpreters by these commands.
    marks = ("from multiprocessing.", "popen_loky")
    return any(mark in argument for argument in sys.orig_argv[1:] for mark in marks)


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder has been deleted under the process
        return "."


def _launcher_start_s() -> float | None:
    """Start of the torchrun agent that started this rank, in Unix seconds; None without one.

    Ranks do not start in the same second, but they share the agent that started them.
    """
    return process_start_s(os.getppid()) if "TORCHELASTIC_RUN_ID" in os.environ else None


def process_start_s(pid: int) -> float | None:
    """When a process of this machine began, in Unix seconds; None if the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The second field is the command in parentheses, which may itself hold blanks.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/stat", encoding="utf-8") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        return boot_s + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


# Claimed at import: a worker that starts before the first report must already find it.
_run = _claim_run()
_output_dir: str | None = None
_pipeline_name: str | None = None


def run() -> Run:
    """The run that this process belongs to."""
    return _run


def worker_in_names() -> int | None:
    """Process id to put into file names: None where no process of the run has the same name.

    A worker to which a launcher gave another rank than its owner's has a name of its own already.
    """
    shares_rank = rank_in_names() is None or explicit_rank() == _run.owner_rank
    return os.getpid() if is_worker() and shares_rank else None


def whose_file() -> str:
    """What a stage's files have in their names to tell processes apart: "", "_rank1", "_pid42"."""
    rank, worker = rank_in_names(), worker_in_names()
    return ("" if rank is None else f"_rank{rank}") + ("" if worker is None else f"_pid{worker}")


def is_worker() -> bool:
    """Whether another process began this run, so that the plain file names are that one's."""
    return os.getpid() != _run.owner


def pipeline_name() -> str:
    """Name of the pipeline: the one set by `set_pipeline_name`, else the variable's."""
    return _pipeline_name if _pipeline_name is not None else str(get("STAGESPAN_PIPELINE_NAME"))


def set_pipeline_name(name: str) -> None:
    """Set the pipeline's name, also for processes started from now on.

    Raises SettingsError when ``name`` is no string or empty.
    """
    global _pipeline_name
    given = _text(name, "pipeline name")
    _export("STAGESPAN_PIPELINE_NAME", given)
    _pipeline_name = given


def output_dir() -> Path:
    """Folder that this run's files go to; not created until something is written.

    Fixed once a process, apart from `set_output_dir` and `set_pipeline_name`. A relative folder is
    meant from where the run began: it stays relative only while that is the working folder.
    """
    chosen = _output_dir if _output_dir is not None else get("STAGESPAN_OUTPUT_DIR")
    if chosen is None:
        folder = Path("work_dirs", "profiler_output", safe_name(pipeline_name()), _run.stamp)
    else:
        folder = Path(chosen).expanduser()
    if folder.is_absolute() or _working_folder() == _run.root:
        return folder
    return Path(_run.root) / folder


def set_output_dir(path: str | os.PathLike[str] | None) -> None:
    """Set the output folder, also for processes started from now on; None goes back to the default.

    Raises SettingsError when ``path`` is empty or no path.
    """
    global _output_dir
    if path is None:
        os.environ.pop("STAGESPAN_OUTPUT_DIR", None)
        _output_dir = None
        return
    folder = _text(os.fspath(path) if isinstance(path, os.PathLike) else path, "output folder")
    _export("STAGESPAN_OUTPUT_DIR", folder)
    _output_dir = folder


def profiler_names() -> tuple[str, ...]:
    """Stages that the environment names for torch.profiler, in order, each once."""
    names: tuple[str, ...] = get("STAGESPAN_PROFILER_NAMES")
    return names


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise SettingsError(f"the {what} {value!r} must be a string with at least one character")
    return value


def _export(variable: str, value: str) -> None:
    try:
        os.environ[variable] = value
    except ValueError:  # not every string can be encoded for the environment
        raise SettingsError(f"{value!r} holds characters that no path here can hold") from None
