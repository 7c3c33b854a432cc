// current_request.cpp: enters and leaves requests. A request may be left in any context and thread.
#include "current_request.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "execution_context.h"
#include "object.h"
#include "task_scopes.h"

namespace stagespan::python {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

// A request may be left while later ones of the same scope are open, and in a context or thread other than the one in
// which it was entered: a generator runs in the context of whoever asks for its next value, and is closed by whoever
// drops it. So each scope has a list of what was entered in it and not left yet. Leaving takes one entry out of the
// list, wherever it is, and then gives the context of the scope the values that it would have without this entry.

/// A request, or what a function took along (adopt), that was entered and not yet left.
struct Entered {
  PyObject_HEAD std::uint64_t request;
  std::uint64_t before;     // the request that is current after this one is left
  PyObject* before_object;  // its object, or None
  Entered* below;           // entered earlier in the same scope
  Entered* above;
  Scope* scope;          // null if there was no scope. Exists as long as this entry and its thread
  std::uint64_t thread;  // serial of the scope's thread
  PyObject* context;     // a weak reference to the context in which it was entered
  std::uint32_t generation;
  std::uint32_t frame;  // of what a function took along: the place in the stack from which spans are its children
  bool is_left;
};

/// Takes an entry out of its scope's list. Returns whether it was the innermost one. `scope` is null if it does not
/// exist any more; for a scope of another thread, the recorder's lock is held.
bool take_out(Entered& entered, Scope* scope) noexcept {
  if (scope != nullptr) --scope->holds;
  if (entered.below != nullptr) entered.below->above = entered.above;
  if (entered.above != nullptr) {
    entered.above->below = entered.below;
    entered.above->before = entered.before;
    std::swap(entered.above->before_object, entered.before_object);
    return false;
  }
  if (scope != nullptr) {
    scope->entered = entered.below;
    scope->request = entered.before;
  }
  return true;
}

/// The same in a thread other than the calling one, which may have ended. `inherited` is then what its context must
/// contain.
bool take_out_elsewhere(Entered& entered, Inherited& inherited) noexcept {
  bool is_found = false, was_innermost = false;
  Recorder::get().with_thread(entered.thread, [&](ThreadState& thread) {
    is_found = true;
    was_innermost = take_out(entered, entered.scope);
    inherited = inherited_from(thread, *entered.scope);
  });
  if (is_found) return was_innermost;
  inherited = {{.request = entered.before}, Inherited::kExact};
  return take_out(entered, nullptr);
}

/// The context in which it was entered; empty if it does not exist any more.
Ref context_of(const Entered& entered) noexcept {
  Ref context(entered.context != nullptr ? PyObject_CallNoArgs(entered.context) : nullptr);
  if (!context) PyErr_Clear();
  return context.get() != Py_None ? std::move(context) : Ref();
}

bool is_of_this_process(const Entered& entered) noexcept { return entered.generation == Recorder::get().generation(); }

/// Removes the frame of what a function took along.
void drop_root(ThreadState& thread, Entered& entered) noexcept {
  FrameLocal& local = thread.locals[entered.frame];
  if (entered.frame == 0 || local.owner != &entered) return;
  Scope& scope = scope_of(thread, entered.frame);
  local.open_by(nullptr);
  drop_frame(thread, thread.frames[entered.frame]);
  // A suspended run may have taken it along.
  if (&scope != entered.scope) publish_elsewhere(thread, scope);
}

Entered& entered_of(PyObject* object) { return *reinterpret_cast<Entered*>(object); }

void entered_dealloc(PyObject* object) {
  Entered& entered = entered_of(object);
  if (!entered.is_left && entered.scope != nullptr && is_of_this_process(entered)) {
    ThreadState* const thread = t_state;
    if (thread != nullptr && thread->serial == entered.thread) {
      drop_root(*thread, entered);
      take_out(entered, entered.scope);
    } else {
      Inherited inherited;
      take_out_elsewhere(entered, inherited);
    }
  }
  Py_XDECREF(entered.before_object);
  Py_XDECREF(entered.context);
  PyObject_Free(object);
}

PyTypeObject g_entered_type = static_type("stagespan._core.Entered", sizeof(Entered), 0);

/// A new entry; empty with an exception set if there is no memory.
Ref make_entered() noexcept {
  auto* const made = PyObject_New(Entered, &g_entered_type);
  if (made != nullptr) {
    constexpr std::size_t kHeadBytes = sizeof(PyObject);
    std::memset(reinterpret_cast<char*>(made) + kHeadBytes, 0, sizeof(Entered) - kHeadBytes);
  }
  return Ref(reinterpret_cast<PyObject*>(made));
}

/// Makes a request current in the running code's scope, or only in its context if it has no scope.
void enter(ThreadState& thread, Entered& entered, std::uint64_t request, PyObject* object) noexcept {
  entered.request = request;
  entered.before_object = read_request();
  entered.generation = Recorder::get().generation();
  entered.thread = thread.serial;
  PyObject* const context = thread_state()->context;
  entered.context = context != nullptr ? PyWeakref_NewRef(context, nullptr) : nullptr;
  if (entered.context == nullptr) PyErr_Clear();
  if (has_no_scope(thread)) {
    Recorder::get().lose(kLostMemory);
    write_inherited(thread, {{.request = request}, Inherited::kExact}, object);
    return;
  }
  Scope& scope = *thread.scope;
  entered.scope = &scope;
  entered.before = scope.request;
  entered.below = static_cast<Entered*>(scope.entered);
  if (entered.below != nullptr) entered.below->above = &entered;
  scope.entered = &entered;
  scope.request = request;
  ++scope.holds;
  publish_slow(thread, object);
}

/// If the running code still has the request, because its context is a copy that was made while the request was open,
/// it is also outside of it now.
void leave_here(const Entered& entered, PyObject* object, std::uint64_t before, PyObject* before_object) noexcept {
  const Ref current = Ref(read_request());
  if (object == Py_None || current.get() != object) return;
  ThreadState& thread = current_thread();
  if (has_no_scope(thread)) {
    write_inherited(thread, {{.request = before}, Inherited::kExact}, before_object);
    return;
  }
  Scope& scope = *thread.scope;
  if (scope.entered == nullptr && scope.request == entered.request) {
    scope.request = before;
    if (scope.is_task) {
      ParentLink& link = static_cast<TaskScope&>(scope).stored.link;
      if (link.request == entered.request) link.request = before;
    }
  }
  publish_slow(thread, before_object);
}

/// Leaves what was entered, wherever that was, and restores what was current before.
void leave(Entered& entered, PyObject* object) noexcept {
  entered.is_left = true;
  const ErrorAside pending;
  const std::uint64_t before = entered.before;
  const Ref before_object(Py_NewRef(entered.before_object));
  ThreadState& thread = current_thread();
  // In a forked child, the parent's requests are not in any scope.
  if (is_of_this_process(entered) && entered.scope != nullptr && entered.thread == thread.serial) {
    Scope& scope = *entered.scope;
    drop_root(thread, entered);
    PyObject* const restored = take_out(entered, &scope) ? before_object.get() : nullptr;
    if (&scope == thread.scope) {
      publish_slow(thread, restored);
      return;
    }
    publish_elsewhere(thread, scope, restored);
  } else if (is_of_this_process(entered)) {
    Inherited inherited{{.request = before}, Inherited::kExact};
    const bool is_needed = entered.scope == nullptr || take_out_elsewhere(entered, inherited);
    const Ref context = context_of(entered);
    if (is_needed && context) write_elsewhere(thread, context.get(), inherited, before_object.get());
  }
  leave_here(entered, object, before, before_object.get());
}

// --- the functions --------------------------------------------------------------------------------------

PyObject* inheritance(PyObject*, PyObject*) {
  ThreadState& thread = current_thread();
  const ParentLink link = innermost(thread, *thread.scope);
  publish(thread);  // a scope without open spans is removed again
  if (link.id == 0 && link.request == 0) Py_RETURN_NONE;
  return encode({link, Inherited::kExact});
}

// --- what a function takes along ------------------------------------------------------------------------

/// The context manager around a function that runs elsewhere.
struct AdoptedObject {
  PyObject_HEAD PyObject* inheritance;
  PyObject* request;
  PyObject* entered;  // null while it is not entered, and if nothing was taken along
};

AdoptedObject& adopted_of(PyObject* object) { return *reinterpret_cast<AdoptedObject*>(object); }

PyObject* adopted_enter(PyObject* object, PyObject*) {
  AdoptedObject& self = adopted_of(object);
  Inherited inherited;
  if (self.inheritance != Py_None && !decode(self.inheritance, inherited)) Py_RETURN_NONE;
  if (has_no_scope(current_thread())) Py_RETURN_NONE;
  Ref made = make_entered();
  if (!made) return nullptr;
  Entered* const entered = &entered_of(made.get());
  ThreadState& thread = current_thread();
  if (thread.attention().load(relaxed) != 0) attend(thread);
  const std::uint32_t index = has_no_scope(thread) ? 0 : take_frame(thread);
  if (index == 0) {
    Recorder::get().lose(kLostMemory);
    entered->is_left = true;
    Py_RETURN_NONE;
  }
  Scope& scope = *thread.scope;
  make_root(thread, index, inherited.link);
  thread.frames[index].below.store(scope.top, relaxed);
  thread.locals[index].open_by(entered);
  thread.locals[index].belong_to(inherited.link.request);
  thread.locals[index].open_in(&scope);
  scope.top = index;
  entered->frame = index;
  enter(thread, *entered, inherited.link.request, self.request);
  drop_from(self.entered);
  self.entered = made.release();
  Py_RETURN_NONE;
}

PyObject* adopted_exit(PyObject* object, PyObject* const*, Py_ssize_t) {
  const Ref entered(std::exchange(adopted_of(object).entered, nullptr));
  if (entered) leave_request(entered.get(), adopted_of(object).request);
  Py_RETURN_NONE;
}

void adopted_dealloc(PyObject* object) {
  AdoptedObject& self = adopted_of(object);
  drop_from(self.entered);
  drop_from(self.inheritance);
  drop_from(self.request);
  PyObject_Free(object);
}

PyMethodDef g_adopted_methods[] = {
    {"__enter__", adopted_enter, METH_NOARGS, nullptr},
    {"__exit__", as_method(adopted_exit), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject g_adopted_type = static_type("stagespan._core.Adopted", sizeof(AdoptedObject), 0);

PyObject* adopted(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "request_adopted() takes 2 arguments, not %zd", count);
  auto* const made = PyObject_New(AdoptedObject, &g_adopted_type);
  if (made == nullptr) return nullptr;
  made->inheritance = Py_NewRef(args[0]);
  made->request = Py_NewRef(args[1]);
  made->entered = nullptr;
  return reinterpret_cast<PyObject*>(made);
}

}  // namespace

Ref enter_request(std::uint64_t number, PyObject* request) noexcept {
  Ref entered = make_entered();
  if (entered) enter(current_thread(), entered_of(entered.get()), number, request);
  return entered;
}

void leave_request(PyObject* entered, PyObject* request) noexcept {
  if (!entered_of(entered).is_left) leave(entered_of(entered), request);
}

bool init_current_request() {
  g_adopted_type.tp_dealloc = adopted_dealloc;
  g_adopted_type.tp_methods = g_adopted_methods;
  g_entered_type.tp_dealloc = entered_dealloc;
  return PyType_Ready(&g_adopted_type) == 0 && PyType_Ready(&g_entered_type) == 0;
}

PyMethodDef g_current_request_functions[] = {
    {"request_inheritance", inheritance, METH_NOARGS, nullptr},
    {"request_adopted", as_method(adopted), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
