// timed_function.h: calls a callable as a run, and creates callables that do so.
#pragma once

#include <Python.h>

/// Whether the interpreter reads a function's `vectorcall` field at each of its calls, so that time_function.cpp can
/// intercept them. Python 3.11 runs plain calls without it, and 3.14 the getters of properties.
#define STAGESPAN_INTERCEPTS_CALLS (PY_VERSION_HEX < 0x030b0000 || PY_VERSION_HEX >= 0x030c0000)

namespace stagespan::python {

/// `call_timed(span, function, *args, **kwargs)`, `timed_by(function)`, and except on 3.11
/// `time_function(function, spans, inner)`, for the module's method table.
extern PyMethodDef g_timed_function_functions[];

bool init_timed_functions(PyObject* module);

}  // namespace stagespan::python
