"""Where kept requests are written: a folder, or an object store that fsspec reads."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple, Protocol

from stagespan.errors import StagespanError
from stagespan.process.files import write_whole
from stagespan.process.messages import message_of
from stagespan.process.urls import file_system, is_url

_PROBE = ".stagespan-export"
PREFIX, LINES_SUFFIX, TABLES_SUFFIX = "requests-", ".jsonl.gz", ".parquet"
"""How the names of files with kept requests begin and end."""


class StoredFile(NamedTuple):
    """A file of an exporter. Older ones sort first."""

    written_ns: int
    size_bytes: int
    name: str


class Store(Protocol):
    """A place for files."""

    errors: tuple[type[Exception], ...]
    """What its methods can raise."""

    def files(self, named: re.Pattern[str]) -> list[StoredFile]:
        """Return the files whose whole names match a pattern, the oldest first."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole."""

    def remove(self, name: str) -> None:
        """Remove a file, which may have gone."""


def store_of(place: str | os.PathLike[str]) -> Store:
    """Return the folder or the object store that a path or URL names; a folder is made.

    Raises StagespanError if files cannot be written there.
    """
    if not is_url(place):
        return Folder(place)
    url = os.fspath(place)
    is_local = url.partition("://")[0] in ("file", "local")
    return Folder(file_system(url)[1]) if is_local else ObjectStore(url)


class Folder:
    """A folder of this machine. As recordings, its files can be read by their owner only."""

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        try:
            self._path.mkdir(0o700, parents=True, exist_ok=True)
            if not os.access(self._path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise StagespanError(
                f"Requests cannot be kept in {path}: {error.strerror}. Name a folder that you "
                "may write to."
            ) from None

    def files(self, named: re.Pattern[str]) -> list[StoredFile]:
        """Return the files whose whole names match a pattern, the oldest first."""
        matching = []
        for path in self._path.iterdir():
            if named.fullmatch(path.name):
                status = path.stat()
                matching.append(StoredFile(status.st_mtime_ns, status.st_size, path.name))
        return sorted(matching)

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole."""
        write_whole(self._path / name, data, private=True)

    def remove(self, name: str) -> None:
        """Remove a file, which may have gone."""
        (self._path / name).unlink(missing_ok=True)


class ObjectStore:
    """A place that fsspec names with a URL, such as s3://bucket/requests.

    It is listed once. Each call can take many seconds if the network is slow.
    """

    errors: tuple[type[Exception], ...] = (Exception,)
    """Each kind of URL has a class of fsspec with exceptions of its own."""

    def __init__(self, url: str) -> None:
        self._system, path = file_system(url)
        self._path = path.rstrip("/")
        self._files: dict[re.Pattern[str], list[StoredFile]] = {}
        probe = f"{self._path}/{_PROBE}-{os.uname().nodename}-{os.getpid()}"
        try:
            self._system.pipe_file(probe, b"")
            self._system.rm_file(probe)
        except self.errors as error:
            raise StagespanError(
                f"Requests cannot be kept in {url}: {message_of(error)}. Name a place where you may"
                " write and remove files, and pass the credentials that its package reads."
            ) from None

    def files(self, named: re.Pattern[str]) -> list[StoredFile]:
        """Return the files whose whole names match a pattern, the oldest first."""
        if named not in self._files:
            try:
                rows = self._system.ls(self._path, detail=True)
            except FileNotFoundError:
                rows = []
            matching = ((row["name"].rpartition("/")[2], row["size"] or 0) for row in rows)
            # Not all stores know when a file was written. The names contain that time.
            self._files[named] = [
                StoredFile(0, size, name)
                for name, size in sorted(matching)
                if named.fullmatch(name)
            ]
        return self._files[named]

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole."""
        self._system.pipe_file(f"{self._path}/{name}", data)
        for named, files in self._files.items():
            if named.fullmatch(name):
                files.append(StoredFile(0, len(data), name))

    def remove(self, name: str) -> None:
        """Remove a file, which may have gone."""
        with contextlib.suppress(FileNotFoundError):
            self._system.rm_file(f"{self._path}/{name}")
        for named, files in self._files.items():
            self._files[named] = [one for one in files if one.name != name]


def is_kept(path: Path) -> bool:
    """Return whether a path is that of a folder, or of a file as exporters name them."""
    is_named = path.name.startswith(PREFIX) and path.name.endswith((LINES_SUFFIX, TABLES_SUFFIX))
    return path.is_dir() or (is_named and path.is_file())
