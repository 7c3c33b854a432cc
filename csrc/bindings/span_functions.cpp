// span_functions.cpp: the built-in functions that create contexts.
#include <bitset>
#include <utility>

#include "docstrings.h"
#include "object.h"
#include "span_object.h"
#include "stage_names.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {

constexpr int kMostSpare = 64;
SpanObject* g_spare[kMostSpare];  // guarded by the interpreter's lock, like all Python objects
int g_spare_count = 0;

struct Options {
  Kind kind;
  bool reset_peak_memory;
  bool capture_memory;
  bool cpu_time;
};

bool g_cpu_time = false;  // of all new spans

STAGESPAN_HOT PyObject* make_for_stage(std::uint32_t stage, PyObject* name, const Options& options) {
  SpanObject* self = nullptr;
  if (g_spare_count != 0) [[likely]] {
    self = g_spare[--g_spare_count];
    PyObject_Init(reinterpret_cast<PyObject*>(self), &g_span_type);
  } else {
    self = allocate_span();
    if (self == nullptr) return nullptr;
  }
  self->stage = stage;
  self->name = Py_NewRef(shown_name(stage, name));
  self->mask = options.kind == Kind::kDebug ? kModeEnabled | kModeDebug : kModeEnabled;
  self->open = self->missed = 0;
  self->kind = options.kind;
  self->reset_peak_memory = options.reset_peak_memory;
  self->capture_memory = options.capture_memory;
  self->cpu_time = options.cpu_time;
  return reinterpret_cast<PyObject*>(self);
}

std::bitset<kMaxStages> g_debug_stages;

PyObject* make_maybe_extended(std::uint32_t stage, PyObject* name, Options options) {
  if (options.kind == Kind::kDebug) g_debug_stages.set(stage);
  options.cpu_time = options.cpu_time || g_cpu_time;
  if (options.kind == Kind::kSpan && (options.cpu_time || is_annotated(stage))) options.kind = Kind::kExtended;
  return make_for_stage(stage, name, options);
}

// --- without a name --------------------------------------------------------------------------------------

// Functions and classes can be called; classmethod, property and the like can only be bound.
bool can_be_decorated(PyObject* object) {
  return PyUnicode_Check(object) == 0 && (PyCallable_Check(object) != 0 || Py_TYPE(object)->tp_descr_get != nullptr);
}

// `__qualname__` of a function or class, of the function inside a classmethod, property or partial, or of the type.
Ref qualified_name(PyObject* object) {
  constexpr int kDeepest = 16;
  Ref inner(Py_NewRef(object));
  for (int depth = 0; inner && depth < kDeepest; ++depth) {
    Ref name = attribute(inner.get(), "__qualname__");
    if (name && PyUnicode_Check(name.get()) != 0) return name;
    Ref next;
    for (const char* const where : {"__func__", "fget", "func"})
      if (!next) next = attribute(inner.get(), where);
    inner = std::move(next);
  }
  return Ref(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__qualname__"));
}

PyObject* decorate_under_its_name(PyObject* function, const Options& options) {
  const Ref name = qualified_name(function);
  if (!name) return nullptr;
  const Ref span(make_maybe_extended(stage_of(name.get()), name.get(), options));
  return span ? decorate(span.get(), function) : nullptr;
}

[[gnu::noinline]] PyObject* make_slow(PyObject* name, const Options& options) {
  if (can_be_decorated(name)) [[unlikely]]
    return decorate_under_its_name(name, options);
  return make_maybe_extended(stage_of_slow(name), name, options);
}

STAGESPAN_HOT PyObject* make(PyObject* name, const Options& options) {
  if (options.cpu_time) return make_slow(name, options);
  const CachedName& cached = cached_name(name);
  if (cached.name == name) [[likely]]
    return make_for_stage(cached.stage, name, options);
  return make_slow(name, options);
}

/// The result of `span()`, `ProfilingContext()` and `ProfilingContext4Debug()` without a name.
struct UnnamedObject {
  PyObject_HEAD Options options;
};

PyTypeObject g_unnamed_type = static_type("stagespan.UnnamedSpan", sizeof(UnnamedObject), 0);

const Options& options_of(PyObject* object) { return reinterpret_cast<UnnamedObject*>(object)->options; }

PyObject* make_unnamed(const Options& options) {
  auto* const self = PyObject_New(UnnamedObject, &g_unnamed_type);
  if (self != nullptr) self->options = options;
  return reinterpret_cast<PyObject*>(self);
}

PyObject* unnamed_call(PyObject* object, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) == 1 && (kwargs == nullptr || PyDict_GET_SIZE(kwargs) == 0))
    return decorate_under_its_name(PyTuple_GET_ITEM(args, 0), options_of(object));
  return PyErr_Format(PyExc_TypeError, "%R takes one function to decorate: write `@%R` above a function", object,
                      object);
}

PyObject* unnamed_enter(PyObject* object, PyObject*) {
  const char* const function = made_by(options_of(object).kind);
  return PyErr_Format(PyExc_TypeError, "%s() needs a name to time a block: write `with %s(\"name\"):`", function,
                      function);
}

PyObject* unnamed_repr(PyObject* object) { return PyUnicode_FromFormat("%s()", made_by(options_of(object).kind)); }

PyMethodDef g_unnamed_methods[] = {
    {"__enter__", unnamed_enter, METH_NOARGS, nullptr},
    {"__exit__", unnamed_enter, METH_VARARGS, nullptr},
    {"__aenter__", unnamed_enter, METH_NOARGS, nullptr},
    {"__aexit__", unnamed_enter, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

// --- the functions ---------------------------------------------------------------------------------------

PyObject* make_or_unnamed(PyObject* name, const Options& options) {
  return name != nullptr ? make(name, options) : make_unnamed(options);
}

PyObject* span_from(PyObject*, PyObject* args) {
  PyObject* name = nullptr;
  int kind = 0, reset_peak_memory = 0, capture_memory = 0, cpu_time = 0;
  if (PyArg_ParseTuple(args, "Oiii|i", &name, &kind, &reset_peak_memory, &capture_memory, &cpu_time) == 0)
    return nullptr;
  if (kind < 0 || kind > 2) return PyErr_Format(PyExc_ValueError, "no kind of context has the number %d", kind);
  return make(name, {static_cast<Kind>(kind), reset_peak_memory != 0, capture_memory != 0, cpu_time != 0});
}

PyObject* span_new(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  if (count == 1 && kwnames == nullptr) [[likely]]
    return make(args[0], {Kind::kSpan, false, false, false});
  static const char* const names[] = {"name", "cpu", nullptr};
  const Ref positional = positional_tuple(args, static_cast<std::size_t>(count));
  const Ref named = keyword_dict(args, static_cast<std::size_t>(count), kwnames);
  if (!positional || !named) return nullptr;
  PyObject* name = nullptr;
  int cpu = 0;
  if (PyArg_ParseTupleAndKeywords(positional.get(), named.get(), "|O$p:span", const_cast<char**>(names), &name, &cpu) ==
      0)
    return nullptr;
  return make_or_unnamed(name, {Kind::kSpan, false, false, cpu != 0});
}

PyObject* span_of_kind(PyObject* name, StageKind kind) {
  const bool cpu_time = g_cpu_time && kind == kBatch;
  return make_for_stage(stage_of_kind(name, kind), name,
                        {cpu_time ? Kind::kExtended : Kind::kSpan, false, false, cpu_time});
}

PyObject* queued(PyObject*, PyObject* name) { return span_of_kind(name, kQueue); }

template <Kind kind>
PyObject* context_new(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  if (count == 1 && kwnames == nullptr) [[likely]]
    return make(args[0], {kind, true, false, false});
  static const char* const names[] = {"name", "reset_peak_memory", "capture_memory", nullptr};
  const Ref positional = positional_tuple(args, static_cast<std::size_t>(count));
  const Ref named = keyword_dict(args, static_cast<std::size_t>(count), kwnames);
  if (!positional || !named) return nullptr;
  PyObject* name = nullptr;
  int reset_peak_memory = 1, capture_memory = 0;
  const char* const format = kind == Kind::kDebug ? "|Op$p:ProfilingContext4Debug" : "|Op$p:ProfilingContext";
  if (PyArg_ParseTupleAndKeywords(positional.get(), named.get(), format, const_cast<char**>(names), &name,
                                  &reset_peak_memory, &capture_memory) == 0)
    return nullptr;
  return make_or_unnamed(name, {kind, reset_peak_memory != 0, capture_memory != 0, false});
}

}  // namespace

const char* made_by(Kind kind) noexcept {
  if (kind == Kind::kDebug) return "ProfilingContext4Debug";
  return kind == Kind::kProfiling ? "ProfilingContext" : "span";
}

bool is_extended(std::uint32_t stage) noexcept { return g_cpu_time || is_annotated(stage); }

void set_cpu_time(bool on) noexcept {
  g_cpu_time = on;
  forget_cached_names();
}

bool has_debug_context(std::uint32_t stage) { return stage < kMaxStages && g_debug_stages.test(stage); }

PyObject* batch_span(PyObject* name) { return span_of_kind(name, kBatch); }

void give_back(SpanObject* span) noexcept {
  if (g_spare_count < kMostSpare)
    g_spare[g_spare_count++] = span;
  else
    PyObject_Free(span);
}

bool init_unnamed_span_type(PyObject* module) {
  g_unnamed_type.tp_doc = docs::kUnnamedSpanType;
  g_unnamed_type.tp_call = unnamed_call;
  g_unnamed_type.tp_repr = unnamed_repr;
  g_unnamed_type.tp_methods = g_unnamed_methods;
  return PyModule_AddType(module, &g_unnamed_type) == 0;
}

PyMethodDef g_span_functions[] = {
    {"span", as_method(span_new), METH_FASTCALL | METH_KEYWORDS, docs::kSpan},
    {"ProfilingContext", as_method(context_new<Kind::kProfiling>), METH_FASTCALL | METH_KEYWORDS,
     docs::kProfilingContext},
    {"ProfilingContext4Debug", as_method(context_new<Kind::kDebug>), METH_FASTCALL | METH_KEYWORDS,
     docs::kProfilingContext4Debug},
    {"queued", queued, METH_O, docs::kQueued},
    {"_span_from", span_from, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
