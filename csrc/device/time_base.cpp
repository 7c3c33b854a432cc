// time_base.cpp: brackets an event between two readings of the host's clock.
#include "time_base.h"

#include <cmath>
#include <utility>

namespace stagespan::device {

namespace {

constexpr double kLongestUse_ns = 2e9;
constexpr double kRetry_ns = 0.25e9;
constexpr double kLongestSpin_ns = 0.5e6;
constexpr double kGoodEnough_ns = 8e3;
constexpr double kShortestForRate_ns = 0.5e9;
constexpr double kWildestRate = 1e-3;  // clocks with a larger difference are not plausible
constexpr int kTries = 5;
constexpr int kMostQueries = 20'000;  // more than fit into the longest spin, in case the clock stops

}  // namespace

bool TimeBase::measure(EventBackend& backend, const StreamRef& where, Point& point, const ClockFit& fit) noexcept {
  if (point.event == nullptr) point.event = backend.create_event(where);
  if (point.event == nullptr) return false;
  const std::uint64_t before = now_ticks();
  if (!backend.record_base(point.event, where)) return false;
  std::uint64_t after = now_ticks();
  for (int queries = 1;; ++queries) {
    const EventState state = backend.query(point.event, where);
    after = now_ticks();
    if (state == EventState::kDone) break;
    // The event is queued behind other work, as with CUDA_DEVICE_MAX_CONNECTIONS=1, so waiting longer does not help.
    if (state != EventState::kNotReady || queries >= kMostQueries ||
        fit.duration_ns(static_cast<double>(ticks_between(before, after))) > kLongestSpin_ns)
      return false;
  }
  point.ticks = before + ticks_between(before, after) / 2;
  point.error_ns = fit.duration_ns(static_cast<double>(ticks_between(before, after))) / 2;
  return true;
}

double TimeBase::rate_between(EventBackend& backend, const StreamRef& where, const Point& earlier, const Point& later,
                              const ClockFit& fit) noexcept {
  const auto host_ns = static_cast<double>(fit.unix_ns(later.ticks) - fit.unix_ns(earlier.ticks));
  double device_ns = 0;
  if (host_ns < kShortestForRate_ns || !backend.elapsed_ns(earlier.event, later.event, where, device_ns)) return 1;
  const double rate = device_ns > 0 ? host_ns / device_ns : 1;
  // Over a shorter distance, the errors of both brackets would make the rate worse than no rate.
  const bool is_sharp = (earlier.error_ns + later.error_ns) / host_ns < 2e-5;
  return is_sharp && std::fabs(rate - 1) < kWildestRate ? rate : 1;
}

void TimeBase::refresh(EventBackend& backend, const StreamRef& where, const ClockFit& fit) noexcept {
  const std::uint64_t now = now_ticks();
  // If the clock was set back, bases far in the future are as old as those far in the past.
  const auto age_ns = [&](std::uint64_t ticks) {
    return fit.duration_ns(static_cast<double>(ticks_apart(ticks, now)));
  };
  if (made_ != 0 && age_ns(latest().ticks) < kLongestUse_ns) return;
  if (tried_at_ticks_ != 0 && age_ns(tried_at_ticks_) < kRetry_ns) return;
  tried_at_ticks_ = now;
  bool any = false;
  for (int i = 0; i < kTries; ++i) {
    if (!measure(backend, where, spare_, fit)) {
      if (!any && i > 0) return;
      continue;
    }
    if (!any || spare_.error_ns < best_.error_ns) std::swap(best_, spare_);
    any = true;
    if (2 * best_.error_ns < kGoodEnough_ns) break;
  }
  if (!any) return;
  best_.rate = made_ != 0 ? rate_between(backend, where, latest(), best_, fit) : 1;
  std::swap(points_[made_ % kKept], best_);
  ++made_;
}

std::optional<double> TimeBase::after_ns(EventBackend& backend, Event event, const StreamRef& where,
                                         std::uint64_t begin_ticks, const ClockFit& fit,
                                         std::int64_t& origin_ns) noexcept {
  if (made_ == 0) return std::nullopt;
  // The newest base before the span, because some devices cannot return negative times. If there is none, the oldest
  // base after it.
  const std::uint64_t kept = made_ < kKept ? made_ : kKept;
  const Point* point = nullptr;
  for (std::uint64_t back = 1; back <= kept; ++back) {
    point = &points_[(made_ - back) % kKept];
    if (point->ticks <= begin_ticks) break;
  }
  double ns = 0;
  const bool is_before = point->ticks <= begin_ticks;
  if (is_before ? !backend.elapsed_ns(point->event, event, where, ns)
                : !backend.elapsed_ns(event, point->event, where, ns))
    return std::nullopt;
  origin_ns = fit.unix_ns(point->ticks);
  return (is_before ? ns : -ns) * point->rate;
}

std::optional<double> TimeBase::error_ns() const noexcept {
  return made_ == 0 ? std::nullopt : std::optional(latest().error_ns);
}

}  // namespace stagespan::device
