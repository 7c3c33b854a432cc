// object.h: small helpers for code written against the CPython API.
#pragma once

#include <Python.h>

#include <utility>

namespace stagespan::python {

// The files that use the CPython API are compiled without exceptions (CMakeLists.txt). Until Python 3.13, a daemon
// thread that requests the interpreter's lock during the interpreter's shutdown is ended by pthread_exit, which unwinds
// its stack. In code with exceptions, a noexcept function would then end the whole process, and destructors would
// release references without holding the lock. Without exceptions, the thread ends as if there were only C on its
// stack. forced_unwind.cpp is about the code with exceptions.

/// Clears a reference before the object is freed, so that code that runs then finds it empty.
template <class T>
void drop_from(T*& place) noexcept {
  Py_XDECREF(reinterpret_cast<PyObject*>(std::exchange(place, nullptr)));
}

/// Replaces an object by another one.
inline void keep(PyObject*& place, PyObject* borrowed) noexcept {
  Py_XDECREF(std::exchange(place, Py_XNewRef(borrowed)));
}

/// Releases the interpreter's lock while it exists. For files that are compiled without exceptions.
class Unlocked {
 public:
  Unlocked() noexcept : state_(PyEval_SaveThread()) {}
  ~Unlocked() { PyEval_RestoreThread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

/// Owns a reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) noexcept : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const noexcept { return object_; }
  PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

/// An attribute of an object, which may be null; empty, without an exception, if it does not exist.
inline Ref attribute(PyObject* object, const char* name) noexcept {
  Ref value(object != nullptr ? PyObject_GetAttrString(object, name) : nullptr);
  if (!value) PyErr_Clear();
  return value;
}

/// While it exists, objects can be created without a garbage collection, and therefore without finalizers. Until Python
/// 3.11, any allocation of an object may start a collection; later versions only collect between two bytecodes. Needed
/// for code that does not support re-entrant calls, and, in files with exceptions (see above), wherever objects are
/// created: a finalizer requests the interpreter's lock repeatedly. Only for code that keeps the lock and does not call
/// Python code itself.
class NoCollection {
 public:
#if PY_VERSION_HEX < 0x030c0000
  NoCollection() noexcept : was_on_(PyGC_Disable() != 0) {}
  ~NoCollection() {
    if (was_on_) PyGC_Enable();
  }
#else
  NoCollection() noexcept {}
  ~NoCollection() {}
#endif
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

 private:
#if PY_VERSION_HEX < 0x030c0000
  bool was_on_;
#endif
};

/// Saves a pending exception while other Python code runs, and restores it.
class ErrorAside {
 public:
  // Asks first, because mostly there is none, and asking takes a fifth of the time.
  ErrorAside() noexcept {
    if (PyErr_Occurred() != nullptr) [[unlikely]]
      PyErr_Fetch(&type_, &value_, &traceback_);
  }
  ~ErrorAside() {
    if (type_ != nullptr || PyErr_Occurred() != nullptr) [[unlikely]]
      PyErr_Restore(type_, value_, traceback_);
  }
  ErrorAside(const ErrorAside&) = delete;
  ErrorAside& operator=(const ErrorAside&) = delete;

  bool any() const noexcept { return type_ != nullptr; }
  /// The exception as an object with its traceback; borrowed.
  PyObject* value() noexcept {
    if (type_ == nullptr) return nullptr;
    PyErr_NormalizeException(&type_, &value_, &traceback_);
    if (value_ != nullptr && traceback_ != nullptr) PyException_SetTraceback(value_, traceback_);
    return value_;
  }

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
};

/// An empty static type, to be filled before PyType_Ready.
inline PyTypeObject static_type(const char* name, Py_ssize_t basic_size_bytes, unsigned long flags) noexcept {
  PyTypeObject type{};
  type.ob_base = PyVarObject{PyObject_HEAD_INIT(nullptr) 0};
  type.tp_name = name;
  type.tp_basicsize = basic_size_bytes;
  type.tp_flags = Py_TPFLAGS_DEFAULT | flags;
  return type;
}

/// Converts a method with one of the newer signatures for a method table.
template <class Function>
PyCFunction as_method(Function* function) noexcept {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

inline PyThreadState* thread_state() noexcept {
#if PY_VERSION_HEX >= 0x030d0000
  return PyThreadState_GetUnchecked();
#else
  return _PyThreadState_UncheckedGet();
#endif
}

}  // namespace stagespan::python
