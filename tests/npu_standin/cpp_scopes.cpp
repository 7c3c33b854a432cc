// cpp_scopes.cpp: an extension whose C++ code times its scopes, with work for a device in them.
#include <Python.h>

#include <optional>

#include "stagespan/python.h"

namespace {

stagespan::StageName g_outer{"cpp outer"}, g_inner{"cpp inner"}, g_unlocked{"cpp unlocked"}, g_handed{"cpp handed"};

// run(address of a kernel's launcher, ms)
PyObject* run(PyObject*, PyObject* args) {
  unsigned long long address = 0;
  double ms = 0;
  if (PyArg_ParseTuple(args, "Kd", &address, &ms) == 0) return nullptr;
  auto* const kernel = reinterpret_cast<void (*)(double)>(address);
  {
    const stagespan::ScopedTimer outer(g_outer);
    kernel(ms);
    const stagespan::ScopedTimer inner(g_inner);
    kernel(2 * ms);
  }
  PyThreadState* const state = PyEval_SaveThread();
  {
    const stagespan::ScopedTimer unlocked(g_unlocked);
    kernel(ms);
  }
  PyEval_RestoreThread(state);
  Py_RETURN_NONE;
}

/// Scopes that begin with the interpreter's lock and end without it.
PyObject* hand_over(PyObject*, PyObject* args) {
  int times = 0;
  if (PyArg_ParseTuple(args, "i", &times) == 0) return nullptr;
  for (int i = 0; i < times; ++i) {
    std::optional<stagespan::ScopedTimer> scope(std::in_place, g_handed);
    PyThreadState* const state = PyEval_SaveThread();
    scope.reset();
    PyEval_RestoreThread(state);
  }
  Py_RETURN_NONE;
}

PyMethodDef g_functions[] = {{"run", run, METH_VARARGS, nullptr},
                             {"hand_over", hand_over, METH_VARARGS, nullptr},
                             {nullptr, nullptr, 0, nullptr}};
PyModuleDef g_module = {
    PyModuleDef_HEAD_INIT, "cpp_scopes", nullptr, -1, g_functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_cpp_scopes() {
  stagespan::attach();
  return PyModule_Create(&g_module);
}
