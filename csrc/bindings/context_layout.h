// context_layout.h: what is read and changed in the interpreter's contexts without its functions.
#pragma once

#include <Python.h>

#include <cstdint>

namespace stagespan::python {

// ContextVar.set makes a new map, a new root of it and a token, in each call. A span in a task changes its variable
// twice, so that this was most of its cost. Who else can see the value follows from the reference counts:
//
//   context --> map --> root: key, value, key, value, ... --> value, an object of our own type
//
// If each of these arrows is the only reference to its target, only code that asks this context can get the value, and
// after a change in place it gets what it would get after ContextVar.set: other contents. A copy of the context shares
// the map, a map that was made by setting another variable shares the value, and tokens and readers refer to the value;
// each of them raises one of the counts. The interpreter's lock excludes other threads, so that a build without it is
// left out.

// The interpreter's PyContext up to the needed field.
struct ContextLayout {
  PyObject_HEAD PyObject* previous;
  PyObject* variables;  // an immutable map, which copies of the context share
  PyObject* weak_references;
  int entered;
};

// Its map and the map's root if that has at most 16 items, as in pycore_hamt.h and hamt.c of Python 3.10 to 3.14.
struct MapLayout {
  PyObject_HEAD PyObject* root;
  PyObject* weak_references;
  Py_ssize_t count;
};

struct BitmapNodeLayout {
  PyObject_VAR_HEAD std::uint32_t bitmap;  // one bit an item
  PyObject* items[1];                      // in pairs: a key and its value, or null and the node below
};

/// The types of the last two; null unless all three are known.
extern PyTypeObject* g_map_type;
extern PyTypeObject* g_bitmap_node_type;

inline ContextLayout& layout_of(PyObject* context) noexcept { return *reinterpret_cast<ContextLayout*>(context); }

/// Compares the interpreter's private structures with contexts that are made for this, and in which the variable gets
/// this value; to be called once, on import. What turns out not to be known is not used: then values are never changed
/// in place. The caller has the only reference to the value.
void know_context_layout(PyObject* variable, PyObject* value) noexcept;
/// Whether the fields of a context are known.
bool is_context_known() noexcept;
/// Whether values can be changed in place.
bool is_context_map_known() noexcept;

/// Whether code runs in this context or has entered it; false for a thread's own context.
bool is_entered(PyObject* context) noexcept;
/// The context that was current when this one was entered, borrowed; null if it has not been entered or if the
/// interpreter's layout of contexts is not known.
PyObject* context_before(PyObject* context) noexcept;
/// Whether this is the context that threading.Thread enters before anything else runs in the thread.
bool is_threads_own(PyObject* context) noexcept;

/// Exchanges all variables of two contexts, whose layout must be known.
void swap_variables(PyObject* context, PyObject* other) noexcept;

/// Looks up a variable in a context, which may be null. Returns whether the answer is known without the interpreter's
/// functions: `to` is then the value, borrowed, or null if the variable is not set there.
bool find_value(PyObject* context, PyObject* variable, PyObject*& to) noexcept;

/// A variable's value in a context, borrowed, if it is of this type and nobody else can get it; else null. The context
/// may be null. The caller has one reference to `held`, which may be the value, another object or null.
inline PyObject* private_value(PyObject* context, PyObject* variable, const PyTypeObject* type,
                               const PyObject* held) noexcept {
  if (context == nullptr || g_map_type == nullptr) return nullptr;
  PyObject* const map = layout_of(context).variables;
  if (map == nullptr || Py_TYPE(map) != g_map_type || Py_REFCNT(map) != 1) return nullptr;
  PyObject* const root = reinterpret_cast<MapLayout*>(map)->root;
  if (Py_TYPE(root) != g_bitmap_node_type || Py_REFCNT(root) != 1) return nullptr;
  PyObject* const* const items = reinterpret_cast<BitmapNodeLayout*>(root)->items;
  for (PyObject* const* item = items; item != items + Py_SIZE(root); item += 2) {
    if (item[0] != variable) continue;
    PyObject* const value = item[1];
    return Py_REFCNT(value) == (value == held ? 2 : 1) && Py_TYPE(value) == type ? value : nullptr;
  }
  return nullptr;
}

}  // namespace stagespan::python
