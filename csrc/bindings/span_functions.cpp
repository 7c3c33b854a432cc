// span_functions.cpp: the built-in functions that make contexts.
#include "object.h"
#include "span_object.h"
#include "stage_names.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {

constexpr int kMostSpare = 64;
SpanObject* g_spare[kMostSpare];  // guarded by the interpreter's lock, like all Python objects
int g_spare_count = 0;

PyObject* make(PyObject* name, Kind kind, bool reset_peak_memory, bool capture_memory, bool compile_safe) {
  SpanObject* self = nullptr;
  if (g_spare_count != 0) [[likely]] {
    self = g_spare[--g_spare_count];
    PyObject_Init(reinterpret_cast<PyObject*>(self), &g_span_type);
  } else {
    self = PyObject_New(SpanObject, &g_span_type);
    if (self == nullptr) return nullptr;
    self->vectorcall = call_span;
  }
  self->stage = stage_of(name);
  self->name = Py_NewRef(shown_name(self->stage, name));
  self->mask = kind == Kind::kDebug ? kModeEnabled | kModeDebug : kModeEnabled;
  self->open = self->missed = 0;
  self->kind = kind;
  self->reset_peak_memory = reset_peak_memory;
  self->capture_memory = capture_memory;
  self->compile_safe = compile_safe;
  return reinterpret_cast<PyObject*>(self);
}

PyObject* span_from(PyObject*, PyObject* args) {
  PyObject* name = nullptr;
  int kind = 0, reset_peak_memory = 0, capture_memory = 0, compile_safe = 0;
  if (PyArg_ParseTuple(args, "Oiiii", &name, &kind, &reset_peak_memory, &capture_memory, &compile_safe) == 0)
    return nullptr;
  if (kind < 0 || kind > 2) {
    PyErr_Format(PyExc_ValueError, "no kind of context has the number %d", kind);
    return nullptr;
  }
  return make(name, static_cast<Kind>(kind), reset_peak_memory != 0, capture_memory != 0, compile_safe != 0);
}

PyObject* span_new(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  if (count == 1 && kwnames == nullptr) [[likely]]
    return make(args[0], Kind::kSpan, false, false, false);
  static const char* const names[] = {"name", "compile_safe", nullptr};
  const Ref positional = positional_tuple(args, static_cast<std::size_t>(count));
  const Ref named = keyword_dict(args, static_cast<std::size_t>(count), kwnames);
  if (!positional || !named) return nullptr;
  PyObject* name = nullptr;
  int compile_safe = 0;
  if (PyArg_ParseTupleAndKeywords(positional.get(), named.get(), "O|$p:span", const_cast<char**>(names), &name,
                                  &compile_safe) == 0)
    return nullptr;
  return make(name, Kind::kSpan, false, false, compile_safe != 0);
}

// The contexts share one list of arguments; a debug context has no use for the last one.
template <Kind kind>
PyObject* context_new(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  constexpr bool is_debug = kind == Kind::kDebug;
  if (count == 1 && kwnames == nullptr) [[likely]]
    return make(args[0], kind, true, false, is_debug);
  static const char* const names[] = {"name", "reset_peak_memory", "capture_memory", "compile_safe", nullptr};
  static const char* const debug_names[] = {"name", "reset_peak_memory", "capture_memory", nullptr};
  const Ref positional = positional_tuple(args, static_cast<std::size_t>(count));
  const Ref named = keyword_dict(args, static_cast<std::size_t>(count), kwnames);
  if (!positional || !named) return nullptr;
  PyObject* name = nullptr;
  int reset_peak_memory = 1, capture_memory = 0, compile_safe = is_debug ? 1 : 0;
  if (PyArg_ParseTupleAndKeywords(positional.get(), named.get(),
                                  is_debug ? "O|p$p:ProfilingContext4Debug" : "O|p$pp:ProfilingContext",
                                  const_cast<char**>(is_debug ? debug_names : names), &name, &reset_peak_memory,
                                  &capture_memory, &compile_safe) == 0)
    return nullptr;
  return make(name, kind, reset_peak_memory != 0, capture_memory != 0, compile_safe != 0);
}

}  // namespace

void give_back(SpanObject* span) noexcept {
  if (g_spare_count < kMostSpare)
    g_spare[g_spare_count++] = span;
  else
    PyObject_Free(span);
}

PyMethodDef g_span_functions[] = {
    {"span", as_method(span_new), METH_FASTCALL | METH_KEYWORDS,
     "span(name, *, compile_safe=False)\n--\n\n"
     "A timed context: `with span(\"decode\"):`, `async with`, or a decorator."},
    {"ProfilingContext", as_method(context_new<Kind::kProfiling>), METH_FASTCALL | METH_KEYWORDS,
     "ProfilingContext(name, reset_peak_memory=True, *, capture_memory=False, compile_safe=False)\n--\n\n"
     "Like span, and logs the time and the peak memory of each run; under torch.profiler when it is named."},
    {"ProfilingContext4Debug", as_method(context_new<Kind::kDebug>), METH_FASTCALL | METH_KEYWORDS,
     "ProfilingContext4Debug(name, reset_peak_memory=True, *, capture_memory=False)\n--\n\n"
     "Like ProfilingContext, in debug mode only, synchronised at both ends, with input and output signatures."},
    {"_span_from", span_from, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
