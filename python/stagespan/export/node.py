"""All processes that record on this machine, as a monitoring system sees them from outside."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from stagespan import _core, settings
from stagespan.errors import ShortageError, StagespanError
from stagespan.export import descriptors, state
from stagespan.export.figures import Counts, Names, ShownNames
from stagespan.export.requests import UNREAD, Taker
from stagespan.export.totals import (
    MOST_PIPELINES,
    MOST_STAGES,
    MOST_UNITS,
    Exported,
    Group,
    ReadProcess,
    Totals,
    ended,
)
from stagespan.export.traces import Pending, Rules
from stagespan.process.files import is_shortage
from stagespan.recording.finding import EXPORTER_FILE, recording_folders, recording_paths
from stagespan.recording.reading import Recording, open_file

_LOGGER = logging.getLogger("stagespan")

_MOST_LEFTOVERS = 16
_LEFTOVER_BYTES = 256 << 20
"""The same limits as those of the processes, which do not remove leftovers while they are read."""
_STATE_INTERVAL_S = 5.0
"""Between two times that the state is written, if no process has begun or ended."""
_MEMORY_INTERVAL_S = 5.0
"""Between two searches for recordings without a file, which examine all processes."""
_F_OFD_SETLK = 37
_MOST_LINE_BYTES = 1 << 20
_WARNING_INTERVAL_S = 60.0


class _Leftover(NamedTuple):
    """The recording of an ended process that is in the totals."""

    path: str
    inode: tuple[int, int]
    job: str | None
    is_deferred: bool
    is_crash: bool


class Node(Exported):
    """The processes that record on this machine, and the totals of those that have ended.

    While this object exists, it holds a lock in each folder of recordings. Processes that end then
    leave their file, and this object removes it after reading it.
    """

    def __init__(
        self,
        state_path: str | os.PathLike[str] | None = None,
        rules: Rules | None = None,
        awaited: Iterable[int] = (),
        is_over: Callable[[], bool] = lambda: False,
        *,
        is_exporter: bool = True,
    ) -> None:
        """Lock the folders, and read the state that an earlier exporter has left.

        If ``is_exporter`` is False, the recordings are only looked at: nothing is locked, written
        or removed, and an exporter can run at the same time.

        With ``rules``, `complete` returns the requests that they choose. ``awaited`` is what is
        to be done with them (`Part.awaited`); until then, they count as not exported. A reading
        stops before the next process if ``is_over`` returns True.

        Raises StagespanError if another exporter reads the same recordings, or if the folder of
        recordings cannot be read.
        """
        super().__init__(Totals(None if rules is None else Pending(rules, awaited)))
        self._is_over = is_over
        self._is_exporter = is_exporter
        self._locks: dict[str, int] = {}
        self._marks: dict[str, _Marks] = {}
        self._folded: dict[str, _Leftover | None] = {}
        """Ended processes that are in the totals, with their files; None if the file was not found
        yet."""
        self._are_folded_known = True
        """Whether all ended processes that are in the totals are in `_folded`. Otherwise those that
        have ended before the first reading count as such."""
        self._resumed: dict[str, state.SavedProcess] = {}
        self._unreadable: dict[str, int] = {}
        """How often the recordings that cannot be read were tried."""
        self._is_partial = False
        """Whether the latest reading has left out recordings, so that others may exist."""
        self._unwarned: list[str] = []
        self._warned_at = -1e9
        self._most_open = descriptors.for_recordings()
        self._lost: Counter[str] = Counter()
        self._began_at = self._read_at = self._memory_at = self._written_at = -1e9
        self._state_is_written = True
        self.folder = recording_folders()[0]
        self._state_path = Path(state_path or os.path.join(self.folder, state.STATE_FILE))
        if not is_exporter:
            return
        try:
            self._lock_folders(must=True)
            self._read_state()
        except BaseException:
            self.close()
            raise

    # --- folders ----------------------------------------------------------------------------------

    def _lock_folders(self, *, must: bool = False) -> None:
        for folder in recording_folders():
            if folder in self._locks or os.path.islink(folder):
                continue
            if folder == self.folder and not os.path.isdir(folder):
                with contextlib.suppress(OSError):
                    os.mkdir(folder, 0o700)
            try:
                self._locks[folder] = _locked(os.path.join(folder, EXPORTER_FILE))
                self._marks[folder] = _Marks(self._locks[folder])
            except BlockingIOError:
                if must and folder == self.folder:
                    raise StagespanError(
                        f"Another `stagespan export` reads the recordings in {folder}: stop it "
                        "first, or let it export everything."
                    ) from None
            except StagespanError as error:
                if must and folder == self.folder:
                    raise
                self._note_unreadable(os.path.join(folder, EXPORTER_FILE), str(error))
            except OSError as error:
                if must and folder == self.folder:
                    advice = (
                        "Let the exporter have more open files (`ulimit -n`)."
                        if is_shortage(error)
                        else "Run the exporter as the user of the processes, or as root."
                    )
                    raise StagespanError(
                        f"The recordings in {folder} cannot be read: {error.strerror}. {advice}"
                    ) from None

    def _count_marks(self) -> None:
        """Count the recordings that were removed before they were read, or never had a file."""
        files = [(one.path, one.inode) for one in self._processes.values()]
        files += [(one.path, one.inode) for one in self._folded.values() if one is not None]
        # By inode too: the program that a process runs after exec has a recording of the same name.
        seen = {os.path.basename(path) for path, _ in files}
        seen |= {f"{os.path.basename(path)} {inode[1]}" for path, inode in files}
        for marks in self._marks.values():
            self._lost["recording"] += sum(one not in seen for one in marks.read())

    # --- processes --------------------------------------------------------------------------------

    def _discover(self) -> None:
        if self._is_exporter:
            self._lock_folders()
        now = time.monotonic()
        is_due = now - self._memory_at >= _MEMORY_INTERVAL_S
        memory = is_due and not settings.get("STAGESPAN_RECORDING_DIR")
        inodes = {one.inode for one in self._processes.values()}
        done = {one.inode for one in self._folded.values() if one is not None}
        read = {one.path for one in self._processes.values()}
        folders = set(recording_folders())
        self._is_partial = True  # until all have been looked at
        try:
            paths = [
                path
                for path in recording_paths(memory=memory, read=read)
                if path.startswith("/proc/") or os.path.dirname(path) in folders
            ]
        except ShortageError as error:
            self._note_unreadable(self.folder, str(error))
            return
        if is_due:
            self._memory_at = now
        is_partial = False
        for path in paths:
            if self._is_over():
                return
            try:
                status = os.stat(path, follow_symlinks=path.startswith("/proc/"))
            except OSError:
                continue
            inode = status.st_dev, status.st_ino
            if inode in inodes or inode in done:
                continue
            try:
                self._open(path, inodes | done)
            except StagespanError as error:
                is_partial = is_partial or isinstance(error, ShortageError)
                self._note_unreadable(path, str(error))
            except Exception as error:  # whatever is in it, the others are read
                is_partial = is_partial or isinstance(error, MemoryError)
                self._note_unreadable(path, f"{path} cannot be read: {error!r}.")
        self._is_partial = is_partial
        kept = {*paths, *(os.path.join(folder, EXPORTER_FILE) for folder in folders)}
        self._unreadable = {path: n for path, n in self._unreadable.items() if path in kept}

    def _open(self, path: str, inodes: set[tuple[int, int]]) -> None:
        """Take the recording at a path, unless its device and inode are among those known."""
        handle = open_file(path)
        must_stay_open = False
        try:
            inode = _inode(handle)
            if inode not in inodes:
                must_stay_open = self._add(path, handle, inode)
        finally:
            if not must_stay_open:
                os.close(handle)

    def _add(self, path: str, handle: int, inode: tuple[int, int]) -> bool:
        """Take a recording that was found, and return whether its file must stay open."""
        first = Recording(path, everything=False, handle=handle)
        self._unreadable.pop(path, None)
        is_new = first.identity not in self._resumed
        is_folded = not self._are_folded_known and first.has_gone and is_new
        if first.identity in self._folded or is_folded:
            self._folded[first.identity] = _leftover(first, inode)
            return False
        if first.identity in self._processes:
            return False
        # A file in a folder can be opened again, because its process leaves it to the exporter.
        held = sum(one.handle >= 0 for one in self._processes.values())
        must_stay_open = path.startswith("/proc/") or held < self._most_open
        process = ReadProcess(first, handle if must_stay_open else -1)
        process.inode = inode
        process.group = self._totals.admitted(process.group)
        self._processes[first.identity] = self._resume(process)
        return must_stay_open

    def _note_unreadable(self, path: str, why: str) -> None:
        """Count a recording that cannot be read, unless its process is just starting or ending."""
        times = self._unreadable.get(path, 0) + 1
        self._unreadable[path] = times
        if times == 2 and os.path.lexists(path):
            self._lost["unreadable"] += 1
            self._unwarned.append(why)

    def _warn(self) -> None:
        """Log at most one warning a minute about recordings that cannot be read."""
        now = time.monotonic()
        if not self._unwarned or now - self._warned_at < _WARNING_INTERVAL_S:
            return
        first, *others = self._unwarned
        number = f"{len(others):,} other recordings" if len(others) > 1 else "Another recording"
        _LOGGER.warning("%s", f"{first} {number} cannot be read either." if others else first)
        self._unwarned, self._warned_at = [], now

    def _resume(self, process: ReadProcess) -> ReadProcess:
        saved = self._resumed.get(process.identity)
        if saved is not None:
            process.ns_per_tick, process.resets = saved.ns_per_tick, saved.resets
            process.group = saved.group
            process.figures, process.given = saved.figures, saved.given
            process.taker = Taker(saved.taken, saved.unsent)
            lost = process.figures.amounts.get("lost", {})
            for cause in UNREAD:
                if cause in lost:
                    process.taker.missed[cause] = int(lost[cause].get("", 0))
            del self._resumed[process.identity]
        return process

    def _fold(self, process: ReadProcess) -> None:
        """Add the figures of a process that has ended to the totals."""
        leftover = _leftover(process.latest, process.inode)
        self._totals.fold(process)
        del self._processes[process.identity]
        self._folded[process.identity] = leftover

    def _read_all(self) -> None:
        copies = []
        has_requests = self._totals.requests is not None
        for process in self._processes.values():
            if self._is_over():
                return
            if process.has_ended:
                continue
            try:
                copy = process.read(spans=has_requests)
                if copy.has_gone:  # it may have changed after this copy, and does so no longer
                    copy = process.read(spans=has_requests or bool(copy.left_open))
            except (ShortageError, OSError, MemoryError) as error:  # it is read again
                self._is_partial = True
                self._note_unreadable(process.path, f"{process.path} cannot be read: {error}")
                continue
            except StagespanError as error:
                # Another program has cut it off, and the process does not record any more. Or it
                # was removed while it was not open here.
                is_gone = process.handle < 0 and not _is_there(process.path, process.inode)
                self._give_up(process, str(error), "recording" if is_gone else "unreadable")
                continue
            except Exception as error:  # whatever is in it, the others are read
                self._give_up(process, f"{process.path} cannot be read: {error!r}.")
                continue
            if copy.is_partly_in_file and not process.is_partial:
                process.is_partial = True
                self._lost["recording"] += 1
            copies.append((process, copy))
        for process, copy in copies:
            if self._is_over():
                return
            try:
                self._totals.update(process, copy)
            except Exception as error:  # as above
                self._give_up(process, f"The figures of {process.path} are impossible: {error!r}.")
                continue
            if copy.has_gone:
                process.end()
        self._fold_ended()

    def _give_up(self, process: ReadProcess, why: str, cause: str = "unreadable") -> None:
        """Read a process no more, because its recording is damaged or gone."""
        self._lost[cause] += 1
        self._unwarned.append(why)
        process.end()

    def _fold_ended(self) -> None:
        """Add the figures of processes that have ended to the totals, once requests are sent."""
        for process in list(self._processes.values()):
            if process.has_ended and not process.taker.unsent:
                self._fold(process)

    def read(self) -> None:
        """Read all recordings, unless another thread does so after this call has begun.

        What was recorded before the call is then in the totals.
        """
        asked_at = time.monotonic()
        with self._lock:
            if self._began_at < asked_at:
                self._read(is_shown=True)
            elif self._written_at < self._read_at:
                self._write_state()

    def poll(self) -> None:
        """Read all recordings again, before processes that have ended are gone."""
        with self._lock:
            self._read(is_shown=False)

    def wait(self, handle: int, longest_s: float, *, for_new: bool) -> None:
        """Wait until ``handle`` can be read, or processes have to be read.

        With ``for_new``, also until other files are in their folders.
        """
        with self._lock:
            live = [one for one in self._processes.values() if not one.has_ended]
        rings = [one.rings for one in live if one.handle >= 0]
        longest_s = min(longest_s, self.longest_pause_s())
        folders = recording_folders() if for_new else []
        _core.recording_wait(handle, longest_s, rings, folders)

    def _read(self, *, is_shown: bool) -> None:
        self._began_at = time.monotonic()
        began_ns = time.time_ns()
        before = self._processes.keys() | self._folded.keys()
        self._discover()
        self._count_marks()
        self._read_all()
        if not (self._is_over() or self._is_partial):  # otherwise some may not have been found yet
            self._are_folded_known = True
            self._add_resumed()
            self._totals.count_unknown(list(self._processes.values()), began_ns)
        self._warn()
        self._read_at = time.monotonic()
        # What is shown is written before, so that no counter falls if this process is killed.
        has_changed = before != self._processes.keys() | self._folded.keys()
        if is_shown or has_changed or self._read_at - self._written_at > _STATE_INTERVAL_S:
            self._write_state()
        self._tidy()

    def _add_resumed(self) -> None:
        """Add the last figures of processes that have ended without leaving a file."""
        if not self._resumed or self._memory_at < self._read_at:
            return
        for saved in tuple(self._resumed.values()):
            saved.figures.raise_to(ended("unknown"))
            rest = saved.figures.without(saved.given)
            self._totals.retained.setdefault(saved.group, Counts({}, {})).add(rest)
            del self._resumed[saved.identity]
            self._lost["recording"] += 1

    # --- leftovers --------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Remove recordings that are in the totals, as the processes do while there is no exporter.

        In each folder, at most 16 recordings and 256 MiB stay: first those of crashes, then the
        newest. A recording that only the other processes of its job still need is removed once
        none of them is alive, if all recordings could be read.
        """
        live = [one for one in self._processes.values() if not one.has_ended]
        jobs = {one.latest.job for one in live if one.latest.job}
        by_folder: defaultdict[str, list[tuple[bool, int, int, str]]] = defaultdict(list)
        for identity, leftover in list(self._folded.items()):
            if leftover is None:
                if not self._is_partial:
                    del self._folded[identity]
                continue
            if not _is_there(leftover.path, leftover.inode):
                del self._folded[identity]
                continue
            try:
                status = os.lstat(leftover.path)
            except OSError:
                continue
            folder = os.path.dirname(leftover.path)
            if folder not in self._locks:
                continue
            if leftover.is_deferred and leftover.job not in jobs and not self._is_partial:
                _unlink(leftover.path)
                continue
            by_folder[folder].append(
                (leftover.is_crash, status.st_mtime_ns, status.st_blocks * 512, leftover.path)
            )
        for leftovers in by_folder.values():
            total_bytes = 0
            for i, (_, _, size_bytes, path) in enumerate(sorted(leftovers, reverse=True)):
                total_bytes += size_bytes
                if i >= _MOST_LEFTOVERS or total_bytes > _LEFTOVER_BYTES:
                    _unlink(path)

    # --- the state --------------------------------------------------------------------------------

    def _read_state(self) -> None:
        saved = state.read(self._state_path)
        if saved is None:
            return
        self._totals.names = ShownNames(
            Names(MOST_STAGES, saved.stages),
            Names(MOST_UNITS, saved.units),
            Names(MOST_PIPELINES, saved.pipelines),
        )
        for group, figures in saved.retained:
            self._totals.retained.setdefault(group, Counts({}, {})).add(figures)
        self._totals.groups = dict.fromkeys(group for group, _ in saved.retained)
        self._totals.groups.update(dict.fromkeys(process.group for process in saved.processes))
        self._resumed = {process.identity: process for process in saved.processes}
        self._folded = dict.fromkeys(saved.folded or ())
        self._are_folded_known = saved.folded is not None or not saved.retained
        self._lost = Counter(saved.lost)

    def _write_state(self) -> None:
        if not self._is_exporter:
            return
        processes = [
            state.SavedProcess(
                process.identity,
                process.group,
                process.ns_per_tick,
                process.resets,
                process.figures,
                process.given,
                sorted(process.taker.taken),
                sorted(process.taker.unsent),
            )
            for process in self._processes.values()
        ]
        new = state.State(
            list(self._totals.names.stages.ordered),
            list(self._totals.names.units.ordered),
            list(self._totals.retained.items()),
            [*processes, *self._resumed.values()],
            list(self._folded),
            self.lost(),
            list(self._totals.names.pipelines.ordered),
        )
        try:
            state.write(self._state_path, new)
            self._state_is_written = True
            self._written_at = time.monotonic()
        except OSError as error:
            if self._state_is_written:
                _LOGGER.warning(
                    "The state cannot be written to %s (%s): if the exporter ends now, processes "
                    "that have ended are missing in its counters.",
                    self._state_path,
                    error.strerror,
                )
            self._state_is_written = False

    # --- what is shown ----------------------------------------------------------------------------

    def totals(self) -> dict[Group, Counts]:
        """Return the figures by group, of all processes that this exporter or others have read."""
        with self._lock:
            totals = super().totals()
            for saved in self._resumed.values():
                rest = saved.figures.without(saved.given)
                totals.setdefault(saved.group, Counts({}, {})).add(rest)
            return totals

    def lost(self) -> dict[str, int]:
        """Return what the exporter itself has lost, by cause."""
        with self._lock:
            # Causes without a loss are 0, because Prometheus sees no increase at the first sample.
            lost = Counter({"recording": 0, "unreadable": 0})
            lost.update(self._lost)
            if self._totals.requests is not None:
                lost["requests_waiting"] += self._totals.requests.lost
        lost.update(super().lost())
        return dict(lost)

    def live_paths(self) -> list[str]:
        """Return the recordings of processes that had not ended at the latest reading."""
        with self._lock:
            return [one.path for one in self._processes.values() if not one.has_ended]

    def recordings_of(self, trace_id: str) -> list[Recording]:
        """Return the recordings that have a part of a trace, with their spans.

        They are those of processes that had one when they were last read, and of processes that
        have ended and whose file is still there.
        """
        with self._lock:
            latest = [one.latest for one in self._processes.values()]
            paths = [one.path for one in latest if _has_trace(one, trace_id)]
            ended = [one.path for one in self._folded.values() if one is not None]
        recordings = []
        for path in paths:
            with contextlib.suppress(StagespanError):  # it has been removed
                recordings.append(Recording(path))
        for path in ended:
            with contextlib.suppress(StagespanError):
                if _has_trace(Recording(path, everything=False), trace_id):
                    recordings.append(Recording(path))
        return recordings

    def save(self, longest_s: float = -1) -> None:
        """Write the state, unless another thread reads for longer than ``longest_s``."""
        if self._lock.acquire(timeout=longest_s):
            try:
                if self._locks and self._read_at > 0:
                    self._write_state()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Write the state and release the locks."""
        with self._lock:
            try:
                if self._locks and self._read_at > 0:
                    self._fold_ended()
                    self._write_state()
                    self._tidy()
            finally:
                for handle in self._locks.values():
                    os.close(handle)
                for process in self._processes.values():
                    process.end()
                self._locks.clear()
                self._processes.clear()


def _locked(path: str) -> int:
    """Open a file and lock it.

    Raises BlockingIOError if another process has the lock, and StagespanError if the file may not
    belong to the folder: as root, this function changes its owner and its content.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    handle = os.open(path, flags, 0o600)
    try:
        status, owner = os.fstat(handle), os.stat(os.path.dirname(path)).st_uid
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_nlink != 1
            or status.st_uid not in (owner, 0)
        ):
            raise StagespanError(
                f"{path} is not a regular file with one name that belongs to the owner of its "
                "folder: remove it."
            )
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            fcntl.fcntl(handle, _F_OFD_SETLK, request)
        except PermissionError as error:  # the system may say EACCES instead of EAGAIN
            raise BlockingIOError(*error.args) from None
        if status.st_uid != owner:
            os.fchown(handle, owner, -1)  # so that the owner's processes can see the lock
        os.ftruncate(handle, 0)
    except BaseException:
        os.close(handle)
        raise
    return handle


class _Marks:
    """The names of recordings that processes write to the file that an exporter has locked."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._at = 0
        self._is_in_long_line = False
        _core.recording_reserve_for_marks(handle)

    def read(self) -> list[str]:
        """Return what was written since the last call. Lines of more than 1 MiB are left out."""
        try:
            text = os.pread(self._handle, _MOST_LINE_BYTES, self._at)
        except OSError:
            return []
        lines, newline, _ = text.rpartition(b"\n")
        if not newline and len(text) == _MOST_LINE_BYTES:
            self._is_in_long_line = True
            self._at += len(text)
        if not newline:
            return []
        self._at += len(lines) + 1
        _core.recording_reserve_for_marks(self._handle)
        names = lines.decode(errors="replace").split("\n")
        if self._is_in_long_line:
            self._is_in_long_line = False
            del names[0]
        return names


def _inode(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino


def _leftover(copy: Recording, inode: tuple[int, int]) -> _Leftover:
    return _Leftover(copy.path, inode, copy.job, copy.is_deferred, copy.state == "died")


def _is_there(path: str, inode: tuple[int, int]) -> bool:
    """Whether a file has neither been removed nor replaced, as far as is known."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return (status.st_dev, status.st_ino) == inode


def _has_trace(recording: Recording, trace_id: str) -> bool:
    return any(one["trace_id"] == trace_id for one in recording.segments())


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
