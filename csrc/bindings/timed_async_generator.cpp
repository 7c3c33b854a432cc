// timed_async_generator.cpp: async generators, which are timed in the turns of their awaitables.
#include "timed_async_generator.h"

#include <cstddef>
#include <new>

#include "object.h"
#include "timed_iterator.h"
#include "timed_object.h"

namespace stagespan::python {

namespace {

PyObject* async_generator_attribute(PyObject* object, PyObject* name) {
  return get_attribute(object, async_generator_of(object)->inner, name);
}

PyObject* async_generator_class(PyObject* object, void*) { return class_of_inner(async_generator_of(object)->inner); }

PyObject* async_generator_next(PyObject* object) {
  AsyncGeneratorObject* const self = async_generator_of(object);
  if (!has_inner(self->inner)) return nullptr;
  PyObject* const inner = Py_TYPE(self->inner)->tp_as_async->am_anext(self->inner);
  return make_step(self, inner, false);
}

PyObject* async_generator_send(PyObject* object, PyObject* value) {
  AsyncGeneratorObject* const self = async_generator_of(object);
  const Ref args(has_inner(self->inner) ? PyTuple_Pack(1, value) : nullptr);
  return args ? make_step(self, call_method(self->inner, "asend", args.get()), false) : nullptr;
}

PyObject* async_generator_throw(PyObject* object, PyObject* args) {
  AsyncGeneratorObject* const self = async_generator_of(object);
  return has_inner(self->inner) ? make_step(self, call_method(self->inner, "athrow", args), true) : nullptr;
}

// aclose() of a generator that has not started does not run its code.
PyObject* async_generator_close(PyObject* object, PyObject*) {
  AsyncGeneratorObject* const self = async_generator_of(object);
  if (!has_inner(self->inner)) return nullptr;
  PyObject* const inner = call_method(self->inner, "aclose", nullptr);
  return self->run.started() ? make_step(self, inner, true) : inner;
}

int async_generator_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(async_generator_of(object)->inner);
  return async_generator_of(object)->run.traverse(visit, arg);
}

int async_generator_clear(PyObject* object) {
  drop_from(async_generator_of(object)->inner);
  async_generator_of(object)->run.clear();
  return 0;
}

// The event loop closes the inner generator later, when its owner is unknown. Therefore the run ends here.
void async_generator_finalize(PyObject* object) {
  SuspendableRun& run = async_generator_of(object)->run;
  if (!run.started() || run.finished()) return;
  const ErrorAside pending;
  run.finish(run.begin_turn(), false, nullptr, true);
}

void async_generator_dealloc(PyObject* object) {
  if (PyObject_CallFinalizerFromDealloc(object) < 0) return;
  PyObject_GC_UnTrack(object);
  AsyncGeneratorObject* const self = async_generator_of(object);
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  drop_from(self->inner);
  self->run.~SuspendableRun();
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef g_async_generator_methods[] = {
    {"asend", async_generator_send, METH_O, nullptr},
    {"athrow", async_generator_throw, METH_VARARGS, nullptr},
    {"aclose", async_generator_close, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef g_async_generator_getset[] = {{"__class__", async_generator_class, nullptr, nullptr, nullptr},
                                          {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyAsyncMethods g_async_generator_async_methods = {nullptr, PyObject_SelfIter, async_generator_next, nullptr};

}  // namespace

PyTypeObject g_async_generator_type =
    static_type("stagespan._core.TimedAsyncGenerator", sizeof(AsyncGeneratorObject), Py_TPFLAGS_HAVE_GC);

PyObject* wrap_async_generator(SpanObject* span, PyObject* inner, PyObject* function, PyObject* args,
                               PyObject* kwargs) {
  const PyAsyncMethods* const methods = Py_TYPE(inner)->tp_as_async;
  if (methods == nullptr || methods->am_anext == nullptr) return inner;
  auto* const self = PyObject_GC_New(AsyncGeneratorObject, &g_async_generator_type);
  if (self == nullptr) {
    Py_DECREF(inner);
    return nullptr;
  }
  self->inner = inner;
  self->weak_references = nullptr;
  new (&self->run) SuspendableRun(span, function, args, kwargs, kFlagAsync | kFlagGenerator);
  PyObject_GC_Track(reinterpret_cast<PyObject*>(self));
  return reinterpret_cast<PyObject*>(self);
}

bool init_timed_async_generators() {
  PyTypeObject& type = g_async_generator_type;
  type.tp_dealloc = async_generator_dealloc;
  type.tp_finalize = async_generator_finalize;
  type.tp_free = PyObject_GC_Del;
  type.tp_traverse = async_generator_traverse;
  type.tp_clear = async_generator_clear;
  type.tp_getattro = async_generator_attribute;
  type.tp_weaklistoffset = offsetof(AsyncGeneratorObject, weak_references);
  type.tp_as_async = &g_async_generator_async_methods;
  type.tp_methods = g_async_generator_methods;
  type.tp_getset = g_async_generator_getset;
  return PyType_Ready(&type) == 0;
}

}  // namespace stagespan::python
