// timed_object.h: forwards attributes of a timed object to the object that it wraps.
#pragma once

#include <Python.h>

#include "object.h"

namespace stagespan::python {

/// Whether the inner object still exists; sets an exception if not.
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

/// Attributes such as cr_frame, gi_code and __name__ are those of the inner object.
inline PyObject* get_attribute(PyObject* object, PyObject* inner, PyObject* name) {
  PyObject* const own = PyObject_GenericGetAttr(object, name);
  if (own != nullptr || inner == nullptr || PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return own;
  PyErr_Clear();
  return PyObject_GetAttr(inner, name);
}

/// isinstance() uses this too, so that the object is recognised as a coroutine.
inline PyObject* class_of_inner(PyObject* inner) {
  return Py_NewRef(inner != nullptr ? reinterpret_cast<PyObject*>(Py_TYPE(inner)) : Py_None);
}

}  // namespace stagespan::python
