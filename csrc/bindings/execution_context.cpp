// execution_context.cpp: scopes of tasks and greenlets, and the span and request that each inherits from its creator.
#include "execution_context.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "collector.h"
#include "stagespan/scoped_timer.h"

namespace stagespan::python {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

PyObject* g_innermost = nullptr;  // the context variable; its value is an Inherited as bytes
PyObject* g_greenlet = nullptr;   // the name of the module as an object, whose hash is computed only once

/// The value that copies of a context inherit.
struct Inherited {
  ParentLink link;               // the open span; in own code of a thread: the one open when its request was entered
  std::uint64_t base = kExact;   // the serial of the thread whose own code stored this, or one of those below
  std::uint64_t generation = 0;  // spans and requests from before a fork belong to the parent
  static constexpr std::uint64_t kExact = 0;                    // `link` is what is open there
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};  // treated as empty
};

struct TaskScope : Scope {
  Inherited stored;           // the inherited value of the context
  TaskScope* next = nullptr;  // in its chain of the table, or in a list of scopes that have left the table
};

/// The scopes of a thread's tasks by the address of their context: a hash table of chains. It is not one of the
/// standard library's because spans are opened without exceptions: if memory is exhausted, a scope is not made and
/// the table does not grow.
class TaskScopes final : public ScopeTable {
 public:
  ~TaskScopes() override {
    for_each([](TaskScope& scope) { delete &scope; });
    while (TaskScope* const scope = spare_) {
      spare_ = scope->next;
      delete scope;
    }
    if (buckets_ != first_buckets_) delete[] buckets_;
  }

  TaskScope* find(const void* context) {
    TaskScope* scope = bucket_of(context);
    while (scope != nullptr && scope->context != context) scope = scope->next;
    return scope;
  }

  /// Null if there is no memory.
  TaskScope* add(PyObject* context) {
    TaskScope* scope = spare_;
    if (scope == nullptr) {
      scope = new (std::nothrow) TaskScope;
      if (scope == nullptr) return nullptr;
    } else {
      spare_ = scope->next;
      --spare_count_;
      *scope = TaskScope{};
    }
    // The context stays alive while its scope does, so that no other context gets its address.
    scope->context = Py_NewRef(context);
    scope->is_task = true;
    scope->takes_turns = true;
    if (size_ >= bucket_count_) grow();
    link(*scope);
    ++size_;
    return scope;
  }

  void remove(TaskScope& scope) {
    TaskScope** at = &bucket_of(scope.context);
    while (*at != &scope) at = &(*at)->next;
    *at = scope.next;
    --size_;
    recycle(scope);
  }

  TaskScope* find_by_request(std::uint64_t request) {
    TaskScope* found = nullptr;
    for_each([&](TaskScope& scope) {
      if (scope.request == request && scope.holds != 0) found = &scope;
    });
    return found;
  }

  /// Removes empty scopes that were not dropped, for example because another thread ended their spans, and returns them
  /// as a list for `recycle`. Searches only if there are twice as many scopes as after the last search.
  TaskScope* take_left_behind() {
    if (size_ < next_search_) return nullptr;
    TaskScope* taken = nullptr;
    for (std::size_t i = 0; i < bucket_count_; ++i) {
      TaskScope** at = &buckets_[i];
      while (TaskScope* const scope = *at) {
        if (scope->top != scope->root || scope->holds != 0) {
          at = &scope->next;
          continue;
        }
        *at = scope->next;
        --size_;
        scope->next = taken;
        taken = scope;
      }
    }
    next_search_ = std::max<std::size_t>(64, 2 * size_);
    return taken;
  }

  /// Keeps a scope that has left the table for the next task. Dropping the last reference to its context may run code
  /// of the program.
  void recycle(TaskScope& scope) {
    auto* const context = static_cast<PyObject*>(const_cast<void*>(scope.context));
    if (spare_count_ < 64) {
      scope.next = spare_;
      spare_ = &scope;
      ++spare_count_;
    } else {
      delete &scope;
    }
    Py_XDECREF(context);
  }

 private:
  static constexpr std::size_t kFirstBuckets = 16;  // a power of two, as each larger number

  TaskScope*& bucket_of(const void* context) {
    // The low bits of an address are those of the allocator's alignment. Multiplying mixes the others upwards.
    const std::uint64_t hash = (reinterpret_cast<std::uintptr_t>(context) >> 4) * 0x9e3779b97f4a7c15;
    return buckets_[(hash >> 32) & (bucket_count_ - 1)];
  }

  void link(TaskScope& scope) {
    TaskScope*& bucket = bucket_of(scope.context);
    scope.next = bucket;
    bucket = &scope;
  }

  template <class Function>
  void for_each(Function function) {
    for (std::size_t i = 0; i < bucket_count_; ++i) {
      for (TaskScope* scope = buckets_[i]; scope != nullptr;) {
        TaskScope* const next = scope->next;
        function(*scope);
        scope = next;
      }
    }
  }

  void grow() {
    TaskScope** const larger = new (std::nothrow) TaskScope*[2 * bucket_count_]{};
    if (larger == nullptr) return;  // the chains become longer
    TaskScope** const before = std::exchange(buckets_, larger);
    const std::size_t count_before = std::exchange(bucket_count_, 2 * bucket_count_);
    for (std::size_t i = 0; i < count_before; ++i) {
      for (TaskScope* scope = before[i]; scope != nullptr;) {
        TaskScope* const next = scope->next;
        link(*scope);
        scope = next;
      }
    }
    if (before != first_buckets_) delete[] before;
  }

  TaskScope* first_buckets_[kFirstBuckets] = {};
  TaskScope** buckets_ = first_buckets_;
  std::size_t bucket_count_ = kFirstBuckets;
  std::size_t size_ = 0;
  TaskScope* spare_ = nullptr;
  std::size_t spare_count_ = 0;
  std::size_t next_search_ = 64;
};

/// Null until `make_task_scopes`.
TaskScopes* task_scopes(ThreadState& thread) { return static_cast<TaskScopes*>(thread.scopes.get()); }

/// Null if there is no memory.
TaskScopes* make_task_scopes(ThreadState& thread) {
  if (!thread.scopes) thread.scopes.reset(new (std::nothrow) TaskScopes);
  return task_scopes(thread);
}

TaskScope* find_task_scope(ThreadState& thread, const void* context) {
  TaskScopes* const scopes = task_scopes(thread);
  return scopes == nullptr ? nullptr : scopes->find(context);
}

ParentLink innermost(const ThreadState& thread, const Scope& scope) {
  const OpenFrame& top = thread.frames[scope.top];
  return {top.as_parent_id.load(relaxed), scope.request, top.as_parent_stage.load(relaxed),
          top.as_parent_depth.load(relaxed)};
}

// --- the interpreter's contexts -------------------------------------------------------------------------

// The interpreter's PyContext up to the needed field. This layout is verified before it is used.
struct ContextLayout {
  PyObject_HEAD PyObject* previous;
  PyObject* variables;
  PyObject* weak_references;
  int entered;
};
bool g_layout_is_known = false;

const ContextLayout& layout_of(const PyObject* context) { return *reinterpret_cast<const ContextLayout*>(context); }

bool know_layout() {
  const Ref outer(PyContext_New()), inner(PyContext_New());
  if (!outer || !inner || Py_TYPE(outer.get())->tp_basicsize < static_cast<Py_ssize_t>(sizeof(ContextLayout)))
    return false;
  const ContextLayout& layout = layout_of(inner.get());
  const bool free_before = layout.entered == 0 && layout.previous == nullptr;
  if (PyContext_Enter(outer.get()) != 0) return false;
  bool taken = PyContext_Enter(inner.get()) == 0;
  if (taken) {
    taken = layout.entered == 1 && layout.previous == outer.get() && layout_of(outer.get()).entered == 1;
    taken = PyContext_Exit(inner.get()) == 0 && taken;
  }
  return PyContext_Exit(outer.get()) == 0 && free_before && taken && layout.entered == 0 && layout.previous == nullptr;
}

// A thread's own context is created on first use and never entered, whereas a task's is entered. No call
// distinguishes them, but entering a context twice is an error.
bool is_entered(PyObject* context) noexcept {
  if (g_layout_is_known) return layout_of(context).entered != 0;
  if (PyContext_Enter(context) == 0) {
    PyContext_Exit(context);
    return false;
  }
  PyErr_Clear();
  return true;
}

// From Python 3.14 on, threading.Thread enters its own context before anything else runs in it.
bool is_threads_own(PyObject* context) noexcept {
  if (!g_layout_is_known || layout_of(context).previous != nullptr) return false;
  // Not threading.current_thread(), because it creates an object for each unknown thread.
  PyObject* const modules = Py_IsInitialized() != 0 ? PyImport_GetModuleDict() : nullptr;
  PyObject* const threading = modules != nullptr ? PyDict_GetItemString(modules, "threading") : nullptr;
  const Ref threads(threading != nullptr ? PyObject_GetAttrString(threading, "_active") : nullptr);
  const Ref ident(PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
  PyObject* const thread =
      threads && PyDict_Check(threads.get()) && ident ? PyDict_GetItemWithError(threads.get(), ident.get()) : nullptr;
  const Ref owned(Py_XNewRef(thread));
  const Ref own(owned ? PyObject_GetAttrString(owned.get(), "_context") : nullptr);
  PyErr_Clear();
  return own.get() == context;
}

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

bool decode(PyObject* value, Inherited& inherited) noexcept {
  if (value == nullptr || !PyBytes_CheckExact(value) || PyBytes_GET_SIZE(value) != sizeof(inherited)) return false;
  std::memcpy(&inherited, PyBytes_AS_STRING(value), sizeof(inherited));
  return inherited.base != Inherited::kNothing && inherited.generation == Recorder::get().generation();
}

PyObject* encode(Inherited inherited) noexcept {
  inherited.generation = Recorder::get().generation();
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&inherited), sizeof(inherited));
}

bool read_inherited(Inherited& inherited) noexcept {
  PyObject* value = nullptr;
  if (PyContextVar_Get(g_innermost, nullptr, &value) != 0) {
    PyErr_Clear();
    return false;
  }
  const Ref owned(value);
  return decode(value, inherited);
}

bool read_inherited_of(PyObject* context, Inherited& inherited) noexcept {
  // Asks first, because raising the exception for a missing key takes longer than opening a span.
  if (PySequence_Contains(context, g_innermost) != 1) {
    PyErr_Clear();
    return false;
  }
  const Ref value(PyObject_GetItem(context, g_innermost));
  if (!value) PyErr_Clear();
  return decode(value.get(), inherited);
}

#if PY_VERSION_HEX < 0x030c0000
/// The variables that were current in a thread when a collection started, kept until no collection is at work.
///
/// A collection may start inside ContextVar.set, ContextVar.reset or copy_context of the program. These functions have
/// no reference to the map of variables that they read, and a finalizer that opens a span replaces that map, which
/// would free it. An interrupted function creates fewer than 20 objects, so at most that many collections interrupt it.
/// More than one thread may replace its map during a collection, because finalizers may release the interpreter's lock.
class InterruptedVariables {
 public:
  void keep_current(const ThreadState& thread) noexcept {
    const Py_ssize_t collection = stagespan_collections();
    for (const Entry& entry : entries_)
      if (entry.context != nullptr && entry.thread == thread.serial && entry.collection == collection) return;
    Entry& oldest = entries_[next_++ % entries_.size()];
    Entry entry{PyContext_CopyCurrent(), thread.serial, collection};
    if (entry.context == nullptr) PyErr_Clear();
    std::swap(oldest, entry);
    Py_XDECREF(entry.context);
  }

  /// Dropping the references may run code of the program.
  void release() noexcept {
    if (next_ == 0) return;
    next_ = 0;
    for (Entry& entry : entries_) drop_from(entry.context);
  }

 private:
  struct Entry {
    PyObject* context = nullptr;  // a copy, because only contexts can refer to such a map
    std::uint64_t thread = 0;
    Py_ssize_t collection = 0;
  };
  std::array<Entry, 64> entries_{};
  std::size_t next_ = 0;
};
InterruptedVariables g_interrupted;

// Referenced because an interrupted function may discard the map that contains it, after which PyContextVar_Get still
// returns the value, from a cache without a reference.
PyObject* g_last_written = nullptr;
#endif

/// Whether PyContextVar_Set can allocate its token. It crashes the process if it gets memory neither for the token nor
/// for the new map of variables (Python 3.10 to 3.13). The block that is freed here is the next one of its size.
bool has_memory_for_token() noexcept {
  const Py_ssize_t gc_head_bytes = 2 * Py_ssize_t{sizeof(void*)};
  void* const probe = PyObject_Malloc(static_cast<std::size_t>(PyContextToken_Type.tp_basicsize + gc_head_bytes));
  PyObject_Free(probe);
  return probe != nullptr;
}

void write_inherited(const ThreadState& thread, const Inherited& inherited) noexcept {
#if PY_VERSION_HEX < 0x030c0000
  const bool is_collecting = stagespan_is_collecting() != 0;
  if (is_collecting) g_interrupted.keep_current(thread);
#else
  (void)thread;
#endif
  Ref value;
  {
    // Neither PyContextVar_Set nor this scope supports re-entrant calls.
    const NoCollection by_allocations;
    value = Ref(encode(inherited));
    const bool can_set = value && has_memory_for_token();
    const Ref token(can_set ? PyContextVar_Set(g_innermost, value.get()) : nullptr);
    if (!token) PyErr_Clear();
  }
#if PY_VERSION_HEX < 0x030c0000
  Py_XDECREF(std::exchange(g_last_written, value.release()));
  if (!is_collecting) g_interrupted.release();
#endif
}

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
  while (g_layout_is_known && layout_of(context).entered != 0) {
    context = layout_of(context).previous;
    if (context == nullptr) break;
    if (find_link_in(thread, context, link)) return link;
  }
  const Ref greenlet = current_greenlet();
  return greenlet ? link_of_creator(thread, greenlet.get()) : innermost(thread, thread.base);
}

// --- scopes ---------------------------------------------------------------------------------------------

/// Stores the span and request in the current context, for copies of it.
void store_innermost(ThreadState& thread) noexcept {
  const Scope& scope = *thread.scope;
  write_inherited(thread, {innermost(thread, scope), scope.is_task ? Inherited::kExact : thread.serial});
}

void become_base(ThreadState& thread, PyObject* context) noexcept {
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
  store_innermost(thread);
  thread.base.context = thread_state()->context;  // created when a value is first stored
}

/// Releases the frame of a task's scope, so that the scope can leave its table.
void close_scope(ThreadState& thread, Scope& scope) {
  if (thread.scope == &scope) thread.scope = &thread.base;
  give_frame(thread, scope.root);
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

/// Makes the scope of the current context the current one. Uses the thread's own scope if there is no frame or memory
/// for it.
void add_scope(ThreadState& thread, PyObject* context, const Inherited& stored, const ParentLink& link,
               bool is_follower) noexcept {
  // A finalizer that opens spans may have run since the caller's check.
  if (Scope* const known = find_task_scope(thread, context)) {
    thread.scope = known;
    return;
  }
  thread.scope = &thread.base;
  TaskScopes* const scopes = make_task_scopes(thread);
  if (scopes == nullptr) return;
  drop_left_behind(thread, *scopes);
  const std::uint32_t root = take_frame(thread);
  if (root == 0) return;
  TaskScope* const scope = scopes->add(context);
  if (scope == nullptr) {
    give_frame(thread, root);
    return;
  }
  scope->stored = stored;
  scope->is_follower = is_follower;
  scope->root = root;
  scope->top = root;
  scope->request = link.request;
  make_root(thread, root, link);
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
    thread.scope = &thread.base;
    return;
  }
  thread.base.takes_turns = true;  // as that of the main greenlet
  add_scope(thread, context, stored, link, false);
}

Scope* current_scope(ThreadState& thread) {
  const PyThreadState* const state = PyGILState_GetThisThreadState();
  return state == nullptr ? nullptr : find_task_scope(thread, state->context);
}

}  // namespace

void switch_scope(ThreadState& thread, PyObject* context) noexcept {
  if (thread.is_stand_in()) return;  // shared by several threads, so it has no scopes
  if (context != nullptr && context == thread.base.context) {
    thread.scope = &thread.base;
    return;
  }
  const ErrorAside pending;
  if (Scope* const known = context == nullptr ? nullptr : find_task_scope(thread, context)) {
    thread.scope = known;
    return;
  }
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

void publish_slow(ThreadState& thread) noexcept {
  const ErrorAside pending;
  Scope& scope = *thread.scope;
  if (scope.top != scope.root || scope.holds != 0) {
    store_innermost(thread);
    return;
  }
  if (scope.is_follower)
    write_inherited(thread, static_cast<TaskScope&>(scope).stored);
  else
    store_innermost(thread);
  // Code that ran when references were dropped may have changed the current scope.
  if (thread.scope == &scope && scope.top == scope.root && scope.holds == 0) drop_scope(thread, scope);
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

// --- requests -------------------------------------------------------------------------------------------

std::uint64_t enter_request(std::uint64_t request) {
  ThreadState& thread = current_thread();
  if (thread.is_stand_in()) {
    Recorder::get().lose(kLostMemory);
    return 0;
  }
  Scope& scope = *thread.scope;
  const std::uint64_t before = scope.request;
  scope.request = request;
  ++scope.holds;
  store_innermost(thread);
  return before;
}

void exit_request(std::uint64_t request, std::uint64_t before) {
  ThreadState& thread = current_thread();
  if (thread.is_stand_in()) return;
  Scope* scope = thread.scope;
  if (scope->request != request || scope->holds == 0) {
    // Entered in one task and left in another, as is possible in an async generator.
    TaskScopes* const scopes = task_scopes(thread);
    scope = scopes == nullptr ? nullptr : scopes->find_by_request(request);
    if (scope == nullptr && thread.base.request == request) scope = &thread.base;
    if (scope == nullptr) {
      // In a forked child, a request that the parent entered must not be left.
      if (Recorder::get().generation() == 0) Recorder::get().lose(kLostUnmatched);
      return;
    }
  }
  scope->request = before;
  if (scope->holds != 0) --scope->holds;
  if (scope != thread.scope)
    drop_if_idle(thread, *scope);
  else if (scope->is_task)
    publish_slow(thread);
  else
    store_innermost(thread);
}

std::uint64_t current_request() {
  if (t_state == nullptr) return 0;
  ThreadState& thread = current_thread();
  const std::uint64_t request = thread.scope->request;
  publish(thread);  // a scope without open spans is removed again
  return request;
}

// --- what a callable takes along ------------------------------------------------------------------------

namespace {

/// The place in a thread's stack from which spans have the inherited span as their parent.
struct Adoption {
  std::uint64_t thread;
  std::uint32_t frame;
  std::uint64_t request;
  std::uint64_t before;
};
constexpr const char* kAdoption = "stagespan.adoption";

PyObject* inheritance(PyObject*, PyObject*) {
  ThreadState& thread = current_thread();
  const ParentLink link = innermost(thread, *thread.scope);
  publish(thread);  // a scope without open spans is removed again
  if (link.id == 0 && link.request == 0) Py_RETURN_NONE;
  return encode({link, Inherited::kExact});
}

PyObject* adopt(PyObject*, PyObject* value) {
  Inherited inherited;
  if (value != Py_None && !decode(value, inherited)) Py_RETURN_NONE;
  if (current_thread().is_stand_in()) Py_RETURN_NONE;  // shared by several threads
  std::unique_ptr<Adoption> adoption(new (std::nothrow) Adoption);
  if (!adoption) return PyErr_NoMemory();
  const Ref capsule(PyCapsule_New(adoption.get(), kAdoption, [](PyObject* object) {
    delete static_cast<Adoption*>(PyCapsule_GetPointer(object, kAdoption));
  }));
  if (!capsule) return nullptr;
  Adoption& mine = *adoption.release();
  ThreadState& thread = current_thread();
  if (thread.attention.load(relaxed) != 0) attend(thread);
  const std::uint32_t index = take_frame(thread);
  if (index == 0) {
    Recorder::get().lose(kLostOpen);
    Py_RETURN_NONE;
  }
  Scope& scope = *thread.scope;
  mine = {thread.serial, index, inherited.link.request, scope.request};
  make_root(thread, index, inherited.link);
  thread.frames[index].below.store(scope.top, relaxed);
  thread.locals[index].open_by(&mine);
  thread.locals[index].belong_to(inherited.link.request);
  thread.locals[index].scope = &scope;
  scope.top = index;
  scope.request = inherited.link.request;
  store_innermost(thread);
  return Py_NewRef(capsule.get());
}

PyObject* give_up(PyObject*, PyObject* capsule) {
  if (capsule == Py_None) Py_RETURN_NONE;
  auto* const mine = static_cast<Adoption*>(PyCapsule_GetPointer(capsule, kAdoption));
  if (mine == nullptr) return nullptr;
  ThreadState& thread = current_thread();
  // In a forked child, the parent's adopted span does not exist.
  if (thread.serial != mine->thread || thread.locals[mine->frame].owner != mine) Py_RETURN_NONE;
  Scope& scope = *thread.locals[mine->frame].scope;
  thread.locals[mine->frame].open_by(nullptr);
  if (scope.request == mine->request) scope.request = mine->before;
  drop_frame(thread, thread.frames[mine->frame]);
  if (&scope != thread.scope)
    drop_if_idle(thread, scope);
  else if (scope.is_task)
    publish_slow(thread);
  else
    store_innermost(thread);
  Py_RETURN_NONE;
}

PyObject* request_number(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(current_request()); }

}  // namespace

PyMethodDef g_execution_context_functions[] = {
    {"inheritance", inheritance, METH_NOARGS,
     "inheritance()\n--\n\nThe innermost open span and the request of the calling code, for `adopt`; None if there is "
     "neither."},
    {"adopt", adopt, METH_O,
     "adopt(inheritance, /)\n--\n\nOpen spans as children of what was innermost elsewhere; gives what ends that."},
    {"give_up", give_up, METH_O, "give_up(adopted, /)\n--\n\nEnd what `adopt` began, in the same thread."},
    {"request_number", request_number, METH_NOARGS,
     "request_number()\n--\n\nThe number of the request that the calling code belongs to, or 0."},
    {nullptr, nullptr, 0, nullptr},
};

bool init_execution_context() {
  g_innermost = PyContextVar_New("stagespan_innermost", nullptr);
  g_current_scope.store(current_scope, relaxed);
  g_layout_is_known = know_layout();
  stagespan_know_collector();
  PyErr_Clear();
  g_greenlet = PyUnicode_InternFromString("greenlet");
  return g_innermost != nullptr && g_greenlet != nullptr;
}

}  // namespace stagespan::python
