// timed_async_generator.h: the interface between a timed async generator and its awaitables.
#pragma once

#include <Python.h>

#include "suspendable_run.h"

namespace stagespan::python {

/// Creates awaitables. All of their turns belong to the run that it owns.
struct AsyncGeneratorObject {
  PyObject_HEAD PyObject* inner;
  PyObject* weak_references;
  SuspendableRun run;
};

extern PyTypeObject g_async_generator_type;

inline AsyncGeneratorObject* async_generator_of(PyObject* object) noexcept {
  return reinterpret_cast<AsyncGeneratorObject*>(object);
}

/// Wraps an awaitable of the inner generator, whose reference it takes; null for null. `closes`: a step that may be the
/// generator's last although it raises nothing.
PyObject* make_step(AsyncGeneratorObject* generator, PyObject* inner, bool closes);

bool init_timed_async_generators();

}  // namespace stagespan::python
