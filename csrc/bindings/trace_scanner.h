// trace_scanner.h: traces of profilers into columns.
#pragma once

#include <pybind11/pybind11.h>

namespace stagespan::python {

void define_trace_scanner(pybind11::module_& module);

}  // namespace stagespan::python
