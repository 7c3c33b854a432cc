// torch_profile.h: ends torch's profiler, and writes its trace, without the interpreter's lock.
#pragma once

#include <pybind11/pybind11.h>

namespace stagespan::python {

void define_torch_profile(pybind11::module_& module);

}  // namespace stagespan::python
