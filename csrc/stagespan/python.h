// python.h: lets the C++ code of another extension module record into the same recorder. Include it after Python.h, and
// call stagespan::attach() in the module's init function. Links to nothing.
#pragma once

#include <Python.h>

#if __cplusplus < 201703L
#error "stagespan/python.h needs C++17: compile with -std=c++17 or later"

// Without these, the compiler would add an error for each use.
namespace stagespan {
inline bool attach() { return false; }
}  // namespace stagespan
#define STAGESPAN_SCOPE(name)
#else

#include <cstdint>
#include <string_view>

#include "api.h"

#ifdef STAGESPAN_SCOPE
#error "stagespan/python.h is for other extensions, stagespan/scoped_timer.h for stagespan itself: include one of them"
#endif

/// For variables of which each shared object needs its own copy: extensions of one process may have been built with
/// different versions of this header.
#define STAGESPAN_DETAIL_OWN __attribute__((visibility("hidden")))

namespace stagespan {
inline namespace STAGESPAN_API_NAMESPACE {

namespace detail {
STAGESPAN_DETAIL_OWN inline const Api* g_api = nullptr;
}

/// Finds the recorder of the installed stagespan. If stagespan is missing, timers do nothing, so an extension does not
/// need to depend on stagespan. The same holds if it has another version of this interface, and a RuntimeWarning says
/// so. Returns whether it was found. Never leaves an exception set.
STAGESPAN_DETAIL_OWN inline bool attach() {
  if (detail::g_api != nullptr) return true;
  PyObject* module = PyImport_ImportModule("stagespan._core");
  PyObject* capsule = module != nullptr ? PyObject_CallMethod(module, "c_api", nullptr) : nullptr;
  const auto* api = capsule != nullptr ? static_cast<const Api*>(PyCapsule_GetPointer(capsule, kApiCapsule)) : nullptr;
  PyErr_Clear();
  // The table lives as long as the process, so it outlives the capsule.
  Py_XDECREF(capsule);
  Py_XDECREF(module);
  if (api == nullptr) return false;
  if (api->version != kApiVersion || api->size_bytes < sizeof(Api)) {
    PyErr_WarnEx(
        PyExc_RuntimeWarning,
        "An extension was built with headers of stagespan that the installed version does not support: its C++ "
        "scopes are not timed. Install a newer stagespan, or build the extension with the headers of this one.",
        1);
    PyErr_Clear();  // warnings can be errors
    return false;
  }
  detail::g_api = api;
  return true;
}

/// A stage's name, interned when it is first timed after attach().
class StageName {
 public:
  constexpr explicit StageName(std::string_view name) noexcept : name_(name) {}

  STAGESPAN_DETAIL_OWN std::uint32_t stage(const Api& api) noexcept {
    // Two threads may both intern it, but they get the same number.
    std::uint32_t stage = __atomic_load_n(&stage_plus_one_, __ATOMIC_RELAXED);
    if (stage == 0) {
      stage = api.intern(name_.data(), name_.size()) + 1;
      __atomic_store_n(&stage_plus_one_, stage, __ATOMIC_RELAXED);
    }
    return stage - 1;
  }

 private:
  std::string_view name_;
  std::uint32_t stage_plus_one_ = 0;
};

/// Times its enclosing scope, with or without the interpreter's lock, on any thread.
class ScopedTimer {
 public:
  STAGESPAN_DETAIL_OWN explicit ScopedTimer(StageName& name) noexcept {
    const Api* const api = detail::g_api;
    if (api == nullptr || (__atomic_load_n(api->mode, __ATOMIC_RELAXED) & 1U) == 0) return;
    const ApiSpan span = api->open(name.stage(*api));
    frame_ = span.frame;
    id_ = span.id;
  }
  STAGESPAN_DETAIL_OWN ~ScopedTimer() {
    if (frame_ != nullptr) detail::g_api->close({frame_, id_}, flags_);
  }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

  void mark_error() noexcept { flags_ |= 1U; }

 private:
  // Single values in a timer that is not const, so that the compiler keeps them in registers.
  void* frame_ = nullptr;
  std::uint64_t id_ = 0;
  std::uint32_t flags_ = 0;
};

/// Adds to a work counter of a stage, as `add` of a span in Python does: for the innermost open scope or span of this
/// stage in the calling thread, or else for the request that is current. Takes a lock: call it once a run.
STAGESPAN_DETAIL_OWN inline void add_work(StageName& stage, std::string_view counter, double amount) noexcept {
  if (const Api* const api = detail::g_api) api->add_work(stage.stage(*api), counter.data(), counter.size(), amount);
}

}  // namespace STAGESPAN_API_NAMESPACE
}  // namespace stagespan

#define STAGESPAN_DETAIL_JOIN2(a, b) a##b
#define STAGESPAN_DETAIL_JOIN(a, b) STAGESPAN_DETAIL_JOIN2(a, b)

/// Times the rest of the enclosing scope as a stage.
#define STAGESPAN_SCOPE(name)                                                            \
  static ::stagespan::StageName STAGESPAN_DETAIL_JOIN(stagespan_stage_, __LINE__){name}; \
  ::stagespan::ScopedTimer STAGESPAN_DETAIL_JOIN(stagespan_timer_, __LINE__) {           \
    STAGESPAN_DETAIL_JOIN(stagespan_stage_, __LINE__)                                    \
  }

#endif  // C++17
