// ready_object.h: the awaitable for `async with`, which is ready at once.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// An awaitable that returns `value` without suspending; steals the reference. Null for null.
PyObject* ready(PyObject* owned_value);

/// Sets a StopIteration with a value that an iterator returns; null.
PyObject* stop_with(PyObject* value) noexcept;

bool init_ready_type();

}  // namespace stagespan::python
