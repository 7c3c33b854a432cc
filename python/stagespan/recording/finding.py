"""Finds the recordings of processes: by a path, by a process id, or all of this machine."""

from __future__ import annotations

import heapq
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator

from stagespan import _core, settings
from stagespan.errors import ShortageError, StagespanError, TooLargeError
from stagespan.process.files import RECORDING_SUFFIX, cannot_open, is_shortage
from stagespan.process.times import stat_fields, stat_folder
from stagespan.recording.reading import (
    ENDED_STATES,
    MEMFD,
    REMOVED,
    LiveProcess,
    Recording,
    is_locked,
    open_file,
    runs,
    shows_this_namespace,
)

_FILE = re.compile(rf"(\d+)-(\d+)(?:-\d+)?{re.escape(RECORDING_SUFFIX)}")
_DELETED = " (deleted)"
EXPORTER_FILE = ".exporter"
"""The file in a folder of recordings on which an exporter holds a lock."""
_MOST_ENDED = 256
"""The most recordings of ended processes that are read from a folder. Each takes about 1 MiB."""


def open_recording(path_or_pid: str | os.PathLike[str] | int, *, spans: bool = True) -> Recording:
    """Open a recording by the path of its file, or by the id of a process on this machine.

    If ``spans`` is False, the finished spans are not read, which takes less time.

    A process id is one of this pid namespace. A live process that has it is preferred to earlier
    ones, and to those of other containers. Raises StagespanError if there is no such recording, if
    the file is not a recording, or if several processes have or had the id; the error then lists
    their files.
    """
    if isinstance(path_or_pid, int):
        return _only_one(path_or_pid, spans=spans)
    text = os.fspath(path_or_pid)
    if text == "-":
        raise StagespanError(
            "A recording cannot be read from standard input: pass its file or a process id. "
            "--json needs no file, because it prints to standard output."
        )
    if text.isascii() and text.isdigit() and not os.path.exists(text):
        return _only_one(int(text), spans=spans)
    return Recording(text, everything=spans)


def recordings(*, spans: bool = False) -> list[Recording]:
    """Return the recordings of this user's processes, alive or not; root gets those of all users.

    Files that are not recordings, and those that are removed meanwhile, are left out. So are
    recordings of ended processes except for the newest 256 in each folder.

    Raises ShortageError if this process lacks descriptors or memory to read them.
    """
    opened = []
    for path in recording_paths():
        try:
            opened.append(Recording(path, everything=spans))
        except StagespanError as error:
            if isinstance(error, ShortageError) and not isinstance(error, TooLargeError):
                raise
    return sorted(opened, key=lambda recording: (recording.begin_ns, recording.pid))


# --- files ----------------------------------------------------------------------------------------


def recording_folders() -> list[str]:
    """Return the folders whose recordings are read, this process's own one first.

    It is only STAGESPAN_RECORDING_DIR, if that is set. Otherwise it is the default folder, and for
    root those of all users.
    """
    folder = settings.get("STAGESPAN_RECORDING_DIR")
    if folder:
        return [os.path.abspath(folder)]
    others = default_folders() if os.geteuid() == 0 else []
    return list(dict.fromkeys([_core.recording_default_folder(), *others]))


def folders_of_others() -> list[str]:
    """Return the default folders of other users, whose recordings this process may not read."""
    if os.geteuid() == 0:
        return []
    return [one for one in default_folders() if one != _core.recording_default_folder()]


def default_folders() -> list[str]:
    """Return the folders of all users that record by default."""
    parent = os.path.dirname(_core.recording_default_folder())
    names = sorted(_listed_names(parent))
    return [os.path.join(parent, name) for name in names if re.fullmatch(r"stagespan-\d+", name)]


def _listed_names(folder: str) -> list[str]:
    """Return the names in a folder; none if it does not exist or is not for this user.

    Raises ShortageError if this process lacks descriptors or memory.
    """
    try:
        return os.listdir(folder)
    except OSError as error:
        if is_shortage(error):
            raise cannot_open(folder, error) from None
        return []


def _files() -> Iterator[tuple[str, int, int]]:
    """Yield the files of all folders, each with the process id and start time in its name."""
    for folder in recording_folders():
        if os.path.islink(folder):
            continue
        for name in sorted(_listed_names(folder)):
            match = _FILE.fullmatch(name)
            if match is not None:
                yield os.path.join(folder, name), int(match[1]), int(match[2])


def is_exported(folder: str) -> bool:
    """Whether an exporter reads the recordings in a folder.

    Raises ShortageError if this process lacks descriptors or memory to find out.
    """
    try:
        handle = open_file(os.path.join(folder, EXPORTER_FILE))
    except ShortageError:
        raise
    except StagespanError:
        return False
    try:
        return bool(is_locked(handle))
    finally:
        os.close(handle)


def live_in(folders: Collection[str]) -> list[str]:
    """Return the recordings in some folders whose processes live, also in other containers."""
    return [
        path
        for path, pid, start_ticks in _files()
        if os.path.dirname(path) in folders
        and _modified_ns_if_ended(path, pid, start_ticks) is None
    ]


def recording_paths(*, memory: bool = True, read: Collection[str] = ()) -> Iterator[str]:
    """Yield the paths of the recordings that `recordings` returns.

    Without ``memory``, those are left out that have no name in a file system. Finding these takes
    longer, because all processes are examined. The processes of files in ``read`` are not examined.
    """
    ended: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for path, pid, start_ticks in _files():
        is_read = path in read
        modified_ns = None if is_read else _modified_ns_if_ended(path, pid, start_ticks)
        if modified_ns is None:
            yield path
        else:
            ended[os.path.dirname(path)].append((modified_ns, path))
    for found in ended.values():
        yield from (path for _, path in heapq.nlargest(_MOST_ENDED, found))
    if not memory:
        return
    for pid in sorted(int(name) for name in _listed_names("/proc") if name.isdigit()):
        held = _held_by(pid, pid, without_a_name=True)
        if held is not None:
            yield held


def _modified_ns_if_ended(path: str, pid: int, start_ticks: int) -> int | None:
    """Return when a file was last modified if its process has ended; None if it may be alive.

    The file is not read, because there may be thousands.
    """
    if runs(pid, start_ticks):
        return None
    try:
        handle = open_file(path)
    except StagespanError:  # opening the file raises the error
        return None
    try:
        # The id of a process in another container is not its id here, but it holds a lock.
        return os.fstat(handle).st_mtime_ns if is_locked(handle) is False else None
    finally:
        os.close(handle)


def _held_by(pid: int, inner: int, *, without_a_name: bool) -> str | None:
    """Return the path in /proc of the recording that a process has open; None if it has none.

    ``inner`` is its id in its own pid namespace. With ``without_a_name``, only a memfd or a file
    that has been deleted counts.
    """
    folder = f"/proc/{pid}/fd"
    for number in _listed_names(folder):
        path = f"{folder}/{number}"
        try:
            target = os.readlink(path)
        except OSError:  # it has been closed meanwhile
            continue
        if target == MEMFD:
            return path
        # The target may be the former name of a file that has been deleted.
        match = _FILE.fullmatch(os.path.basename(target).removesuffix(_DELETED).lstrip("."))
        if match is None or int(match[1]) != inner:  # others may have it open for reading
            continue
        try:
            if not without_a_name or os.stat(path).st_nlink == 0:
                return path
        except OSError:
            continue
    return None


# --- by process id --------------------------------------------------------------------------------


def of_pid(pid: int, *, spans: bool = True) -> list[Recording]:
    """Return the recordings that a process id of this machine can mean.

    A process id is unique only within a pid namespace and only while the process lives. If a live
    process of this namespace has the id and a recording, only its recording is returned. If it has
    none, those of ended processes of this namespace are returned. If no live process has the id,
    those of all namespaces are returned.

    Raises StagespanError if there is none, or if the only one cannot be read; ShortageError if this
    process lacks descriptors or memory to find out.
    """
    process = _live_process(pid)
    inner = pid if process is None else process.pid
    held = None if process is None else _held_by(pid, inner, without_a_name=False)
    paths = [] if held is None else [held]  # first, because the name of a file tells more
    paths += [path for path, of_pid, _ in _files() if of_pid in (pid, inner)]
    opened, reason = [], None
    for path in paths:
        try:
            opened.append(Recording(path, everything=spans))
        except ShortageError:
            raise
        except StagespanError as error:
            reason = error
    if process is not None:
        of_process = [recording for recording in opened if recording.is_of(process)]
        if of_process:
            # Those before a call of `exec` may be kept.
            return sorted(of_process, key=lambda recording: recording.begin_ns)[-1:]
    opened = [recording for recording in opened if recording.pid == pid]
    here = [
        recording
        for recording in opened
        if process is None or recording.pid_namespace == process.pid_namespace
    ]
    if pid == os.getpid():
        here = []  # those of earlier processes
    if here:
        return here
    if opened and pid != os.getpid():
        raise StagespanError(
            f"The process {pid} of this pid namespace has no recording that can be read here. Pass "
            f"the file of another process that has or had this id: {_listed(opened)}."
        )
    if reason is not None and pid != os.getpid():
        raise reason
    if process is None and not os.path.exists(f"/proc/{pid}"):
        raise StagespanError(
            f"There is no process {pid}, and no recording of a process with this id: `stagespan ps "
            f"--all` lists the recordings. {REMOVED}"
        )
    raise StagespanError(
        f"The process {pid} has no recording that can be read here: it has not opened a span, "
        "STAGESPAN_RECORDING=off is set, or it belongs to another user. Started with"
        " STAGESPAN_LISTEN=true, or by `stagespan run`, it has one without a span."
    )


def ambiguous(pid: int, candidates: list[Recording]) -> StagespanError:
    """Return an error that lists the recordings that belong to a process id."""
    return StagespanError(
        f"{len(candidates)} processes have or had the id {pid}, in other containers or earlier: "
        f"pass the file of one of their recordings: {_listed(candidates)}."
    )


def _listed(candidates: list[Recording]) -> str:
    return "; ".join(
        f"{recording.path} ({recording.program}, pid namespace "
        f"{recording.pid_namespace or 'unknown'}, {recording.state})"
        for recording in candidates
    )


def _only_one(pid: int, *, spans: bool) -> Recording:
    candidates = of_pid(pid, spans=spans)
    if len(candidates) > 1:
        raise ambiguous(pid, candidates)
    return candidates[0]


def _live_process(pid: int) -> LiveProcess | None:
    """Return the process that has an id in this pid namespace; None if it is not alive or known."""
    is_own = pid == os.getpid()
    folder = "/proc/self" if is_own else f"/proc/{pid}"
    try:
        if not is_own and not shows_this_namespace():
            return None
        fields = stat_fields(stat_folder(pid))
        with open(f"{folder}/status", encoding="utf-8", errors="replace") as file:
            ids = next((line.split()[1:] for line in file if line.startswith("NSpid:")), [str(pid)])
        start_ticks, inner = int(fields[19]), int(ids[-1])
    except (OSError, ValueError, IndexError) as error:
        if isinstance(error, OSError) and is_shortage(error):
            raise cannot_open(folder, error) from None
        return None
    if fields[0] in ENDED_STATES:
        return None
    try:
        namespace = os.stat(f"{folder}/ns/pid").st_ino
    except OSError:  # it belongs to another user
        namespace = 0
    return LiveProcess(inner, namespace, start_ticks)
