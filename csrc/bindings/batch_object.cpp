// batch_object.cpp: one execution that serves several requests.
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "docstrings.h"
#include "execution_context.h"
#include "object.h"
#include "ready_object.h"
#include "request_object.h"
#include "span_object.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {

struct BatchObject {
  PyObject_HEAD PyObject* span;
  PyObject* requests;  // a tuple
};

BatchObject* self_of(PyObject* object) { return reinterpret_cast<BatchObject*>(object); }

bool are_requests(PyObject* tuple) noexcept {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    PyObject* const member = PyTuple_GET_ITEM(tuple, i);
    if (is_request(member)) continue;
    PyErr_Format(PyExc_TypeError,
                 "batch() takes requests, such as current_request() and what extract() returned, not %s",
                 Py_TYPE(member)->tp_name);
    return false;
  }
  return true;
}

/// Counts the requests of the span that has just been opened, links it to them, and ends their waits.
void link(std::uint32_t stage, PyObject* requests) noexcept {
  const Py_ssize_t count = PyTuple_GET_SIZE(requests);
  if (!mode_has(kModeEnabled)) return;
  const auto request_at = [requests](Py_ssize_t i) {
    return reinterpret_cast<RequestObject*>(PyTuple_GET_ITEM(requests, i));
  };
  for (Py_ssize_t i = 0; i < count; ++i) start_request(*request_at(i));
  ThreadState& thread = current_thread();
  const std::uint64_t span = innermost(thread, *thread.scope).id;
  publish(thread);  // a scope without open spans is removed again
  const auto batch_size = static_cast<std::uint32_t>(count);
  std::uint64_t numbers[128];
  const auto at_once = static_cast<Py_ssize_t>(std::size(numbers));
  const auto take_from = [&](Py_ssize_t first) {
    const Py_ssize_t size = std::min(at_once, count - first);
    for (Py_ssize_t i = 0; i < size; ++i) numbers[i] = request_at(first + i)->number;
    return static_cast<std::uint32_t>(size);
  };
  Recorder::get().count_batch(stage, batch_size, span, numbers, span == 0 ? 0 : take_from(0));
  for (Py_ssize_t first = at_once; span != 0 && first < count; first += at_once)
    Recorder::get().add_links(span, numbers, take_from(first), batch_size);
}

PyObject* batch_enter(PyObject* object, PyObject*) {
  auto* const span = reinterpret_cast<SpanObject*>(self_of(object)->span);
  Ref entered(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&span->enter)));
  if (entered) link(span->stage, self_of(object)->requests);
  return entered.release();
}

PyObject* batch_exit(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "__exit__ takes 3 arguments, not %zd", count);
  return PyObject_Vectorcall(self_of(object)->span, args, 3, nullptr);
}

PyObject* batch_aenter(PyObject* object, PyObject*) { return ready(batch_enter(object, nullptr)); }

PyObject* batch_aexit(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  return ready(batch_exit(object, args, count));
}

/// batch(name, requests)
PyObject* make(PyTypeObject* type, PyObject* name, PyObject* requests) noexcept {
  Ref tuple(PySequence_Tuple(requests));
  if (!tuple || !are_requests(tuple.get())) return nullptr;
  Ref span(batch_span(name));
  if (!span) return nullptr;
  PyObject* const object = type->tp_alloc(type, 0);
  if (object == nullptr) return nullptr;
  self_of(object)->span = span.release();
  self_of(object)->requests = tuple.release();
  return object;
}

PyObject* batch_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"name", "requests", nullptr};
  PyObject *name = nullptr, *requests = nullptr;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "OO:batch", const_cast<char**>(names), &name, &requests) == 0)
    return nullptr;
  return make(type, name, requests);
}

PyObject* batch_vectorcall(PyObject* type, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count == 2 && kwnames == nullptr) [[likely]]
    return make(reinterpret_cast<PyTypeObject*>(type), args[0], args[1]);
  const Ref positional = positional_tuple(args, static_cast<std::size_t>(count));
  const Ref named = keyword_dict(args, static_cast<std::size_t>(count), kwnames);
  if (!positional || !named) return nullptr;
  return batch_new(reinterpret_cast<PyTypeObject*>(type), positional.get(), named.get());
}

int batch_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(self_of(object)->requests);
  return 0;
}

int batch_clear(PyObject* object) {
  drop_from(self_of(object)->requests);
  return 0;
}

void batch_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  drop_from(self_of(object)->span);
  batch_clear(object);
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef g_methods[] = {
    {"__enter__", batch_enter, METH_NOARGS, nullptr},
    {"__exit__", as_method(batch_exit), METH_FASTCALL, nullptr},
    {"__aenter__", batch_aenter, METH_NOARGS, nullptr},
    {"__aexit__", as_method(batch_aexit), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef g_members[] = {
    {"requests", T_OBJECT, offsetof(BatchObject, requests), READONLY, docs::kBatchRequests},
    {nullptr, 0, 0, 0, nullptr},
};

PyTypeObject g_batch_type = static_type("stagespan.batch", sizeof(BatchObject), Py_TPFLAGS_HAVE_GC);

}  // namespace

bool init_batch_type(PyObject* module) {
  g_batch_type.tp_doc = docs::kBatchType;
  g_batch_type.tp_new = batch_new;
  g_batch_type.tp_vectorcall = batch_vectorcall;
  g_batch_type.tp_methods = g_methods;
  g_batch_type.tp_members = g_members;
  g_batch_type.tp_traverse = batch_traverse;
  g_batch_type.tp_clear = batch_clear;
  g_batch_type.tp_dealloc = batch_dealloc;
  return PyModule_AddType(module, &g_batch_type) == 0;
}

}  // namespace stagespan::python
