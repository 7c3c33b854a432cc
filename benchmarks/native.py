"""Builds the C++ programs of `cpp` with the flags of the extension, and runs them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "benchmarks"
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DSTAGESPAN_BUILD_PYTHON=OFF",
    "-DSTAGESPAN_BUILD_BENCHMARKS=ON",
)


class SkipError(Exception):
    """The programs cannot be built here; the text is the reason."""


def build() -> Path:
    """Build the programs and return their folder. Raises SkipError."""
    next_to_python = Path(sys.executable).parent / "cmake"
    cmake = str(next_to_python) if next_to_python.exists() else shutil.which("cmake")
    if cmake is None:
        raise SkipError("cmake is not installed: pip install cmake")
    if not (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")):
        raise SkipError("no C++ compiler is installed: apt-get install g++")
    commands = (
        [cmake, "-S", ROOT, "-B", FOLDER, *_OPTIONS],
        [cmake, "--build", FOLDER, "--target", "span_cost", "device_cost", "recording_cost"],
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another benchmark may build at the same time
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                lines = (done.stdout + done.stderr).strip().splitlines()
                raise SkipError("it does not build: " + " ".join(lines[-3:]))
    return FOLDER / "benchmarks" / "cpp"


def measure(folder: Path, count: int, turns: int) -> dict[str, Any]:
    """Run them once. Returns ns by name, and the number of spans, which includes all timed ones."""
    figures: dict[str, Any] = {"ns": {}, "counted": 0}
    for command in (
        [folder / "span_cost", str(count), str(turns)],
        [folder / "device_cost", folder / "fakes", str(count // 12), str(turns)],
    ):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        measured = json.loads(done.stdout)
        figures["ns"].update(measured["ns"])
        figures["counted"] += measured["counted"]
    return figures
