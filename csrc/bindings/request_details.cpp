// request_details.cpp: fields of requests that the program has named, and exceptions that spans and requests end with.
#include "request_details.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "object.h"
#include "stagespan/recorder.h"
#include "stagespan/text.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {

struct Field {
  PyObject* name = nullptr;
  bool is_secret = false;  // its texts are replaced
};
Field g_fields[kMostFields];  // by the number that the recording uses
std::uint32_t g_field_count = 0;
PyObject* g_read_environment =
    nullptr;  // () -> None, which calls the functions below for what the environment asks for
bool g_has_read_environment = false;
PyObject* g_redacted = nullptr;  // what replaces the text of a secret
bool g_keeps_messages = false;

/// Before the first request or failure, and not at the import, which it would make slower. What a handler of a signal
/// raises meanwhile is the program's: it is raised as soon as its code continues, and the next request reads again.
void read_environment() noexcept {
  if (g_has_read_environment || g_read_environment == nullptr) return;
  g_has_read_environment = true;
  const ErrorAside pending;
  if (const Ref done(PyObject_CallNoArgs(g_read_environment)); done) return;
  g_has_read_environment = PyErr_ExceptionMatches(PyExc_Warning) != 0;  // a value is wrong, and warnings are errors
  raise_error_later();
  raise_kept();
}

void set_field_text(RequestFields& to, std::uint32_t i, PyObject* text) noexcept {
  const Utf8 encoded(text);
  if (!encoded) return;
  to.kinds[i] = kFieldText;
  set_text(reinterpret_cast<char*>(to.texts.data()) + i * kFieldTextBytes, kFieldTextBytes, encoded.view());
}

/// Takes a number or a text; other values are left out, and so are numbers that are not finite.
void set_field(RequestFields& to, std::uint32_t i, PyObject* value) noexcept {
  if (PyUnicode_Check(value) != 0) return set_field_text(to, i, g_fields[i].is_secret ? g_redacted : value);
  double fraction = 0;
  if (PyIndex_Check(value) != 0) {
    const Ref number(PyNumber_Index(value));
    int overflow = 0;
    const long long whole = number ? PyLong_AsLongLongAndOverflow(number.get(), &overflow) : 0;
    if (number && overflow != 0) fraction = PyLong_AsDouble(number.get());
    if (PyErr_Occurred() != nullptr) return;
    if (overflow == 0) {
      to.kinds[i] = kFieldWhole;
      to.numbers[i] = static_cast<std::uint64_t>(whole);
      return;
    }
  } else if (PyFloat_Check(value) != 0) {
    fraction = PyFloat_AS_DOUBLE(value);
  } else {
    return;
  }
  if (!std::isfinite(fraction)) return;
  to.kinds[i] = kFieldFraction;
  to.numbers[i] = std::bit_cast<std::uint64_t>(fraction);
}

// request_set_details(read_environment, redacted)
PyObject* set_details(PyObject*, PyObject* args) {
  PyObject *read = nullptr, *redacted = nullptr;
  if (PyArg_ParseTuple(args, "OU", &read, &redacted) == 0) return nullptr;
  keep(g_read_environment, read);
  keep(g_redacted, redacted);
  Py_RETURN_NONE;
}

// request_record_field(name, is_secret) -> whether there was room for it
PyObject* record_field(PyObject*, PyObject* args) {
  PyObject* name = nullptr;
  int is_secret = 0;
  if (PyArg_ParseTuple(args, "Up", &name, &is_secret) == 0) return nullptr;
  const Utf8 text(name);
  if (!text) return nullptr;
  const std::uint32_t number = Recorder::get().record_field(text.view());
  if (number == kMostFields) Py_RETURN_FALSE;
  keep(g_fields[number].name, name);
  g_fields[number].is_secret = is_secret != 0;
  if (g_field_count <= number) g_field_count = number + 1;
  Py_RETURN_TRUE;
}

// exceptions_keep_messages(are_kept)
PyObject* keep_messages(PyObject*, PyObject* are_kept) {
  const int value = PyObject_IsTrue(are_kept);
  if (value < 0) return nullptr;
  g_keeps_messages = value != 0;
  Py_RETURN_NONE;
}

/// The name of a type with its module, unless it is a built-in one. Empty if it has none.
Ref name_of_type(PyObject* type) noexcept {
  Ref name = attribute(type, "__qualname__");
  const Ref module = attribute(type, "__module__");
  PyErr_Clear();
  if (!name || PyUnicode_Check(name.get()) == 0) return Ref();
  const bool is_built_in =
      !module || PyUnicode_Check(module.get()) == 0 || PyUnicode_CompareWithASCIIString(module.get(), "builtins") == 0;
  return is_built_in ? std::move(name) : Ref(PyUnicode_FromFormat("%U.%U", module.get(), name.get()));
}

}  // namespace

void write_recorded_fields(const RequestObject& request) noexcept {
  read_environment();
  const std::uint32_t entry = request.owner == nullptr ? request.shown : 0;
  if (g_field_count == 0 || entry == 0 || request.metadata == nullptr || PyDict_Check(request.metadata) == 0 ||
      PyDict_GET_SIZE(request.metadata) == 0)
    return;
  const ErrorAside pending;
  RequestFields fields;
  for (std::uint32_t i = 0; i < g_field_count; ++i) {
    const Ref value(Py_XNewRef(PyDict_GetItemWithError(request.metadata, g_fields[i].name)));
    if (value) set_field(fields, i, value.get());
    PyErr_Clear();
  }
  Recorder::get().write_fields(request.number, entry - 1, fields);
}

void note_failure(std::uint64_t span, std::uint64_t request, PyObject* error) noexcept {
  ErrorAside pending;
  if (error == nullptr) error = pending.value();
  if (error == nullptr || error == Py_None) return;
  read_environment();
  const Ref value(Py_NewRef(error));
  PyObject* const type = PyType_Check(error) != 0 ? error : reinterpret_cast<PyObject*>(Py_TYPE(error));
  const Ref name = name_of_type(type);
  const Utf8 encoded(name.get());
  if (encoded) {
    FailureFields failure;
    failure.span = span;
    failure.request = request;
    failure.type = Recorder::get().intern_exception(encoded.view());
    if (g_keeps_messages && value.get() != type) {
      const Ref text(PyObject_Str(value.get()));
      const Utf8 message(text.get());
      if (message) set_text(failure.message, message.view());
    }
    Recorder::get().add_failure(failure);
  }
  PyErr_Clear();
}

PyMethodDef g_request_detail_functions[] = {
    {"request_set_details", set_details, METH_VARARGS, nullptr},
    {"request_record_field", record_field, METH_VARARGS, nullptr},
    {"exceptions_keep_messages", keep_messages, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
