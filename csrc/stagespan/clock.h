// clock.h: the recorder's clock, read in ticks, and the fit that turns ticks into time.
#pragma once

#include <cstdint>
#include <vector>

#include "layout.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace stagespan {

enum class ClockSource : std::uint32_t { kMonotonic = 0, kTsc = 1, kCntvct = 2 };

namespace detail {
// Written once, before the first tick is read.
extern bool g_counter_is_usable;
}  // namespace detail

/// CLOCK_MONOTONIC in nanoseconds. Out of line: inlined, it would have those who read the counter keep room for
/// its result.
std::int64_t monotonic_ns() noexcept;

/// The processor's counter, for callers who know that it is usable.
inline std::uint64_t counter_ticks() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  std::uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return static_cast<std::uint64_t>(monotonic_ns());
#endif
}

/// The clock, in ticks: the processor's counter where it runs at a constant rate on all cores, else
/// CLOCK_MONOTONIC. Not serialising: it may move by a few instructions, which is below its own cost.
inline std::uint64_t now_ticks() noexcept {
  if (detail::g_counter_is_usable) [[likely]]
    return counter_ticks();
  return static_cast<std::uint64_t>(monotonic_ns());
}

/// Chooses the source of ticks. `wish` is "auto", "tsc" or "monotonic"; a counter that is not there or not
/// trusted by the kernel is never used, whatever the wish.
ClockSource choose_clock(const char* wish) noexcept;

const char* clock_name(ClockSource source) noexcept;

/// Reads both clocks as close to each other as a few tries get: the narrowest bracket wins, so that being
/// descheduled between two reads spoils one try and not the stamp.
ClockStamp take_stamp() noexcept;

/// Turns ticks into Unix time, piecewise between stamps: a rate that the system's clock steers while the
/// process runs is followed, and no error accumulates.
class ClockFit {
 public:
  /// `stamps` in the order in which they were taken, the last one fresh. Fewer than two tell no rate: it is
  /// then one tick a nanosecond.
  explicit ClockFit(std::vector<ClockStamp> stamps);

  std::int64_t unix_ns(std::uint64_t ticks) const noexcept;
  /// Ticks at a time, as a two's complement number where it lies before tick 0. Times decades away from the
  /// stamps are moved nearer.
  std::uint64_t ticks(std::int64_t unix_ns) const noexcept;
  double ns_per_tick() const noexcept { return ns_per_tick_; }
  double duration_ns(double ticks) const noexcept { return ticks * ns_per_tick_; }
  std::uint32_t bracket_ns() const noexcept { return stamps_.back().bracket_ns; }

 private:
  std::vector<ClockStamp> stamps_;
  double ns_per_tick_;
  std::int64_t unix_offset_ns_;
};

/// Adds a stamp to the arena's when the last one is over a second old, and gives the fit of all of them.
/// The caller serialises calls for one arena.
ClockFit refresh_clock(ArenaHeader& header);

/// The fit of an arena that cannot be written, or whose process is gone.
ClockFit read_clock(const ArenaHeader& header);

}  // namespace stagespan
