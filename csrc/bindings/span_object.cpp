// span_object.cpp: the span type: entering, leaving, and the data that a block adds to its span.
#include "span_object.h"

#include <structmember.h>

#include <cstddef>

#include "docstrings.h"
#include "object.h"
#include "ready_object.h"
#include "stagespan/cut_off.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {

PyObject* g_decorate = nullptr;

SpanObject* self_of(PyObject* object) { return reinterpret_cast<SpanObject*>(object); }

// --- entering and leaving --------------------------------------------------------------------------------

void leave(SpanObject* self, PyObject* error) noexcept;

// From Python 3.14 on, an exception that is raised "later" may be raised between this call and the block, which is then
// not left.
#if PY_VERSION_HEX >= 0x030e0000
constexpr bool kRaisesLater = false;
#else
constexpr bool kRaisesLater = true;
#endif

// Leaves again and raises the exception that the hooks kept for the program. Null if there was one.
PyObject* raise_at_once(SpanObject* self, PyObject* entered) noexcept {
  const Ref error(take_kept());
  if (!error) return entered;
  const Ref released(entered);
  leave(self, error.get());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  return nullptr;
}

PyObject* enter(SpanObject* self) noexcept {
  const bool on = mode_has(self->mask);
  Ref call;
  if (self->kind != Kind::kSpan && on && wants_hooks(*self) && has_room()) [[unlikely]]
    call = Ref(hooks_enter(*self, Py_None, nullptr, nullptr, kRaisesLater));
  ThreadState& thread = current_thread();
  OpenFrame* const frame = begin_run(thread, *self, self, on);
  if (frame != nullptr) [[likely]] {
    ++self->open;
    if (self->kind != Kind::kSpan) {
      thread.locals[thread.index_of(*frame)].note = call.release();
      if (measures_cpu_time(*self)) begin_cpu_time_of_block(thread, *frame);
    }
  } else {
    ++self->missed;
  }
  PyObject* const entered = Py_NewRef(reinterpret_cast<PyObject*>(self));
  if (!kRaisesLater && self->kind != Kind::kSpan) [[unlikely]]
    return raise_at_once(self, entered);
  return entered;
}

bool is_open(const OpenFrame& frame) noexcept {
  return frame.id.load(std::memory_order_relaxed) != 0 ||
         (frame.flags.load(std::memory_order_relaxed) & kFrameInactive) != 0;
}

OpenFrame* find_in_scope(ThreadState& thread, const SpanObject* self) noexcept {
  const Scope& scope = *thread.scope;
  for (std::uint32_t i = scope.top; i != scope.root && i != 0;
       i = thread.frames[i].below.load(std::memory_order_relaxed))
    if (thread.locals[i].owner == self) return &thread.frames[i];
  return nullptr;
}

// The frame that this object opened last, in any scope of the thread.
OpenFrame* find_in_thread(ThreadState& thread, const SpanObject* self) noexcept {
  OpenFrame* latest = nullptr;
  Recorder::get().for_each_frame(thread, [&](std::uint32_t i) {
    OpenFrame& frame = thread.frames[i];
    if (thread.locals[i].owner != self || !is_open(frame)) return;
    if (latest == nullptr ||
        frame.begin_ticks.load(std::memory_order_relaxed) > latest->begin_ticks.load(std::memory_order_relaxed))
      latest = &frame;
  });
  return latest;
}

bool leave_in_other_thread(SpanObject* self, std::uint16_t flags, PyObject* error) noexcept {
  const FoundFrame opened = Recorder::get().find_elsewhere(self);
  if (!opened) return false;
  const Ref context = context_of(opened);
  FinishedSpan span;
  void* note = nullptr;
  if (!Recorder::get().close_away(opened, flags, &span, &note)) return false;
  if (context) publish_in_thread(opened.serial, context.get());
  if (self->kind == Kind::kSpan) return true;
  ErrorAside pending;
  const Ref call(static_cast<PyObject*>(note));
  if (call) {
    hooks_leave(call.get());
    hooks_exit(call.get(), nullptr, error, span);
  }
  if (is_context(self->kind)) complete(*self, span, current_thread(), call.get());
  raise_kept();
  return true;
}

// Leaves a span that is not the one that this object opened last in the current scope.
[[gnu::noinline, gnu::cold]] void leave_slow(SpanObject* self, std::uint16_t flags, PyObject* error) noexcept {
  ThreadState& thread = current_thread();
  if (is_cut_off()) {
    std::uint32_t& entered = self->missed != 0 ? self->missed : self->open;
    if (entered != 0) --entered;
    return;
  }
  OpenFrame* frame = find_in_scope(thread, self);
  if (frame == nullptr && self->missed != 0) {
    --self->missed;
    return;
  }
  if (frame == nullptr) frame = find_in_thread(thread, self);
  if (frame != nullptr) {
    --self->open;
    const std::uint64_t failed = (flags & kFlagError) != 0 ? frame->id.load(std::memory_order_relaxed) : 0;
    end_run_slow(thread, *self, *frame, flags, nullptr, error);
    if (failed != 0) note_failure(failed, 0, error);
    return;
  }
  if (self->open != 0) {
    --self->open;
    if (leave_in_other_thread(self, flags, error)) return;
  }
  // In a forked child, spans that the parent opened must not be ended.
  if (Recorder::get().generation() == 0) Recorder::get().lose(kLostUnmatched);
}

// A generator that is closed before its end, as by `break`, has not failed.
std::uint16_t flags_of(PyObject* error) noexcept {
  return PyErr_GivenExceptionMatches(error, PyExc_GeneratorExit) != 0 ? 0 : kFlagError;
}

void leave(SpanObject* self, PyObject* error) noexcept {
  const std::uint16_t flags = error == nullptr ? 0 : flags_of(error);
  ThreadState& thread = current_thread();
  const std::uint32_t top = thread.scope->top;
  if (top == thread.scope->root || thread.locals[top].owner != self) [[unlikely]] {
    leave_slow(self, flags, error);
    return;
  }
  --self->open;
  end_run(thread, *self, thread.frames[top], flags, nullptr, error);
}

// --- calling ---------------------------------------------------------------------------------------------

// `with` looks up `__enter__` and `__exit__` on the type and binds them, which creates two objects for every block.
// Here `__enter__` is bound to a part of the span, and `__exit__` to the span itself, which distinguishes the calls by
// the number of arguments: three to leave, one to decorate. This saves a third of the block's cost.
PyObject* call_span(PyObject* callable, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  SpanObject* const self = self_of(callable);
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  const Py_ssize_t named = kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0;
  if (named == 0 && count == 3) {
    PyObject* error = nullptr;
    if (args[0] != Py_None) error = args[1] != Py_None ? args[1] : args[0];
    leave(self, error);
    Py_RETURN_NONE;
  }
  if (named == 0 && count == 1) return decorate(callable, args[0]);
  return PyErr_Format(PyExc_TypeError,
                      "%R was called with %zd arguments: write `with %R:` around a block, or `@%R` above a function",
                      callable, count + named, callable, callable);
}

SpanObject* span_of_enter(PyObject* enter) {
  return reinterpret_cast<SpanObject*>(reinterpret_cast<char*>(enter) - offsetof(SpanObject, enter));
}

PyObject* call_enter(PyObject* callable, PyObject* const*, std::size_t nargsf, PyObject* kwnames) {
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf) + (kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0);
  if (count == 0) [[likely]]
    return enter(span_of_enter(callable));
  return PyErr_Format(PyExc_TypeError, "__enter__ takes no arguments, but %zd were given", count);
}

// Only if the span has lost its last reference, so that this object owns it.
void enter_dealloc(PyObject* object) {
  SpanObject* const span = span_of_enter(object);
  Py_SET_REFCNT(object, 1);
  Py_DECREF(reinterpret_cast<PyObject*>(span));
}

PyObject* enter_repr(PyObject* object) {
  return PyUnicode_FromFormat("<__enter__ of %R>", reinterpret_cast<PyObject*>(span_of_enter(object)));
}

PyTypeObject g_enter_type = static_type("stagespan._core.Enter", sizeof(EnterObject), Py_TPFLAGS_HAVE_VECTORCALL);

// The type's attributes `__enter__` and `__exit__`.
struct DescriptorObject {
  PyObject_HEAD vectorcallfunc vectorcall;
};

bool is_bound_to_span(PyObject* object) {
  if (is_span(object)) [[likely]]
    return true;
  PyErr_Format(PyExc_TypeError, "a context of stagespan is needed here, not an object of type '%s'",
               Py_TYPE(object)->tp_name);
  return false;
}

PyObject* bind_enter(PyObject* descriptor, PyObject* object, PyObject*) {
  if (object == nullptr) return Py_NewRef(descriptor);
  return is_bound_to_span(object) ? Py_NewRef(reinterpret_cast<PyObject*>(&self_of(object)->enter)) : nullptr;
}

PyObject* bind_exit(PyObject* descriptor, PyObject* object, PyObject*) {
  if (object == nullptr) return Py_NewRef(descriptor);
  return is_bound_to_span(object) ? Py_NewRef(object) : nullptr;
}

// `type(cm).__enter__(cm)` and `type(cm).__exit__(cm, ...)`, as contextlib.ExitStack calls them.
template <vectorcallfunc call>
PyObject* call_unbound(PyObject* descriptor, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count < 1 || !is_span(args[0]))
    return PyErr_Format(PyExc_TypeError, "a context of stagespan must be the first argument");
  const Ref bound(Py_TYPE(descriptor)->tp_descr_get(descriptor, args[0], nullptr));
  return call(bound.get(), args + 1, static_cast<std::size_t>(count - 1), kwnames);
}

PyTypeObject g_enter_descriptor_type =
    static_type("stagespan._core.EnterDescriptor", sizeof(DescriptorObject), Py_TPFLAGS_HAVE_VECTORCALL);
PyTypeObject g_exit_descriptor_type =
    static_type("stagespan._core.ExitDescriptor", sizeof(DescriptorObject), Py_TPFLAGS_HAVE_VECTORCALL);

bool add_descriptor(const char* name, PyTypeObject& type, descrgetfunc bind, vectorcallfunc call) {
  type.tp_vectorcall_offset = offsetof(DescriptorObject, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_descr_get = bind;
  if (PyType_Ready(&type) != 0) return false;
  auto* const descriptor = PyObject_New(DescriptorObject, &type);
  if (descriptor == nullptr) return false;
  descriptor->vectorcall = call;
  const Ref owned(reinterpret_cast<PyObject*>(descriptor));
  return PyDict_SetItemString(g_span_type.tp_dict, name, owned.get()) == 0;
}

// --- async with ------------------------------------------------------------------------------------------

PyObject* span_aenter(PyObject* object, PyObject*) { return ready(enter(self_of(object))); }

PyObject* span_aexit(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "__aexit__ takes 3 arguments, not %zd", count);
  return ready(call_span(object, args, 3, nullptr));
}

// --- data that a block adds to its span ------------------------------------------------------------------

// The call object for the hooks, if this context is open and a hook wants it.
Ref call_of(SpanObject* self) noexcept {
  if (self->kind == Kind::kSpan || !mode_has(self->mask | kModeDebug)) return Ref();
  ThreadState& thread = current_thread();
  OpenFrame* frame = find_in_scope(thread, self);
  if (frame == nullptr) frame = find_in_thread(thread, self);
  if (frame == nullptr) return Ref();
  return Ref(Py_XNewRef(static_cast<PyObject*>(thread.locals[thread.index_of(*frame)].note)));
}

PyObject* span_add(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  SpanObject* const self = self_of(object);
  if (count != 0) return PyErr_Format(PyExc_TypeError, "add() takes counters by name, for example add(tokens=230)");
  if (!mode_has(self->mask)) Py_RETURN_NONE;
  const WorkingSpan span = working_span(self, self->stage);
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i) {
    Py_ssize_t length = 0;
    const char* const key = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(kwnames, i), &length);
    if (key == nullptr) return nullptr;
    std::int64_t whole = 0;
    double fraction = 0;
    int overflow = 0;
    if (PyLong_Check(args[i])) whole = PyLong_AsLongLongAndOverflow(args[i], &overflow);
    if (!PyLong_Check(args[i]) || overflow != 0) fraction = PyFloat_AsDouble(args[i]);
    if (PyErr_Occurred() != nullptr) {
      if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return nullptr;
      PyErr_Clear();
      return PyErr_Format(PyExc_TypeError, "the work counter %R of stage %R must be a number, not %R",
                          PyTuple_GET_ITEM(kwnames, i), self->name, args[i]);
    }
    Recorder::get().add_work(self->stage, {key, static_cast<std::size_t>(length)}, whole, fraction, span);
  }
  Py_RETURN_NONE;
}

PyObject* span_inputs(PyObject* object, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) != 0)
    return PyErr_Format(PyExc_TypeError, "inputs() takes values by name, for example inputs(latents=latents)");
  const Ref call = call_of(self_of(object));
  if (call && kwargs != nullptr && PyObject_SetAttrString(call.get(), "inputs", kwargs) != 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* span_output(PyObject* object, PyObject* value) {
  const Ref call = call_of(self_of(object));
  if (call && PyObject_SetAttrString(call.get(), "result", value) != 0) return nullptr;
  Py_RETURN_NONE;
}

// --- the type --------------------------------------------------------------------------------------------

// Entered and freed: it can never be left, and another object may get its address.
void abandon(SpanObject* self) noexcept {
  const ErrorAside pending;
  for (; self->open != 0; --self->open) {
    ThreadState& thread = current_thread();
    if (OpenFrame* const frame = find_in_thread(thread, self)) {
      drop_run(thread, *frame);
      publish(current_thread());
    } else {
      const FoundFrame away = Recorder::get().find_elsewhere(self);
      void* note = nullptr;
      if (!away || !Recorder::get().drop_away(away, &note)) return;
      Py_XDECREF(static_cast<PyObject*>(note));
    }
    Recorder::get().lose(kLostAbandoned);
  }
}

void span_dealloc(PyObject* object) {
  SpanObject* const self = self_of(object);
  auto* const enter = reinterpret_cast<PyObject*>(&self->enter);
  if (Py_REFCNT(enter) != 1) [[unlikely]] {
    // Its `__enter__` owns it from now on.
    Py_SET_REFCNT(enter, Py_REFCNT(enter) - 1);
    Py_SET_REFCNT(object, 1);
    return;
  }
  if (self->open != 0) [[unlikely]]
    abandon(self);
  Py_XDECREF(self->name);
  give_back(self);
}

PyObject* kind_text(PyObject* object, void*) {
  const Kind kind = self_of(object)->kind;
  return PyUnicode_FromString(kind == Kind::kProfiling ? "profiling" : kind == Kind::kDebug ? "debug" : "span");
}

PyObject* span_repr(PyObject* object) {
  const SpanObject* const self = self_of(object);
  return PyUnicode_FromFormat("%s(%R)", made_by(self->kind), self->name);
}

// Pickled and copied as the call that creates it: an open run belongs to its process.
PyObject* span_reduce(PyObject* object, PyObject*) {
  const SpanObject* const self = self_of(object);
  const Ref module(PyImport_ImportModule("stagespan._core"));
  if (!module) return nullptr;
  const Ref make_again(PyObject_GetAttrString(module.get(), "_span_from"));
  if (!make_again) return nullptr;
  const Kind kind = is_context(self->kind) ? self->kind : Kind::kSpan;
  return Py_BuildValue("O(Oiiii)", make_again.get(), self->name, static_cast<int>(kind),
                       static_cast<int>(self->reset_peak_memory), static_cast<int>(self->capture_memory),
                       static_cast<int>(self->cpu_time));
}

PyMethodDef g_span_methods[] = {
    {"__aenter__", span_aenter, METH_NOARGS, nullptr},
    {"__aexit__", as_method(span_aexit), METH_FASTCALL, nullptr},
    {"add", as_method(span_add), METH_FASTCALL | METH_KEYWORDS, docs::kSpanAdd},
    {"inputs", as_method(span_inputs), METH_VARARGS | METH_KEYWORDS, docs::kSpanInputs},
    {"output", span_output, METH_O, docs::kSpanOutput},
    {"__reduce__", span_reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef g_span_members[] = {
    {"name", T_OBJECT, offsetof(SpanObject, name), READONLY, docs::kSpanName},
    {"reset_peak_memory", T_BOOL, offsetof(SpanObject, reset_peak_memory), READONLY, docs::kSpanResetPeakMemory},
    {"capture_memory", T_BOOL, offsetof(SpanObject, capture_memory), READONLY, docs::kSpanCaptureMemory},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef g_span_getset[] = {
    {"kind", kind_text, nullptr, docs::kSpanKind, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

PyTypeObject g_span_type = static_type("stagespan.Span", sizeof(SpanObject), Py_TPFLAGS_HAVE_VECTORCALL);

SpanObject* allocate_span() {
  SpanObject* const self = PyObject_New(SpanObject, &g_span_type);
  if (self == nullptr) return nullptr;
  self->vectorcall = call_span;
  PyObject_Init(reinterpret_cast<PyObject*>(&self->enter), &g_enter_type);
  self->enter.vectorcall = call_enter;
  return self;
}

PyObject* decorate(PyObject* span, PyObject* function) {
  if (g_decorate == nullptr)
    return PyErr_Format(PyExc_RuntimeError, "import stagespan before you use a span as a decorator");
  PyObject* const arguments[] = {span, function};
  return PyObject_Vectorcall(g_decorate, arguments, 2, nullptr);
}

void set_decorator(PyObject* decorate) { keep(g_decorate, decorate); }

bool init_span_type(PyObject* module) {
  g_enter_type.tp_vectorcall_offset = offsetof(EnterObject, vectorcall);
  g_enter_type.tp_call = PyVectorcall_Call;
  g_enter_type.tp_dealloc = enter_dealloc;
  g_enter_type.tp_repr = enter_repr;

  g_span_type.tp_doc = docs::kSpanType;
  g_span_type.tp_vectorcall_offset = offsetof(SpanObject, vectorcall);
  g_span_type.tp_call = PyVectorcall_Call;
  g_span_type.tp_dealloc = span_dealloc;
  g_span_type.tp_repr = span_repr;
  g_span_type.tp_methods = g_span_methods;
  g_span_type.tp_members = g_span_members;
  g_span_type.tp_getset = g_span_getset;

  if (!init_ready_type() || PyType_Ready(&g_enter_type) != 0 || PyType_Ready(&g_span_type) != 0) return false;
  if (!add_descriptor("__enter__", g_enter_descriptor_type, bind_enter, call_unbound<call_enter>) ||
      !add_descriptor("__exit__", g_exit_descriptor_type, bind_exit, call_unbound<call_span>))
    return false;
  PyType_Modified(&g_span_type);
  return PyModule_AddObjectRef(module, "Span", reinterpret_cast<PyObject*>(&g_span_type)) == 0;
}

}  // namespace stagespan::python
