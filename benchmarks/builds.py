"""Compares what a span costs with two builds of stagespan, such as those of two compilers.

    python -m benchmarks.builds FIRST.whl SECOND.whl [--alternations 20] [--instructions]

Both wheels must be for the interpreter that runs this. The builds take turns, each time in a new
process, and begin in turns. Printed are the medians of all processes and their quartiles, in ns.
With --instructions, the instructions of one run are printed instead, which callgrind counts (it is
part of valgrind); they include those of the interpreter, and do not depend on other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

import numpy

EXTENSION = """
#include <Python.h>
#include <stagespan/python.h>

static PyObject* scopes(PyObject*, PyObject* count) {
  for (long left = PyLong_AsLong(count); left > 0; --left) {
    STAGESPAN_SCOPE("scope");
  }
  Py_RETURN_NONE;
}
static PyMethodDef methods[] = {
    {"scopes", scopes, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "timed", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_timed() {
  if (!stagespan::attach()) return nullptr;
  return PyModule_Create(&definition);
}
"""
PROGRAM = """
import json, sys, time, stagespan, timed
ROUNDS, RUNS = 60, int(sys.argv[2]) if sys.argv[2:] else 2000
block = stagespan.span("block")

@stagespan.span("decorated")
def decorated():
    pass

def entered():
    for _ in range(RUNS):
        with block:
            pass

def called():
    for _ in range(RUNS):
        decorated()

def cost_ns(call):
    best = float("inf")
    for _ in range(ROUNDS):
        begin_ns = time.perf_counter_ns()
        call()
        best = min(best, (time.perf_counter_ns() - begin_ns) / RUNS)
    return best

calls = {
    "C++ scope": lambda: timed.scopes(RUNS),
    "with": entered,
    "decorated function": called,
}
if sys.argv[1:]:
    calls[sys.argv[1]]()
else:
    print(json.dumps({name: cost_ns(call) for name, call in calls.items()}))
"""
NAMES = ("C++ scope", "with", "decorated function")
FEW, MANY = 1_000, 201_000


def unpacked(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel, and build the extension whose scopes are timed with its headers."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    source = folder / "timed.cpp"
    source.write_text(EXTENSION)
    includes = (f"-I{folder / 'stagespan/include'}", f"-I{sysconfig.get_path('include')}")
    command = ["c++", "-std=c++17", "-O2", "-fPIC", "-shared", *includes, str(source)]
    subprocess.run([*command, "-o", str(folder / "timed.so")], check=True)
    return folder


def run(folder: Path, *arguments: str, prefix: tuple[str, ...] = ()) -> str:
    """Run the program with an unpacked wheel, in a new process, and return all that it prints."""
    # As a folder of the path alone, so that an installed stagespan is not found.
    path = os.pathsep.join((str(folder), str(Path(numpy.__file__).parents[1])))
    return subprocess.run(
        [*prefix, sys.executable, "-S", "-c", PROGRAM, *arguments],
        # Without a recording, whose file is renewed by another thread from time to time.
        env={**os.environ, "PYTHONPATH": path, "STAGESPAN_RECORDING": "off", "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout


def measured(folder: Path) -> dict[str, float]:
    """Return the costs with an unpacked wheel, in ns."""
    costs: dict[str, float] = json.loads(run(folder).splitlines()[-1])
    return costs


def instructions(folder: Path, name: str) -> float:
    """Return the instructions of one run, from the difference of many and few."""
    callgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / 'callgrind'}")

    def counted(runs: int) -> int:
        said = run(folder, name, str(runs), prefix=callgrind)
        return int(re.findall(r"Collected : (\d+)", said)[0])

    return (counted(MANY) - counted(FEW)) / (MANY - FEW)


def main() -> None:
    """Measure both builds in turns and print a table."""
    parser = argparse.ArgumentParser(description="Compare what a span costs with two builds.")
    parser.add_argument("wheels", type=Path, nargs=2)
    parser.add_argument("--alternations", type=int, default=20)
    parser.add_argument("--instructions", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        folders = [unpacked(wheel, Path(top, str(i))) for i, wheel in enumerate(chosen.wheels)]
        for name in NAMES if chosen.instructions else ():
            print(name)
            for wheel, folder in zip(chosen.wheels, folders, strict=True):
                print(f"  {instructions(folder, name):7.0f} instructions  {wheel.name}", flush=True)
        if chosen.instructions:
            return
        costs_of: list[list[dict[str, float]]] = [[], []]
        for turn in range(chosen.alternations):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                costs_of[which].append(measured(folders[which]))
    for name in costs_of[0][0]:
        print(name)
        for wheel, costs in zip(chosen.wheels, costs_of, strict=True):
            low, middle, high = statistics.quantiles([one[name] for one in costs], n=4)
            print(f"  {middle:7.1f} ns ({low:.1f} to {high:.1f})  {wheel.name}")


if __name__ == "__main__":
    main()
