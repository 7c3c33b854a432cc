"""Finds the other Pythons of this machine, and gives each an environment with a wheel, no torch."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from common import PACKAGE_SOURCES, ROOT, STATE, fingerprint, output, run

SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def find(version: str) -> Path | None:
    """A working interpreter of this version, on PATH or under pyenv; None when there is none."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [shutil.which(f"python{version}")]
    versions = (home / "versions").glob(f"{version}.*/bin/python")
    candidates += [str(path) for path in sorted(versions, reverse=True)]
    for candidate in candidates:
        # pyenv's shims stand on PATH for versions that are not switched on, and fail.
        if candidate is not None and output([candidate, "-c", _VERSION]) == version:
            return Path(candidate)
    return None


def others() -> dict[str, Path | None]:
    """Every supported version other than the one that runs this, and where it is."""
    own = "{}.{}".format(*sys.version_info[:2])
    return {version: find(version) for version in SUPPORTED if version != own}


def prepare(version: str, interpreter: Path) -> Path:
    """A throw-away environment in `.make/` with a wheel of stagespan in it; returns its Python.

    The wheel is built as a user's `pip install .` builds it, isolated. Raises StepError.
    """
    folder = STATE / f"py{version}"
    python = folder / "venv" / "bin" / "python"
    stamp = folder / "stamp"
    wanted = fingerprint((*PACKAGE_SOURCES, "requirements-test.txt"), str(interpreter))
    imports = output([python, "-c", "import stagespan._core"]) is not None
    if imports and stamp.is_file() and stamp.read_text() == wanted:
        return python
    log = f"py{version}-setup"
    stamp.unlink(missing_ok=True)
    has_pip = output([python, "-m", "pip", "--version"]) is not None
    if not has_pip or output([python, "-c", _VERSION]) != version:
        shutil.rmtree(folder, ignore_errors=True)
        run([interpreter, "-m", "venv", folder / "venv"], log)
    wheels = folder / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    pip = [python, "-m", "pip"]
    run([*pip, "install", "-r", ROOT / "requirements-test.txt"], log, append=True)
    run([*pip, "wheel", "--no-deps", "-w", wheels, ROOT], log, append=True)
    (wheel,) = wheels.glob("*.whl")
    run([*pip, "install", wheel], log, append=True)
    run([*pip, "install", "--force-reinstall", "--no-deps", wheel], log, append=True)
    stamp.write_text(wanted)
    return python


def newest_wheel() -> Path | None:
    """A wheel of the sources as they are, which `prepare` built; None when there is none."""
    for stamp in sorted(STATE.glob("py3.*/stamp"), key=lambda path: path.stat().st_mtime)[-1:]:
        return next(stamp.parent.glob("wheels/*.whl"), None)
    return None


def closing_line(text: str) -> str | None:
    """Pytest's last line of figures in a log, without its frame; None when it printed none."""
    found = re.findall(r"^=*\s*((?:\d+ \w+,? ?)+ in [\d.]+s.*?)\s*=*$", text, flags=re.MULTILINE)
    return found[-1] if found else None
