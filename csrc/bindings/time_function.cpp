// time_function.cpp: intercepts the calls of a plain function; Python 3.11 runs them in a way that cannot be
// intercepted.
#include "timed_function.h"

#if STAGESPAN_INTERCEPTS_CALLS

#include <memory>
#include <unordered_map>
#include <vector>

#include "object.h"
#include "span_object.h"
#include "timed_iterator.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {

// A function's `vectorcall` field is the entry for all of its calls. Here it is another one. The data that the entry
// needs is looked up by the function's address. Nothing is stored in the function, so torch.compile and other tools see
// it unchanged. Python 3.11 does not read the field when Python code calls a function.
//
// Python 3.13 and later do not read it either where `Class(...)` calls the function as `__init__`, nor 3.14 where it is
// the getter of a property. A function that can become one has code that times it, as on 3.11 (decorators.py), and its
// calls are intercepted all the same, because that is faster.

constexpr int kKinds = CO_COROUTINE | CO_GENERATOR | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR;

PyFunctionObject& as_function(PyObject* function) { return *reinterpret_cast<PyFunctionObject*>(function); }

#if PY_VERSION_HEX >= 0x030c0000

// The interpreter has fast paths to a function by its version, which it has from its code as long as nothing in it is
// replaced. In 3.13, functions that are not created by `def` have no version, and in 3.12 one that no other function
// has. Another entry removes the version, in 3.13 permanently. Each call then costs up to a quarter more, timed or not.
struct Version {
  std::uint32_t number;  // of the function while it has this code and these defaults
  std::uint32_t code;
  PyObject* defaults;
  PyObject* named_defaults;
};

std::uint32_t version_of_code(const PyFunctionObject& function) {
  return reinterpret_cast<const PyCodeObject*>(function.func_code)->co_version;
}

Version version_of(const PyFunctionObject& function) {
  return {function.func_version, version_of_code(function), function.func_defaults, function.func_kwdefaults};
}

// To be called while the function's entry is its own.
void set_version(PyFunctionObject& function, const Version& version) {
  constexpr std::uint32_t kFirstValid = 2;
  if (version.number >= kFirstValid && version.code == version_of_code(function) &&
      version.defaults == function.func_defaults && version.named_defaults == function.func_kwdefaults)
    function.func_version = version.number;
}

void set_entry(PyFunctionObject& function, vectorcallfunc entry) { PyFunction_SetVectorcall(&function, entry); }

#else

struct Version {};  // functions have none
Version version_of(const PyFunctionObject&) { return {}; }
void set_version(PyFunctionObject&, const Version&) {}

void set_entry(PyFunctionObject& function, vectorcallfunc entry) { function.vectorcall = entry; }

#endif

struct Interception {
  std::vector<SpanObject*> spans;  // innermost first
  PyObject* inner = nullptr;       // if its code times it: the cell in its closure with the function that is timed
  vectorcallfunc plain;
  PyObject* watch;  // weak reference that removes this entry when the function is freed
  Version version;
};

using Table = std::unordered_map<PyObject*, std::unique_ptr<Interception>>;

Table& table() {
  static Table* const made = new Table;
  return *made;
}

vectorcallfunc g_plain = nullptr;  // the entry of unchanged functions

// The data of a call at one address, because the clock does not start before all lookups are done.
struct Recent {
  PyObject* function = nullptr;
  Interception* interception = nullptr;
  SpanObject* only = nullptr;  // the one span of a function that does not suspend, as long as it has this code
  PyObject* code = nullptr;    // borrowed
  PyObject* inner = nullptr;   // as in the interception
  vectorcallfunc plain = nullptr;
};
constexpr std::size_t kRecent = 512;
Recent g_recent[kRecent];

Recent& recent(PyObject* function) { return g_recent[(reinterpret_cast<std::uintptr_t>(function) >> 4) % kRecent]; }

PyObject* as_object(SpanObject* span) { return reinterpret_cast<PyObject*>(span); }

/// The spans of one call. They may be replaced and freed while the call runs Python code.
class HeldSpans {
 public:
  explicit HeldSpans(const std::vector<SpanObject*>& spans) : spans_(spans) {
    for (SpanObject* const span : spans_) Py_INCREF(as_object(span));
  }
  ~HeldSpans() {
    for (SpanObject* const span : spans_) Py_XDECREF(as_object(span));
  }
  HeldSpans(const HeldSpans&) = delete;
  HeldSpans& operator=(const HeldSpans&) = delete;

  const std::vector<SpanObject*>& operator*() const { return spans_; }

 private:
  std::vector<SpanObject*> spans_;
};

PyObject* call_level(const std::vector<SpanObject*>& spans, std::size_t level, vectorcallfunc plain, PyObject* function,
                     PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  if (level == 0) return plain(function, args, nargsf, kwnames);
  return call_timed(*spans[level - 1], function, args, nargsf, kwnames,
                    [&] { return call_level(spans, level - 1, plain, function, args, nargsf, kwnames); });
}

PyObject* wrap(SpanObject* span, int kind, PyObject* inner, PyObject* function, PyObject* args, PyObject* kwargs) {
  if ((kind & CO_ASYNC_GENERATOR) != 0) return wrap_async_generator(span, inner, function, args, kwargs);
  // types.coroutine creates awaitable generators. Only the wrapper for coroutines is awaitable.
  if (kind == CO_GENERATOR) return wrap_generator(span, inner, function, args, kwargs);
  return wrap_coroutine(span, inner, function, args, kwargs);
}

int kind_of(PyObject* function) {
  return reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))->co_flags & kKinds;
}

void remember(Recent& slot, PyObject* function, Interception& interception) {
  const bool is_simple = interception.spans.size() == 1 && kind_of(function) == 0;
  slot = {
      function,           &interception,     is_simple ? interception.spans[0] : nullptr, PyFunction_GET_CODE(function),
      interception.inner, interception.plain};
}

/// Times the function in a cell. What its own code does with defaults and keywords is left to that code. Both functions
/// have positional parameters only.
PyObject* call_inner(SpanObject& span, PyObject* cell, vectorcallfunc plain, PyObject* function, PyObject* const* args,
                     std::size_t nargsf, PyObject* kwnames) {
  const Ref inner(Py_XNewRef(PyCell_GET(cell)));
  const int parameters = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))->co_argcount;
  if (kwnames != nullptr || PyVectorcall_NARGS(nargsf) != parameters || !inner)
    return plain(function, args, nargsf, kwnames);
  return call_timed(span, inner.get(), args, nargsf, kwnames,
                    [&] { return PyObject_Vectorcall(inner.get(), args, nargsf, kwnames); });
}

PyObject* intercepted(PyObject* function, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  Recent& slot = recent(function);
  if (slot.function != function) [[unlikely]] {
    const auto entry = table().find(function);
    // A finalizer may resurrect or call a function after the garbage collector has cleared its weak references.
    if (entry == table().end()) return g_plain(function, args, nargsf, kwnames);
    remember(slot, function, *entry->second);
  }
  const vectorcallfunc plain = slot.plain;
  if (slot.only != nullptr && slot.code == PyFunction_GET_CODE(function)) [[likely]] {
    SpanObject* const span = slot.only;
    const Ref held(Py_NewRef(as_object(span)));
    if (slot.inner != nullptr) return call_inner(*span, slot.inner, plain, function, args, nargsf, kwnames);
    return call_timed(*span, function, args, nargsf, kwnames, [&] { return plain(function, args, nargsf, kwnames); });
  }
  const Interception* const interception = slot.interception;
  if (interception->inner != nullptr) return plain(function, args, nargsf, kwnames);  // it has other code now
  const int kind = kind_of(function);
  if (kind == 0) {
    const HeldSpans spans(interception->spans);
    return call_level(*spans, (*spans).size(), plain, function, args, nargsf, kwnames);
  }
  const HeldSpans spans(interception->spans);
  Ref positional, named;
  for (const SpanObject* span : *spans) {
    if ((span->kind == Kind::kSpan && !describes_calls()) || positional) continue;
    positional = positional_tuple(args, nargsf);
    named = keyword_dict(args, nargsf, kwnames);
    if (!positional || !named) return nullptr;
  }
  PyObject* result = plain(function, args, nargsf, kwnames);
  for (SpanObject* span : *spans) {
    if (result == nullptr) return nullptr;
    if (mode_has(span->mask)) result = wrap(span, kind, result, function, positional.get(), named.get());
  }
  return result;
}

void give_up(std::vector<SpanObject*> spans) {
  for (SpanObject* const span : spans) Py_XDECREF(as_object(span));
}

// Called with the weak reference when the function is gone; `self` is its address as a number.
PyObject* forget(PyObject* self, PyObject*) {
  auto* const function = static_cast<PyObject*>(PyLong_AsVoidPtr(self));
  Recent& slot = recent(function);
  if (slot.function == function) slot = {};
  // Removed from the table first, because dropping references may run code that returns here.
  const auto entry = table().extract(function);
  if (!entry.empty()) {
    Py_XDECREF(entry.mapped()->watch);
    give_up(std::move(entry.mapped()->spans));
  }
  Py_RETURN_NONE;
}

PyMethodDef g_forget = {"forget", forget, METH_O, nullptr};

}  // namespace

PyObject* time_function(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count < 2 || count > 3 || !PyFunction_Check(args[0]) || !PyTuple_Check(args[1]))
    return PyErr_Format(PyExc_TypeError, "expected (function, spans, inner)");
  // A cell of the closure lives as long as the function.
  PyObject* const closure = PyFunction_GET_CLOSURE(args[0]);
  PyObject* inner = nullptr;
  for (Py_ssize_t i = 0; count == 3 && closure != nullptr && i < PyTuple_GET_SIZE(closure); ++i)
    if (PyTuple_GET_ITEM(closure, i) == args[2]) inner = args[2];
  if (count == 3 && inner == nullptr) return PyErr_Format(PyExc_TypeError, "%R is not a cell of the function", args[2]);
  PyObject* const function = args[0];
  const Py_ssize_t wanted = PyTuple_GET_SIZE(args[1]);
  for (Py_ssize_t i = 0; i < wanted; ++i) {
    if (is_span(PyTuple_GET_ITEM(args[1], i))) continue;
    return PyErr_Format(PyExc_TypeError, "%R is not a span", PyTuple_GET_ITEM(args[1], i));
  }
  auto entry = table().find(function);
  if (entry == table().end()) {
    if (wanted == 0) Py_RETURN_NONE;
    const Ref address(PyLong_FromVoidPtr(function));
    const Ref callback(address ? PyCFunction_New(&g_forget, address.get()) : nullptr);
    PyObject* const watch = callback ? PyWeakref_NewRef(function, callback.get()) : nullptr;
    if (watch == nullptr) return nullptr;
    auto made = std::make_unique<Interception>();
    const vectorcallfunc vectorcall = as_function(function).vectorcall;
    made->version = version_of(as_function(function));
    if (g_plain == nullptr) g_plain = vectorcall;
    made->plain = vectorcall == intercepted ? g_plain : vectorcall;
    made->watch = watch;
    entry = table().emplace(function, std::move(made)).first;
  }
  Interception& interception = *entry->second;
  std::vector<SpanObject*> spans;
  for (Py_ssize_t i = 0; i < wanted; ++i)
    spans.push_back(reinterpret_cast<SpanObject*>(Py_NewRef(PyTuple_GET_ITEM(args[1], i))));
  interception.spans.swap(spans);
  interception.inner = inner;
  remember(recent(function), function, interception);
  set_entry(as_function(function), wanted != 0 ? intercepted : interception.plain);
  if (wanted == 0) set_version(as_function(function), interception.version);
  give_up(std::move(spans));
  Py_RETURN_NONE;
}

#if PY_VERSION_HEX >= 0x030c0000

PyObject* share_version(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyFunction_Check(args[0]) || !PyFunction_Check(args[1]))
    return PyErr_Format(PyExc_TypeError, "expected (function, original)");
  const auto found = table().find(args[1]);
  set_version(as_function(args[0]), found != table().end() ? found->second->version : version_of(as_function(args[1])));
  Py_RETURN_NONE;
}

#endif

}  // namespace stagespan::python

#endif
