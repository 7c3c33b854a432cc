"""Local copies of traces that are in an object store or in an archive."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from stagespan.errors import TraceError

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder of this machine with what `path` names.

    What a URL names (`s3://bucket/run`), as fsspec reads it, and the files of an archive (.zip, or
    .tar with any compression) are copied to a temporary folder, which exists until the process
    ends. Any other path is returned as it is.

    Raises TraceError if the URL or archive cannot be read, or if fsspec is not installed.
    """
    text = os.fspath(path)
    if _URL.match(text):
        return _fetched(text)
    found = Path(path)
    if found.is_file() and zipfile.is_zipfile(found):
        return _unpacked(found, _unzip)
    if found.is_file() and not found.name.endswith((".json", ".json.gz")) and _is_tar(found):
        return _unpacked(found, _untar)
    return found


def _temporary() -> Path:
    folder = tempfile.mkdtemp(prefix="stagespan-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _fetched(url: str) -> Path:
    try:
        import fsspec
    except ImportError as error:
        raise TraceError(
            f"{url} cannot be read without fsspec (the extra 'remote'): install it with"
            " `pip install fsspec`, and the package for this kind of URL, such as s3fs."
        ) from error
    try:
        files, there = fsspec.core.url_to_fs(url)
        target = _temporary() / (Path(there.rstrip("/")).name or "files")
        files.get(there, str(target), recursive=files.isdir(there))
    # fsspec has one class for each kind of URL, each with exceptions of its own.
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        raise TraceError(f"{url} cannot be read: {reason}") from error
    return target


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        return False


def _unpacked(path: Path, unpack: Callable[[Path, Path], None]) -> Path:
    target = _temporary() / path.name.partition(".")[0]
    target.mkdir()
    try:
        unpack(path, target)
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, RuntimeError) as error:
        raise TraceError(f"The archive {path} cannot be unpacked: {error}") from error
    # An archive of one folder stands for this folder, and one of one file for this file.
    while len(inside := list(target.iterdir())) == 1:
        target = inside[0]
        if target.is_file():
            break
    return target


def _unzip(path: Path, target: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(target)  # it removes ".." and absolute parts of names


def _untar(path: Path, target: Path) -> None:
    with tarfile.open(path) as archive:
        for member in archive:
            place = (target / member.name).resolve()
            if not member.isfile() or not place.is_relative_to(target.resolve()):
                continue  # links, devices, and files outside of the folder
            place.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(member)
            assert content is not None  # a regular file has one
            with content, open(place, "wb") as file:
                shutil.copyfileobj(content, file)
