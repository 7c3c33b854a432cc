// execution_context.cpp: scopes of tasks and greenlets, and the span and request that each inherits from its creator.
#include "execution_context.h"

#include <utility>

#include "context_layout.h"
#include "stagespan/cut_off.h"
#include "stagespan/scoped_timer.h"
#include "task_scopes.h"

namespace stagespan::python {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

PyObject* g_greenlet = nullptr;  // the name of the module as an object, whose hash is computed only once

// --- greenlets ------------------------------------------------------------------------------------------

/// An attribute of an object; empty, without an exception, if it does not exist or is None.
Ref attribute_not_none(PyObject* object, const char* name) noexcept {
  Ref value = attribute(object, name);
  return value.get() != Py_None ? std::move(value) : Ref();
}

/// The running greenlet; empty in a thread's main greenlet, and if greenlet is not imported.
Ref current_greenlet() noexcept {
  static PyObject* getcurrent = nullptr;
  if (getcurrent == nullptr) {
    PyObject* const modules = Py_IsInitialized() != 0 ? PyImport_GetModuleDict() : nullptr;
    PyObject* const module = modules != nullptr ? PyDict_GetItem(modules, g_greenlet) : nullptr;
    if (module == nullptr) return Ref();
    getcurrent = attribute_not_none(module, "getcurrent").release();
    if (getcurrent == nullptr) return Ref();
  }
  Ref greenlet(PyObject_CallNoArgs(getcurrent));
  if (!greenlet) PyErr_Clear();
  return attribute_not_none(greenlet.get(), "parent") ? std::move(greenlet) : Ref();
}

/// The greenlet that created this one: gevent stores it; otherwise it is assumed to be the parent.
Ref creator_of(PyObject* greenlet) noexcept {
  const Ref spawning(attribute_not_none(greenlet, "spawning_greenlet"));  // a weak reference
  Ref creator(spawning ? PyObject_CallNoArgs(spawning.get()) : nullptr);
  if (!creator) PyErr_Clear();
  if (creator && creator.get() != Py_None) return creator;
  return attribute_not_none(greenlet, "parent");
}

// --- what is inherited ----------------------------------------------------------------------------------

/// The span and request of a copied context, if they are known without the code that entered it.
bool find_link(ThreadState& thread, const Inherited& stored, ParentLink& link) noexcept {
  if (stored.base == Inherited::kExact) {
    link = stored.link;
    return true;
  }
  // Copied from a thread's own code: it belongs to what is open there now, in the request that was current there.
  if (stored.base == thread.serial) {
    if (stored.link.request == 0)
      link = innermost(thread, thread.base);
    else if (!innermost_of_request(thread, stored.link.request, link))
      link = stored.link;
    return true;
  }
  if (!Recorder::get().innermost_elsewhere(stored.base, stored.link.request, link)) link = stored.link;
  return link.id != 0 || link.request != 0;
}

/// The same for any context of this thread: by its open spans, or else by its stored value.
bool find_link_in(ThreadState& thread, PyObject* context, ParentLink& link) noexcept {
  if (context == thread.base.context) {
    link = innermost(thread, thread.base);
    return true;
  }
  if (const Scope* const known = find_task_scope(thread, context)) {
    link = innermost(thread, *known);
    return true;
  }
  Inherited stored;
  return read_inherited_of(context, stored) && find_link(thread, stored, link);
}

/// The span that is open now in the code that created a greenlet, or in its creator's, because the span that was open
/// at the creation is unknown.
ParentLink link_of_creator(ThreadState& thread, PyObject* greenlet) noexcept {
  Ref main(Py_NewRef(greenlet));
  while (Ref above = attribute_not_none(main.get(), "parent")) main = std::move(above);
  Ref creator = creator_of(greenlet);
  for (int steps = 0; creator && steps < 64; ++steps) {
    if (creator.get() == main.get()) return innermost(thread, thread.base);
    const Ref context(attribute_not_none(creator.get(), "gr_context"));
    ParentLink link;
    if (context && find_link_in(thread, context.get(), link)) return link;
    creator = creator_of(creator.get());
  }
  return {};
}

/// The open span of the code that entered a context and waits for it.
ParentLink link_of_caller(ThreadState& thread, PyObject* context) noexcept {
  ParentLink link;
  while ((context = context_before(context)) != nullptr)
    if (find_link_in(thread, context, link)) return link;
  const Ref greenlet = current_greenlet();
  return greenlet ? link_of_creator(thread, greenlet.get()) : innermost(thread, thread.base);
}

// --- scopes ---------------------------------------------------------------------------------------------

bool is_idle(const Scope& scope) noexcept { return scope.top == scope.root && scope.holds == 0; }

void become_base(ThreadState& thread, PyObject* context) noexcept {
  make_task_scopes(thread);  // now, because there may be no memory when the first task opens a span
  thread.scope = &thread.base;
  thread.base.context = context;
  Inherited stored;
  const bool is_stored = context != nullptr && read_inherited(stored);
  if (is_stored && stored.base == thread.serial) return;
  if (is_stored && is_entered(context) && thread.base.top == thread.base.root) {
    // Threads that run in a copied context belong to the code from which it was copied.
    ParentLink link;
    if (find_link(thread, stored, link)) {
      make_root(thread, thread.base.root, link);
      thread.base.request = link.request;
    }
  }
  write_inherited(thread, inherited_from(thread, thread.base));
  thread.base.context = thread_state()->context;  // created when a value is first stored
}

/// Until the code that runs gets a scope. Each span looks for one again, because this scope has no context.
void have_no_scope(ThreadState& thread) noexcept {
  thread.scope = &thread.nowhere;
  thread.attention().fetch_or(kAttentionNoScope, relaxed);
}

/// Releases the frame of a task's scope, so that the scope can leave its table.
void close_scope(ThreadState& thread, Scope& scope) {
  if (thread.scope == &scope) thread.scope = &thread.base;
  if (scope.root != 0) give_frame(thread, scope.root);
}

void drop_scope(ThreadState& thread, Scope& scope) {
  close_scope(thread, scope);
  task_scopes(thread)->remove(static_cast<TaskScope&>(scope));
}

void drop_left_behind(ThreadState& thread, TaskScopes& scopes) {
  for (TaskScope* scope = scopes.take_left_behind(); scope != nullptr;) {
    TaskScope* const next = scope->next;
    close_scope(thread, *scope);
    scopes.recycle(*scope);
    scope = next;
  }
}

/// Makes the scope of the current context the current one. If there is no frame or memory for it, the code has no
/// scope: what it opens must not get into that of other code.
void add_scope(ThreadState& thread, PyObject* context, const Inherited& stored, const ParentLink& link,
               bool is_follower) noexcept {
  // A finalizer that opens spans may have run since the caller's check.
  if (Scope* const known = find_task_scope(thread, context)) {
    thread.scope = known;
    return;
  }
  // Dropping scopes may run code of the program, which must not use the previous scope.
  thread.scope = &thread.nowhere;
  TaskScopes* const scopes = make_task_scopes(thread);
  if (scopes == nullptr) return have_no_scope(thread);
  drop_left_behind(thread, *scopes);
  // If nothing is recorded any more, scopes are only needed for requests.
  const std::uint32_t root = is_cut_off() ? 0 : take_frame(thread);
  TaskScope* const scope = root != 0 || is_cut_off() ? scopes->add(context) : nullptr;
  if (scope == nullptr) {
    if (root != 0) give_frame(thread, root);
    return have_no_scope(thread);
  }
  scope->stored = stored;
  scope->stored.generation = Recorder::get().generation();  // a forked child makes its own scopes
  scope->is_follower = is_follower;
  scope->root = root;
  scope->top = root;
  scope->request = link.request;
  if (root != 0) make_root(thread, root, link);
  thread.scope = scope;
}

void enter_task(ThreadState& thread, PyObject* context) noexcept {
  Inherited stored;
  if (!read_inherited(stored)) stored = {{}, Inherited::kNothing};
  ParentLink link;
  const bool is_found = stored.base != Inherited::kNothing && find_link(thread, stored, link);
  if (!is_found) link = link_of_caller(thread, context);
  // A context may be used again later, inside of another span of the code that it was copied from.
  add_scope(thread, context, stored, link, !is_found || stored.base == thread.serial);
}

void enter_greenlet(ThreadState& thread, PyObject* greenlet) noexcept {
  Inherited stored;
  ParentLink link;
  if (!read_inherited(stored) || !find_link(thread, stored, link)) link = link_of_creator(thread, greenlet);
  // Greenlets may have no context until one is needed.
  stored = {link, Inherited::kExact};
  write_inherited(thread, stored);
  PyObject* const context = thread_state()->context;
  if (context == nullptr) {
    have_no_scope(thread);
    return;
  }
  thread.base.takes_turns = true;  // as that of the main greenlet
  add_scope(thread, context, stored, link, false);
}

Scope* current_scope(ThreadState& thread) {
  const PyThreadState* const state = PyGILState_GetThisThreadState();
  return state == nullptr ? nullptr : find_task_scope(thread, state->context);
}

/// Enters a task whose parent its context says, which needs nothing that could meet a pending exception. False if that
/// is not the case; then nothing has changed.
bool try_enter_task(ThreadState& thread, PyObject* context) noexcept {
  TaskScopes* const scopes = task_scopes(thread);
  if (scopes == nullptr || scopes->may_have_left_behind() || is_cut_off() || context_before(context) == nullptr)
    return false;
  Inherited stored;
  ParentLink link;
  if (!read_inherited(stored) || !find_link(thread, stored, link)) return false;
  add_scope(thread, context, stored, link, stored.base == thread.serial);
  return true;
}

/// Notes when work for a request has ended here, unless other code could run meanwhile.
STAGESPAN_HOT void note_turn(ThreadState& thread, TaskScope& scope, std::uint64_t turn) noexcept {
  const std::uint64_t top = thread.frames[scope.top].id.load(relaxed);
  const bool has_begun = top == thread.next_id && top != scope.innermost_id;
  scope.innermost_id = top;
  if (scope.turn != turn) {
    scope.turn = turn;
    scope.suspended_id = has_begun ? top - 1 : thread.next_id;
  } else if (!has_begun) {
    Recorder::get().note_work(thread, scope.suspended_id);
  }
}

}  // namespace

void switch_scope(ThreadState& thread, PyObject* context) noexcept {
  if (thread.is_stand_in()) return;  // shared by several threads, so it has no scopes
  if (context != nullptr && context == thread.base.context) {
    thread.scope = &thread.base;
    return;
  }
  if (Scope* const known = context == nullptr ? nullptr : find_task_scope(thread, context)) {
    thread.scope = known;
    return;
  }
  if (context != nullptr && try_enter_task(thread, context)) return;
  const ErrorAside pending;
  if (context != nullptr && is_entered(context)) {
    if (is_threads_own(context))
      become_base(thread, context);
    else
      enter_task(thread, context);
    return;
  }
  if (const Ref greenlet = current_greenlet())
    enter_greenlet(thread, greenlet.get());
  else
    become_base(thread, context);
}

WorkingSpan working_span(const void* owner, std::uint32_t stage) noexcept {
  if (t_state == nullptr) {
    const ErrorAside pending;
    Inherited stored;
    if (!read_inherited(stored)) return {};
    ParentLink link{.request = stored.link.request};
    if (stored.base == Inherited::kExact)
      link = stored.link;
    else
      Recorder::get().innermost_elsewhere(stored.base, stored.link.request, link);
    return working_span_of(link, stage);
  }
  ThreadState& thread = current_thread();
  const WorkingSpan span = working_span_in(thread, *thread.scope, stage, owner);
  if (span.frame == nullptr) publish(thread);  // a scope without open spans is removed again
  return span;
}

bool takes_turns(const ThreadState& thread) noexcept {
  PyObject* const context = thread_state()->context;
  if (context == thread.base.context) return thread.base.takes_turns;
  if (context != nullptr && is_entered(context)) return !is_threads_own(context);
  return static_cast<bool>(current_greenlet());
}

bool has_greenlets() noexcept {
  PyObject* const modules = Py_IsInitialized() != 0 ? PyImport_GetModuleDict() : nullptr;
  return modules != nullptr && PyDict_GetItem(modules, g_greenlet) != nullptr;
}

Inherited inherited_from(const ThreadState& thread, const Scope& scope) noexcept {
  if (scope.is_follower && is_idle(scope)) return static_cast<const TaskScope&>(scope).stored;
  return {innermost(thread, scope), scope.is_task ? Inherited::kExact : thread.serial};
}

void publish_slow(ThreadState& thread, PyObject* request) noexcept {
  Scope& scope = *thread.scope;
  if (scope.is_task) note_turn(thread, static_cast<TaskScope&>(scope), thread_state()->context_ver);
  const Inherited inherited = inherited_from(thread, scope);
  const ErrorAside pending;
  write_inherited(thread, inherited, request);
  // Code that ran when references were dropped may have changed the current scope.
  if (thread.scope == &scope && scope.is_task && is_idle(scope)) drop_scope(thread, scope);
}

void publish_in_task(ThreadState& thread) noexcept {
  TaskScope& scope = static_cast<TaskScope&>(*thread.scope);
  const PyThreadState& state = *thread_state();
  // Dropping the scope does not drop the last reference to its context if that is current.
  Inherited* const own = scope.context == state.context ? inherited_in_place(state.context) : nullptr;
  if (own == nullptr) return publish_slow(thread);
  const bool is_dropped = is_idle(scope);
  if (is_dropped) [[unlikely]]
    *own = inherited_from(thread, scope);
  else
    *own = {innermost(thread, scope), Inherited::kExact};
  own->generation = scope.stored.generation;
  note_turn(thread, scope, state.context_ver);
  if (is_dropped) drop_scope(thread, scope);
}

void publish_elsewhere(ThreadState& thread, Scope& scope, PyObject* request) noexcept {
  if (&scope == thread.scope || &scope == &thread.nowhere) return;
  if (!scope.is_task && &scope != &thread.base) {  // that of a suspended run
    if (!is_idle(scope)) return;
    give_frame(thread, scope.root);
    delete &scope;
    return;
  }
  // What is innermost in the thread's own code is looked up when it is needed.
  if (!scope.is_task && request == nullptr) return;
  const ErrorAside pending;
  const Ref context(Py_XNewRef(static_cast<PyObject*>(const_cast<void*>(scope.context))));
  if (!context) return;
  write_elsewhere(thread, context.get(), inherited_from(thread, scope), request);
  // Code that ran when references were dropped may have dropped the scope.
  Scope* const known = find_task_scope(thread, context.get());
  if (known != nullptr && known != thread.scope && is_idle(*known)) drop_scope(thread, *known);
}

Ref context_of(const FoundFrame& opened) noexcept {
  PyObject* context = nullptr;
  Recorder::get().with_thread(opened.serial, [&](ThreadState& thread) {
    const Scope* const scope = thread.locals[thread.index_of(*opened.frame)].scope;
    if (opened.frame->id.load(relaxed) == opened.id && scope != nullptr && scope->is_task)
      context = static_cast<PyObject*>(const_cast<void*>(scope->context));
  });
  return Ref(Py_XNewRef(context));
}

void publish_in_thread(std::uint64_t serial, PyObject* context) noexcept {
  const Scope* scope = nullptr;
  Inherited inherited;
  Recorder::get().with_thread(serial, [&](ThreadState& thread) {
    scope = find_task_scope(thread, context);
    if (scope != nullptr) inherited = inherited_from(thread, *scope);
  });
  const ErrorAside pending;
  if (scope != nullptr) write_elsewhere(current_thread(), context, inherited, nullptr);
}

bool init_execution_context() {
  g_current_scope.store(current_scope, relaxed);
  g_greenlet = PyUnicode_InternFromString("greenlet");
  return init_context_variables() && g_greenlet != nullptr;
}

}  // namespace stagespan::python
