// reading.h: converts statistics, spans and facts to Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "stagespan/reader.h"
#include "stagespan/text.h"

namespace stagespan::python {

/// Takes a new reference. Throws the error that is set if it is null.
inline pybind11::object owned(PyObject* object) {
  if (object == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(object);
}

/// A str from bytes that may be cut inside a character, such as names of threads, which the system cuts after 15 bytes.
inline pybind11::object text_of(std::string_view text) {
  return owned(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

/// The same; None if the text is empty.
inline pybind11::object text_or_none(std::string_view text) {
  return text.empty() ? pybind11::object(pybind11::none()) : text_of(text);
}

template <std::size_t size>
pybind11::object field_text(const char (&field)[size]) {
  return text_of(text_in(field));
}

/// An open span as a dict; `now_ns` is when it was read, if that is known.
pybind11::dict open_span_dict(const OpenCopy& copy, const pybind11::object& stage, std::int64_t begin_ns,
                              std::int64_t active_ns, std::optional<std::int64_t> now_ns);

void define_statistics(pybind11::module_& module);
void define_reading(pybind11::module_& module);
void define_recording(pybind11::module_& module);

}  // namespace stagespan::python
