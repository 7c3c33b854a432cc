// listener.h: a thread that waits for what other programs ask of this process.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// `listener_start(...)`, `command_read()` and others, for the module's method table.
extern PyMethodDef g_listener_functions[];

/// Has a span that opens after a command start the thread.
void listen_in_spans() noexcept;

}  // namespace stagespan::python
