"""Compares what a span costs with two builds of stagespan, such as those of two compilers.

    python -m benchmarks.builds FIRST.whl SECOND.whl [--alternations 20]

Both wheels must be for the interpreter that runs this. The builds take turns, each time in a new
process, and begin in turns. Printed are the medians of all processes and their quartiles, in ns.
"""

from __future__ import annotations

import argparse
import json
import os
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
import json, time, stagespan, timed
ROUNDS, RUNS = 60, 2000
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

print(json.dumps({
    "C++ scope": cost_ns(lambda: timed.scopes(RUNS)),
    "with": cost_ns(entered),
    "decorated function": cost_ns(called),
}))
"""


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


def measured(folder: Path) -> dict[str, float]:
    """Return the costs with an unpacked wheel, in ns, in a new process."""
    # As a folder of the path alone, so that an installed stagespan is not found.
    path = os.pathsep.join((str(folder), str(Path(numpy.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
    )
    costs: dict[str, float] = json.loads(done.stdout)
    return costs


def main() -> None:
    """Measure both builds in turns and print a table."""
    parser = argparse.ArgumentParser(description="Compare what a span costs with two builds.")
    parser.add_argument("wheels", type=Path, nargs=2)
    parser.add_argument("--alternations", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        folders = [unpacked(wheel, Path(top, str(i))) for i, wheel in enumerate(chosen.wheels)]
        found: list[list[dict[str, float]]] = [[], []]
        for turn in range(chosen.alternations):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                found[which].append(measured(folders[which]))
    for name in found[0][0]:
        print(name)
        for wheel, costs in zip(chosen.wheels, found, strict=True):
            low, middle, high = statistics.quantiles([one[name] for one in costs], n=4)
            print(f"  {middle:7.1f} ns ({low:.1f} to {high:.1f})  {wheel.name}")


if __name__ == "__main__":
    main()
