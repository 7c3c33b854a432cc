"""`stagespan run` and the processes of its program, which time the same stages.

The command makes a folder and names it in the environment. A Python that the program starts imports
the `sitecustomize` of this package, and with it stagespan, which times the stages of
STAGESPAN_STAGES. The recordings of all of these processes get a second name in the folder, so that
the command can read them after the processes have ended. What else it has to know is a line in the
folder's log.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import fcntl
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stagespan import _core, settings
from stagespan.process import files, forks, imports, termination, times

_FOLDER = "_STAGESPAN_COMMAND_DIR"  # also read by recording_file.cpp
_PYTHON = "_STAGESPAN_COMMAND_PYTHON"  # also read by sitecustomize.py
_OPTIONS = "_STAGESPAN_COMMAND_OPTIONS"
_SAMPLES = "samples="
"""Begins the option that contains the interval of samples in ms."""
AUTO = "auto"
"""The option of a command that times the functions with most time."""
_PREFIX = ".run-"
_LOG, _LOCK = "log", "lock"
_FIGURES = ".figures"
"""The suffix of files with the figures of processes whose recordings cannot be read."""
_STARTUP = str(Path(__file__).parent / "startup")

_MOST_RECORDINGS = 32
"""How many recordings the folder may have before those of ended processes are read and removed.
Each takes 1 to 2 MiB of a tmpfs."""

_when_crowded: list[Callable[[], None]] = []
_own_pid = 0
"""The process of the command, in it and in its forked children."""


# --- the command ----------------------------------------------------------------------------------


class Command:
    """The folder of one `stagespan run`, in the process that the user started."""

    def __init__(
        self, stages: Iterable[str], options: Iterable[str], sample_ms: float | None = None
    ) -> None:
        """Make the folder, and pass it on with the stages and options to the next processes.

        They are sampled every ``sample_ms``, if it is given. The folder is in the folder of the
        recordings, so that these can have a name there.
        """
        parent = settings.get("STAGESPAN_RECORDING_DIR") or _core.recording_default_folder()
        if settings.get("STAGESPAN_RECORDING") in ("off", "memfd") or (
            _core.recording_why_not_in(os.fsencode(os.path.abspath(parent))) is not None
        ):
            parent = imports.load("tempfile").gettempdir()
        _remove_abandoned(parent)
        self.folder = Path(os.path.abspath(parent), _PREFIX + os.urandom(8).hex())
        self.folder.mkdir(0o700)
        # The system releases the lock when the process ends, however it ends.
        self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        global _own_pid
        _own_pid = os.getpid()
        os.environ[_FOLDER] = str(self.folder)
        os.environ[_PYTHON] = f"{sys.hexversion} {getattr(sys, 'abiflags', '')} {sys.prefix}"
        samples = [] if sample_ms is None else [f"{_SAMPLES}{sample_ms}"]
        os.environ[_OPTIONS] = " ".join([*options, *samples])
        os.environ["STAGESPAN_STAGES"] = "\n".join(stages)
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = _STARTUP + (os.pathsep + before if before else "")
        _join()

    def recordings(self) -> list[str]:
        """Return the paths of the recordings of the other processes, alive or not."""
        own = f"{os.getpid()}-"
        recordings = _recordings(str(self.folder))
        return [path for path in recordings if not os.path.basename(path).startswith(own)]

    def figures(self) -> list[Path]:
        """Return the files of processes whose recordings could not be read at their end."""
        return sorted(self.folder.glob(f"*{_FIGURES}"))

    def when_crowded(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` if the folder has many recordings after the start of a process.

        The process is one that the command's own process has started.
        """
        _when_crowded.append(callback)

    def lines(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield what the processes have told: the kind of each line, and its facts."""
        try:
            text = (self.folder / _LOG).read_text(errors="replace")
        except OSError:
            return
        for line in text.splitlines():
            with contextlib.suppress(ValueError, SyntaxError):  # the disk was full
                kind, *facts = ast.literal_eval(line)
                yield kind, facts

    def unreached(self) -> int:
        """Return how many Pythons the program has started that have not imported stagespan."""
        started: Counter[int] = Counter()
        for kind, facts in self.lines():
            if kind in ("started", "reached"):
                started[facts[0]] += 1 if kind == "started" else -1
        return sum(count for count in started.values() if count > 0)

    def remove(self) -> None:
        """Remove the folder. Processes that still run then have nowhere to write to."""
        imports.load("shutil").rmtree(self.folder, ignore_errors=True)


def _remove_abandoned(parent: str) -> None:
    """Remove the folders of commands that have been killed."""
    for path in Path(parent).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                imports.load("shutil").rmtree(path.parent, ignore_errors=True)
        except OSError:  # the command runs, or it belongs to another user
            continue


# --- its processes --------------------------------------------------------------------------------


def folder() -> str:
    """Return the folder of the command that this process works for; "" without one."""
    return os.environ.get(_FOLDER, "")


def has_option(name: str) -> bool:
    """Whether the command was given an option that its processes must know."""
    return name in os.environ.get(_OPTIONS, "").split()


def tell(kind: str, *facts: object) -> None:
    """Add a line to the command's log, if this process works for a command."""
    if not folder():
        return
    # No function of a module that can be a stage, such as json.dumps.
    line = f"{[kind, *facts]!r}\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):  # the command has ended
        handle = os.open(os.path.join(folder(), _LOG), flags, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def reached() -> None:
    """Say that this Python times the stages of the command."""
    tell("reached", os.getpid())
    _join()
    options = os.environ.get(_OPTIONS, "").split()
    sampling = [text for text in options if text.startswith(_SAMPLES)]
    if sampling:
        interval_ms = float(sampling[0].removeprefix(_SAMPLES))
        program = _core.recording_program_name(
            b"".join(os.fsencode(argument) + b"\0" for argument in sys.orig_argv)
        )
        callback = imports.load("stagespan.sampling.auto").Auto() if has_option(AUTO) else None
        imports.load("stagespan.process.sampler").start(folder(), program, interval_ms, callback)


def _join() -> None:
    """Tell the command of each Python that this process starts, and hand over its figures.

    So do its forked children. The command itself hands over nothing.
    """
    import _posixsubprocess

    if getattr(_posixsubprocess.fork_exec, "_is_watched_by_stagespan", False):
        return
    _watch(_posixsubprocess, "fork_exec", lambda arguments: arguments[1], environment=5)
    _watch(os, "posix_spawn", lambda arguments: arguments[:1])
    forks.around(lambda: None, _after_start, lambda: None)
    atexit.register(_hand_over)
    # Before the recording of a worker ends.
    forks.at_worker_exit(_hand_over, priority=1)
    if settings.get("STAGESPAN_RECORDING") in ("off", "memfd"):
        termination.watch(_hand_over)


def _watch(
    module: Any,
    name: str,
    programs: Callable[[tuple[Any, ...]], Iterable[str | bytes]],
    environment: int | None = None,
) -> None:
    """Watch a function that starts programs and returns a process id.

    ``programs`` are the paths among its arguments, of which the first that exists is started, and
    ``environment`` is the place of the new process's environment, a list of bytes.
    """
    start = getattr(module, name)

    @functools.wraps(start)
    def watched(*arguments: Any, **more: Any) -> Any:
        given = list(arguments)
        if environment is not None and len(given) > environment:
            given[environment] = _with_startup(given[environment])
        pid = start(*given, **more)
        if any(map(_is_python, programs(arguments))):
            tell("started", pid)
        _after_start()
        return pid

    watched._is_watched_by_stagespan = True  # type: ignore[attr-defined]
    setattr(module, name, watched)
    subprocess: Any = sys.modules.get("subprocess")
    if getattr(subprocess, f"_{name}", None) is start:  # a name of its own, from Python 3.11 on
        setattr(subprocess, f"_{name}", watched)


def _with_startup(environment: list[bytes] | None) -> list[bytes] | None:
    """Return an environment in which a program that set its own PYTHONPATH keeps our folder."""
    entries = [key + b"=" + value for key, value in os.environb.items()]
    entries = entries if environment is None else list(environment)
    before = next((entry for entry in entries if entry.startswith(b"PYTHONPATH=")), b"PYTHONPATH=")
    paths = before.partition(b"=")[2]
    startup, separator = os.fsencode(_STARTUP), os.fsencode(os.pathsep)
    is_cleared = not any(entry.startswith(os.fsencode(f"{_FOLDER}=")) for entry in entries)
    if is_cleared or startup in paths.split(separator):
        return environment
    entry = b"PYTHONPATH=" + startup + (separator + paths if paths else b"")
    return [entry, *(other for other in entries if other != before)]


def _after_start() -> None:
    if os.getpid() == _own_pid and len(_recordings(folder())) > _MOST_RECORDINGS:
        for callback in _when_crowded:
            callback()


def _recordings(folder: str) -> list[str]:
    """Return the paths of all recordings in the folder, in the order of their names."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:  # the folder has been removed
        return []
    return [os.path.join(folder, name) for name in names if name.endswith(files.RECORDING_SUFFIX)]


def _is_python(path: str | bytes) -> bool:
    try:
        program = os.path.realpath(os.fsdecode(path))
    except (OSError, ValueError):
        return False
    return os.path.basename(program).startswith("python") and os.access(program, os.X_OK)


def _hand_over() -> None:
    """Write this process's figures to the folder if the command cannot read its recording."""
    stages = _core.snapshot().stages()
    if not folder() or os.getpid() == _own_pid or not stages:
        return
    with contextlib.suppress(OSError):
        place = _core.recording_place()
        if place["kind"] == "file" and os.stat(place["path"]).st_nlink > 1:
            return
    name = f"{os.getpid()}-{times.start_ticks(os.getpid())}{_FIGURES}"
    encoded = imports.load("stagespan.report.merged").encoded(stages)
    with contextlib.suppress(OSError):  # the command has ended
        files.write_whole(Path(folder(), name), encoded, private=True)
        if has_option("write") and not _core.is_debug():
            imports.load("stagespan.report.exit").write_reports()
