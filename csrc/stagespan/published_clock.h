// published_clock.h: Unix times of ticks that do not change once they have been returned.
#pragma once

#include <array>
#include <cstdint>

#include "clock.h"

namespace stagespan {

/// Turns ticks into Unix time like a ClockFit, which it follows. A fit moves with every new stamp, also for times
/// long past; here each piece of the line is settled before anything that lies in it is converted. Only what has not
/// been converted yet is moved, so that a span has the same times whenever it is read.
///
/// The line goes on straight while it agrees with the fit. When it does not, it turns where the last conversion was,
/// so that it meets the fit; if the system's clock was set, it jumps there.
class PublishedClock {
 public:
  static constexpr std::uint32_t kMostTurns = 256;

  /// Whether it is time to compare with a fresh fit, which `follow` does.
  bool is_due(std::uint64_t now) const noexcept;
  void follow(const ClockFit& fit, std::uint64_t now) noexcept;
  /// To be called before converting: ticks up to `now` keep their times from here on.
  void settle(std::uint64_t now) noexcept;

  std::int64_t unix_ns(std::uint64_t ticks) const noexcept;
  /// The end of a span: not before its begin, and its length is right although the system's clock was set in between.
  std::int64_t end_ns(std::uint64_t begin_ticks, std::uint64_t end_ticks) const noexcept;
  /// The length of `count` ticks near `at`.
  std::int64_t duration_ns(std::uint64_t count, std::uint64_t at) const noexcept;
  /// Ticks at a time; see ClockFit::ticks.
  std::uint64_t ticks(std::int64_t unix_ns) const noexcept;

 private:
  /// Where the line turns.
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
