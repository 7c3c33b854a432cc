// module.h: what the module consists of, besides what has a header of its own.
#pragma once

#include <Python.h>

namespace pybind11 {
class module_;  // which the objects of the hot path are compiled without
}

namespace stagespan::python {

/// Attaches a device from Python, and returns facts about it.
void define_device(pybind11::module_& module);

/// Spans from columns, as messages of OTLP and as JSON.
void define_span_encoders(pybind11::module_& module);

/// Ends torch's profiler, and writes its trace, without the interpreter's lock.
void define_torch_profile(pybind11::module_& module);

/// Passes over the events of a trace that numpy cannot do.
void define_trace_passes(pybind11::module_& module);

/// Converts traces of profilers to columns.
void define_trace_scanner(pybind11::module_& module);

/// `call_in_child`: calls a function in a child process that is forked for this call.
extern PyMethodDef g_child_call_functions[];

/// A thread that takes the Python frames of all threads at regular intervals.
extern PyMethodDef g_sampler_functions[];

/// A thread that waits for what other programs ask of this process.
extern PyMethodDef g_listener_functions[];

/// Has a span that opens after a command start that thread.
void listen_in_spans() noexcept;

/// Has the recorder ask Python for the name of each thread that opens its first span.
void watch_thread_names() noexcept;

}  // namespace stagespan::python
