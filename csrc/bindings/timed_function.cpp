// timed_function.cpp: the C callable that decorators return for callables that are not plain functions.
#include "timed_function.h"

#include <cstddef>

#include "object.h"
#include "span_object.h"
#include "timed_object.h"
#include "timed_run.h"

namespace stagespan::python {

// time_function.cpp, where the interpreter allows it.
PyObject* time_function(PyObject*, PyObject* const* args, Py_ssize_t count);
PyObject* share_version(PyObject*, PyObject* const* args, Py_ssize_t count);

namespace {

struct TimedFunctionObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* function;
  SpanObject* span;
  PyObject* dict;
  PyObject* weak_references;
};

// Access through an instance returns the timed version of what the callable would return: a method for callables that
// behave like functions, the result of its own `__get__`, or the callable itself if it has no `__get__`. The
// interpreter's fast path for methods is a property of the type.
constexpr unsigned long kTypeFlags = Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
PyTypeObject g_function_type = static_type("stagespan._core.TimedFunction", sizeof(TimedFunctionObject),
                                           kTypeFlags | Py_TPFLAGS_METHOD_DESCRIPTOR);
PyTypeObject g_descriptor_type =
    static_type("stagespan._core.TimedDescriptor", sizeof(TimedFunctionObject), kTypeFlags);
PyTypeObject g_callable_type = static_type("stagespan._core.TimedCallable", sizeof(TimedFunctionObject), kTypeFlags);

TimedFunctionObject* self_of(PyObject* object) { return reinterpret_cast<TimedFunctionObject*>(object); }

PyObject* timed_vectorcall(PyObject* object, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  const TimedFunctionObject* const self = self_of(object);
  PyObject* const function = self->function;
  return call_timed(*self->span, function, args, nargsf, kwnames,
                    [&] { return PyObject_Vectorcall(function, args, nargsf, kwnames); });
}

PyObject* bind(PyObject* object, PyObject* instance, PyObject*) {
  return instance == nullptr ? Py_NewRef(object) : PyMethod_New(object, instance);
}

PyTypeObject& type_for(PyObject* function) {
  const PyTypeObject* const type = Py_TYPE(function);
  if (PyType_HasFeature(const_cast<PyTypeObject*>(type), Py_TPFLAGS_METHOD_DESCRIPTOR)) return g_function_type;
  return type->tp_descr_get != nullptr ? g_descriptor_type : g_callable_type;
}

PyObject* timed(PyObject* span, PyObject* function) {
  PyTypeObject& type = type_for(function);
  auto* const self = PyObject_GC_New(TimedFunctionObject, &type);
  if (self == nullptr) return nullptr;
  self->vectorcall = timed_vectorcall;
  self->function = Py_NewRef(function);
  self->span = reinterpret_cast<SpanObject*>(Py_NewRef(span));
  self->weak_references = nullptr;
  self->dict = PyDict_New();
  PyObject_GC_Track(reinterpret_cast<PyObject*>(self));
  Ref owned(reinterpret_cast<PyObject*>(self));
  if (self->dict == nullptr) return nullptr;
  const Ref attributes(PyObject_GetAttrString(function, "__dict__"));
  if (!attributes)
    PyErr_Clear();
  else if (PyDict_Update(self->dict, attributes.get()) != 0)
    return nullptr;
  if (PyDict_SetItemString(self->dict, "__wrapped__", function) != 0) return nullptr;
  return owned.release();
}

PyObject* bind_as_wrapped(PyObject* object, PyObject* instance, PyObject* owner) {
  const TimedFunctionObject* const self = self_of(object);
  const Ref bound(Py_TYPE(self->function)->tp_descr_get(self->function, instance, owner));
  if (!bound) return nullptr;
  if (bound.get() == self->function) return Py_NewRef(object);
  // The result may also be a value, as for a property.
  if (PyCallable_Check(bound.get()) == 0) return Py_NewRef(bound.get());
  return timed(reinterpret_cast<PyObject*>(self->span), bound.get());
}

PyObject* timed_new(PyTypeObject*, PyObject* args, PyObject* kwargs) {
  PyObject* span = nullptr;
  PyObject* function = nullptr;
  if (PyTuple_GET_SIZE(args) != 2 || (kwargs != nullptr && PyDict_GET_SIZE(kwargs) != 0) ||
      !is_span(span = PyTuple_GET_ITEM(args, 0)) || PyCallable_Check(function = PyTuple_GET_ITEM(args, 1)) == 0)
    return PyErr_Format(PyExc_TypeError, "TimedFunction(span, function) takes a context and something to call");
  return timed(span, function);
}

PyObject* timed_attribute(PyObject* object, PyObject* name) {
  return get_attribute(object, self_of(object)->function, name);
}

// Types have these four attributes, which would hide those of the function.
PyObject* of_function(PyObject* object, void* name) {
  return PyObject_GetAttrString(self_of(object)->function, static_cast<const char*>(name));
}

PyObject* timed_repr(PyObject* object) { return PyUnicode_FromFormat("<timed %R>", self_of(object)->function); }

// Whether an unpickler finds `object` under its qualified name in its module.
bool is_found_by_name(PyObject* object, PyObject* name) {
  const Ref module_name = attribute(object, "__module__");
  PyObject* const modules = PyImport_GetModuleDict();
  PyObject* const module = module_name ? PyDict_GetItemWithError(modules, module_name.get()) : nullptr;
  const Ref parts(PyObject_CallMethod(name, "split", "s", "."));
  Ref named(parts ? Py_XNewRef(module) : nullptr);
  for (Py_ssize_t i = 0; named && i < PyList_GET_SIZE(parts.get()); ++i)
    named = Ref(PyObject_GetAttr(named.get(), PyList_GET_ITEM(parts.get(), i)));
  PyErr_Clear();
  return named.get() == object;
}

// As the wrapped object is pickled, by name or by value: where this object has replaced it under its name, the wrapped
// one is not found by name.
PyObject* timed_reduce(PyObject* object, PyObject* protocol) {
  const TimedFunctionObject* const self = self_of(object);
  const Ref name = attribute(object, "__qualname__");
  if (name && PyUnicode_Check(name.get()) != 0 && is_found_by_name(object, name.get())) {
    const Ref of_wrapped(PyObject_CallMethod(self->function, "__reduce_ex__", "O", protocol));
    PyErr_Clear();
    if (!of_wrapped || PyUnicode_Check(of_wrapped.get()) != 0) return Py_NewRef(name.get());
  }
  return Py_BuildValue("O(OO)O", &g_function_type, self->span, self->function, self->dict);
}

int timed_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(self_of(object)->function);
  Py_VISIT(self_of(object)->dict);
  return 0;
}

int timed_clear(PyObject* object) {
  drop_from(self_of(object)->dict);
  return 0;
}

void timed_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  TimedFunctionObject* const self = self_of(object);
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  drop_from(self->dict);
  drop_from(self->function);
  drop_from(self->span);
  Py_TYPE(object)->tp_free(object);
}

void* text(const char* name) { return const_cast<char*>(name); }

PyGetSetDef g_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {"__name__", of_function, nullptr, nullptr, text("__name__")},
    {"__qualname__", of_function, nullptr, nullptr, text("__qualname__")},
    {"__module__", of_function, nullptr, nullptr, text("__module__")},
    {"__doc__", of_function, nullptr, nullptr, text("__doc__")},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef g_methods[] = {{"__reduce_ex__", timed_reduce, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};

bool ready_type(PyTypeObject& type, descrgetfunc descr_get) {
  type.tp_vectorcall_offset = offsetof(TimedFunctionObject, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_new = timed_new;
  type.tp_dealloc = timed_dealloc;
  type.tp_free = PyObject_GC_Del;
  type.tp_traverse = timed_traverse;
  type.tp_clear = timed_clear;
  type.tp_repr = timed_repr;
  type.tp_getattro = timed_attribute;
  type.tp_descr_get = descr_get;
  type.tp_dictoffset = offsetof(TimedFunctionObject, dict);
  type.tp_weaklistoffset = offsetof(TimedFunctionObject, weak_references);
  type.tp_methods = g_methods;
  type.tp_getset = g_getset;
  return PyType_Ready(&type) == 0;
}

PyObject* call_timed_function(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  constexpr Py_ssize_t kOwn = 2;  // the span and the function
  if (count < kOwn || !is_span(args[0])) [[unlikely]]
    return PyErr_Format(PyExc_TypeError,
                        "call_timed(span, function, *args, **kwargs) takes a context and something to call");
  PyObject* const function = args[1];
  PyObject* const* const passed = args + kOwn;
  const auto passed_count = static_cast<std::size_t>(count - kOwn);
  return call_timed(*reinterpret_cast<SpanObject*>(args[0]), function, passed, passed_count, kwnames,
                    [&] { return PyObject_Vectorcall(function, passed, passed_count, kwnames); });
}

PyObject* timed_by(PyObject*, PyObject* object) {
  const PyTypeObject* const type = Py_TYPE(object);
  if (type != &g_function_type && type != &g_descriptor_type && type != &g_callable_type) Py_RETURN_NONE;
  return Py_NewRef(reinterpret_cast<PyObject*>(self_of(object)->span));
}

}  // namespace

PyMethodDef g_timed_function_functions[] = {
    {"call_timed", as_method(call_timed_function), METH_FASTCALL | METH_KEYWORDS,
     "call_timed(span, function, /, *args, **kwargs)\n--\n\nCall a function as one run of a stage."},
    {"timed_by", timed_by, METH_O, nullptr},
#if STAGESPAN_INTERCEPTS_CALLS
    {"time_function", as_method(time_function), METH_FASTCALL, nullptr},
#endif
#if PY_VERSION_HEX >= 0x030c0000
    {"share_version", as_method(share_version), METH_FASTCALL, nullptr},
#endif
    {nullptr, nullptr, 0, nullptr},
};

bool init_timed_functions(PyObject* module) {
  return ready_type(g_function_type, bind) && ready_type(g_descriptor_type, bind_as_wrapped) &&
         ready_type(g_callable_type, nullptr) &&
         PyModule_AddObjectRef(module, "TimedFunction", reinterpret_cast<PyObject*>(&g_function_type)) == 0;
}

}  // namespace stagespan::python
