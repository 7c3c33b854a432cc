// token_object.h: `begin(name)` and `end(token)`, spans across scopes and threads.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// `begin`, `end` and `record`, for the module's method table.
extern PyMethodDef g_token_functions[];

bool init_token_type(PyObject* module);

}  // namespace stagespan::python
