// published_clock.cpp: decides when the line of times changes direction.
#include "published_clock.h"

#include <algorithm>
#include <cmath>

namespace stagespan {

namespace {

constexpr double kLongestPause_ns = 1e9;
constexpr double kShortestLead_ns = 1e9;  // the line meets the fit at least this long after a turn
constexpr double kRateBaseline_ns = 8e9;  // the interval over which the current rate is measured
constexpr std::int64_t kTolerance_ns = 1000;
constexpr std::int64_t kJump_ns = 1'000'000;  // a larger difference is not drift: the system's clock was set

double signed_ticks(std::uint64_t from, std::uint64_t to) noexcept {
  return static_cast<double>(static_cast<std::int64_t>(to - from));
}

}  // namespace

const PublishedClock::Turn& PublishedClock::turn_at(std::uint64_t ticks) const noexcept {
  const auto end = turns_.begin() + std::max(count_, 1U);
  const auto after = std::upper_bound(turns_.begin() + 1, end, ticks,
                                      [](std::uint64_t t, const Turn& turn) { return t < turn.ticks; });
  return *(after - 1);
}

std::int64_t PublishedClock::elapsed_ns(std::uint64_t ticks) const noexcept {
  const Turn& turn = turn_at(ticks);
  return turn.elapsed_ns + rounded(signed_ticks(turn.ticks, ticks) * turn.ns_per_tick);
}

std::int64_t PublishedClock::unix_ns(std::uint64_t ticks) const noexcept {
  return elapsed_ns(ticks) + turn_at(ticks).offset_ns;
}

std::int64_t PublishedClock::end_ns(std::uint64_t begin_ticks, std::uint64_t end_ticks) const noexcept {
  return unix_ns(begin_ticks) + std::max<std::int64_t>(elapsed_ns(end_ticks) - elapsed_ns(begin_ticks), 0);
}

std::int64_t PublishedClock::duration_ns(std::uint64_t count, std::uint64_t at) const noexcept {
  return rounded(static_cast<double>(count) * turn_at(at).ns_per_tick);
}

std::uint64_t PublishedClock::ticks(std::int64_t unix_ns) const noexcept {
  const Turn* turn = &turns_[0];
  // If the system's clock showed a time twice, the second occurrence counts.
  for (std::uint32_t i = count_; i-- > 1;) {
    if (unix_ns < turns_[i].elapsed_ns + turns_[i].offset_ns) continue;
    turn = &turns_[i];
    break;
  }
  const double distance = static_cast<double>(unix_ns) - static_cast<double>(turn->elapsed_ns + turn->offset_ns);
  // Near the turn, a difference of integers is exact, but one of fractions is not.
  const double exact =
      std::abs(distance) < kFarthest ? static_cast<double>(unix_ns - (turn->elapsed_ns + turn->offset_ns)) : distance;
  return turn->ticks + static_cast<std::uint64_t>(rounded(exact / turn->ns_per_tick));
}

bool PublishedClock::is_due(std::uint64_t now) const noexcept {
  if (count_ == 0) return true;
  // Soon after the start, the rate is not yet known precisely.
  const double since_ns = std::abs(signed_ticks(checked_, now)) * turns_[count_ - 1].ns_per_tick;
  const double age_ns = std::abs(signed_ticks(begun_, now)) * turns_[count_ - 1].ns_per_tick;
  return since_ns >= std::min(kLongestPause_ns, age_ns / 8);
}

void PublishedClock::settle(std::uint64_t now) noexcept {
  if (static_cast<std::int64_t>(now - settled_) > 0) settled_ = now;
}

void PublishedClock::follow(const ClockFit& fit, std::uint64_t now) noexcept {
  checked_ = now;
  const double usual_rate = fit.ns_per_tick() > 0 ? fit.ns_per_tick() : 1.0;
  if (count_ == 0) {
    begun_ = settled_ = now;
    turns_[0] = {now, fit.unix_ns(now), 0, usual_rate};
    count_ = 1;
    return;
  }
  const std::int64_t tolerance_ns = std::max<std::int64_t>(kTolerance_ns, 2 * std::int64_t{fit.bracket_ns()});
  if (std::abs(fit.unix_ns(now) - unix_ns(now)) <= tolerance_ns) return;

  const auto rate_over = [&](std::uint64_t from, double ticks) {
    const double rate = ticks > 0 ? static_cast<double>(fit.unix_ns(now) - fit.unix_ns(from)) / ticks : usual_rate;
    return rate > usual_rate / 2 && rate < usual_rate * 2 ? rate : usual_rate;
  };
  const auto baseline = static_cast<std::uint64_t>(kRateBaseline_ns / usual_rate);
  const std::uint64_t at = std::max(settled_ + 1, turns_[count_ - 1].ticks);
  const double unsettled_ticks = std::max(signed_ticks(at, now), 0.0);
  const double lead_ticks = std::max(unsettled_ticks, kShortestLead_ns / usual_rate);
  const double rate = unsettled_ticks * usual_rate >= kShortestLead_ns
                          ? rate_over(at, unsettled_ticks)
                          : rate_over(now - baseline, static_cast<double>(baseline));
  const std::int64_t behind_ns = fit.unix_ns(at) - unix_ns(at);
  if (std::abs(behind_ns) > kJump_ns)
    turn(at, behind_ns, rate);
  else
    turn(at, 0, rate + static_cast<double>(behind_ns) / lead_ticks);
}

void PublishedClock::turn(std::uint64_t ticks, std::int64_t jump_ns, double ns_per_tick) noexcept {
  const Turn turn{ticks, elapsed_ns(ticks), turns_[count_ - 1].offset_ns + jump_ns, ns_per_tick};
  // A stamp without conversions is replaced, except for the first one, which converts the times before it.
  if (count_ == 1 || ticks != turns_[count_ - 1].ticks) {
    if (count_ == kMostTurns) thin_out();
    ++count_;
  }
  turns_[count_ - 1] = turn;
}

// Every other turn of the older half is removed, unless the clock was set there. Times of that age move by as much as
// the line was bent there.
void PublishedClock::thin_out() noexcept {
  const auto straighten = [](Turn& from, const Turn& to) {
    from.ns_per_tick = static_cast<double>(to.elapsed_ns - from.elapsed_ns) / signed_ticks(from.ticks, to.ticks);
  };
  const std::uint32_t half = count_ / 2;
  std::uint32_t kept = 1;
  for (std::uint32_t i = 1; i < count_; ++i) {
    const bool was_set = turns_[i].offset_ns != turns_[i - 1].offset_ns;
    if (i < half && i % 2 == 1 && !was_set) continue;
    if (i <= half) straighten(turns_[kept - 1], turns_[i]);
    turns_[kept++] = turns_[i];
  }
  if (kept == count_) {  // the clock was set at each of them, so the oldest is removed
    std::copy(turns_.begin() + 2, turns_.begin() + kept, turns_.begin() + 1);
    straighten(turns_[0], turns_[1]);
    --kept;
  }
  count_ = kept;
}

}  // namespace stagespan
