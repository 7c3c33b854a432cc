// child_call.cpp: calls a function in a child process that is forked for this call.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "module.h"
#include "object.h"
#include "stagespan/without_signals.h"

namespace stagespan::python {

namespace {

// The child runs no Python code, only the function, which must be written in C. The interpreter would wait there for
// threads that do not exist: one that has asked for the interpreter's lock must get it before the lock is taken again.
// Therefore Python's fork handlers are not called either. Those of the C library are, so that its allocator works.
[[noreturn]] void run_child(PyObject* function, PyObject* argument, pid_t parent, int done) noexcept {
  const NoCollection by_allocations;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const PyObject* const result = PyObject_CallOneArg(function, argument);
  const char byte = 1;
  _exit(result != nullptr && write(done, &byte, 1) == 1 ? 0 : 1);
}

bool is_written_in_c(PyObject* function) noexcept {
  return PyCFunction_Check(PyMethod_Check(function) != 0 ? PyMethod_GET_FUNCTION(function) : function) != 0;
}

PyObject* call_in_child(PyObject*, PyObject* const* args, Py_ssize_t count) noexcept {
  if (count != 2 || !is_written_in_c(args[0]))
    return PyErr_Format(PyExc_TypeError, "call_in_child() takes a function that is written in C, and its argument");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return PyErr_SetFromErrno(PyExc_OSError);
  // A signal handler of Python in the child would write to the descriptor that wakes the parent's event loop.
  std::optional<WithoutSignals> blocked(std::in_place);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) run_child(args[0], args[1], parent, ends[1]);
  const int error = errno;
  blocked.reset();
  close(ends[1]);
  if (child > 0) return Py_BuildValue("ii", static_cast<int>(child), ends[0]);
  close(ends[0]);
  errno = error;
  return PyErr_SetFromErrno(PyExc_OSError);
}

}  // namespace

PyMethodDef g_child_call_functions[] = {
    {"call_in_child", as_method(call_in_child), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
