// device.h: attaching a device from Python, and what is known of it.
#pragma once

#include <pybind11/pybind11.h>

namespace stagespan::python {

void define_device(pybind11::module_& module);

}  // namespace stagespan::python
