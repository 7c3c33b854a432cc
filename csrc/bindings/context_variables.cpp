// context_variables.cpp: reads and writes the variables, also in contexts that are not current.
#include "context_variables.h"

#include <array>
#include <cstring>
#include <utility>

#include "collector.h"
#include "context_layout.h"
#include "object.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

namespace {

PyObject* g_innermost = nullptr;  // the context variable; its value is an Inherited as bytes
PyObject* g_request = nullptr;    // the context variable; its value is the request object or None

}  // namespace

// --- reading --------------------------------------------------------------------------------------------

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

PyObject* read_request() noexcept {
  PyObject* value = nullptr;
  if (PyContextVar_Get(g_request, Py_None, &value) == 0) return value;
  PyErr_Clear();
  return Py_NewRef(Py_None);
}

PyObject* request_variable() noexcept { return Py_NewRef(g_request); }

// --- writing --------------------------------------------------------------------------------------------

namespace {

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
    add({PyContext_CopyCurrent(), thread.serial, collection});
    PyErr_Clear();
  }

  /// The same for a context whose variables were replaced from outside.
  void keep(Ref context) noexcept { add({context.release(), 0, 0}); }

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

  void add(Entry entry) noexcept {
    std::swap(entries_[next_++ % entries_.size()], entry);
    Py_XDECREF(entry.context);
  }

  std::array<Entry, 64> entries_{};
  std::size_t next_ = 0;
};
InterruptedVariables g_interrupted;

// Referenced because an interrupted function may discard the map that contains them, after which PyContextVar_Get still
// returns the values, from a cache without a reference.
PyObject* g_last_inherited = nullptr;
PyObject* g_last_request = nullptr;
#endif

/// Whether PyContextVar_Set can allocate its token. It crashes the process if it gets memory neither for the token nor
/// for the new map of variables (Python 3.10 to 3.13). The block that is freed here is the next one of its size.
bool has_memory_for_token() noexcept {
  const Py_ssize_t gc_head_bytes = 2 * Py_ssize_t{sizeof(void*)};
  void* const probe = PyObject_Malloc(static_cast<std::size_t>(PyContextToken_Type.tp_basicsize + gc_head_bytes));
  PyObject_Free(probe);
  return probe != nullptr;
}

/// Sets a variable in the current context. Returns the token, which refers to the previous value.
Ref set_variable(PyObject* variable, PyObject* value) noexcept {
  const bool can_set = value != nullptr && has_memory_for_token();
  Ref token(can_set ? PyContextVar_Set(variable, value) : nullptr);
  if (!token) PyErr_Clear();
  return token;
}

/// Stores the inherited value in the current context without ContextVar.set; false if other code can see the value. Not
/// to be used in a finalizer that may have interrupted ContextVar.set, which reads the map that is changed here.
bool write_in_place(const Inherited& inherited) noexcept {
#if PY_VERSION_HEX < 0x030c0000
  const PyObject* const held = g_last_inherited;
#else
  const PyObject* const held = nullptr;
#endif
  char* const bytes = private_value(thread_state()->context, g_innermost, sizeof(inherited), held);
  if (bytes == nullptr) return false;
  Inherited stored = inherited;
  stored.generation = Recorder::get().generation();
  std::memcpy(bytes, &stored, sizeof(stored));
  return true;
}

/// The context in which variables of `context` can be set by making it current: the context itself, or a copy whose
/// variables it then gets, because a context can only be entered once.
Ref to_enter(PyObject* context) noexcept {
  Ref entered(is_context_known() ? PyContext_Copy(context) : Py_NewRef(context));
  if (entered && PyContext_Enter(entered.get()) == 0) return entered;
  PyErr_Clear();
  return Ref();
}

}  // namespace

void write_inherited(const ThreadState& thread, const Inherited& inherited) noexcept {
#if PY_VERSION_HEX < 0x030c0000
  const bool is_collecting = stagespan_is_collecting() != 0;
  if (is_collecting)
    g_interrupted.keep_current(thread);
  else if (write_in_place(inherited))
    return g_interrupted.release();
#else
  (void)thread;
  if (write_in_place(inherited)) return;
#endif
  Ref value;
  {
    // Neither PyContextVar_Set nor this scope supports re-entrant calls.
    const NoCollection by_allocations;
    value = Ref(encode(inherited));
    set_variable(g_innermost, value.get());
  }
#if PY_VERSION_HEX < 0x030c0000
  Py_XDECREF(std::exchange(g_last_inherited, value.release()));
  if (!is_collecting) g_interrupted.release();
#endif
}

void write_request(const ThreadState& thread, PyObject* request) noexcept {
#if PY_VERSION_HEX < 0x030c0000
  if (stagespan_is_collecting() != 0) g_interrupted.keep_current(thread);
#else
  (void)thread;
#endif
  Ref token;  // refers to the previous request, whose end may run code of the program
  {
    const NoCollection by_allocations;
    token = set_variable(g_request, request);
  }
#if PY_VERSION_HEX < 0x030c0000
  keep(g_last_request, request);
#endif
}

void write_elsewhere(const ThreadState& thread, PyObject* context, const Inherited& inherited,
                     PyObject* request) noexcept {
  if (context == thread_state()->context) {
    write_inherited(thread, inherited);
    if (request != nullptr) write_request(thread, request);
    return;
  }
  Ref value, entered;
  {
    const NoCollection by_allocations;
    entered = to_enter(context);
    if (!entered) return;
    value = Ref(encode(inherited));
    // Nothing is freed here, because the previous variables stay in the context, or are swapped into the copy below.
    set_variable(g_innermost, value.get());
    if (request != nullptr) set_variable(g_request, request);
    PyContext_Exit(entered.get());
    if (entered.get() != context) swap_variables(context, entered.get());
  }
#if PY_VERSION_HEX < 0x030c0000
  if (request != nullptr) keep(g_last_request, request);
  Py_XDECREF(std::exchange(g_last_inherited, value.release()));
  // A collection may have interrupted a function that reads the previous variables.
  if (stagespan_is_collecting() != 0)
    g_interrupted.keep(std::move(entered));
  else
    g_interrupted.release();
#endif
}

bool init_context_variables() {
  g_innermost = PyContextVar_New("stagespan_innermost", nullptr);
  g_request = PyContextVar_New("stagespan_request", Py_None);
  know_context_layout(g_innermost);
  stagespan_know_collector();
  PyErr_Clear();
  return g_innermost != nullptr && g_request != nullptr;
}

}  // namespace stagespan::python
