// sampler.h: a thread that takes the Python frames of all threads at regular intervals.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// `sampler_start(...)`, `sampler_stop()` and others, for the module's method table.
extern PyMethodDef g_sampler_functions[];

}  // namespace stagespan::python
