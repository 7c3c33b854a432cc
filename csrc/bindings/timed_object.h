// timed_object.h: attributes of a timed object that come from the object it wraps.
#pragma once

#include <Python.h>

#include "object.h"

namespace stagespan::python {

/// Whether there is still something inside; sets an exception if not.
inline bool has_inner(PyObject* inner) {
  if (inner != nullptr) [[likely]]
    return true;
  PyErr_SetString(PyExc_RuntimeError, "the garbage collector has closed this object");
  return false;
}

inline PyObject* call_method(PyObject* inner, const char* method, PyObject* args) {
  const Ref bound(PyObject_GetAttrString(inner, method));
  return bound ? PyObject_CallObject(bound.get(), args) : nullptr;
}

/// Attributes such as cr_frame, gi_code, __name__ are those of what is wrapped.
inline PyObject* get_attribute(PyObject* object, PyObject* inner, PyObject* name) {
  PyObject* const own = PyObject_GenericGetAttr(object, name);
  if (own != nullptr || inner == nullptr || PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return own;
  PyErr_Clear();
  return PyObject_GetAttr(inner, name);
}

/// isinstance() asks for this too, so that what looks for a coroutine finds one.
inline PyObject* class_of_inner(PyObject* inner) {
  return Py_NewRef(inner != nullptr ? reinterpret_cast<PyObject*>(Py_TYPE(inner)) : Py_None);
}

}  // namespace stagespan::python
