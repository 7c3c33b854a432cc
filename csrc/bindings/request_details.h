// request_details.h: fields of requests that the program has named, and exceptions that spans and requests end with.
#pragma once

#include <Python.h>

#include <cstdint>

#include "request_object.h"

namespace stagespan::python {

/// Writes the recorded fields of a request from its metadata to its entry, if it has both.
void write_recorded_fields(const RequestObject& request) noexcept;

/// Records the exception that a span or, if the span is 0, a request has ended with. `error` is an exception or its
/// type, or null for the pending one.
[[gnu::cold, gnu::noinline]] void note_failure(std::uint64_t span, std::uint64_t request, PyObject* error) noexcept;

extern PyMethodDef g_request_detail_functions[];

}  // namespace stagespan::python
