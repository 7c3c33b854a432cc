// worker_name.cpp: the names of workers, as multiprocessing and torch's data loader know them.
#include "worker_name.h"

#include <Python.h>

#include <string_view>

#include "object.h"

namespace stagespan::python {

namespace {

// An attribute of an object that a module refers to, as a new reference; null if there is none. Runs no Python code,
// because a span is being opened: the attributes read here are stored in the object or its slots.
Ref attribute_in(const char* module_name, const char* object_name, const char* attribute) {
  const Ref name(PyUnicode_FromString(module_name));
  const Ref module(name ? PyImport_GetModule(name.get()) : nullptr);
  const Ref object(module && PyModule_Check(module.get()) != 0
                       ? Py_XNewRef(PyDict_GetItemString(PyModule_GetDict(module.get()), object_name))
                       : nullptr);
  const Ref key(PyUnicode_FromString(attribute));
  Ref found(object && key ? PyObject_GenericGetAttr(object.get(), key.get()) : nullptr);
  PyErr_Clear();
  return found;
}

// The number in one of multiprocessing's own names, "SpawnPoolWorker-3"; empty for a name that the program gave.
std::string_view number_in(std::string_view name) {
  const std::size_t dash = name.rfind('-');
  if (dash == std::string_view::npos || dash + 1 == name.size()) return {};
  const std::string_view number = name.substr(dash + 1);
  if (number.find_first_not_of("0123456789:") != std::string_view::npos) return {};
  for (const std::string_view kind : {"", "Fork", "ForkServer", "Spawn", "Loky"})
    for (const std::string_view what : {"Process", "PoolWorker"})
      if (name.substr(0, dash) == std::string(kind) + std::string(what)) return number;
  return {};
}

}  // namespace

Worker worker_of_this_process() {
  const NoCollection by_allocations;
  ErrorAside error;
  const Ref loader = attribute_in("torch.utils.data._utils.worker", "_worker_info", "id");
  if (loader && PyLong_Check(loader.get()) != 0) {
    const long number = PyLong_AsLong(loader.get());
    PyErr_Clear();
    return {"data loader worker " + std::to_string(number), true};
  }
  const Ref given = attribute_in("multiprocessing.process", "_current_process", "_name");
  const char* const text = given && PyUnicode_Check(given.get()) != 0 ? PyUnicode_AsUTF8(given.get()) : nullptr;
  PyErr_Clear();
  if (text == nullptr || text == std::string_view("MainProcess")) return {"worker", false};
  const std::string_view number = number_in(text);
  return {number.empty() ? std::string(text) : "worker " + std::string(number), false};
}

}  // namespace stagespan::python
