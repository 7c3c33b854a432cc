// current_request.h: which request is current, and what functions take along to other threads.
#pragma once

#include <Python.h>

#include <cstdint>

#include "object.h"

namespace stagespan::python {

/// Makes a request (its number and object) current in this execution context. Returns what `leave_request` takes; empty
/// with an exception set if there is no memory.
Ref enter_request(std::uint64_t number, PyObject* request) noexcept;

/// Undoes `enter_request`, once, from any context and thread: what was current before is current again in
/// the context in which it was called, unless something else has been entered there since, and in the calling code.
void leave_request(PyObject* entered, PyObject* request) noexcept;

/// For the module's method table: passing span and request to other threads.
extern PyMethodDef g_current_request_functions[];

/// False with an exception set if that fails.
bool init_current_request();

}  // namespace stagespan::python
