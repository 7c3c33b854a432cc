// ready_object.cpp: an iterator that ends at once.
#include "ready_object.h"

#include "object.h"

namespace stagespan::python {

namespace {

// An awaitable's iterator that ends at once with a value.
struct ReadyObject {
  PyObject_HEAD PyObject* value;
};

PyTypeObject g_ready_type = static_type("stagespan._core.Ready", sizeof(ReadyObject), 0);

void ready_dealloc(PyObject* object) {
  Py_XDECREF(reinterpret_cast<ReadyObject*>(object)->value);
  PyObject_Free(object);
}

PyObject* ready_next(PyObject* object) {
  PyObject* const value = reinterpret_cast<ReadyObject*>(object)->value;
  return value != Py_None ? stop_with(value) : nullptr;
}

PyAsyncMethods g_ready_async = {PyObject_SelfIter, nullptr, nullptr, nullptr};

}  // namespace

PyObject* ready(PyObject* owned_value) {
  if (owned_value == nullptr) return nullptr;
  auto* const object = PyObject_New(ReadyObject, &g_ready_type);
  if (object == nullptr) {
    Py_DECREF(owned_value);
    return nullptr;
  }
  object->value = owned_value;
  return reinterpret_cast<PyObject*>(object);
}

PyObject* stop_with(PyObject* value) noexcept {
  const Ref stop(PyObject_CallOneArg(PyExc_StopIteration, value));
  if (stop) PyErr_SetObject(PyExc_StopIteration, stop.get());
  return nullptr;
}

bool init_ready_type() {
  g_ready_type.tp_dealloc = ready_dealloc;
  g_ready_type.tp_iter = PyObject_SelfIter;
  g_ready_type.tp_iternext = ready_next;
  g_ready_type.tp_as_async = &g_ready_async;
  return PyType_Ready(&g_ready_type) == 0;
}

}  // namespace stagespan::python
