// wrapping.h: sums and differences of times, which wrap around.
#pragma once

#include <cstdint>

namespace stagespan::trace {

// Times of a damaged file may be too far apart for 64 bits: the results are then as wrong as they are.

inline std::int64_t sum(std::int64_t one, std::int64_t other) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(one) + static_cast<std::uint64_t>(other));
}

inline std::int64_t between(std::int64_t begin, std::int64_t end) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(end) - static_cast<std::uint64_t>(begin));
}

}  // namespace stagespan::trace
