// context_variables.cpp: reads and writes the variable, also in contexts that are not current.
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

PyObject* g_variable = nullptr;

/// A value of the variable. It is changed only while nobody else can get it (context_layout.h), or not at all.
struct StoredObject {
  PyObject_HEAD Inherited inherited;
  PyObject* request;  // null if there is none
};

StoredObject& stored_of(PyObject* value) noexcept { return *reinterpret_cast<StoredObject*>(value); }

int stored_traverse(PyObject* value, visitproc visit, void* arg) {
  Py_VISIT(stored_of(value).request);
  return 0;
}

int stored_clear(PyObject* value) {
  drop_from(stored_of(value).request);
  return 0;
}

void stored_dealloc(PyObject* value) {
  PyObject_GC_UnTrack(value);
  drop_from(stored_of(value).request);
  PyObject_GC_Del(value);
}

PyTypeObject g_stored_type = static_type("stagespan._core.Inherited", sizeof(StoredObject), Py_TPFLAGS_HAVE_GC);

/// Replaces the request of a value, and returns the previous one, which the caller releases.
PyObject* exchange_request(PyObject* value, PyObject* request) noexcept {
  PyObject* const before = std::exchange(stored_of(value).request, request != Py_None ? Py_NewRef(request) : nullptr);
  // Values without a request refer to nothing, so that the collector does not need to know them.
  if (stored_of(value).request != nullptr && PyObject_GC_IsTracked(value) == 0) PyObject_GC_Track(value);
  return before;
}

/// A new value; null with an exception set if there is no memory. `request` may be None.
PyObject* make_value(const Inherited& inherited, PyObject* request) noexcept {
  auto* const made = PyObject_GC_New(StoredObject, &g_stored_type);
  if (made == nullptr) return nullptr;
  made->inherited = inherited;
  made->inherited.generation = Recorder::get().generation();
  made->request = nullptr;
  exchange_request(reinterpret_cast<PyObject*>(made), request);
  return reinterpret_cast<PyObject*>(made);
}

bool is_valid(const Inherited& inherited) noexcept {
  return inherited.base != Inherited::kNothing && inherited.generation == Recorder::get().generation();
}

bool take(PyObject* value, Inherited& inherited) noexcept {
  if (value == nullptr || Py_TYPE(value) != &g_stored_type) return false;
  inherited = stored_of(value).inherited;
  return is_valid(inherited);
}

/// The value of the current context; empty if it has none.
Ref current_value() noexcept {
  PyObject* value = nullptr;
  if (PyContextVar_Get(g_variable, nullptr, &value) == 0) return Ref(value);
  PyErr_Clear();
  return Ref();
}

/// The request object of a value, borrowed; None without one.
PyObject* request_of(PyObject* value) noexcept {
  PyObject* const request = value != nullptr && Py_TYPE(value) == &g_stored_type ? stored_of(value).request : nullptr;
  return request != nullptr ? request : Py_None;
}

}  // namespace

// --- reading --------------------------------------------------------------------------------------------

bool decode(PyObject* value, Inherited& inherited) noexcept {
  if (value == nullptr || !PyBytes_CheckExact(value) || PyBytes_GET_SIZE(value) != sizeof(inherited)) return false;
  std::memcpy(&inherited, PyBytes_AS_STRING(value), sizeof(inherited));
  return is_valid(inherited);
}

PyObject* encode(Inherited inherited) noexcept {
  inherited.generation = Recorder::get().generation();
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&inherited), sizeof(inherited));
}

bool read_inherited(Inherited& inherited) noexcept {
  PyObject* value = nullptr;
  if (find_value(thread_state()->context, g_variable, value)) return take(value, inherited);
  return take(current_value().get(), inherited);
}

bool read_inherited_of(PyObject* context, Inherited& inherited) noexcept {
  if (PyObject* value = nullptr; find_value(context, g_variable, value)) return take(value, inherited);
  // Asks first, because raising the exception for a missing key takes longer than opening a span.
  if (PySequence_Contains(context, g_variable) != 1) {
    PyErr_Clear();
    return false;
  }
  const Ref value(PyObject_GetItem(context, g_variable));
  if (!value) PyErr_Clear();
  return take(value.get(), inherited);
}

PyObject* read_request() noexcept {
  PyObject* value = nullptr;
  if (find_value(thread_state()->context, g_variable, value)) return Py_NewRef(request_of(value));
  return Py_NewRef(request_of(current_value().get()));
}

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

  bool is_empty() const noexcept { return next_ == 0; }

  /// Dropping the references may run code of the program.
  void release() noexcept {
    if (is_empty()) return;
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
#endif

// Until Python 3.11, referenced because an interrupted function may discard the map that contains it, after which
// PyContextVar_Get still returns the value, from a cache without a reference.
PyObject* g_last_value = nullptr;

/// Whether PyContextVar_Set can allocate its token. It crashes the process if it gets memory neither for the token nor
/// for the new map of variables (Python 3.10 to 3.13). The block that is freed here is the next one of its size.
bool has_memory_for_token() noexcept {
  const Py_ssize_t gc_head_bytes = 2 * Py_ssize_t{sizeof(void*)};
  void* const probe = PyObject_Malloc(static_cast<std::size_t>(PyContextToken_Type.tp_basicsize + gc_head_bytes));
  PyObject_Free(probe);
  return probe != nullptr;
}

/// Makes a value and sets it in the current context; without a request, it has that of the previous value. Returns the
/// token, which refers to the previous value. Supports no re-entrant calls.
Ref set_value(Ref& value, const Inherited& inherited, PyObject* request) noexcept {
  const Ref current = request == nullptr ? current_value() : Ref();
  value = Ref(make_value(inherited, request != nullptr ? request : request_of(current.get())));
  Ref token(value && has_memory_for_token() ? PyContextVar_Set(g_variable, value.get()) : nullptr);
  if (!token) PyErr_Clear();
  return token;
}

/// The value of the current context if it can be changed in place, borrowed, or null. Not to be used in a finalizer
/// that may have interrupted ContextVar.set, which reads the map of which the value is changed.
PyObject* own_value(PyObject* context) noexcept {
  return private_value(context, g_variable, &g_stored_type, g_last_value);
}

/// Keeps a value until the next one. Dropping the one before may run code of the program.
void keep_last(Ref value) noexcept {
#if PY_VERSION_HEX < 0x030c0000
  Py_XDECREF(std::exchange(g_last_value, value.release()));
#else
  (void)value;
#endif
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

Inherited* inherited_in_place(PyObject* context) noexcept {
#if PY_VERSION_HEX < 0x030c0000
  if (stagespan_is_collecting() != 0 || !g_interrupted.is_empty()) return nullptr;
#endif
  PyObject* const own = own_value(context);
  return own != nullptr ? &stored_of(own).inherited : nullptr;
}

void write_inherited(const ThreadState& thread, const Inherited& inherited, PyObject* request) noexcept {
#if PY_VERSION_HEX < 0x030c0000
  const bool is_collecting = stagespan_is_collecting() != 0;
  if (is_collecting) g_interrupted.keep_current(thread);
#else
  (void)thread;
  constexpr bool is_collecting = false;
#endif
  Ref before;  // its end may run code of the program
  if (PyObject* const own = is_collecting ? nullptr : own_value(thread_state()->context)) {
    stored_of(own).inherited = inherited;
    stored_of(own).inherited.generation = Recorder::get().generation();
    if (request != nullptr) before = Ref(exchange_request(own, request));
  } else {
    Ref value;
    {
      const NoCollection by_allocations;
      before = set_value(value, inherited, request);
    }
    keep_last(std::move(value));
  }
#if PY_VERSION_HEX < 0x030c0000
  if (!is_collecting) g_interrupted.release();
#endif
}

void write_elsewhere(const ThreadState& thread, PyObject* context, const Inherited& inherited,
                     PyObject* request) noexcept {
  if (context == thread_state()->context) return write_inherited(thread, inherited, request);
  Ref value, entered, before;
  {
    const NoCollection by_allocations;
    entered = to_enter(context);
    if (!entered) return;
    before = set_value(value, inherited, request);
    PyContext_Exit(entered.get());
    if (entered.get() != context) swap_variables(context, entered.get());
  }
  keep_last(std::move(value));
#if PY_VERSION_HEX < 0x030c0000
  // A collection may have interrupted a function that reads the previous variables.
  if (stagespan_is_collecting() != 0)
    g_interrupted.keep(std::move(entered));
  else
    g_interrupted.release();
#endif
}

bool init_context_variables() {
  g_stored_type.tp_dealloc = stored_dealloc;
  g_stored_type.tp_traverse = stored_traverse;
  g_stored_type.tp_clear = stored_clear;
  if (PyType_Ready(&g_stored_type) != 0) return false;
  g_variable = PyContextVar_New("stagespan_innermost", nullptr);
  const Ref value(make_value({{}, Inherited::kNothing}, Py_None));
  if (g_variable == nullptr || !value) return false;
  know_context_layout(g_variable, value.get());
  stagespan_know_collector();
  PyErr_Clear();
  return true;
}

}  // namespace stagespan::python
