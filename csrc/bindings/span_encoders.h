// span_encoders.h: spans from columns, as messages of OTLP and as JSON.
#pragma once

#include <pybind11/pybind11.h>

namespace stagespan::python {

void define_span_encoders(pybind11::module_& module);

}  // namespace stagespan::python
