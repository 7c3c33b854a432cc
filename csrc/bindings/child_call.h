// child_call.h: calls a function in a child process that is forked for this call.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// `call_in_child(function, argument)`, for the module's method table.
extern PyMethodDef g_child_call_functions[];

}  // namespace stagespan::python
