"""Code for `make setup` and the checks: folders, commands with a log, hashes, apt."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".make"
LOGS = STATE / "logs"
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"

# The sources of the extension and the package.
PACKAGE_SOURCES = ("pyproject.toml", "CMakeLists.txt", "README.md", "cmake", "csrc", "python")
COMPILED_SOURCES = ("pyproject.toml", "CMakeLists.txt", "cmake", "csrc")

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class StepError(Exception):
    """A command failed. The message contains the command, and its log follows."""

    def __init__(self, what: str, log: Path | None = None) -> None:
        super().__init__(what)
        self.log = log

    def show(self, lines: int = 400) -> None:
        """Print the message and the end of the log."""
        print(f"error: {self}", flush=True)
        if self.log is not None and self.log.is_file():
            text = self.log.read_text(errors="replace").splitlines()
            if len(text) > lines:
                print(f"(last {lines} of {len(text)} lines of {self.log})")
            print("\n".join(f"  | {line}" for line in text[-lines:]), flush=True)


def in_ci() -> bool:
    """Whether this is an automatic run."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def say(text: str) -> None:
    """Print a line at once, so that it is in order with the output of commands."""
    print(text, flush=True)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of commands: no questions, no version notes of pip, own variables."""
    made = dict(os.environ)
    made.pop("PYTHONPATH", None)  # tests use the installed package and no other copy
    made.pop("VIRTUAL_ENV", None)
    made.update(
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_NO_INPUT="1",
        PYTHONDONTWRITEBYTECODE="1",
        **(extra or {}),
    )
    tools = f"{VENV / 'bin'}{os.pathsep}"
    made["PATH"] = tools + made.get("PATH", os.defpath)
    return made


def run(
    command: Sequence[str | Path],
    log: str,
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    append: bool = False,
    check: bool = True,
) -> int:
    """Run a command without input and return its status.

    Its output goes to ``.make/logs/{log}.log``. Raises StepError if it fails and ``check`` is true.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{log}.log"
    words = [str(word) for word in command]
    with path.open("a" if append else "w") as file:
        file.write(f"$ {' '.join(words)}\n")
        file.flush()
        try:
            status = subprocess.run(
                words,
                cwd=cwd,
                env=environment(env),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        except OSError as error:
            file.write(f"{error}\n")
            status = 127
    if check and status != 0:
        raise StepError(f"`{' '.join(words)}` failed with status {status}.", path)
    return status


def output(command: Sequence[str | Path]) -> str | None:
    """Return the output of a command, or None if it cannot be run or fails."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def log_text(log: str) -> str:
    """Return a step's log without colours; empty if there is none."""
    path = LOGS / f"{log}.log"
    return _COLOURS.sub("", path.read_text(errors="replace")) if path.is_file() else ""


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


def as_root() -> list[str] | None:
    """Return the prefix to run a command as root without a password, or None."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and output(["sudo", "-n", "true"]) is not None:
        return ["sudo", "-n"]
    return None


def apt_install(package: str) -> str | None:
    """Install a system package with apt. Returns None, or the reason why it failed."""
    if shutil.which("apt-get") is None:
        return "no apt-get on this machine"
    prefix = as_root()
    if prefix is None:
        return "neither root nor sudo without a password"
    quiet = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    install = [*quiet, "install", "-y", "--no-install-recommends", package]
    log = f"apt-{package}"
    say(f"  installing system package {package}")
    if run(install, log, check=False) == 0:
        return None
    # A new machine has no list of packages yet.
    run([*quiet, "update"], log, append=True, check=False)
    if run(install, log, append=True, check=False) == 0:
        return None
    return f"apt could not install {package} (see .make/logs/{log}.log)"


def python_versions() -> list[str]:
    """Return the folders of pyenv's interpreters, the newest of each version first."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return [str(path) for path in sorted(home.glob("versions/3.*/bin"), reverse=True)]


def compiles(source: str, *flags: str, then_run: Sequence[str] | None = None) -> bool:
    """Whether a small C++ program builds with these flags and, if asked, runs under a prefix."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "probe"
        command = ["c++", "-std=c++20", "-x", "c++", "-", "-o", str(program), *flags]
        try:
            built = subprocess.run(
                command, input=source, text=True, capture_output=True, check=False
            )
            if built.returncode != 0 or then_run is None:
                return built.returncode == 0
            ran = subprocess.run(
                [*then_run, str(program)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except OSError:
            return False
        return ran.returncode == 0


class Timer:
    """The seconds since its creation."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def seconds(self) -> float:
        """Elapsed seconds."""
        return time.monotonic() - self._begin


def main_guard(function: object) -> None:
    """Run a script's main; show a failed step's log and leave with status 1."""
    assert callable(function)
    try:
        sys.exit(function())
    except StepError as error:
        error.show()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
