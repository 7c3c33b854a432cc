// current_request.h: which request is current, and what functions take along to other threads.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// For the module's method table: entering and leaving requests, and passing span and request to other threads.
extern PyMethodDef g_current_request_functions[];

}  // namespace stagespan::python
