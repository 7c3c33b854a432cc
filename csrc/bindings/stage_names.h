// stage_names.h: from a Python string to the number of its stage.
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

/// The place of a name in the cache. Names made in a row lie at equal distances, so the address is mixed.
STAGESPAN_HOT CachedName& cached_name(PyObject* name) noexcept {
  const std::uint64_t mixed = std::uint64_t{reinterpret_cast<std::uintptr_t>(name)} * 0x9e3779b97f4a7c15;
  return g_name_cache[mixed >> (64 - std::bit_width(kNameCacheSize - 1))];
}

/// Finds or creates the stage of any object that is passed as a name. A name that is empty or not a string is
/// counted and gets a separate stage; the caller's code continues.
std::uint32_t stage_of_slow(PyObject* name) noexcept;

/// The stage of a name. Names in source code are one object each, so their address is looked up first.
STAGESPAN_HOT std::uint32_t stage_of(PyObject* name) noexcept {
  const CachedName& cached = cached_name(name);
  if (cached.name == name) [[likely]]
    return cached.stage;
  return stage_of_slow(name);
}

/// By stage: what it is called, where that is not what it was named by; else null. Too long names are cut, and an
/// object that is not a name gets a name that says so.
extern PyObject* g_renamed[kMaxStages];

/// The name that an object shows which was made for `stage` under `name`; borrowed.
STAGESPAN_HOT PyObject* shown_name(std::uint32_t stage, PyObject* name) noexcept {
  PyObject* const renamed = g_renamed[stage];
  return renamed != nullptr ? renamed : name;
}

/// Name of a stage as a new reference.
PyObject* stage_name(std::uint32_t stage);

/// Makes the table of names. False with an exception set when that fails.
bool init_stage_names();

}  // namespace stagespan::python
