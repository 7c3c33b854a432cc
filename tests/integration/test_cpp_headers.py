"""Extensions that were built with headers of different versions, in one process."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

import stagespan
from running import ran

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

static stagespan::StageName stage{"NAME"};
static PyObject* work(PyObject*, PyObject*) {
  STAGESPAN_SCOPE("NAME");
  Py_RETURN_NONE;
}
static PyObject* add(PyObject*, PyObject*) {
  stagespan::add_work(stage, "frames", 2);
  Py_RETURN_NONE;
}
static PyObject* work_and_add(PyObject*, PyObject*) {
  STAGESPAN_SCOPE("NAME");
  {
    STAGESPAN_SCOPE("inner");
    stagespan::add_work(stage, "frames", 3);
  }
  stagespan::add_work(stage, "frames", 1.5);
  Py_RETURN_NONE;
}
static PyMethodDef methods[] = {
    {"work", work, METH_NOARGS, nullptr}, {"add", add, METH_NOARGS, nullptr},
    {"work_and_add", work_and_add, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "NAME", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_NAME() {
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddObjectRef(module, "attached", stagespan::attach() ? Py_True : Py_False);
  return module;
}
"""
LAST_FIELD = (
    "void (*add_work)(std::uint32_t stage, const char* key, std::size_t length_bytes, "
    "double amount);"
)
USE_OF_LAST_FIELD = "api->add_work(stage.stage(*api), counter.data(), counter.size(), amount);"
# What changes between versions: fields are added at the end within one version, and another version
# has another table in another namespace.
CHANGES = {
    "current": [],
    "one_field_less": [(LAST_FIELD, ""), (USE_OF_LAST_FIELD, "return;")],
    "one_field_more": [(LAST_FIELD, f"{LAST_FIELD} void (*added)();")],
    # The size alone does not tell these two.
    "version_before": [
        ("api_v1", "api_v0"),
        ("kApiVersion = 1", "kApiVersion = 0"),
        ("const std::uint32_t* mode;", "void* removed; const std::uint32_t* mode;"),
        (LAST_FIELD, ""),
        (USE_OF_LAST_FIELD, "return;"),
    ],
    "version_after": [
        ("api_v1", "api_v2"),
        ("kApiVersion = 1", "kApiVersion = 2"),
        (LAST_FIELD, "void (*added)();"),
        (USE_OF_LAST_FIELD, "return;"),
    ],
}
TIMED = {"current", "one_field_less"}
ALL = tuple(CHANGES)
ORDERS = [
    *((name, "current") for name in ALL[1:]),
    *(("current", name) for name in ALL[1:]),
    *(ALL, ALL[::-1]),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an extension for each version of the headers."""
    folder = tmp_path_factory.mktemp("headers")
    for name, changes in CHANGES.items():
        headers = shutil.copytree(HEADERS, folder / name / "stagespan")
        for old, new in changes:
            header = headers / ("python.h" if old == USE_OF_LAST_FIELD else "api.h")
            text = header.read_text()
            assert old in text
            header.write_text(text.replace(old, new))
        source = folder / f"{name}.cpp"
        source.write_text(SOURCE.replace("NAME", name))
        includes = (f"-I{folder / name}", f"-I{sysconfig.get_path('include')}")
        command = ["c++", "-std=c++17", "-fPIC", "-shared", *includes, str(source)]
        ran([*command, "-o", str(folder / f"{name}.so")], status=0)
    return folder


@pytest.mark.parametrize("flags", ["", "sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)"])
@pytest.mark.parametrize("order", ORDERS)
def test_each_extension_works_or_is_refused(
    order: tuple[str, ...], flags: str, built: Path
) -> None:
    # GIVEN a program that imports extensions of several versions in this order
    program = f"""
import importlib, json, os, sys, warnings
sys.path.insert(0, {str(built)!r})
{flags}
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
    done = ran([sys.executable, "-c", program], status=0)
    attached, counts, messages = json.loads(done.stdout)

    assert attached == {name: name in TIMED for name in order}
    assert counts == {"outer": 3 * len(order)} | {name: 3 for name in order if name in TIMED}
    assert len(messages) == len(order) - sum(attached.values())
    assert all("built with headers of stagespan" in message for message in messages)


def test_work_is_counted_for_the_open_scope_or_the_request(built: Path) -> None:
    program = f"""
import asyncio, json, sys
sys.path.insert(0, {str(built)!r})
import current, one_field_less, stagespan
current.add()
one_field_less.add()
with stagespan.request("r") as r:
    r.pipeline = "p"
    current.work_and_add()
    current.add()
    with stagespan.span("current"):
        current.add()

    async def turns():
        with stagespan.span("current"):
            for _ in range(2):
                current.add()
                await asyncio.sleep(0)

    async def main():
        await asyncio.gather(turns(), turns())

    asyncio.run(main())
stagespan.disable()
current.add()
stage = stagespan.stats()["current"]
runs = stage.amounts["frames"]
of_request = stagespan.stats(kind="request")["p"].amounts["frames"]
amounts = [sorted([runs.min, runs.p50, runs.max]), runs.count, runs.total]
print(json.dumps([stage.work, amounts, [of_request.count, of_request.total]]))
"""
    done = ran([sys.executable, "-c", program], status=0)
    work, amounts, of_request = json.loads(done.stdout)
    assert work == {"frames": 18.5}
    # With a fraction among the amounts, quantiles are those of buckets.
    assert amounts == [[2, pytest.approx(4, rel=0.031), 4.5], 4, 14.5]
    assert of_request == [1, 16.5]
