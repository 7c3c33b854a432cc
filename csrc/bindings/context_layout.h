// context_layout.h: what is read and changed in the interpreter's contexts without its functions.
#pragma once

#include <Python.h>

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
PyObject* private_value(PyObject* context, PyObject* variable, const PyTypeObject* type, const PyObject* held) noexcept;

}  // namespace stagespan::python
