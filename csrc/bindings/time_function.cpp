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

void release(Interception& interception) {
  for (SpanObject* span : interception.spans) Py_DECREF(reinterpret_cast<PyObject*>(span));
  interception.spans.clear();
}

PyObject* call_level(const Interception& interception, std::size_t level, PyObject* function, PyObject* const* args,
                     std::size_t nargsf, PyObject* kwnames) {
  if (level == 0) return interception.plain(function, args, nargsf, kwnames);
  return call_timed(*interception.spans[level - 1], function, args, nargsf, kwnames,
                    [&] { return call_level(interception, level - 1, function, args, nargsf, kwnames); });
}

PyObject* wrap(SpanObject* span, int kind, PyObject* inner, PyObject* function, PyObject* args, PyObject* kwargs) {
  if ((kind & CO_ASYNC_GENERATOR) != 0) return wrap_async_generator(span, inner, function, args, kwargs);
  // types.coroutine makes generators that can be awaited, as only a coroutine's wrapper can.
  if (kind == CO_GENERATOR) return wrap_generator(span, inner, function, args, kwargs);
  return wrap_coroutine(span, inner, function, args, kwargs);
}

PyObject* intercepted(PyObject* function, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  const Interception* const interception = find(function);
  if (interception == nullptr) [[unlikely]] {
    PyErr_SetString(PyExc_SystemError, "stagespan lost track of a function that it times");
    return nullptr;
  }
  const int kind = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))->co_flags &
                   (CO_COROUTINE | CO_GENERATOR | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR);
  if (kind == 0) [[likely]] {
    if (interception->spans.size() == 1) [[likely]] {
      const vectorcallfunc plain = interception->plain;
      return call_timed(*interception->spans[0], function, args, nargsf, kwnames,
                        [&] { return plain(function, args, nargsf, kwnames); });
    }
    return call_level(*interception, interception->spans.size(), function, args, nargsf, kwnames);
  }
  // The list may change while Python code runs.
  const std::vector<SpanObject*> spans = interception->spans;
  Ref positional, named;
  for (const SpanObject* span : spans) {
    if (span->kind == Kind::kSpan || positional) continue;
    positional = positional_tuple(args, nargsf);
    named = keyword_dict(args, nargsf, kwnames);
    if (!positional || !named) return nullptr;
  }
  PyObject* result = interception->plain(function, args, nargsf, kwnames);
  for (SpanObject* span : spans) {
    if (result == nullptr) return nullptr;
    if (mode_has(span->mask)) result = wrap(span, kind, result, function, positional.get(), named.get());
  }
  return result;
}

// Called with the weak reference when the function is gone; `self` is its address as a number.
PyObject* forget(PyObject* self, PyObject*) {
  auto* const function = static_cast<PyObject*>(PyLong_AsVoidPtr(self));
  Recent& slot = recent(function);
  if (slot.function == function) slot = {};
  const auto found = table().find(function);
  if (found != table().end()) {
    release(*found->second);
    Py_XDECREF(found->second->watch);
    table().erase(found);
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
    made->plain = reinterpret_cast<PyFunctionObject*>(function)->vectorcall;
    made->watch = watch;
    found = table().emplace(function, std::move(made)).first;
  }
  Interception& interception = *found->second;
  std::vector<SpanObject*> spans;
  for (Py_ssize_t i = 0; i < wanted; ++i)
    spans.push_back(reinterpret_cast<SpanObject*>(Py_NewRef(PyTuple_GET_ITEM(args[1], i))));
  release(interception);
  interception.spans = std::move(spans);
  PyFunction_SetVectorcall(reinterpret_cast<PyFunctionObject*>(function),
                           wanted != 0 ? intercepted : interception.plain);
  Py_RETURN_NONE;
}

}  // namespace stagespan::python

#endif
