// token_object.cpp: a span that is open until `end` is called, in any scope or thread.
#include "token_object.h"

#include <structmember.h>

#include <cstddef>
#include <string_view>

#include "docstrings.h"
#include "execution_context.h"
#include "object.h"
#include "span_object.h"
#include "stage_names.h"
#include "stagespan/recorder.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {

struct TokenObject {
  PyObject_HEAD PyObject* name;
  DetachedSpan detached;
  std::uint32_t generation;
  bool is_open;
};

PyTypeObject g_token_type = static_type("stagespan.Token", sizeof(TokenObject), 0);

TokenObject* token_of(PyObject* object) { return reinterpret_cast<TokenObject*>(object); }

bool belongs_here(const TokenObject& token) { return token.generation == Recorder::get().generation(); }

void token_dealloc(PyObject* object) {
  TokenObject* const self = token_of(object);
  if (self->is_open && belongs_here(*self)) {
    Recorder::get().hide_detached(self->detached.shown_at);
    Recorder::get().lose(kLostAbandoned);
    if (self->detached.device != nullptr)
      g_device_hooks.load(std::memory_order_acquire)->abandon(self->detached.device);
  }
  Py_XDECREF(self->name);
  PyObject_Free(object);
}

PyObject* token_id(PyObject* object, void*) { return PyLong_FromUnsignedLongLong(token_of(object)->detached.span.id); }

PyMemberDef g_token_members[] = {
    {"name", T_OBJECT, offsetof(TokenObject, name), READONLY, docs::kTokenName},
    {nullptr, 0, 0, 0, nullptr},
};
PyGetSetDef g_token_getset[] = {{"id", token_id, nullptr, docs::kTokenId, nullptr},
                                {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyObject* open(PyObject* name, StageKind kind) {
  auto* const self = PyObject_New(TokenObject, &g_token_type);
  if (self == nullptr) return nullptr;
  const std::uint32_t stage = kind == kExecution ? stage_of(name) : stage_of_kind(name, kind);
  self->name = Py_NewRef(shown_name(stage, name));
  self->detached = {};
  self->generation = Recorder::get().generation();
  self->is_open = mode_has(kModeEnabled);
  if (self->is_open) {
    current_thread();
    self->detached = Recorder::get().open_detached(stage, 0);
  }
  return reinterpret_cast<PyObject*>(self);
}

PyObject* begin(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  if (count == 1 && kwnames == nullptr) [[likely]]
    return open(args[0], kExecution);
  static const char* const names[] = {"", "kind", nullptr};
  const Ref positional = positional_tuple(args, static_cast<std::size_t>(count));
  const Ref named = keyword_dict(args, static_cast<std::size_t>(count), kwnames);
  if (!positional || !named) return nullptr;
  PyObject* name = nullptr;
  const char* kind = "execution";
  if (PyArg_ParseTupleAndKeywords(positional.get(), named.get(), "O|$s:begin", const_cast<char**>(names), &name,
                                  &kind) == 0)
    return nullptr;
  if (std::string_view(kind) == "queue") return open(name, kQueue);
  if (std::string_view(kind) == "execution") return open(name, kExecution);
  return PyErr_Format(PyExc_ValueError,
                      "%R is not a kind of span that begin() opens: pass kind=\"queue\" for a wait, or leave it out",
                      PyDict_GetItemString(named.get(), "kind"));
}

PyObject* close(TokenObject* self, bool error) {
  if (!self->is_open) {
    // A token from when the recorder was off has no span to end.
    if (self->detached.span.id != 0) Recorder::get().lose(kLostUnmatched);
    Py_RETURN_NONE;
  }
  self->is_open = false;
  if (!belongs_here(*self)) Py_RETURN_NONE;
  current_thread();
  Recorder::get().close_detached(self->detached, error ? kFlagError : 0);
  Py_RETURN_NONE;
}

PyObject* end(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"token", "error", nullptr};
  PyObject* token = nullptr;
  int error = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "O|$p:end", const_cast<char**>(names), &token, &error) == 0)
    return nullptr;
  if (Py_TYPE(token) != &g_token_type)
    return PyErr_Format(PyExc_TypeError, "end() takes a token that begin() returned, not %R", token);
  return close(token_of(token), error != 0);
}

PyObject* token_end(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"error", nullptr};
  int error = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "|$p:end", const_cast<char**>(names), &error) == 0) return nullptr;
  return close(token_of(self), error != 0);
}

PyMethodDef g_token_methods[] = {
    {"end", as_method(token_end), METH_VARARGS | METH_KEYWORDS, docs::kTokenEnd},
    {nullptr, nullptr, 0, nullptr},
};

PyObject* record(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"name", "begin_ns", "end_ns", "error", nullptr};
  PyObject* name = nullptr;
  long long begin_ns = 0, end_ns = 0;
  int error = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "OLL|$p:record", const_cast<char**>(names), &name, &begin_ns, &end_ns,
                                  &error) == 0)
    return nullptr;
  if (end_ns < begin_ns)
    return PyErr_Format(
        PyExc_ValueError,
        "the span %R would end at %lld, before it begins at %lld: pass begin_ns and end_ns as Unix times in ns", name,
        end_ns, begin_ns);
  if (!mode_has(kModeEnabled)) Py_RETURN_NONE;
  const std::uint32_t stage = stage_of(name);
  current_thread();
  Recorder::get().record(stage, begin_ns, end_ns, error != 0 ? kFlagError : 0);
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef g_token_functions[] = {
    {"begin", as_method(begin), METH_FASTCALL | METH_KEYWORDS, docs::kBegin},
    {"end", as_method(end), METH_VARARGS | METH_KEYWORDS, docs::kEnd},
    {"record", as_method(record), METH_VARARGS | METH_KEYWORDS, docs::kRecord},
    {nullptr, nullptr, 0, nullptr},
};

bool init_token_type(PyObject* module) {
  g_token_type.tp_doc = docs::kTokenType;
  g_token_type.tp_dealloc = token_dealloc;
  g_token_type.tp_members = g_token_members;
  g_token_type.tp_methods = g_token_methods;
  g_token_type.tp_getset = g_token_getset;
  return PyModule_AddType(module, &g_token_type) == 0;
}

}  // namespace stagespan::python
