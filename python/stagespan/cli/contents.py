"""What a word of the command line names, told by the content of the file."""

from __future__ import annotations

import errno
import gzip
import os
import zipfile
import zlib
from enum import Enum
from pathlib import Path

from stagespan.process.files import RECORDING_SUFFIX

_HEAD_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
_SIGNATURES = "_io_signature.json"
_RESULTS = "_bench.json"
_KEPT = "requests-*"
_NCU = ".ncu-rep"
_RECORDING = b"STAGESPN"


class Kind(Enum):
    """What a file, a folder or a number is."""

    PROGRAM = "a program"
    TRACE = "a trace"
    RECORDING = "a recording"
    REPORT = "a timing report"
    SIGNATURES = "a signature file"
    REPLAY = "a bench result"
    BREAKDOWN = "a kernel breakdown"
    BASELINE = "a baseline"
    KERNELS = "figures of Nsight Compute"
    REQUESTS = "kept requests"


def verb_of(word: str) -> str | None:
    """Return the verb for a file, folder or process id without a verb; None if it is neither."""
    kind = kind_of(word)
    if kind is None or (kind is Kind.TRACE and not os.path.exists(word)):
        return None
    verbs = {Kind.PROGRAM: "run", Kind.TRACE: "analyze", Kind.REQUESTS: "requests"}
    return verbs.get(kind, "show")


def kind_of(word: str) -> Kind | None:
    """Return what a path, a URL or a process id names; None for a file that does not exist.

    Files that are not recognised count as traces, whose reader says what is wrong with them.
    """
    try:
        os.stat(word)
        exists = True
    except ValueError:  # the path contains a NUL
        return None
    except OSError as error:
        exists = error.errno not in (errno.ENOENT, errno.ENOTDIR)  # its reader says why
    if not exists:
        if word.isascii() and word.isdigit():
            return Kind.RECORDING
        return Kind.TRACE if "://" in word else None
    path = Path(word)
    if path.is_dir():
        return _of_folder(path)
    if path.is_fifo():  # what is read to look at it would be missing afterwards
        return Kind.TRACE
    if path.suffix in (".py", ".pyw", ".pyz"):
        return Kind.PROGRAM
    if path.suffix == RECORDING_SUFFIX or word.startswith("/proc/"):
        return Kind.RECORDING
    if path.suffix == _NCU:
        return Kind.KERNELS
    if path.match(_KEPT) and word.endswith((".jsonl.gz", ".parquet")):
        return Kind.REQUESTS
    if zipfile.is_zipfile(path):
        return Kind.PROGRAM if _is_program(path) else Kind.TRACE
    return _of_content(path)


def _of_folder(folder: Path) -> Kind:
    if (folder / "__main__.py").is_file():
        return Kind.PROGRAM
    if any(folder.glob(f"*{RECORDING_SUFFIX}")):
        return Kind.RECORDING
    names = [path.name for path in folder.glob("*.json")]
    if any(name.startswith("timing") and not name.endswith(_SIGNATURES) for name in names):
        return Kind.REPORT
    if any(folder.glob(_KEPT)):
        return Kind.REQUESTS
    if any(name.endswith(_RESULTS) for name in names):
        return Kind.REPLAY
    if any(name.endswith(_SIGNATURES) for name in names):
        return Kind.SIGNATURES
    return Kind.TRACE


def _is_program(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as file:
            return "__main__.py" in file.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _of_content(path: Path) -> Kind:
    head = _head(path)
    if head.startswith((_RECORDING, _RECORDING[::-1])):  # its reader names the other byte order
        return Kind.RECORDING
    if b'"traceEvents"' in head:
        return Kind.TRACE
    if b'"Kernel Name"' in head and head.lstrip()[:1] not in (b"{", b"["):
        return Kind.KERNELS
    if b'"input_signatures"' in head or path.name.endswith(_SIGNATURES):
        return Kind.SIGNATURES
    is_of_stage = b'"stage"' in head or b'"stage_name"' in head
    if is_of_stage and (b'"times_ms"' in head or b'"timing_ms"' in head):
        return Kind.REPLAY
    if b'"top_kernels"' in head:
        return Kind.BREAKDOWN
    if b'"stagespan baseline"' in head:
        return Kind.BASELINE
    is_report = b'"stages"' in head and head.lstrip().startswith(b"{")
    return Kind.REPORT if is_report or path.name.startswith("timing") else Kind.TRACE


def _head(path: Path) -> bytes:
    """Return the first bytes of a file without its compression; none if it cannot be read."""
    if not path.is_file():  # a pipe would wait
        return b""
    try:
        with path.open("rb") as raw:
            is_packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            return (gzip.GzipFile(fileobj=raw) if is_packed else raw).read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""
