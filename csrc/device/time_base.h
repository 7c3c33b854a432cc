// time_base.h: finds the positions of a device's events on the host's timeline.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "backend.h"
#include "stagespan/clock.h"

namespace stagespan::device {

/// Events of one context whose host time is known within a bracket, renewed every few seconds: a device
/// reports the time between two events as a float, which loses precision with length. Each is measured separately, so
/// no error adds up; two of them give the rate of the device's clock relative to the host's. Only for the resolver.
class TimeBase {
 public:
  /// Creates a new base if the last one is old. Call it between begin_resolving() and end_resolving(), and not during a
  /// capture.
  void refresh(EventBackend& backend, const StreamRef& where, const ClockFit& fit) noexcept;

  /// Time in ns from a base to a finished event of a span that began at `begin_ticks`, negative if the base is later;
  /// nothing without a base. Sets `origin_ns` to the base's Unix time, to which the result is to be added.
  std::optional<double> after_ns(EventBackend& backend, Event event, const StreamRef& where, std::uint64_t begin_ticks,
                                 const ClockFit& fit, std::int64_t& origin_ns) noexcept;

  /// The error of a position, according to the brackets.
  std::optional<double> error_ns() const noexcept;
  std::uint64_t made_at_ticks() const noexcept { return made_ == 0 ? 0 : latest().ticks; }

 private:
  struct Point {
    Event event = nullptr;
    std::uint64_t ticks = 0;
    double error_ns = 0;
    double rate = 1;  // host time by device time
  };
  static constexpr std::uint32_t kKept = 4;

  const Point& latest() const noexcept { return points_[(made_ - 1) % kKept]; }
  bool measure(EventBackend& backend, const StreamRef& where, Point& point, const ClockFit& fit) noexcept;
  double rate_between(EventBackend& backend, const StreamRef& where, const Point& earlier, const Point& later,
                      const ClockFit& fit) noexcept;

  std::array<Point, kKept> points_;
  Point best_, spare_;
  std::uint64_t made_ = 0;
  std::uint64_t tried_at_ticks_ = 0;
};

}  // namespace stagespan::device
