// carrier_writer.h: writes requests to carriers.
#pragma once

#include <Python.h>

#include <cstdint>

#include "request_object.h"

namespace stagespan::python {

struct InjectArguments {
  PyObject* carrier = Py_None;
  PyObject* queue = Py_None;
  PyObject* branch = Py_None;
  PyObject* attempt = nullptr;
  std::uint32_t attempt_number = 1;
};

/// The arguments of inject(). False with an exception set if they cannot be used.
bool parse_inject(PyObject* const* args, Py_ssize_t count, PyObject* kwnames, InjectArguments& to) noexcept;

/// Writes a hop of a request that is recorded, and counts it. False with an exception set if that fails.
bool write_carrier(RequestObject& self, PyObject* carrier, const InjectArguments& arguments) noexcept;

/// Passes on what this process has received, unchanged. False with an exception set if that fails.
bool forward_carrier(const RequestObject& self, PyObject* carrier) noexcept;

}  // namespace stagespan::python
