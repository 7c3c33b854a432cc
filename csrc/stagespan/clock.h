// clock.h: the recorder's clock, read in ticks, and the fit that turns ticks into time.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

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

/// CLOCK_MONOTONIC in nanoseconds. Not inlined, because callers that read the counter would otherwise reserve space for
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

/// The smallest step of a source of ticks in nanoseconds, as far as the system says; 0 if it does not.
double clock_resolution_ns(ClockSource source, double ns_per_tick) noexcept;

/// Reads both clocks as close to each other as a few tries get: the narrowest bracket wins, so that being
/// descheduled between two reads spoils one try and not the stamp. A bracket whose end lies before its begin is
/// not used if there is any other.
ClockStamp take_stamp() noexcept;

/// Ticks from `begin` to `end`; 0 if `end` comes first. Counters of two cores may differ by a few ticks, and a
/// system's clock may be set back.
constexpr std::uint64_t ticks_between(std::uint64_t begin, std::uint64_t end) noexcept {
  const std::uint64_t ticks = end - begin;
  return ticks & ~static_cast<std::uint64_t>(static_cast<std::int64_t>(ticks) >> 63);
}

/// Ticks between two readings, whichever came first.
constexpr std::uint64_t ticks_apart(std::uint64_t a, std::uint64_t b) noexcept {
  return static_cast<std::int64_t>(a - b) < 0 ? b - a : a - b;
}

/// Turns ticks into Unix time, piecewise between stamps: a rate that the system's clock steers while the
/// process runs is followed, and no error accumulates. Allocates nothing.
class ClockFit {
 public:
  /// `stamps` in the order in which they were taken, the last one fresh; of more than kMaxStamps + 1 the last ones
  /// count. Two with a known distance are needed for a rate; without them it is one tick per nanosecond.
  explicit ClockFit(std::span<const ClockStamp> stamps) noexcept;
  ClockFit(std::initializer_list<ClockStamp> stamps) noexcept
      : ClockFit(std::span<const ClockStamp>(stamps.begin(), stamps.size())) {}

  std::int64_t unix_ns(std::uint64_t ticks) const noexcept;
  /// Ticks at a time, as a two's complement number where it lies before tick 0. Times decades away from the
  /// stamps are moved nearer.
  std::uint64_t ticks(std::int64_t unix_ns) const noexcept;
  double ns_per_tick() const noexcept { return ns_per_tick_; }
  double duration_ns(double ticks) const noexcept { return ticks * ns_per_tick_; }
  std::uint32_t bracket_ns() const noexcept { return stamps_[count_ - 1].bracket_ns; }

 private:
  std::array<ClockStamp, kMaxStamps + 1> stamps_;
  std::uint32_t count_;
  double ns_per_tick_;
  std::int64_t unix_offset_ns_;
};

/// Adds a stamp to the arena's when the last one is over a second old, and gives the fit of all of them. Returns
/// even if the system's clock stops or is set back: then the stamps before that are moved along with it, or
/// left out. The caller serialises calls for one arena.
ClockFit refresh_clock(ArenaHeader& header) noexcept;

/// The fit of the stamps that an arena holds, without a fresh one. The caller makes sure that nobody refreshes them
/// meanwhile.
ClockFit read_clock(const ArenaHeader& header) noexcept;

}  // namespace stagespan
