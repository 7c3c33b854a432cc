// timed_iterator.h: the results of calling a timed coroutine function, generator or async generator.
#pragma once

#include <Python.h>

#include "span_object.h"

namespace stagespan::python {

/// Wraps the result of `function`; steals `inner`. `args` and `kwargs` are for the hooks and may be null.
PyObject* wrap_coroutine(SpanObject* span, PyObject* inner, PyObject* function, PyObject* args, PyObject* kwargs);
PyObject* wrap_generator(SpanObject* span, PyObject* inner, PyObject* function, PyObject* args, PyObject* kwargs);
PyObject* wrap_async_generator(SpanObject* span, PyObject* inner, PyObject* function, PyObject* args, PyObject* kwargs);

/// `timed_coroutine(span, function, *args, **kwargs)` and the functions for generators, for the module's method table.
extern PyMethodDef g_timed_iterator_functions[];

bool init_timed_iterators();

}  // namespace stagespan::python
