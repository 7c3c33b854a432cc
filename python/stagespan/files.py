"""Names of files from names of stages, and writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_STEM = 100


def safe_name(stage: str) -> str:
    """Turn any stage name into the stem of a file name.

    Letters, digits, ``.``, ``_`` and ``-`` stay, every other run of characters becomes one ``_``.
    A name that had to be changed gets eight hexadecimal digits of its own hash, so that two stages
    never share a file. The result is never empty, never starts with a dot and holds no separator.
    """
    stem = _UNSAFE.sub("_", stage).strip("._")[:_LONGEST_STEM]
    if stem == stage:
        return stem
    # Here and below: most processes that import stagespan never come this far.
    import hashlib

    digest = hashlib.sha256(stage.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{stem}_{digest}" if stem else f"stage_{digest}"


def stage_path(folder: str | os.PathLike[str], stage: str, suffix: str) -> Path:
    """Path of a stage's file in ``folder``: ``{stage}{suffix}``."""
    return Path(folder) / f"{safe_name(stage)}{suffix}"


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> Path:
    """Write ``data`` to ``path`` whole or not at all, creating the folder; returns the path.

    The bytes go to a temporary file in the same folder which is renamed once it is complete, so a
    reader never sees a part of it. Raises OSError when the folder or file cannot be written; then
    nothing is left behind.
    """
    import tempfile

    target = Path(path)
    raw = data.encode("utf-8") if isinstance(data, str) else data
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:60]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return target
