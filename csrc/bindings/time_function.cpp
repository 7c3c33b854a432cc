// time_function.cpp: intercepting the calls of a plain function, on 3.12 and later.
#include <Python.h>

#if PY_VERSION_HEX >= 0x030c0000

#include <memory>
#include <unordered_map>
#include <vector>

#include "object.h"
#include "span_object.h"
#include "timed_iterator.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {

// PyFunction_SetVectorcall gives a function another entry for calls. What the entry needs is looked up by the
// function's address: nothing is stored in the function, so torch.compile and others see it as it was written.

struct Interception {
  std::vector<SpanObject*> spans;  // innermost first
  vectorcallfunc plain;
  PyObject* watch;  // weak reference that takes this entry away with the function
};

using Table = std::unordered_map<PyObject*, std::unique_ptr<Interception>>;

Table& table() {
  static Table* const made = new Table;
  return *made;
}

vectorcallfunc g_plain = nullptr;  // the entry of functions that nobody has changed

struct Recent {
  PyObject* function;
  Interception* interception;
};
constexpr std::size_t kRecent = 512;
Recent g_recent[kRecent];

Recent& recent(PyObject* function) { return g_recent[(reinterpret_cast<std::uintptr_t>(function) >> 4) % kRecent]; }

Interception* find(PyObject* function) {
  Recent& slot = recent(function);
  if (slot.function == function) [[likely]]
    return slot.interception;
  const auto found = table().find(function);
  if (found == table().end()) return nullptr;
  slot = {function, found->second.get()};
  return slot.interception;
}

PyObject* as_object(SpanObject* span) { return reinterpret_cast<PyObject*>(span); }

/// The spans of one call. Others may be set while the call runs Python code, and these given up.
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
  // types.coroutine makes generators that can be awaited, as only a coroutine's wrapper can.
  if (kind == CO_GENERATOR) return wrap_generator(span, inner, function, args, kwargs);
  return wrap_coroutine(span, inner, function, args, kwargs);
}

PyObject* intercepted(PyObject* function, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  const Interception* const interception = find(function);
  // A finalizer may bring a function back, or call it, after the collector has announced its end.
  if (interception == nullptr) [[unlikely]]
    return g_plain(function, args, nargsf, kwnames);
  const vectorcallfunc plain = interception->plain;
  const int kind = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))->co_flags &
                   (CO_COROUTINE | CO_GENERATOR | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR);
  if (kind == 0) [[likely]] {
    if (interception->spans.size() == 1) [[likely]] {
      SpanObject* const span = interception->spans[0];
      const Ref held(Py_NewRef(as_object(span)));
      return call_timed(*span, function, args, nargsf, kwnames, [&] { return plain(function, args, nargsf, kwnames); });
    }
    const HeldSpans spans(interception->spans);
    return call_level(*spans, (*spans).size(), plain, function, args, nargsf, kwnames);
  }
  const HeldSpans spans(interception->spans);
  Ref positional, named;
  for (const SpanObject* span : *spans) {
    if (span->kind == Kind::kSpan || positional) continue;
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
  // Out of the table first: giving up references may run code that comes back here.
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
  if (count != 2 || !PyFunction_Check(args[0]) || !PyTuple_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "expected (function, spans)");
    return nullptr;
  }
  PyObject* const function = args[0];
  const Py_ssize_t wanted = PyTuple_GET_SIZE(args[1]);
  for (Py_ssize_t i = 0; i < wanted; ++i) {
    if (is_span(PyTuple_GET_ITEM(args[1], i))) continue;
    PyErr_Format(PyExc_TypeError, "%R is no span", PyTuple_GET_ITEM(args[1], i));
    return nullptr;
  }
  auto found = table().find(function);
  if (found == table().end()) {
    if (wanted == 0) Py_RETURN_NONE;
    const Ref address(PyLong_FromVoidPtr(function));
    const Ref callback(address ? PyCFunction_New(&g_forget, address.get()) : nullptr);
    PyObject* const watch = callback ? PyWeakref_NewRef(function, callback.get()) : nullptr;
    if (watch == nullptr) return nullptr;
    auto made = std::make_unique<Interception>();
    const vectorcallfunc entry = reinterpret_cast<PyFunctionObject*>(function)->vectorcall;
    if (g_plain == nullptr) g_plain = entry;
    made->plain = entry == intercepted ? g_plain : entry;
    made->watch = watch;
    found = table().emplace(function, std::move(made)).first;
  }
  Interception& interception = *found->second;
  std::vector<SpanObject*> spans;
  for (Py_ssize_t i = 0; i < wanted; ++i)
    spans.push_back(reinterpret_cast<SpanObject*>(Py_NewRef(PyTuple_GET_ITEM(args[1], i))));
  interception.spans.swap(spans);
  PyFunction_SetVectorcall(reinterpret_cast<PyFunctionObject*>(function),
                           wanted != 0 ? intercepted : interception.plain);
  give_up(std::move(spans));
  Py_RETURN_NONE;
}

}  // namespace stagespan::python

#endif
