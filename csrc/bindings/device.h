// device.h: attaches a device from Python, and returns facts about it.
#pragma once

#include <pybind11/pybind11.h>

namespace stagespan::python {

void define_device(pybind11::module_& module);

}  // namespace stagespan::python
