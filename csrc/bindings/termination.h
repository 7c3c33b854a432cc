// termination.h: marking the recording and writing reports when a signal stops the process.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// Called when this process has created a recording that others can read after its end: SIGTERM, SIGHUP and SIGINT mark
/// it if they stop the process.
void watch_stops_of_recording() noexcept;

/// `watch_termination(write)`, `watch_stops(number)` and others, for the module's method table.
extern PyMethodDef g_termination_functions[];

}  // namespace stagespan::python
