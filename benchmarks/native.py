"""The C++ part: builds `cpp/span_cost.cpp` with the flags of the extension, and runs it."""

from __future__ import annotations

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
    """It cannot be built here; the text says why."""


def build() -> Path:
    """Build the program; its path. Raises SkipError."""
    beside_python = Path(sys.executable).parent / "cmake"
    cmake = str(beside_python) if beside_python.exists() else shutil.which("cmake")
    if cmake is None:
        raise SkipError("cmake is not installed: pip install cmake")
    if not (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")):
        raise SkipError("no C++ compiler is installed: apt-get install g++")
    commands = (
        [cmake, "-S", ROOT, "-B", FOLDER, *_OPTIONS],
        [cmake, "--build", FOLDER, "--target", "span_cost"],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise SkipError("it does not build: " + " ".join(lines[-3:]))
    return FOLDER / "benchmarks" / "cpp" / "span_cost"


def measure(program: Path, count: int, turns: int) -> dict[str, Any]:
    """Run it once; ns by name, and how many spans were timed and counted."""
    done = subprocess.run(
        [program, str(count), str(turns)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
