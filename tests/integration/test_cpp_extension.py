"""The example extension: C++ scopes of another library in the recorder of this process."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

import stagespan
from running import ran

EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp_extension"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built with pip according to its pyproject.toml, in a separate folder."""
    for module in ("scikit_build_core", "pybind11"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler (c++) on PATH")
    folder = tmp_path_factory.mktemp("cpp_extension")
    source = shutil.copytree(EXAMPLE, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
    ran([*command, "--target", str(folder / "site"), str(source)], status=0)
    return folder / "site"


def run(program: str, site: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = ran([sys.executable, "-c", program], env=environment, status=0)
    return done.stdout


def test_scopes_nest_under_the_spans_of_python(installed: Path) -> None:
    program = """
import json, cpp_stages, stagespan
with stagespan.span("outer"):
    for _ in range(3):
        cpp_stages.multiply(20)
names = stagespan.stage_names()
by_id = {int(s["id"]): s for s in stagespan.spans()}
tree = sorted(
    (names[s["stage"]], names[by_id[int(s["parent"])]["stage"]] if s["parent"] else None)
    for s in by_id.values()
)
print(json.dumps([tree, {n: s.count for n, s in stagespan.stats().items()}]))
"""
    tree, counts = json.loads(run(program, installed))

    assert counts == {"outer": 1, "multiply": 3, "fill": 6}
    expected = [["fill", "multiply"]] * 6 + [["multiply", "outer"]] * 3 + [["outer", None]]
    assert tree == expected


def test_scopes_nest_under_the_spans_of_their_greenlet(installed: Path) -> None:
    pytest.importorskip("greenlet")
    program = """
import json, cpp_stages, greenlet, stagespan

def job(name):
    with stagespan.span(name):
        greenlet.getcurrent().parent.switch()
        cpp_stages.multiply(4)
        greenlet.getcurrent().parent.switch()

jobs = [greenlet.greenlet(lambda name=name: job(name)) for name in ("a", "b")]
with stagespan.span("main"):
    for one in jobs * 3:
        one.switch()
        with stagespan.span("between"):
            pass
names = stagespan.stage_names()
by_id = {int(s["id"]): names[s["stage"]] for s in stagespan.spans()}
print(json.dumps(sorted(
    by_id[int(s["parent"])] for s in stagespan.spans() if names[s["stage"]] == "multiply"
)))
"""
    assert json.loads(run(program, installed)) == ["a", "b"]


def test_scopes_of_a_thread_without_the_gil_are_recorded(installed: Path) -> None:
    # GIVEN a function that works on its own std::thread, called four times
    program = """
import json, threading, cpp_stages, stagespan
with stagespan.span("outer"):
    for _ in range(4):
        cpp_stages.multiply_on_thread(20)
names = stagespan.stage_names()
spans = [s for s in stagespan.spans() if names[s["stage"]] == "worker"]
print(json.dumps([
    {n: s.count for n, s in stagespan.stats().items()},
    [int(s["parent"]) for s in spans],
    sum(stagespan.lost().values()) if hasattr(stagespan, "lost") else 0,
]))
"""
    counts, parents, lost = json.loads(run(program, installed))

    # THEN all of its scopes are recorded although its threads have ended, and none has a parent
    assert counts == {"outer": 1, "worker": 4, "multiply": 4, "fill": 8}
    assert parents == [0, 0, 0, 0]
    assert lost == 0


def test_scopes_are_not_recorded_while_switched_off(installed: Path) -> None:
    program = """
import json, cpp_stages, stagespan
cpp_stages.multiply(10)
stagespan.disable()
cpp_stages.multiply(10)
stagespan.enable()
cpp_stages.multiply(10)
print(json.dumps({n: s.count for n, s in stagespan.stats().items()}))
"""
    counts = json.loads(run(program, installed))

    assert counts == {"multiply": 2, "fill": 4}


def test_use_it_runs_as_printed(installed: Path) -> None:
    program = (EXAMPLE / "use_it.py").read_text()

    printed = run(program, installed)

    # THEN it shows the results and the figures of both sides
    assert printed.count("trace: 10000.0") == 2
    for stage in ("python side", "multiply", "fill", "worker"):
        assert stage in printed


@pytest.mark.parametrize("standard", ["c++11", "c++14"])
def test_an_older_standard_is_refused_in_one_error(standard: str, tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler (c++) on PATH")
    source = tmp_path / "older.cpp"
    source.write_text(
        "#include <Python.h>\n#include <stagespan/python.h>\n"
        'void work() { stagespan::attach(); STAGESPAN_SCOPE("a"); }\n'
    )
    include = stagespan.get_include()
    python_include = sysconfig.get_paths()["include"]
    command = ["c++", f"-std={standard}", "-fsyntax-only", f"-I{include}"]
    done = ran([*command, f"-isystem{python_include}", str(source)])
    assert done.returncode != 0
    (error,) = (line for line in done.stderr.splitlines() if " error: " in line)
    assert "needs C++17: compile with -std=c++17 or later" in error
