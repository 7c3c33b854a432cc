// after_fork.cpp: how threads end for a fork, and when they can start again.
#include "after_fork.h"

#include <Python.h>
#include <frameobject.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string_view>

#include "object.h"

namespace stagespan::python {

namespace {

// Whether this thread runs the functions that Python calls after a fork.
bool is_after_fork() noexcept {
  const NoCollection by_allocations;
  Ref frame(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* const at = reinterpret_cast<PyFrameObject*>(frame.get());
    const Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(at)));
    PyObject* const name = reinterpret_cast<PyCodeObject*>(code.get())->co_filename;
    const char* const text = PyUnicode_Check(name) != 0 ? PyUnicode_AsUTF8(name) : nullptr;
    PyErr_Clear();
    if (text != nullptr && std::string_view(text).ends_with("/stagespan/process/forks.py")) return true;
    frame = Ref(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
  }
  return false;
}

int call_later(void* start) noexcept {
  const auto function = reinterpret_cast<int (*)(void*)>(start);
  if (is_after_fork() && Py_AddPendingCall(call_later, start) == 0) return 0;  // it is too early
  return function(nullptr);
}

}  // namespace

void join_before_fork(pthread_t thread, pid_t native_id) noexcept {
  pthread_join(thread, nullptr);
  for (int i = 0; i < 1000 && native_id != 0 && syscall(SYS_tgkill, getpid(), native_id, 0) == 0; ++i) sched_yield();
}

void start_after_fork(int (*start)(void*), bool in_child) noexcept {
  // A pending call is made when the fork is over, but only by the main thread, which may wait for others for a long
  // time.
  const bool is_later = !in_child && syscall(SYS_gettid) == getpid();
  if (is_later && Py_AddPendingCall(call_later, reinterpret_cast<void*>(start)) == 0) return;
  start(nullptr);
}

}  // namespace stagespan::python
