// trace_scanner.h: converts traces of profilers to columns.
#pragma once

#include <pybind11/pybind11.h>

namespace stagespan::python {

void define_trace_scanner(pybind11::module_& module);

}  // namespace stagespan::python
