// termination.h: writing reports before SIGTERM ends the process.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// `watch_termination(write)`, `unwatch_termination()` and `await_termination()`, for the module's method table.
extern PyMethodDef g_termination_functions[];

}  // namespace stagespan::python
