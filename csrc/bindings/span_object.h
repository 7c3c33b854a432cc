// span_object.h: the object that `span` and the context functions return: a context manager and a decorator.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "stagespan/recorder.h"

namespace stagespan::python {

/// An extended span is a plain span that does more in its runs than others: its stage was annotated when it was
/// created, so that they call the hooks, or it measures CPU time.
enum class Kind : std::uint8_t { kSpan, kProfiling, kDebug, kExtended };

/// Whether it is a context, whose runs have a log line.
inline bool is_context(Kind kind) noexcept { return kind == Kind::kProfiling || kind == Kind::kDebug; }

/// The name of the function that makes spans of a kind.
const char* made_by(Kind kind) noexcept;

/// What `span.__enter__` returns, a part of the span itself. It holds one reference while the span has
/// references. A span that loses its last one while its `__enter__` is still referenced lives until that is freed too.
struct EnterObject {
  PyObject_HEAD vectorcallfunc vectorcall;
};

/// Immutable except for two counters. The data of an open run is in its thread's frame, so one object can be used by
/// many call sites, threads and levels of recursion.
struct SpanObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* name;
  std::uint32_t stage;
  std::uint32_t mask;    // Mode bits that must be on for this kind to record
  std::uint32_t open;    // entered and not yet left, in all threads
  std::uint32_t missed;  // the same, for entries without a free frame
  Kind kind;
  bool reset_peak_memory;
  bool capture_memory;
  bool cpu_time;  // see measures_cpu_time()
  EnterObject enter;
};

extern PyTypeObject g_span_type;

/// Whether its runs measure CPU time. Those of debug contexts always do.
inline bool measures_cpu_time(const SpanObject& span) noexcept { return span.cpu_time || span.kind == Kind::kDebug; }

inline bool is_span(PyObject* object) noexcept { return Py_TYPE(object) == &g_span_type; }

/// Allocates a span whose fields are not set yet, except those that never change; null with an exception set if there
/// is no memory.
SpanObject* allocate_span();

/// A span of kind batch; null with an exception set if there is no memory.
PyObject* batch_span(PyObject* name);
// Whether a ProfilingContext4Debug of the stage has been made, in debug mode or not.
bool has_debug_context(std::uint32_t stage);

/// Decorates `function` with `span`, as `decorate` does.
PyObject* decorate(PyObject* span, PyObject* function);

/// Sets whether spans and contexts that are created from now on measure CPU time without being asked.
void set_cpu_time(bool on) noexcept;

/// The built-in functions that make contexts, for the module's method table.
extern PyMethodDef g_span_functions[];

/// Reuses the memory of one without references.
void give_back(SpanObject* span) noexcept;

/// `decorate(span, function)` is called when a span is called with one argument.
void set_decorator(PyObject* decorate);

bool init_span_type(PyObject* module);
bool init_unnamed_span_type(PyObject* module);

}  // namespace stagespan::python
