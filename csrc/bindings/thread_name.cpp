// thread_name.cpp: the names of Python's threads. The system knows at most 15 bytes of them, or nothing.
#include <Python.h>
#include <pthread.h>

#include <string_view>

#include "module.h"
#include "object.h"
#include "stagespan/recorder.h"
#include "stagespan/text.h"

namespace stagespan::python {

namespace {

// Reads threading.current_thread().name without running Python code, because a span must not open while another span is
// being opened.
void name_of_this_thread(ThreadName& name) noexcept {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return;
  const NoCollection by_allocations;
  ErrorAside error;
  const Ref module_name(PyUnicode_FromString("threading"));
  const Ref module(module_name ? PyImport_GetModule(module_name.get()) : nullptr);
  const Ref active(module ? PyObject_GetAttrString(module.get(), "_active") : nullptr);
  const Ref ident(PyLong_FromUnsignedLong(pthread_self()));
  if (!active || !PyDict_CheckExact(active.get()) || !ident) return PyErr_Clear();
  // Keeps it alive during the read.
  const Ref thread(Py_XNewRef(PyDict_GetItemWithError(active.get(), ident.get())));
  const Ref attributes(thread ? PyObject_GenericGetDict(thread.get(), nullptr) : nullptr);
  PyObject* const text = attributes ? PyDict_GetItemString(attributes.get(), "_name") : nullptr;
  Py_ssize_t size = 0;
  const char* const utf8 =
      text != nullptr && PyUnicode_CheckExact(text) != 0 ? PyUnicode_AsUTF8AndSize(text, &size) : nullptr;
  PyErr_Clear();
  if (utf8 == nullptr) return;
  const std::string_view name_of_thread(utf8, static_cast<std::size_t>(size));
  // threading gives this name to threads that it has not started. The system may know a better one.
  if (name_of_thread.starts_with("Dummy-")) return;
  set_text(name, sizeof(name) - 1, name_of_thread);
}

}  // namespace

void watch_thread_names() noexcept {
  Recorder::get().on_new_thread.store(name_of_this_thread, std::memory_order_relaxed);
}

}  // namespace stagespan::python
