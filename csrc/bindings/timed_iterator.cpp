// timed_iterator.cpp: times coroutines, generators, and awaitables of async generators turn by turn.
#include "timed_iterator.h"

#include <cstddef>
#include <iterator>
#include <new>

#include "object.h"
#include "ready_object.h"
#include "suspendable_run.h"
#include "timed_async_generator.h"
#include "timed_object.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {

/// Drives an inner coroutine or generator, or one awaitable of an async generator.
struct IteratorObject {
  PyObject_HEAD PyObject* inner;
  AsyncGeneratorObject* generator;  // owns the run of a step of an async generator
  PyObject* weak_references;
  bool has_run;
  bool closes;  // a step that may be the generator's last although it raises nothing
  alignas(SuspendableRun) std::byte storage[sizeof(SuspendableRun)];

  SuspendableRun& run() noexcept {
    return generator != nullptr ? generator->run : *reinterpret_cast<SuspendableRun*>(storage);
  }
};

PyTypeObject iterator_type(const char* name) { return static_type(name, sizeof(IteratorObject), Py_TPFLAGS_HAVE_GC); }

PyTypeObject g_coroutine_type = iterator_type("stagespan._core.TimedCoroutine");
PyTypeObject g_generator_type = iterator_type("stagespan._core.TimedGenerator");
PyTypeObject g_step_type = iterator_type("stagespan._core.TimedStep");

// The memory of some that have been freed, for the next ones. All types have the same size.
IteratorObject* g_spare[16];
std::size_t g_spares = 0;

IteratorObject* iterator_of(PyObject* object) { return reinterpret_cast<IteratorObject*>(object); }

bool frame_is_gone(PyObject* inner, const char* attribute) noexcept {
  const ErrorAside pending;
  const Ref frame(PyObject_GetAttrString(inner, attribute));
  PyErr_Clear();
  return !frame || frame.get() == Py_None;
}

// Whether the code has ended. Not every error means that: a second turn during the first, and a value sent before the
// first turn, are refused, and the code continues normally.
bool is_over(PyObject* inner) noexcept {
  if (inner == nullptr) return true;
  if (PyGen_CheckExact(inner)) return frame_is_gone(inner, "gi_frame");
  if (PyCoro_CheckExact(inner)) return frame_is_gone(inner, "cr_frame");
  if (PyAsyncGen_CheckExact(inner)) return frame_is_gone(inner, "ag_frame");
  if (Py_TYPE(inner) == &g_coroutine_type || Py_TYPE(inner) == &g_generator_type)
    return is_over(iterator_of(inner)->inner);
  if (Py_TYPE(inner) == &g_async_generator_type) return is_over(async_generator_of(inner)->inner);
  return true;
}

// A generator that is closed before its end has not failed.
bool is_failure() noexcept { return PyErr_ExceptionMatches(PyExc_GeneratorExit) == 0; }

// Ends a turn of an async generator's step. A value ends the step but only suspends the run, because the generator's
// consumer runs next.
void end_step(IteratorObject* self, const SuspendableRun::Turn& turn, PySendResult status) {
  SuspendableRun& run = self->run();
  if (status == PYGEN_NEXT) {
    run.suspend(turn, true);
    return;
  }
  const bool gave_value = status == PYGEN_RETURN || PyErr_ExceptionMatches(PyExc_StopIteration) != 0;
  if ((gave_value && !self->closes) || !is_over(self->generator->inner))
    run.suspend(turn, false);
  else
    run.finish(turn, !gave_value && PyErr_ExceptionMatches(PyExc_StopAsyncIteration) == 0 && is_failure(), nullptr);
}

void end_iterator_turn(IteratorObject* self, const SuspendableRun::Turn& turn, PySendResult status, PyObject* result) {
  SuspendableRun& run = self->run();
  const bool is_coroutine = Py_TYPE(self) == &g_coroutine_type;
  if (self->generator != nullptr)
    end_step(self, turn, status);
  else if (status == PYGEN_RETURN)
    run.finish(turn, false, is_coroutine ? result : nullptr);
  else if (status == PYGEN_NEXT || !is_over(self->inner))
    run.suspend(turn, is_coroutine);
  else
    run.finish(turn, is_failure(), nullptr);
}

PySendResult iterator_send(PyObject* object, PyObject* value, PyObject** result) {
  IteratorObject* const self = iterator_of(object);
  *result = nullptr;
  if (!has_inner(self->inner)) return PYGEN_ERROR;
  const SuspendableRun::Turn turn = self->run().begin_turn();
  const PySendResult status = PyIter_Send(self->inner, value, result);
  end_iterator_turn(self, turn, status, *result);
  return status;
}

// The protocol of `send` methods: a StopIteration contains the return value.
PyObject* as_method_result(PySendResult status, PyObject* result) {
  if (status != PYGEN_RETURN) return result;
  const Ref returned(result);
  if (result == Py_None) PyErr_SetNone(PyExc_StopIteration);
  return result == Py_None ? nullptr : stop_with(result);
}

PyObject* iterator_send_method(PyObject* object, PyObject* value) {
  PyObject* result = nullptr;
  const PySendResult status = iterator_send(object, value, &result);
  return as_method_result(status, result);
}

PyObject* iterator_next(PyObject* object) { return iterator_send_method(object, Py_None); }

// The value of a pending StopIteration, for the hooks.
Ref stop_value() {
  ErrorAside pending;
  Ref value(PyObject_GetAttrString(pending.value(), "value"));
  PyErr_Clear();
  return value;
}

// `throw` and `close` have no slot: the inner object's own methods are called, and a StopIteration marks the end.
PyObject* forward(IteratorObject* self, const char* method, PyObject* args, bool closes) {
  if (!has_inner(self->inner)) return nullptr;
  const SuspendableRun::Turn turn = self->run().started() ? self->run().begin_turn() : SuspendableRun::Turn{};
  PyObject* const result = call_method(self->inner, method, args);
  if (result != nullptr) {
    if (closes && self->generator == nullptr)
      self->run().finish(turn, false, nullptr);
    else
      end_iterator_turn(self, turn, closes ? PYGEN_RETURN : PYGEN_NEXT, result);
  } else if (self->generator == nullptr && PyErr_ExceptionMatches(PyExc_StopIteration)) {
    const Ref value = Py_TYPE(self) == &g_coroutine_type ? stop_value() : Ref();
    self->run().finish(turn, false, value.get());
  } else {
    end_iterator_turn(self, turn, PYGEN_ERROR, nullptr);
  }
  return result;
}

PyObject* iterator_throw(PyObject* object, PyObject* args) {
  return forward(iterator_of(object), "throw", args, false);
}

PyObject* iterator_close(PyObject* object, PyObject*) { return forward(iterator_of(object), "close", nullptr, true); }

PyObject* iterator_attribute(PyObject* object, PyObject* name) {
  return get_attribute(object, iterator_of(object)->inner, name);
}

PyObject* iterator_class(PyObject* object, void*) { return class_of_inner(iterator_of(object)->inner); }

PyObject* iterator_repr(PyObject* object) {
  PyObject* const inner = iterator_of(object)->inner;
  return PyUnicode_FromFormat("<timed %R>", inner != nullptr ? inner : Py_None);
}

int iterator_traverse(PyObject* object, visitproc visit, void* arg) {
  IteratorObject* const self = iterator_of(object);
  Py_VISIT(self->inner);
  Py_VISIT(reinterpret_cast<PyObject*>(self->generator));
  return self->has_run ? self->run().traverse(visit, arg) : 0;
}

int iterator_clear(PyObject* object) {
  IteratorObject* const self = iterator_of(object);
  drop_from(self->inner);
  if (self->has_run) self->run().clear();
  return 0;
}

// Freed before its end: closes the inner object as the interpreter would, as part of the run. The inner object is kept,
// because the finalizer of another object may still use it and must find it closed.
void iterator_finalize(PyObject* object) {
  IteratorObject* const self = iterator_of(object);
  if (!self->has_run || !self->run().started() || self->run().finished()) return;
  const ErrorAside pending;
  const SuspendableRun::Turn turn = self->run().begin_turn();
  const Ref done(self->inner != nullptr ? call_method(self->inner, "close", nullptr) : Py_NewRef(Py_None));
  if (!done) PyErr_WriteUnraisable(self->inner);
  self->run().finish(turn, false, nullptr, true);
}

void iterator_dealloc(PyObject* object) {
  IteratorObject* const self = iterator_of(object);
  // Most have ended, and have nothing to finalize.
  const bool may_be_open = self->has_run && !self->run().finished();
  if (may_be_open && PyObject_CallFinalizerFromDealloc(object) < 0) return;
  PyObject_GC_UnTrack(object);
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  drop_from(self->inner);
  if (self->has_run) self->run().~SuspendableRun();
  drop_from(self->generator);
  // The collector would not finalize a finalized object again.
  if (g_spares < std::size(g_spare) && PyObject_GC_IsFinalized(object) == 0)
    g_spare[g_spares++] = self;
  else
    PyObject_GC_Del(object);
}

/// An iterator without a run, which is not tracked yet and takes the reference to `inner`; null with an exception set.
IteratorObject* new_iterator(PyTypeObject& type, PyObject* inner) noexcept {
  IteratorObject* const self =
      g_spares == 0 ? PyObject_GC_New(IteratorObject, &type)
                    : iterator_of(PyObject_Init(reinterpret_cast<PyObject*>(g_spare[--g_spares]), &type));
  if (self == nullptr) {
    Py_DECREF(inner);
    return nullptr;
  }
  self->inner = inner;
  self->generator = nullptr;
  self->weak_references = nullptr;
  self->has_run = self->closes = false;
  return self;
}

PyObject* make_iterator(PyTypeObject& type, SpanObject* span, PyObject* inner, PyObject* function, PyObject* args,
                        PyObject* kwargs, std::uint16_t flags) {
  IteratorObject* const self = new_iterator(type, inner);
  if (self == nullptr) return nullptr;
  self->has_run = true;
  new (self->storage) SuspendableRun(span, function, args, kwargs, flags);
  PyObject_GC_Track(reinterpret_cast<PyObject*>(self));
  return reinterpret_cast<PyObject*>(self);
}

// --- types -----------------------------------------------------------------------------------------------

PyMethodDef g_iterator_methods[] = {
    {"send", iterator_send_method, METH_O, nullptr},
    {"throw", iterator_throw, METH_VARARGS, nullptr},
    {"close", iterator_close, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef g_iterator_getset[] = {{"__class__", iterator_class, nullptr, nullptr, nullptr},
                                   {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyAsyncMethods g_awaitable_methods = {PyObject_SelfIter, nullptr, nullptr, iterator_send};
PyAsyncMethods g_generator_async_methods = {nullptr, nullptr, nullptr, iterator_send};

bool ready_iterator(PyTypeObject& type, PyAsyncMethods* async_methods) {
  type.tp_dealloc = iterator_dealloc;
  type.tp_finalize = iterator_finalize;
  type.tp_traverse = iterator_traverse;
  type.tp_clear = iterator_clear;
  type.tp_repr = iterator_repr;
  type.tp_getattro = iterator_attribute;
  type.tp_weaklistoffset = offsetof(IteratorObject, weak_references);
  type.tp_iter = PyObject_SelfIter;
  type.tp_iternext = iterator_next;
  type.tp_as_async = async_methods;
  type.tp_methods = g_iterator_methods;
  type.tp_getset = g_iterator_getset;
  return PyType_Ready(&type) == 0;
}

template <decltype(wrap_generator) wrap>
PyObject* call_and_wrap(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4 || !is_span(args[0]) || !PyTuple_Check(args[2]) || !PyDict_Check(args[3]))
    return PyErr_Format(PyExc_TypeError, "expected (span, function, args, kwargs)");
  auto* const span = reinterpret_cast<SpanObject*>(args[0]);
  PyObject* const inner = PyObject_Call(args[1], args[2], args[3]);
  if (inner == nullptr) return nullptr;
  return wrap(span, inner, args[1], args[2], args[3]);
}

PyObject* timed_coroutine(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  constexpr Py_ssize_t kOwn = 2;  // the span and the function
  if (count < kOwn || !is_span(args[0])) [[unlikely]]
    return PyErr_Format(PyExc_TypeError,
                        "timed_coroutine(span, function, *args, **kwargs) takes a context and something to call");
  auto* const span = reinterpret_cast<SpanObject*>(args[0]);
  PyObject* const function = args[1];
  PyObject* const* const passed = args + kOwn;
  const auto passed_count = static_cast<std::size_t>(count - kOwn);
  const bool is_timed = mode_has(span->mask);
  Ref positional, named;  // for the hooks, which a plain span does not have, and to describe them
  if (is_timed && (span->kind != Kind::kSpan || describes_calls())) {
    positional = positional_tuple(passed, passed_count);
    named = keyword_dict(passed, passed_count, kwnames);
    if (!positional || !named) return nullptr;
  }
  PyObject* const inner = PyObject_Vectorcall(function, passed, passed_count, kwnames);
  if (inner == nullptr || !is_timed) return inner;
  return wrap_coroutine(span, inner, function, positional.get(), named.get());
}

}  // namespace

PyObject* wrap_coroutine(SpanObject* span, PyObject* inner, PyObject* function, PyObject* args, PyObject* kwargs) {
  return make_iterator(g_coroutine_type, span, inner, function, args, kwargs, kFlagAsync);
}

PyObject* wrap_generator(SpanObject* span, PyObject* inner, PyObject* function, PyObject* args, PyObject* kwargs) {
  return make_iterator(g_generator_type, span, inner, function, args, kwargs, kFlagGenerator);
}

PyObject* make_step(AsyncGeneratorObject* generator, PyObject* inner, bool closes) {
  if (inner == nullptr) return nullptr;
  IteratorObject* const self = new_iterator(g_step_type, inner);
  if (self == nullptr) return nullptr;
  self->generator = generator;
  Py_INCREF(reinterpret_cast<PyObject*>(generator));
  self->closes = closes;
  PyObject_GC_Track(reinterpret_cast<PyObject*>(self));
  return reinterpret_cast<PyObject*>(self);
}

PyMethodDef g_timed_iterator_functions[] = {
    {"timed_coroutine", as_method(timed_coroutine), METH_FASTCALL | METH_KEYWORDS,
     "timed_coroutine(span, function, /, *args, **kwargs)\n--\n\nCall a coroutine function; its coroutine is one run "
     "of a stage."},
    {"timed_generator", as_method(call_and_wrap<wrap_generator>), METH_FASTCALL, nullptr},
    {"timed_async_generator", as_method(call_and_wrap<wrap_async_generator>), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

bool init_timed_iterators() {
  return ready_iterator(g_coroutine_type, &g_awaitable_methods) && ready_iterator(g_step_type, &g_awaitable_methods) &&
         ready_iterator(g_generator_type, &g_generator_async_methods) && init_timed_async_generators();
}

}  // namespace stagespan::python
