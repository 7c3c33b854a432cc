// context_method.h: `__enter__` and `__exit__` of a class that is written in Python, as C code.
#pragma once

#include <Python.h>

namespace stagespan::python {

/// The C code of a method. It is only called with positional arguments, at most as many as the function takes.
using ContextCall = PyObject* (*)(PyObject* self, PyObject* const* args, Py_ssize_t count);

/// An attribute for a class. Bound to an object, it calls C code: an exception that a signal handler raises comes
/// before the whole call or after it, never in the middle, and never between `__enter__` and the block. As an attribute
/// of the class, and as `__func__` when it is bound, it is a Python function that does the same, because torch.compile
/// captures only those. Null with an exception set if that fails.
PyObject* context_method(PyObject* function, ContextCall call, Py_ssize_t most_arguments) noexcept;

/// False with an exception set if that fails.
bool init_context_method();

}  // namespace stagespan::python
