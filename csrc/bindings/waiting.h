// waiting.h: calls that run without the interpreter's lock.
#pragma once

#include <Python.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "stagespan/clock.h"
#include "stagespan/reader.h"

namespace stagespan::python {

using DeviceCopies = std::unordered_map<std::uint64_t, DeviceFields>;

/// Spans of another recording as a structured array like that of `spans()`. Null with an exception set if that fails.
PyObject* span_rows(const std::vector<SpanCopy>& copies, const DeviceCopies& devices, const ClockFit& fit);

/// `spans()`, `wait_for_work(timeout_s)` and `resolve_device(timeout_s)`, for the module's method table.
extern PyMethodDef g_waiting_functions[];

/// Creates the type SpanCursor. False with an exception set if that fails.
bool init_waiting(PyObject* module);

}  // namespace stagespan::python
