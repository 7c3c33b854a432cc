"""What `make setup` and the checks share: folders, hashes of sources, system packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".make"
VENV = ROOT / ".venv"

# The sources of the extension.
COMPILED_SOURCES = (
    *("pyproject.toml", "CMakeLists.txt", "cmake", "csrc"),
    *("python/stagespan/_core.pyi", "python/stagespan/__init__.py"),  # docstrings
)


def in_ci() -> bool:
    """Whether this is an automatic run."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def fingerprint(paths: Iterable[str | Path], *more: str) -> str:
    """Return a hash of the content of files and folders of the project, and of ``more``."""
    digest = hashlib.sha256()
    for entry in paths:
        path = ROOT / entry
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.suffix not in (".pyc", ".so"):
                digest.update(f"{file.relative_to(ROOT)}\0".encode())
                digest.update(file.read_bytes())
    for text in more:
        digest.update(f"\0{text}".encode())
    return digest.hexdigest()[:16]


class StepError(Exception):
    """A step failed; the message says which one and why."""


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Run a command without input and return its output. Raises StepError if it fails."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
    for name in {"PYTHONPATH", "VIRTUAL_ENV"} - variables.keys():
        environment.pop(name, None)  # nothing outside of the interpreter's environment counts
    words = [str(word) for word in command]
    failed = f"`{' '.join(words)}` failed"
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise StepError(f"{failed}: {error}") from error
    if done.returncode != 0:
        raise StepError(f"{done.stdout}{done.stderr}\n{failed} with {done.returncode}.")
    return done.stdout


def apt_install(package: str) -> str | None:
    """Install a system package with apt. Returns None, or the reason why it failed."""
    if shutil.which("apt-get") is None:
        return "there is no apt-get on this machine"
    prefix: list[str] = []
    if os.geteuid() != 0:
        prefix = ["sudo", "-n"]
        if shutil.which("sudo") is None or subprocess.run([*prefix, "true"]).returncode != 0:
            return "apt-get needs root, or sudo without a password"
    # Two checks may install at the same time, and the second one waits.
    wait = ("-o", "DPkg::Lock::Timeout=600")
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *wait]
    install = [*apt, "install", "-y", "-qq", "--no-install-recommends", package]
    print(f"  installing system package {package}", flush=True)
    # A new machine has no list of packages yet.
    for command in (install, [*apt, "update", "-qq"], install):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if command is install and done.returncode == 0:
            return None
    reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
    return f"apt-get could not install {package}: {reason}"
