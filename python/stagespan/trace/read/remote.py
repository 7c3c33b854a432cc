"""Local copies of traces that are in an object store or in an archive."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagespan.errors import TraceError
from stagespan.process.messages import message_of
from stagespan.process.urls import file_system, is_url

if TYPE_CHECKING:
    from tarfile import TarFile

_LEAST_LIMIT_BYTES = 512 << 20
_MOST_RATIO = 50
_MOST_BYTES = 64 << 30
_BLOCK_BYTES = 4096
"""What each file and folder of an archive takes at least."""


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder of this machine with what `path` names.

    What a URL names (`s3://bucket/run`), as fsspec reads it, and the files of an archive (.zip, or
    .tar with any compression) are copied to a temporary folder, which exists until the process
    ends. Any other path is returned as it is.

    Raises TraceError if the URL or archive cannot be read, if the archive contains more than
    512 MiB and more than 50 times its size, or more than 64 GiB, if the path cannot be examined,
    or if fsspec is not installed.
    """
    if is_url(path):
        return _fetched(os.fspath(path))
    local = Path(path)
    try:
        status = local.stat()
    except (FileNotFoundError, NotADirectoryError):
        return local  # it may be the id of a process
    except OSError as error:
        raise TraceError(
            f"{local} cannot be opened: {error.strerror}. Check the path, its permissions and "
            "those of its folders."
        ) from None
    except ValueError as error:  # the path contains a NUL
        raise TraceError(f"{str(local)!r} is not the path of a file: {error}.") from None
    if not stat.S_ISREG(status.st_mode):
        return local
    if zipfile.is_zipfile(local):
        return _unpacked(local, _unzip)
    if not local.name.endswith((".json", ".json.gz")) and _is_tar(local):
        return _unpacked(local, _untar)
    return local


def _temporary() -> Path:
    folder = tempfile.mkdtemp(prefix="stagespan-")
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, owner: int) -> None:
    """Remove a folder, unless this process is a fork of its owner, which still reads it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _fetched(url: str) -> Path:
    files, there = file_system(url)
    try:
        target = _temporary() / (Path(there.rstrip("/")).name or "files")
        files.get(there, str(target), recursive=files.isdir(there))
    except Exception as error:  # as in file_system
        raise TraceError(
            f"{url} cannot be read: {message_of(error)}. Check the address, and the credentials"
            " that the package for this kind of URL reads."
        ) from error
    return target


def _unpacked(path: Path, unpack: Callable[[Path, Path], None]) -> Path:
    import tarfile

    folder = _temporary()
    target = folder / path.name.partition(".")[0]
    target.mkdir()
    try:
        unpack(path, target)
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, RuntimeError) as error:
        raise TraceError(f"The archive {path} cannot be unpacked: {error}") from error
    except TraceError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # An archive of one folder stands for this folder, and one of one file for this file.
    while len(inside := list(target.iterdir())) == 1:
        target = inside[0]
        if target.is_file():
            break
    return target


def _most_bytes(path: Path) -> int:
    """Return how many bytes an archive may contain."""
    return min(max(_LEAST_LIMIT_BYTES, _MOST_RATIO * path.stat().st_size), _MOST_BYTES)


def _too_large(path: Path, limit_bytes: int) -> TraceError:
    return TraceError(
        f"The archive {path} contains more than {limit_bytes >> 20:,} MiB, which is out of "
        "proportion to its size: if you trust it, unpack it, and pass the folder."
    )


def _unzip(path: Path, target: Path) -> None:
    limit_bytes = _most_bytes(path)
    with zipfile.ZipFile(path) as archive:
        # Not more bytes of a member are unpacked than it says.
        if sum(max(one.file_size, _BLOCK_BYTES) for one in archive.infolist()) > limit_bytes:
            raise _too_large(path, limit_bytes)
        archive.extractall(target)  # it removes ".." and absolute parts of names


class _Limited:
    """A file that can be read up to a limit, beyond which TraceError is raised."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file, self._limit_bytes = path, file, _most_bytes(path)

    def read(self, size: int) -> bytes:
        """Read some bytes."""
        self._check(self._file.tell() + size)
        return bytes(self._file.read(size))

    def seek(self, position: int) -> int:
        """Go to a position from the begin."""
        self._check(position)
        return int(self._file.seek(position))

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def _check(self, end: int) -> None:
        # Headers and padding are at most a quarter of what `_untar` counts.
        if end > self._limit_bytes * 5 // 4:
            raise _too_large(self._path, self._limit_bytes)


@contextlib.contextmanager
def _opened_tar(path: Path) -> Iterator[TarFile | None]:
    """Open an archive of tar with any compression; None if the file is not one."""
    import tarfile

    for name in ("io", "gzip", "bz2", "lzma", "compression.zstd"):
        with contextlib.ExitStack() as closing:
            try:
                # Not every Python has each of them.
                file = closing.enter_context(importlib.import_module(name).open(path, "rb"))
                limited: Any = _Limited(path, file)
                archive = closing.enter_context(tarfile.open(fileobj=limited, mode="r:"))
            except TraceError:
                raise
            # Each kind of compression has exceptions of its own for a file that is not compressed.
            except (ImportError, tarfile.TarError, OSError, EOFError, ValueError, zlib.error):
                continue
            except Exception as error:
                if type(error).__name__ not in ("LZMAError", "ZstdError"):
                    raise
                continue
            yield archive
            return
    yield None


def _is_tar(path: Path) -> bool:
    with _opened_tar(path) as archive:
        return archive is not None


def _untar(path: Path, target: Path) -> None:
    limit_bytes, total_bytes = _most_bytes(path), 0
    with _opened_tar(path) as archive:
        for member in archive or ():
            total_bytes += max(member.size, _BLOCK_BYTES)
            if total_bytes > limit_bytes:
                raise _too_large(path, limit_bytes)
            place = (target / member.name).resolve()
            if not member.isfile() or not place.is_relative_to(target.resolve()):
                continue  # links, devices, and files outside of the folder
            place.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member) if archive is not None else None
            assert content is not None  # a regular file has one
            with content, open(place, "wb") as file:
                shutil.copyfileobj(content, file)
