"""Extensions that were built with headers of different versions, in one process."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import stagespan

HEADERS = Path(stagespan.get_include()) / "stagespan"
if not HEADERS.is_dir():  # an editable installation
    HEADERS = Path(__file__).parents[2] / "csrc" / "stagespan"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler (c++) on PATH"),
    pytest.mark.skipif(
        not Path(sysconfig.get_path("include"), "Python.h").exists(), reason="no Python.h"
    ),
]

SOURCE = """
#include <Python.h>
#include <stagespan/python.h>

static PyObject* work(PyObject*, PyObject*) {
  STAGESPAN_SCOPE("NAME");
  Py_RETURN_NONE;
}
static PyMethodDef methods[] = {
    {"work", work, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "NAME", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_NAME() {
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddObjectRef(module, "attached", stagespan::attach() ? Py_True : Py_False);
  return module;
}
"""
# What changes between versions: the last field of the table was added within one version, and
# another version has another table in another namespace.
CHANGES = {
    "current": [],
    "older": [("void (*add_work)(std::uint32_t stage, const char* key", "// (")],
    "newer": [
        ("api_v1", "api_v2"),
        ("kApiVersion = 1", "kApiVersion = 2"),
        ("std::uint32_t (*intern)", "void* added; std::uint32_t (*intern)"),
    ],
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an extension for each version of the headers."""
    folder = tmp_path_factory.mktemp("headers")
    for name, changes in CHANGES.items():
        headers = shutil.copytree(HEADERS, folder / name / "stagespan")
        api = (headers / "api.h").read_text()
        for old, new in changes:
            assert old in api
            api = api.replace(old, new)
        (headers / "api.h").write_text(api)
        source = folder / f"{name}.cpp"
        source.write_text(SOURCE.replace("NAME", name))
        includes = (f"-I{folder / name}", f"-I{sysconfig.get_path('include')}")
        command = ["c++", "-std=c++17", "-fPIC", "-shared", *includes, str(source)]
        done = subprocess.run(
            [*command, "-o", str(folder / f"{name}.so")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("order", list(itertools.permutations(CHANGES)))
def test_each_extension_works_or_is_refused(order: tuple[str, ...], built: Path) -> None:
    # GIVEN a program that imports extensions of three versions in this order
    program = f"""
import importlib, json, sys, warnings
sys.path.insert(0, {str(built)!r})
import stagespan
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    modules = {{name: importlib.import_module(name) for name in {order!r}}}
for _ in range(3):
    for module in modules.values():
        with stagespan.span("outer"):
            module.work()
counts = {{name: stage.count for name, stage in stagespan.stats().items()}}
attached = {{name: module.attached for name, module in modules.items()}}
print(json.dumps([attached, counts, [str(one.message) for one in seen]]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    attached, counts, messages = json.loads(done.stdout)

    # THEN those of this version of the table are timed, and the other one is refused with a warning
    assert attached == {"current": True, "older": True, "newer": False}
    assert counts == {"outer": 9, "current": 3, "older": 3}
    assert len(messages) == 1
    assert "built with headers of stagespan" in messages[0]
