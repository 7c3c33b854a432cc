// timed_function.h: calls a callable as a run, and creates callables that do so.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// `call_timed(span, function, args, kwargs)`, and on 3.12 and later `time_function(function, spans)`, for the
/// module's method table.
extern PyMethodDef g_timed_function_functions[];

bool init_timed_functions(PyObject* module);

}  // namespace stagespan::python
