"""File names from stage names, JSON, and files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from stagespan.errors import ShortageError, StagespanError
from stagespan.process.imports import importing, load

RECORDING_SUFFIX = ".stagespan"
"""Ends the name of the file of a recording."""
SCHEMA_VERSION = 1
"""The newest ``schema_version`` of a JSON file that this version of stagespan reads."""
_KINDS = (
    (b"\xff\xfe\0\0", "text in UTF-32: convert it to UTF-8"),
    (b"\0\0\xfe\xff", "text in UTF-32: convert it to UTF-8"),
    (b"\xff\xfe", "text in UTF-16, as PowerShell writes it: convert it to UTF-8"),
    (b"\xfe\xff", "text in UTF-16: convert it to UTF-8"),
    (b"PK\x03\x04", "a zip archive: unpack it, and pass the file in it"),
    (b"BZh", "a file compressed with bzip2: decompress it first"),
    (b"\xfd7zXZ\x00", "a file compressed with xz: decompress it first"),
    (b"\x28\xb5\x2f\xfd", "a file compressed with zstd: decompress it with `zstd -d` first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it, and pass the file in it"),
    (b"SQLite format 3\x00", "an SQLite database: pass a JSON file"),
    (b"version https://git-lfs", "a pointer of Git LFS: fetch the file with `git lfs pull`"),
)
# Encodings without a byte order mark, the bytes of a character, and which of them is that of ASCII;
# the others are 0.
_WIDE_TEXTS = (("UTF-32", 4, 0), ("UTF-32", 4, 3), ("UTF-16", 2, 0), ("UTF-16", 2, 1))
_PAGE = re.compile(rb"\s*<(!doctype|html|head|body|!--|\?xml)", re.IGNORECASE)

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# A single blank between other characters is left alone.
_UNSAFE_BUT_BLANKS = re.compile(r"(?:[^A-Za-z0-9._ -]| (?= )|(?<= ) )+")
_LONGEST_STEM = 100
# Beyond ASCII: C1 controls, separators of lines, characters without a width, and those that change
# the direction of the text after them.
_CONTROLS = re.compile(
    "[\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000110bd\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0001-\U000e007f]"
)


def is_from_newer_version(version: object) -> bool:
    """Whether a file with this ``schema_version`` cannot be read here. Old files have none."""
    return version is not None and (type(version) is not int or version > SCHEMA_VERSION)


def what_it_is(begin: bytes) -> str | None:
    """Return what a file that is not JSON is by its first bytes, and what to do, or None.

    The text continues "is not JSON but": "a zip archive: unpack it, and pass the file in it".
    """
    for magic, kind in _KINDS:
        if begin.startswith(magic):
            return kind
    if _PAGE.match(begin):
        return "a page of HTML or XML: pass the JSON file from which it was made"
    for encoding, bytes_each, place in _WIDE_TEXTS:
        whole = begin[: len(begin) // bytes_each * bytes_each]
        letters = whole[place::bytes_each]
        zeros = len(whole) - len(letters)
        if letters.isascii() and 0 not in letters and whole.count(0) == zeros > 0:
            return f"text in {encoding}: convert it to UTF-8"
    if b"\0" in begin:
        return "a binary file: pass the JSON file that was exported"
    return None


def is_shortage(error: OSError) -> bool:
    """Whether an error says that this process or the system lacks descriptors or memory."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def cannot_open(path: str, error: OSError) -> StagespanError:
    """Return an error that says why a file or folder cannot be opened."""
    if is_shortage(error):
        return ShortageError(
            f"{path} cannot be opened: {error.strerror}. Raise the limit of this process "
            "(`ulimit -n`, `ulimit -v`), or let it use less."
        )
    return StagespanError(f"{path} cannot be opened: {error.strerror}.")


def safe_name(stage: str, *, blanks: bool = False) -> str:
    """Return the stem of a file name for any stage name.

    Letters, digits, ``.``, ``_`` and ``-`` stay; other characters are replaced by ``_``. With
    ``blanks``, single blanks between words stay too. If the name had to be changed, eight
    hexadecimal digits of its hash are added, so that two stages never share a file. The result is
    never empty, never starts with a dot, and contains no separator.
    """
    unsafe = _UNSAFE_BUT_BLANKS if blanks else _UNSAFE
    stem = unsafe.sub("_", stage).strip("._ ")[:_LONGEST_STEM].rstrip()
    if stem == stage:
        return stem
    return f"{stem}_{_digest(stage)}" if stem else f"stage_{_digest(stage)}"


def module_name(stage: str) -> str:
    """Return a name like that of `safe_name` that can be a part of the name of a Python module.

    Only letters, digits and ``_`` stay. Two stages never share a name.
    """
    stem = safe_name(stage)
    plain = re.sub(r"[^A-Za-z0-9_]", "_", stem)
    if plain == stem or stem.endswith(f"_{_digest(stage)}"):
        return plain
    return f"{plain}_{_digest(stage)}"


def _digest(stage: str) -> str:
    # Imported here because most processes do not need it.
    with importing():
        import hashlib

    return hashlib.sha256(stage.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def stage_path(folder: str | os.PathLike[str], stage: str, suffix: str) -> Path:
    """Return the path of a stage's file in ``folder``: ``{stage}{suffix}``."""
    return Path(folder) / f"{safe_name(stage)}{suffix}"


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[BinaryIO]:
    """Open a file that appears at ``path`` completely or not at all; creates the folder.

    A ``private`` file can be read by its owner only. Other files keep the permissions of the file
    that they replace.

    The bytes go to a temporary file in the same folder, which is renamed when the block ends, so
    readers never see a part of it. If the block raises an exception, nothing is left. If ``path``
    is not a regular file (``/dev/null``, ``/dev/stdout``, a pipe), the bytes are written directly
    to it. Raises OSError if the folder or file cannot be written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    is_special = target.exists() and not target.is_file() and not target.is_dir()
    # Names of files that this process has open. /dev/shm is an ordinary folder.
    is_open = str(target.parent) in ("/dev", "/dev/fd") or target.is_relative_to("/proc")
    if is_special or is_open:
        with target.open("wb") as file:
            yield file
        return
    temporary = target.with_name(f".{target.name[:60]}.{os.urandom(6).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    before = _permissions(target)
    handle = os.open(temporary, flags, 0o600 if private or before is not None else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            if before is not None and not private:
                os.fchmod(handle, before)
            yield file
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _permissions(path: Path) -> int | None:
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return mode & 0o777 if stat.S_ISREG(mode) else None


@contextlib.contextmanager
def only_writer(path: str | os.PathLike[str], most_seconds: float = 60.0) -> Iterator[None]:
    """Let one process at a time run the block for ``path``, to read a file and then write it.

    Creates the folder. The lock is a file beside ``path`` while the block runs. On file systems
    without locks, the block runs without one. Raises TimeoutError if another process holds the lock
    for ``most_seconds``, and other OSErrors if the folder cannot be written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name[:60]}.lock")
    end_s = time.monotonic() + most_seconds
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            if _holds(handle, lock, end_s):
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):
                        os.unlink(lock)
                return
        finally:
            os.close(handle)


def _holds(handle: int, lock: Path, end_s: float) -> bool:
    """Lock a file. Returns False if its last owner has removed it meanwhile."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise TimeoutError(
                    errno.ETIMEDOUT, "another process has held its lock for too long", str(lock)
                ) from None
            time.sleep(0.02)
        except OSError:  # the file system has no locks
            return True
    try:
        return os.path.samestat(os.fstat(handle), os.stat(lock))
    except FileNotFoundError:
        return False


def write_whole(path: str | os.PathLike[str], data: bytes | str, *, private: bool = False) -> Path:
    """Write ``data`` to ``path`` with `whole_file`. Returns the path. Raises OSError."""
    raw = data.encode("utf-8") if isinstance(data, str) else data
    with whole_file(path, private=private) as file:
        file.write(raw)
    return Path(path)


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """Return a value as JSON in UTF-8, with ``\\u`` escapes for all controls in its strings.

    JSON itself requires escapes for controls of ASCII only, but those beyond it also act on
    terminals and editors. Raises what `msgspec.json.encode` raises.
    """
    msgspec = load("msgspec")
    encoded: bytes = msgspec.json.encode(value)
    if indent is not None:
        encoded = msgspec.json.format(encoded, indent=indent)
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    return _CONTROLS.sub(_as_json, encoded.decode()).encode()


def compact_json(value: Any, indent: int = 0, width: int = 110) -> str:
    """Return a value as JSON for people: what fits into a line is not broken into several.

    Lists and objects of numbers and strings only are filled like a paragraph. Raises what
    `json.dumps` raises.
    """
    json = load("json")
    text: str = json.dumps(value, allow_nan=False)
    if indent + len(text) <= width or not isinstance(value, (dict, list)):
        return text
    inner = indent + 2
    if isinstance(value, dict):
        items = [
            f"{json.dumps(str(key))}: {compact_json(item, inner, width)}"
            for key, item in value.items()
        ]
        is_flat = not any(isinstance(item, dict) and item for item in value.values())
    else:
        items = [compact_json(item, inner, width) for item in value]
        is_flat = not any(isinstance(item, (dict, list)) for item in value)
    lines = [items[0]]
    for item in items[1:]:
        if is_flat and len(lines[-1]) + len(item) + inner + 3 <= width:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    begin, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    body = f",\n{' ' * inner}".join(lines)
    return f"{begin}\n{' ' * inner}{body}\n{' ' * indent}{end}"


def _as_json(match: re.Match[str]) -> str:
    json = load("json")  # here, because most processes do not need it
    return "\\u007f" if match[0] == "\x7f" else str(json.dumps(match[0])[1:-1])
