// trace_passes.h: passes over the events of a trace that numpy cannot do.
#pragma once

#include <pybind11/pybind11.h>

namespace stagespan::python {

void define_trace_passes(pybind11::module_& module);

}  // namespace stagespan::python
