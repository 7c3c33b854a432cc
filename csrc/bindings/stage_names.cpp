// stage_names.cpp: names that are not cached by address, and names that cannot be used.
#include "stage_names.h"

#include <atomic>

#include "object.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

CachedName g_name_cache[kNameCacheSize];

namespace {

PyObject* g_stages = nullptr;  // dict: name -> stage; at most as many entries as there are stages

std::uint32_t invalid_name(PyObject* name) noexcept {
  Recorder::get().lose(kLostInvalidNames);
  static bool warned = false;
  if (warned) return kStageInvalid;
  warned = true;
  const ErrorAside pending;
  const char* const sentence =
      "stagespan: a stage was named %R, which is no usable name; its spans are kept under '(invalid name)': "
      "pass a string that is not empty (told once)";
  if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, sentence, name) != 0) PyErr_Clear();
  return kStageInvalid;
}

}  // namespace

std::uint32_t stage_of_slow(PyObject* name) noexcept {
  if (!PyUnicode_Check(name) || PyUnicode_GET_LENGTH(name) == 0) return invalid_name(name);
  const ErrorAside pending;
  std::uint32_t stage = kStageOverflow;
  // Subclasses may compare as they like; only plain strings are looked up and kept.
  const bool plain = PyUnicode_CheckExact(name);
  PyObject* const known = plain ? PyDict_GetItemWithError(g_stages, name) : nullptr;
  if (known != nullptr) {
    stage = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(known));
  } else {
    PyErr_Clear();
    // Lone surrogates have no UTF-8; they are written as escapes.
    const Ref text(PyUnicode_AsEncodedString(name, "utf-8", "backslashreplace"));
    if (!text) {
      PyErr_Clear();
      return invalid_name(name);
    }
    stage = Recorder::get().intern(
        {PyBytes_AS_STRING(text.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(text.get()))});
    if (stage == kStageOverflow || !plain) return stage;
    const Ref number(PyLong_FromUnsignedLong(stage));
    if (!number || PyDict_SetItem(g_stages, name, number.get()) != 0) PyErr_Clear();
  }
  if (plain) {
    CachedName& cached = g_name_cache[(reinterpret_cast<std::uintptr_t>(name) >> 4) % kNameCacheSize];
    Py_XDECREF(cached.name);
    cached = {Py_NewRef(name), stage};
  }
  return stage;
}

PyObject* stage_name(std::uint32_t stage) {
  const std::string name = Recorder::get().name_of(stage);
  return PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "replace");
}

bool init_stage_names() {
  g_stages = PyDict_New();
  return g_stages != nullptr;
}

}  // namespace stagespan::python
