// waiting.h: calls that go on without the interpreter's lock.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// `spans()`, `wait_for_work(timeout_s)` and `resolve_device(timeout_s)`, for the module's method table.
extern PyMethodDef g_waiting_functions[];

/// Makes the type SpanCursor. False with an exception set when that fails.
bool init_waiting(PyObject* module);

}  // namespace stagespan::python
