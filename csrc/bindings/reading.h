// reading.h: converts statistics, spans and facts to Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

namespace stagespan::python {

/// A str from bytes that may be cut inside a character, such as names of threads, which the system cuts after 15 bytes.
inline pybind11::object text_of(std::string_view text) {
  PyObject* const made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (made == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(made);
}

void define_statistics(pybind11::module_& module);
void define_reading(pybind11::module_& module);
void define_recording(pybind11::module_& module);

}  // namespace stagespan::python
