// published_clock.h: converts ticks to Unix times that do not change once they have been returned.
#pragma once

#include <array>
#include <cstdint>

#include "clock.h"

namespace stagespan {

/// Converts ticks to Unix time by following a ClockFit. A fit changes with each new stamp, also for times in the past.
/// This line does not: a piece of it becomes final before a time in it is converted, and only times that have not been
/// converted can change. A span therefore has the same times whenever it is read.
///
/// The line continues straight while it agrees with the fit. If it does not agree, it turns at the last conversion so
/// that it meets the fit later. If the system's clock was set, it jumps at that point.
class PublishedClock {
 public:
  static constexpr std::uint32_t kMostTurns = 256;

  /// Whether it is time to compare the line with a fresh fit, which `follow` does.
  bool is_due(std::uint64_t now) const noexcept;
  void follow(const ClockFit& fit, std::uint64_t now) noexcept;
  /// Call this before converting: ticks up to `now` keep their times from then on.
  void settle(std::uint64_t now) noexcept;

  std::int64_t unix_ns(std::uint64_t ticks) const noexcept;
  /// The end of a span. It is never before the start, and the duration is correct even if the system's clock was set in
  /// between.
  std::int64_t end_ns(std::uint64_t begin_ticks, std::uint64_t end_ticks) const noexcept;
  /// The duration of `count` ticks near `at`.
  std::int64_t duration_ns(std::uint64_t count, std::uint64_t at) const noexcept;
  /// Ticks at a time; see ClockFit::ticks.
  std::uint64_t ticks(std::int64_t unix_ns) const noexcept;

 private:
  /// A point at which the line changes its direction.
  struct Turn {
    std::uint64_t ticks;
    std::int64_t elapsed_ns;  // the line without its jumps
    std::int64_t offset_ns;   // the sum of the jumps so far
    double ns_per_tick;       // from here on
  };

  const Turn& turn_at(std::uint64_t ticks) const noexcept;
  std::int64_t elapsed_ns(std::uint64_t ticks) const noexcept;
  void turn(std::uint64_t ticks, std::int64_t jump_ns, double ns_per_tick) noexcept;
  void thin_out() noexcept;

  std::array<Turn, kMostTurns> turns_{};
  std::uint32_t count_ = 0;
  std::uint64_t begun_ = 0;
  std::uint64_t checked_ = 0;
  std::uint64_t settled_ = 0;
};

}  // namespace stagespan
