// mode.h: the switches, in one word that each span reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace stagespan {

enum Mode : std::uint32_t {
  kModeEnabled = 1,
  kModeDebug = 2,
  kModeDevice = 4,      // a device is attached: spans record events on it
  kModePlainCalls = 8,  // the arguments of calls in requests are not described; on at the start
};

/// The switches. Loads are relaxed: a switch takes effect soon, and each span keeps the value it read.
extern std::atomic<std::uint32_t> g_mode;

inline bool mode_has(std::uint32_t bits) noexcept { return (g_mode.load(std::memory_order_relaxed) & bits) == bits; }

}  // namespace stagespan
