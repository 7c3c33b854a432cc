// ready_object.h: what `async with` awaits: it is ready at once.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// An awaitable that gives a value, whose reference it takes, without suspending; null for null.
PyObject* ready(PyObject* owned_value);

bool init_ready_type();

}  // namespace stagespan::python
