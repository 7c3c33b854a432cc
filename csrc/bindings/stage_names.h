// stage_names.h: maps a Python string to the number of its stage.
#pragma once

#include <Python.h>

#include <bit>
#include <cstdint>

#include "stagespan/layout.h"

namespace stagespan::python {

inline constexpr std::size_t kNameCacheSize = 4096;  // a power of two

struct CachedName {
  PyObject* name;  // kept alive, so that its address identifies it
  std::uint32_t stage;
};

extern CachedName g_name_cache[kNameCacheSize];

/// The position of a name in the cache. Consecutive allocations have regular addresses, so the bits are mixed.
STAGESPAN_HOT CachedName& cached_name(PyObject* name) noexcept {
  const std::uint64_t mixed = std::uint64_t{reinterpret_cast<std::uintptr_t>(name)} * 0x9e3779b97f4a7c15;
  return g_name_cache[mixed >> (64 - std::bit_width(kNameCacheSize - 1))];
}

/// Finds or creates the stage of any object that is passed as a name. A name that is empty or not a string is
/// counted and gets a separate stage; the caller's code continues.
std::uint32_t stage_of_slow(PyObject* name) noexcept;

/// Forgets all cached names, so that each name is looked up again. Call this when the extended stages change.
void forget_cached_names() noexcept;

/// Whether plain spans of the stage are annotated.
bool is_annotated(std::uint32_t stage) noexcept;

/// Whether new spans of the stage are extended. Their names are not cached, so that others cost nothing more.
bool is_extended(std::uint32_t stage) noexcept;

/// The stage of a name. A name in source code is always the same object, so its address is looked up first.
STAGESPAN_HOT std::uint32_t stage_of(PyObject* name) noexcept {
  const CachedName& cached = cached_name(name);
  if (cached.name == name) [[likely]]
    return cached.stage;
  return stage_of_slow(name);
}

/// Who has chosen a name. Only some names of other processes get stages (Recorder::intern_foreign).
enum class Chooser { kThisProcess, kOtherProcess };

/// The stage of a name in a kind other than kExecution, cached in the same way. From kPartFirstChunk on, it is that of
/// a pipeline (Recorder::intern_pipeline).
std::uint32_t stage_of_kind(PyObject* name, StageKind kind, Chooser chooser = Chooser::kThisProcess) noexcept;

/// By stage: its name if it differs from the given one, otherwise null. Names that are too long are cut, and invalid
/// names are replaced.
extern PyObject* g_renamed[kMaxStages];

/// The name that an object for `stage` shows if it was created with `name`; borrowed.
STAGESPAN_HOT PyObject* shown_name(std::uint32_t stage, PyObject* name) noexcept {
  PyObject* const renamed = g_renamed[stage];
  return renamed != nullptr ? renamed : name;
}

/// Name of a stage as a new reference.
PyObject* stage_name(std::uint32_t stage);

/// Creates the table of names. False with an exception set if that fails.
bool init_stage_names();

}  // namespace stagespan::python
