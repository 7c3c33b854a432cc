// stage_names.cpp: looks up names that are not cached by address, and handles invalid names.
#include "stage_names.h"

#include <string_view>
#include <utility>

#include "object.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

CachedName g_name_cache[kNameCacheSize];
PyObject* g_renamed[kMaxStages];

namespace {

// Longer names are looked up by their text each time, because caching them could take much memory.
constexpr Py_ssize_t kLongestKept = 1024;

// By kind, dict: name -> stage; together at most as many entries as there are stages.
PyObject* g_stages[kStageKinds];

constexpr std::size_t kKindCacheSize = 1024;  // a power of two
struct CachedKind {
  PyObject* name;  // kept alive, so that its address identifies it
  StageKind kind;
  std::uint32_t stage;
};
CachedKind g_kind_cache[kKindCacheSize];

void warn_of_invalid(PyObject* name) {
  const char* const sentence =
      "stagespan: a stage was named by %s, which is not a valid name; its spans are counted under '(invalid name)': "
      "pass "
      "a string that is not empty (shown once)";
  // The object is not printed, because the text of a tensor is long and would require a wait for the device.
  const Ref what(PyUnicode_Check(name) ? PyUnicode_FromString("an empty string")
                                       : PyUnicode_FromFormat("an object of type '%s'", Py_TYPE(name)->tp_name));
  const char* const text = what ? PyUnicode_AsUTF8(what.get()) : nullptr;
  if (text == nullptr || PyErr_WarnFormat(PyExc_RuntimeWarning, 1, sentence, text) != 0) PyErr_Clear();
}

std::uint32_t invalid_name(PyObject* name) noexcept {
  Recorder::get().lose(kLostInvalidNames);
  static bool warned = false;
  if (warned) return kStageInvalid;
  warned = true;
  const ErrorAside pending;
  warn_of_invalid(name);
  return kStageInvalid;
}

/// Whether stages of a kind are pipelines of requests.
bool is_of_pipeline(StageKind kind) noexcept { return kind >= kPartFirstChunk && kind <= kRequestAbandoned; }

// Interns the text, and stores the stage's name if it differs.
std::uint32_t intern(PyObject* name, PyObject* text, StageKind kind, Chooser chooser) {
  const std::string_view view(PyBytes_AS_STRING(text), static_cast<std::size_t>(PyBytes_GET_SIZE(text)));
  Recorder& recorder = Recorder::get();
  const std::uint32_t stage = is_of_pipeline(kind)               ? recorder.intern_pipeline(view, kind)
                              : chooser == Chooser::kThisProcess ? recorder.intern(view, kind)
                                                                 : recorder.intern_foreign(view, kind);
  if (stage == kStageOverflow || g_renamed[stage] != nullptr) return stage;
  PyObject* const called = stage_name(stage);
  if (called == nullptr || PyUnicode_Compare(called, name) == 0)
    Py_XDECREF(called);
  else
    g_renamed[stage] = called;
  PyErr_Clear();
  return stage;
}

/// Whether a stage is that of all names for which there was no place.
bool is_common(std::uint32_t stage, StageKind kind, Chooser chooser) noexcept {
  return stage == kStageOverflow || ((chooser == Chooser::kOtherProcess || is_of_pipeline(kind)) &&
                                     Recorder::get().name_of(stage) == kForeignName);
}

// Names that are kept in a cache by their address. Subclasses can override comparison, so only plain strings are looked
// up and cached.
bool may_be_kept(PyObject* name) noexcept {
  return PyUnicode_CheckExact(name) && PyUnicode_GET_LENGTH(name) <= kLongestKept;
}

std::uint32_t find_stage(PyObject* name, StageKind kind, Chooser chooser) noexcept {
  if (!PyUnicode_Check(name) || PyUnicode_GET_LENGTH(name) == 0) return invalid_name(name);
  const ErrorAside pending;
  const bool kept = may_be_kept(name);
  PyObject* const known = kept ? PyDict_GetItemWithError(g_stages[kind], name) : nullptr;
  if (known != nullptr) return static_cast<std::uint32_t>(PyLong_AsUnsignedLong(known));
  PyErr_Clear();
  // Lone surrogates have no UTF-8 encoding; they are written as escapes.
  const Ref text(PyUnicode_AsEncodedString(name, "utf-8", "backslashreplace"));
  if (!text) {
    PyErr_Clear();
    return invalid_name(name);
  }
  const std::uint32_t stage = intern(name, text.get(), kind, chooser);
  if (!kept || is_common(stage, kind, chooser)) return stage;
  const Ref number(PyLong_FromUnsignedLong(stage));
  if (!number || PyDict_SetItem(g_stages[kind], name, number.get()) != 0) PyErr_Clear();
  return stage;
}

}  // namespace

std::uint32_t stage_of_kind(PyObject* name, StageKind kind, Chooser chooser) noexcept {
  const std::uint64_t mixed = (std::uint64_t{reinterpret_cast<std::uintptr_t>(name)} + kind) * 0x9e3779b97f4a7c15;
  CachedKind& cached = g_kind_cache[mixed >> (64 - std::bit_width(kKindCacheSize - 1))];
  if (cached.name == name && cached.kind == kind) return cached.stage;
  const std::uint32_t stage = find_stage(name, kind, chooser);
  if (stage > kStageInvalid && may_be_kept(name) && !is_common(stage, kind, chooser)) {
    PyObject* const before = std::exchange(cached.name, Py_NewRef(name));
    cached.kind = kind;
    cached.stage = stage;
    Py_XDECREF(before);
  }
  return stage;
}

std::uint32_t stage_of_slow(PyObject* name) noexcept {
  const std::uint32_t stage = find_stage(name, kExecution, Chooser::kThisProcess);
  if (stage > kStageInvalid && may_be_kept(name) && !is_extended(stage)) {
    CachedName& cached = cached_name(name);
    PyObject* const before = std::exchange(cached.name, Py_NewRef(name));
    cached.stage = stage;
    Py_XDECREF(before);
  }
  return stage;
}

void forget_cached_names() noexcept {
  for (CachedName& cached : g_name_cache) Py_CLEAR(cached.name);
}

PyObject* stage_name(std::uint32_t stage) {
  const std::string_view name = Recorder::get().name_of(stage);
  return PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "replace");
}

bool init_stage_names() {
  for (PyObject*& stages : g_stages)
    if ((stages = PyDict_New()) == nullptr) return false;
  g_renamed[kStageInvalid] = stage_name(kStageInvalid);
  return g_renamed[kStageInvalid] != nullptr;
}

}  // namespace stagespan::python
