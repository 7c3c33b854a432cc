// execution_context.cpp: scopes of tasks, and what a task inherits from where it was created.
#include "execution_context.h"

#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "stagespan/scoped_timer.h"

namespace stagespan::python {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

PyObject* g_innermost = nullptr;  // the context variable; its value is an Inherited as bytes

/// What a copied context takes along.
struct Inherited {
  ParentLink link;
  std::uint32_t base_thread;  // the thread whose own scope wrote it, 0 for a task's
};
constexpr std::uint32_t kNothing = 0xffffffff;  // in place of a thread: as if nothing had been stored

class TaskScopes final : public ScopeTable {
 public:
  Scope* find(PyObject* context) {
    const auto found = scopes_.find(context);
    return found == scopes_.end() ? nullptr : found->second.get();
  }

  Scope* add(PyObject* context) {
    std::unique_ptr<Scope> scope;
    if (spare_.empty()) {
      scope = std::make_unique<Scope>();
    } else {
      scope = std::move(spare_.back());
      spare_.pop_back();
      *scope = Scope{};
    }
    // The context stays alive while its scope does, so that no other context gets its address.
    scope->context = Py_NewRef(context);
    scope->is_task = true;
    return (scopes_[context] = std::move(scope)).get();
  }

  void remove(Scope& scope) {
    auto* context = static_cast<PyObject*>(const_cast<void*>(scope.context));
    const auto found = scopes_.find(context);
    if (spare_.size() < 64) spare_.push_back(std::move(found->second));
    scopes_.erase(found);
    Py_XDECREF(context);
  }

  Scope* find_by_request(std::uint64_t request) {
    for (const auto& [context, scope] : scopes_)
      if (scope->request == request && scope->holds != 0) return scope.get();
    return nullptr;
  }

 private:
  std::unordered_map<PyObject*, std::unique_ptr<Scope>> scopes_;
  std::vector<std::unique_ptr<Scope>> spare_;
};

TaskScopes& task_scopes(ThreadState& thread) {
  if (!thread.scopes) thread.scopes = std::make_unique<TaskScopes>();
  return static_cast<TaskScopes&>(*thread.scopes);
}

ParentLink innermost(const ThreadState& thread, const Scope& scope) {
  const OpenFrame& top = thread.frames[scope.top];
  return {top.as_parent_id.load(relaxed), scope.request, top.as_parent_stage.load(relaxed),
          top.as_parent_depth.load(relaxed)};
}

// The interpreter's PyContext up to the field that matters; whether it is like that is tried before it is used.
struct ContextLayout {
  PyObject_HEAD PyObject* previous;
  PyObject* variables;
  PyObject* weak_references;
  int entered;
};
bool g_layout_is_known = false;

bool know_layout() {
  const Ref context(PyContext_New());
  if (!context || Py_TYPE(context.get())->tp_basicsize < static_cast<Py_ssize_t>(sizeof(ContextLayout))) return false;
  const int& entered = reinterpret_cast<ContextLayout*>(context.get())->entered;
  const bool free_before = entered == 0;
  if (PyContext_Enter(context.get()) != 0) return false;
  const bool taken = entered == 1;
  return PyContext_Exit(context.get()) == 0 && free_before && taken && entered == 0;
}

// A thread's own context is made when somebody first needs it and is never entered, whereas a task's is. There is
// no call that tells, but entering a context twice is an error.
bool is_entered(PyObject* context) noexcept {
  if (g_layout_is_known) return reinterpret_cast<const ContextLayout*>(context)->entered != 0;
  if (PyContext_Enter(context) == 0) {
    PyContext_Exit(context);
    return false;
  }
  PyErr_Clear();
  return true;
}

bool read_inherited(Inherited& inherited) {
  PyObject* value = nullptr;
  if (PyContextVar_Get(g_innermost, nullptr, &value) != 0) {
    PyErr_Clear();
    return false;
  }
  const Ref owned(value);
  if (value == nullptr || !PyBytes_CheckExact(value) || PyBytes_GET_SIZE(value) != sizeof(inherited)) return false;
  std::memcpy(&inherited, PyBytes_AS_STRING(value), sizeof(inherited));
  return true;
}

void write_inherited(const Inherited& inherited) {
  // PyContextVar_Set does not survive being called inside of itself, nor would the scope that is at work here.
  const NoCollection by_allocations;
  const Ref value(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&inherited), sizeof(inherited)));
  const Ref token(value ? PyContextVar_Set(g_innermost, value.get()) : nullptr);
  if (!token) PyErr_Clear();
}

bool scope_is_current(const ThreadState& thread) {
  const PyThreadState* const state = PyGILState_GetThisThreadState();
  return state != nullptr && state->context == thread.scope->context;
}

void drop_scope(ThreadState& thread, Scope& scope) {
  const std::uint32_t root = scope.root;
  if (thread.scope == &scope) thread.scope = &thread.base;
  give_frame(thread, root);
  task_scopes(thread).remove(scope);
}

}  // namespace

void switch_scope(ThreadState& thread, PyObject* context) noexcept {
  if (context == nullptr || context == thread.base.context) {
    thread.base.context = context;
    thread.scope = &thread.base;
    return;
  }
  const ErrorAside pending;
  TaskScopes& scopes = task_scopes(thread);
  if (Scope* known = scopes.find(context)) {
    thread.scope = known;
    return;
  }
  if (!is_entered(context)) {
    thread.base.context = context;
    thread.scope = &thread.base;
    return;
  }
  const std::uint32_t root = take_frame(thread);
  if (root == 0) {
    thread.scope = &thread.base;
    return;
  }
  // What was open where the context was copied. A context copied from the thread's own code, which stores
  // nothing, belongs to what is open there now: that code waits for it, as in asyncio.run. A context copied from
  // another thread's own code is known to belong to a request, if it was copied inside of one.
  Inherited inherited{innermost(thread, thread.base), 0};
  Inherited stored;
  Scope& scope = *scopes.add(context);
  scope.follows_base = !read_inherited(stored) || stored.base_thread == kNothing ||
                       (stored.base_thread != 0 && (stored.base_thread == thread.thread || stored.link.request == 0));
  if (!scope.follows_base) inherited = stored;
  scope.root = scope.top = root;
  scope.request = inherited.link.request;
  make_root(thread, root, inherited.link);
  thread.scope = &scope;
}

void publish_slow(ThreadState& thread) noexcept {
  const ErrorAside pending;
  Scope& scope = *thread.scope;
  const bool is_idle = scope.top == scope.root && scope.holds == 0;
  // A context may be used again later, inside of another span.
  write_inherited({innermost(thread, scope), is_idle && scope.follows_base ? kNothing : 0});
  if (is_idle) drop_scope(thread, scope);
}

void drop_if_idle(ThreadState& thread, Scope& scope) noexcept {
  if (&scope == thread.scope || &scope == &thread.base || scope.top != scope.root || scope.holds != 0) return;
  if (scope.is_task) {
    drop_scope(thread, scope);
  } else {
    give_frame(thread, scope.root);
    delete &scope;
  }
}

std::uint64_t enter_request(std::uint64_t request) {
  ThreadState& thread = current_thread();
  Scope& scope = *thread.scope;
  const std::uint64_t before = scope.request;
  scope.request = request;
  ++scope.holds;
  write_inherited({innermost(thread, scope), scope.is_task ? 0 : thread.thread});
  return before;
}

void exit_request(std::uint64_t request, std::uint64_t before) {
  ThreadState& thread = current_thread();
  Scope* scope = thread.scope;
  if (scope->request != request || scope->holds == 0) {
    // Entered in one task and left in another, as an async generator may be.
    scope = task_scopes(thread).find_by_request(request);
    if (scope == nullptr && thread.base.request == request) scope = &thread.base;
    if (scope == nullptr) {
      // In the child of a fork, what the parent had entered is not the child's to leave.
      if (Recorder::get().generation() == 0) Recorder::get().lose(kLostUnmatched);
      return;
    }
  }
  scope->request = before;
  if (scope->holds != 0) --scope->holds;
  if (scope != thread.scope) {
    drop_if_idle(thread, *scope);
  } else if (scope->is_task) {
    publish_slow(thread);
  } else {
    write_inherited({innermost(thread, *scope), thread.thread});
  }
}

bool init_execution_context() {
  g_innermost = PyContextVar_New("stagespan_innermost", nullptr);
  g_scope_is_current.store(scope_is_current, relaxed);
  g_layout_is_known = know_layout();
  PyErr_Clear();
  return g_innermost != nullptr;
}

}  // namespace stagespan::python
