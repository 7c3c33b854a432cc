// clock.h: the recorder's clock, which counts ticks, and the fit that converts ticks to time.
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

/// CLOCK_REALTIME: Unix time in nanoseconds.
std::int64_t realtime_ns() noexcept;

/// At a larger distance from a stamp, in ticks or nanoseconds, sums would exceed 64 bits.
inline constexpr double kFarthest = 3.2e18;

/// Rounds a distance from a stamp, and limits it to kFarthest.
std::int64_t rounded(double distance) noexcept;

/// The processor's counter. Call this only if the counter is known to be usable.
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

/// The clock, in ticks: the processor's counter if it runs at a constant rate on all cores, otherwise CLOCK_MONOTONIC.
/// The read is not serialising, so it may move by a few instructions, which is less than the read itself takes.
inline std::uint64_t now_ticks() noexcept {
  if (detail::g_counter_is_usable) [[likely]]
    return counter_ticks();
  return static_cast<std::uint64_t>(monotonic_ns());
}

/// Chooses the source of ticks. `wish` is "auto", "tsc" or "monotonic". A counter that does not exist or that the
/// kernel does not trust is never used.
ClockSource choose_clock(const char* wish) noexcept;

const char* clock_name(ClockSource source) noexcept;

/// The smallest step of a source of ticks in nanoseconds, as reported by the system; 0 if it does not report one.
double clock_resolution_ns(ClockSource source, double ns_per_tick) noexcept;

/// Reads both clocks as close together as possible. Of several tries, the one with the narrowest bracket is used, so
/// that being descheduled between two reads spoils only one try. A bracket whose end is before its start is only used
/// if there is no other.
ClockStamp take_stamp() noexcept;

/// Ticks from `begin` to `end`; 0 if `end` comes first. Counters of two cores may differ by a few ticks, and a
/// system's clock may be set back.
constexpr std::uint64_t ticks_between(std::uint64_t begin, std::uint64_t end) noexcept {
  const std::uint64_t ticks = end - begin;
  return ticks & ~static_cast<std::uint64_t>(static_cast<std::int64_t>(ticks) >> 63);
}

/// Ticks between two readings in any order.
constexpr std::uint64_t ticks_apart(std::uint64_t a, std::uint64_t b) noexcept {
  return static_cast<std::int64_t>(a - b) < 0 ? b - a : a - b;
}

/// Converts ticks to Unix time, piecewise between stamps. It therefore follows a system clock whose rate is adjusted
/// while the process runs, and errors do not accumulate. Allocates no memory.
class ClockFit {
 public:
  /// `stamps` are in the order in which they were taken, and the last one is fresh. If there are more than kMaxStamps +
  /// 1, only the last ones are used. A rate needs two stamps with a known distance; without them it is one tick per
  /// nanosecond.
  explicit ClockFit(std::span<const ClockStamp> stamps) noexcept;
  ClockFit(std::initializer_list<ClockStamp> stamps) noexcept
      : ClockFit(std::span<const ClockStamp>(stamps.begin(), stamps.size())) {}

  std::int64_t unix_ns(std::uint64_t ticks) const noexcept;
  /// What was added to CLOCK_MONOTONIC to get the times above.
  std::int64_t unix_offset_ns() const noexcept { return unix_offset_ns_; }
  /// Ticks at a time, as a two's complement number if the time is before tick 0. Times that are decades away from the
  /// stamps are moved closer.
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

/// Adds a stamp to the arena if the last one is over a second old, and returns the fit of all stamps. Returns even if
/// the system's clock stops or is set back: the earlier stamps are then moved by the same amount or left out. The
/// caller serialises calls for one arena.
ClockFit refresh_clock(ArenaHeader& header) noexcept;

/// The fit of the stamps in an arena, without a fresh one. The caller makes sure that the stamps do not change during
/// the call.
ClockFit read_clock(const ArenaHeader& header) noexcept;

}  // namespace stagespan
