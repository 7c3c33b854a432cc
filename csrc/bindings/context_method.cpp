// context_method.cpp: attributes that are Python functions for the class, and C code for its objects.
#include "context_method.h"

#include <structmember.h>

#include <cstddef>
#include <iterator>

#include "object.h"
#include "timed_object.h"

namespace stagespan::python {

namespace {

struct ContextMethod {
  PyObject_HEAD PyObject* function;
  ContextCall call;
  Py_ssize_t most_arguments;
};

struct BoundContextMethod {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* method;
  PyObject* function;
  PyObject* self;
};

PyTypeObject g_method_type = static_type("stagespan._core.ContextMethod", sizeof(ContextMethod), 0);
PyTypeObject g_bound_type = static_type("stagespan._core.BoundContextMethod", sizeof(BoundContextMethod),
                                        Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL);

BoundContextMethod* bound_of(PyObject* object) { return reinterpret_cast<BoundContextMethod*>(object); }

PyObject* call_bound(PyObject* callable, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  const BoundContextMethod& bound = *bound_of(callable);
  const auto& method = *reinterpret_cast<ContextMethod*>(bound.method);
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (kwnames == nullptr && count <= method.most_arguments) [[likely]]
    return method.call(bound.self, args, count);
  const Ref function(PyMethod_New(bound.function, bound.self));  // names the arguments, and what is wrong with them
  return function ? PyObject_Vectorcall(function.get(), args, nargsf & ~PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames)
                  : nullptr;
}

// Bound methods for the next `with`, which needs two of them for a short time.
BoundContextMethod* g_spare[4];
std::size_t g_spares = 0;

BoundContextMethod* new_bound() noexcept {
  if (g_spares == 0) return PyObject_GC_New(BoundContextMethod, &g_bound_type);
  return bound_of(PyObject_Init(reinterpret_cast<PyObject*>(g_spare[--g_spares]), &g_bound_type));
}

PyObject* bind(PyObject* descriptor, PyObject* object, PyObject*) {
  PyObject* const function = reinterpret_cast<ContextMethod*>(descriptor)->function;
  if (object == nullptr || object == Py_None) return Py_NewRef(function);
  BoundContextMethod* const bound = new_bound();
  if (bound == nullptr) return nullptr;
  bound->vectorcall = call_bound;
  bound->method = Py_NewRef(descriptor);
  bound->function = Py_NewRef(function);
  bound->self = Py_NewRef(object);
  auto* const made = reinterpret_cast<PyObject*>(bound);
  PyObject_GC_Track(made);
  return made;
}

int bound_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(bound_of(object)->function);
  Py_VISIT(bound_of(object)->self);
  return 0;
}

void bound_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  BoundContextMethod* const bound = bound_of(object);
  const Ref method(bound->method), function(bound->function), self(bound->self);
  if (g_spares < std::size(g_spare))
    g_spare[g_spares++] = bound;
  else
    PyObject_GC_Del(object);
}

// What it does not have itself, such as its name, is that of the function.
PyObject* bound_attribute(PyObject* object, PyObject* name) {
  return get_attribute(object, bound_of(object)->function, name);
}

PyObject* bound_repr(PyObject* object) {
  const Ref name(PyObject_GetAttrString(bound_of(object)->function, "__qualname__"));
  return name ? PyUnicode_FromFormat("<bound method %S of %R>", name.get(), bound_of(object)->self) : nullptr;
}

PyMemberDef g_bound_members[] = {
    {"__func__", T_OBJECT, offsetof(BoundContextMethod, function), READONLY, nullptr},
    {"__self__", T_OBJECT, offsetof(BoundContextMethod, self), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

void method_dealloc(PyObject* object) {
  Py_DECREF(reinterpret_cast<ContextMethod*>(object)->function);
  PyObject_Free(object);
}

}  // namespace

PyObject* context_method(PyObject* function, ContextCall call, Py_ssize_t most_arguments) noexcept {
  auto* const method = PyObject_New(ContextMethod, &g_method_type);
  if (method == nullptr) return nullptr;
  method->function = Py_NewRef(function);
  method->call = call;
  method->most_arguments = most_arguments;
  return reinterpret_cast<PyObject*>(method);
}

bool init_context_method() {
  g_method_type.tp_dealloc = method_dealloc;
  g_method_type.tp_descr_get = bind;
  g_bound_type.tp_vectorcall_offset = offsetof(BoundContextMethod, vectorcall);
  g_bound_type.tp_call = PyVectorcall_Call;
  g_bound_type.tp_traverse = bound_traverse;
  g_bound_type.tp_dealloc = bound_dealloc;
  g_bound_type.tp_getattro = bound_attribute;
  g_bound_type.tp_repr = bound_repr;
  g_bound_type.tp_members = g_bound_members;
  return PyType_Ready(&g_method_type) == 0 && PyType_Ready(&g_bound_type) == 0;
}

}  // namespace stagespan::python
