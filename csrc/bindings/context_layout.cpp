// context_layout.cpp: the layouts of the interpreter's contexts and of their maps, which are verified before use.
#include "context_layout.h"

#include <cstring>
#include <utility>

#include "object.h"

namespace stagespan::python {

PyTypeObject* g_map_type = nullptr;
PyTypeObject* g_bitmap_node_type = nullptr;

namespace {

bool g_layout_is_known = false;

bool know_context() {
  const Ref outer(PyContext_New()), inner(PyContext_New());
  if (!outer || !inner || Py_TYPE(outer.get())->tp_basicsize < static_cast<Py_ssize_t>(sizeof(ContextLayout)))
    return false;
  const ContextLayout& layout = layout_of(inner.get());
  const bool free_before = layout.entered == 0 && layout.previous == nullptr;
  if (PyContext_Enter(outer.get()) != 0) return false;
  bool taken = PyContext_Enter(inner.get()) == 0;
  if (taken) {
    taken = layout.entered == 1 && layout.previous == outer.get() && layout_of(outer.get()).entered == 1;
    taken = PyContext_Exit(inner.get()) == 0 && taken;
  }
  const Ref copy(PyContext_Copy(inner.get()));
  taken = taken && copy && layout.variables != nullptr && layout_of(copy.get()).variables == layout.variables;
  return PyContext_Exit(outer.get()) == 0 && free_before && taken && layout.entered == 0 && layout.previous == nullptr;
}

/// Whether the map of a context in which only this variable is set has the expected layout.
bool has_known_layout(PyObject* map, PyObject* variable, PyObject* value) {
  if (Py_TYPE(map)->tp_basicsize != static_cast<Py_ssize_t>(sizeof(MapLayout))) return false;
  const MapLayout& layout = *reinterpret_cast<MapLayout*>(map);
  if (layout.count != 1 || layout.weak_references != nullptr || layout.root == nullptr) return false;
  if (std::strcmp(Py_TYPE(layout.root)->tp_name, "hamt_bitmap_node") != 0 || Py_SIZE(layout.root) != 2) return false;
  const auto& root = *reinterpret_cast<BitmapNodeLayout*>(layout.root);
  const bool has_one_bit = root.bitmap != 0 && (root.bitmap & (root.bitmap - 1)) == 0;
  return has_one_bit && root.items[0] == variable && root.items[1] == value;
}

void know_map(PyObject* variable, PyObject* value) {
#ifndef Py_GIL_DISABLED
  const PyTypeObject* const type = Py_TYPE(value);
  const Ref context(PyContext_New());
  if (!context || PyContext_Enter(context.get()) != 0) return;
  const bool is_set = static_cast<bool>(Ref(PyContextVar_Set(variable, value)));
  if (PyContext_Exit(context.get()) != 0 || !is_set) return;
  PyObject* const map = layout_of(context.get()).variables;
  if (!has_known_layout(map, variable, value)) return;
  g_map_type = Py_TYPE(map);
  g_bitmap_node_type = Py_TYPE(reinterpret_cast<MapLayout*>(map)->root);
  // The value is referred to by the map and by the caller, and a copy of the context shares the map.
  const bool is_private = private_value(context.get(), variable, type, value) == value &&
                          private_value(context.get(), variable, type, nullptr) == nullptr;
  const Ref copy(PyContext_Copy(context.get()));
  PyObject *found = nullptr, *other = nullptr;
  const Ref empty(PyContext_New());
  const bool is_found = empty && find_value(context.get(), variable, found) && found == value &&
                        find_value(empty.get(), variable, other) && other == nullptr;
  if (!is_private || !is_found || !copy || private_value(context.get(), variable, type, value) != nullptr)
    g_map_type = nullptr;
#else
  (void)variable;
  (void)value;
#endif
}

}  // namespace

void know_context_layout(PyObject* variable, PyObject* value) noexcept {
  g_layout_is_known = know_context();
  if (g_layout_is_known) know_map(variable, value);
}

bool is_context_known() noexcept { return g_layout_is_known; }
bool is_context_map_known() noexcept { return g_map_type != nullptr; }

// A thread's own context is created on first use and never entered, whereas a task's is entered. No call
// distinguishes them, but entering a context twice is an error.
bool is_entered(PyObject* context) noexcept {
  if (g_layout_is_known) return layout_of(context).entered != 0;
  if (PyContext_Enter(context) == 0) {
    PyContext_Exit(context);
    return false;
  }
  PyErr_Clear();
  return true;
}

// From Python 3.14 on, threading.Thread enters its own context before anything else runs in it.
bool is_threads_own(PyObject* context) noexcept {
  if (!g_layout_is_known || layout_of(context).previous != nullptr) return false;
  // Not threading.current_thread(), because it creates an object for each unknown thread.
  PyObject* const modules = Py_IsInitialized() != 0 ? PyImport_GetModuleDict() : nullptr;
  PyObject* const threading = modules != nullptr ? PyDict_GetItemString(modules, "threading") : nullptr;
  const Ref threads(threading != nullptr ? PyObject_GetAttrString(threading, "_active") : nullptr);
  const Ref ident(PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
  PyObject* const thread =
      threads && PyDict_Check(threads.get()) && ident ? PyDict_GetItemWithError(threads.get(), ident.get()) : nullptr;
  const Ref owned(Py_XNewRef(thread));
  const Ref threads_context(owned ? PyObject_GetAttrString(owned.get(), "_context") : nullptr);
  PyErr_Clear();
  return threads_context.get() == context;
}

PyObject* context_before(PyObject* context) noexcept {
  return g_layout_is_known && layout_of(context).entered != 0 ? layout_of(context).previous : nullptr;
}

void swap_variables(PyObject* context, PyObject* other) noexcept {
  std::swap(layout_of(context).variables, layout_of(other).variables);
}

bool find_value(PyObject* context, PyObject* variable, PyObject*& to) noexcept {
  to = nullptr;
  if (context == nullptr) return true;
  PyObject* const map = g_map_type != nullptr ? layout_of(context).variables : nullptr;
  if (map == nullptr || Py_TYPE(map) != g_map_type) return false;
  PyObject* const root = reinterpret_cast<MapLayout*>(map)->root;
  if (Py_TYPE(root) != g_bitmap_node_type) return false;
  PyObject* const* const items = reinterpret_cast<BitmapNodeLayout*>(root)->items;
  bool is_flat = true;  // a node below may have it
  for (Py_ssize_t i = 0; i + 1 < Py_SIZE(root); i += 2) {
    if (items[i] == variable) {
      to = items[i + 1];
      return true;
    }
    is_flat = is_flat && items[i] != nullptr;
  }
  return is_flat;
}

}  // namespace stagespan::python
