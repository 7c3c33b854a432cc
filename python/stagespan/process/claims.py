"""Decides which of the processes that write to one folder uses the plain file names.

A process that writes to a folder claims a suffix for its files there. The claim is a locked file
with the time of its last use, in a folder of the user outside of the output folder. The system
releases the lock when the process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from stagespan import _core
from stagespan.errors import ShortageError
from stagespan.process import forks, times
from stagespan.process.files import cannot_open, is_shortage
from stagespan.process.imports import importing

_KEPT_S = 86_400
"""How long the claims of ended processes are kept, in seconds."""

_IMPORTED_TICKS = times.now_ticks()

# A decision is one call of setdefault, so threads and signal handlers agree on it.
_chosen: dict[tuple[str, tuple[str, ...]], str] = {}
_held: dict[str, tuple[int, int]] = {}
"""By the path of a claim: its open file, and the inode of it."""


def first_free(folder: Path, suffixes: Iterable[str], reruns: Iterable[str] = ()) -> str:
    """Return the first suffix that no other program uses for its files in a folder.

    A suffix is in use if its process is alive, or used it after this process began. The answer does
    not change while this process lives. If all are in use, or if this process lacks descriptors to
    find out, the last one is returned. If a program that has ended used the first suffix, and there
    are ``reruns``, the first of these is returned that no program has used, so that its files stay.
    """
    where = os.path.realpath(folder)
    wanted = tuple(suffixes)
    suffix = _chosen.get((where, wanted))
    if suffix is None:
        try:
            free = _first_free(where, wanted, tuple(reruns))
        except ShortageError:
            free = wanted[-1]
        suffix = _chosen.setdefault((where, wanted), free)
    path = _path(where, suffix)
    if path in _held and _is_ours(*_held[path]):
        _note_use(_held[path][0])
    return suffix


def _first_free(where: str, wanted: tuple[str, ...], reruns: tuple[str, ...]) -> str:
    if reruns and os.path.isdir(where):
        for suffix in (wanted[0], *reruns):
            is_claimed = _claim(where, suffix, only_unused=True)
            if is_claimed:
                return suffix
            if is_claimed is False:
                break
    return next((suffix for suffix in wanted if _claim(where, suffix)), wanted[-1])


def _claim(where: str, suffix: str, only_unused: bool = False) -> bool | None:
    """Return whether the suffix is free and now claimed.

    None if it is free, but a program that has ended used it, and ``only_unused`` is true.
    """
    path = _path(where, suffix)
    if path in _held:
        return True
    try:
        is_new = not os.path.exists(path)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if is_shortage(error):
            raise cannot_open(path, error) from None
        return True  # without a folder for claims, nobody can claim
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        if _is_used_meanwhile(handle):
            return False
        if only_unused and os.fstat(handle).st_size:
            return None
        _note_use(handle)
        if _held.setdefault(path, (handle, os.fstat(handle).st_ino))[0] == handle:
            handle = -1
    finally:
        if handle >= 0:
            os.close(handle)
    if is_new:
        _remove_old(os.path.dirname(path))
    return True


def _is_used_meanwhile(handle: int) -> bool:
    """Whether another process has used the claim since this one began."""
    boot, _, used_ticks = os.pread(handle, 100, 0).decode("ascii", "replace").partition(" ")
    began_ticks = times.start_ticks(os.getpid())
    if began_ticks is None:  # /proc cannot be read
        began_ticks = _IMPORTED_TICKS
    try:
        return boot == str(_core.recording_boot()) and int(used_ticks) > began_ticks
    except ValueError:  # it is new
        return False


def _note_use(handle: int) -> None:
    text = f"{_core.recording_boot()} {times.now_ticks()}"
    try:
        os.pwrite(handle, text.encode().ljust(64), 0)
    except OSError:  # the disk is full
        return


def _path(where: str, suffix: str) -> str:
    with importing():
        import hashlib

    text = f"{where}\0{suffix}".encode("utf-8", "surrogateescape")
    return os.path.join(_folder(), hashlib.sha256(text).hexdigest()[:32])


def _folder() -> str:
    """Return the folder for claims, or one that does not exist if it is not this user's own."""
    with importing():
        import tempfile

    folder = os.path.join(tempfile.gettempdir(), f"stagespan-claims-{os.geteuid()}")
    with contextlib.suppress(OSError):  # it exists, or cannot be made
        os.mkdir(folder, 0o700)
    try:
        status = os.lstat(folder)
    except OSError:
        return folder
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    # Nothing can be opened below a file.
    return folder if is_own and not status.st_mode & 0o022 else os.devnull


def _remove_old(folder: str) -> None:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            if time.time() - os.stat(path).st_mtime < _KEPT_S:
                continue
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(handle)
        except OSError:  # it is in use, or another process has removed it
            continue


def _is_ours(handle: int, inode: int) -> bool:
    # A program that becomes a daemon closes all files, and their numbers may be reused.
    try:
        return os.fstat(handle).st_ino == inode
    except OSError:
        return False


def _forget_parent() -> None:
    # The lock stays with the parent: a lock is released when all copies of its file are closed.
    for handle, inode in _held.values():
        if _is_ours(handle, inode):
            os.close(handle)
    _held.clear()
    _chosen.clear()


forks.after_in_child(_forget_parent)
