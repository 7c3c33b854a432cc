// reading.h: converts statistics, spans and facts to Python objects.
#pragma once

#include <pybind11/pybind11.h>

namespace stagespan::python {

void define_statistics(pybind11::module_& module);
void define_reading(pybind11::module_& module);
void define_recording(pybind11::module_& module);

}  // namespace stagespan::python
