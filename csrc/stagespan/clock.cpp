// clock.cpp: choosing the counter, taking stamps, fitting them.
#include "clock.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace stagespan {

namespace detail {
bool g_counter_is_usable = false;
}

namespace {

#if defined(__x86_64__)
bool tsc_is_invariant() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & (1U << 8)) != 0;
}

// The kernel drops "tsc" from this list when it has seen the counters of two cores disagree.
bool kernel_trusts_tsc() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/available_clocksource");
  std::string name;
  while (file >> name)
    if (name == "tsc") return true;
  return false;
}
#endif

// Farther from a stamp than this, in ticks or nanoseconds, sums would leave 64 bits.
constexpr double kFarthest = 3.2e18;

std::int64_t rounded(double distance) noexcept { return std::llround(std::clamp(distance, -kFarthest, kFarthest)); }

constexpr int kStampTries = 9;
constexpr std::int64_t kShortestFit_ns = 50'000;
constexpr std::int64_t kShortestPiece_ns = 200'000'000;
constexpr std::int64_t kStampInterval_ns = 1'000'000'000;

std::int64_t realtime_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

[[gnu::noinline]] std::int64_t monotonic_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

ClockSource choose_clock(const char* wish) noexcept {
  detail::g_counter_is_usable = false;
  if (wish != nullptr && std::strcmp(wish, "monotonic") == 0) return ClockSource::kMonotonic;
#if defined(__x86_64__)
  if (tsc_is_invariant() && kernel_trusts_tsc()) {
    detail::g_counter_is_usable = true;
    return ClockSource::kTsc;
  }
#elif defined(__aarch64__)
  // The architecture requires the virtual counter to be constant and common to all cores.
  detail::g_counter_is_usable = true;
  return ClockSource::kCntvct;
#endif
  return ClockSource::kMonotonic;
}

const char* clock_name(ClockSource source) noexcept {
  switch (source) {
    case ClockSource::kTsc:
      return "tsc";
    case ClockSource::kCntvct:
      return "cntvct";
    case ClockSource::kMonotonic:
      break;
  }
  return "monotonic";
}

ClockStamp take_stamp() noexcept {
  ClockStamp best{};
  std::uint64_t narrowest = std::numeric_limits<std::uint64_t>::max();
  for (int attempt = 0; attempt < kStampTries; ++attempt) {
    const std::uint64_t before = now_ticks();
    const std::int64_t monotonic = monotonic_ns();
    const std::uint64_t after = now_ticks();
    if (after - before >= narrowest) continue;
    narrowest = after - before;
    best.ticks = before + (after - before) / 2;
    best.monotonic_ns = monotonic;
  }
  std::int64_t narrowest_ns = std::numeric_limits<std::int64_t>::max();
  for (int attempt = 0; attempt < kStampTries; ++attempt) {
    const std::int64_t before = monotonic_ns();
    const std::int64_t unix_now = realtime_ns();
    const std::int64_t after = monotonic_ns();
    if (after - before >= narrowest_ns) continue;
    narrowest_ns = after - before;
    best.unix_ns = best.monotonic_ns + (unix_now - (before + (after - before) / 2));
  }
  best.bracket_ns = static_cast<std::uint32_t>(std::min<std::int64_t>(narrowest_ns, UINT32_MAX));
  return best;
}

ClockFit::ClockFit(std::vector<ClockStamp> stamps) : stamps_(std::move(stamps)) {
  if (stamps_.empty()) stamps_.emplace_back();
  if (stamps_.size() == 1) stamps_.push_back(stamps_.front());
  const ClockStamp& first = stamps_.front();
  const ClockStamp& last = stamps_.back();
  const auto ticks = static_cast<double>(last.ticks - first.ticks);
  ns_per_tick_ = ticks > 0 ? static_cast<double>(last.monotonic_ns - first.monotonic_ns) / ticks : 1.0;
  unix_offset_ns_ = last.unix_ns - last.monotonic_ns;
}

std::int64_t ClockFit::unix_ns(std::uint64_t ticks) const noexcept {
  auto upper = std::upper_bound(stamps_.begin() + 1, stamps_.end() - 1, ticks,
                                [](std::uint64_t t, const ClockStamp& stamp) { return t < stamp.ticks; });
  const ClockStamp& b = *upper;
  const ClockStamp& a = *(upper - 1);
  const double rate =
      b.ticks > a.ticks ? static_cast<double>(b.monotonic_ns - a.monotonic_ns) / static_cast<double>(b.ticks - a.ticks)
                        : ns_per_tick_;
  // Whole and fraction apart: a double holds the distance to the nearer stamp exactly enough, not the date.
  const auto distance = static_cast<double>(static_cast<std::int64_t>(ticks - a.ticks));
  return a.monotonic_ns + unix_offset_ns_ + rounded(distance * rate);
}

std::uint64_t ClockFit::ticks(std::int64_t unix_ns) const noexcept {
  const std::int64_t nearest = unix_offset_ns_ - static_cast<std::int64_t>(kFarthest);
  const std::int64_t farthest = unix_offset_ns_ + static_cast<std::int64_t>(kFarthest);
  const std::int64_t monotonic = std::clamp(unix_ns, nearest, farthest) - unix_offset_ns_;
  auto upper = std::upper_bound(stamps_.begin() + 1, stamps_.end() - 1, monotonic,
                                [](std::int64_t t, const ClockStamp& stamp) { return t < stamp.monotonic_ns; });
  const ClockStamp& b = *upper;
  const ClockStamp& a = *(upper - 1);
  const double rate = b.monotonic_ns > a.monotonic_ns ? static_cast<double>(b.ticks - a.ticks) /
                                                            static_cast<double>(b.monotonic_ns - a.monotonic_ns)
                                                      : 1.0 / ns_per_tick_;
  const double distance = static_cast<double>(monotonic - a.monotonic_ns) * rate;
  return a.ticks + static_cast<std::uint64_t>(rounded(distance));
}

ClockFit refresh_clock(ArenaHeader& header) {
  std::uint32_t count = header.stamp_count.load(std::memory_order_relaxed);
  ClockStamp fresh = take_stamp();
  // Reading right after the start: a fit over less than this would turn the bracket into a wrong rate.
  while (fresh.monotonic_ns - header.stamps[0].monotonic_ns < kShortestFit_ns) fresh = take_stamp();

  std::vector<ClockStamp> stamps(header.stamps, header.stamps + count);
  // A short last piece would carry its bracket, as a wrong rate, to ticks beyond it.
  while (stamps.size() > 1 && fresh.monotonic_ns - stamps.back().monotonic_ns < kShortestPiece_ns) stamps.pop_back();
  stamps.push_back(fresh);
  // Until the first piece is long enough to tell a rate, its end moves: times before the start are told by it.
  if (count == 2 && header.stamps[1].monotonic_ns - header.stamps[0].monotonic_ns < kStampInterval_ns) count = 1;
  if (count < 2 || fresh.monotonic_ns - header.stamps[count - 1].monotonic_ns >= kStampInterval_ns) {
    if (count == kMaxStamps) {
      // Thin out: keep every other stamp, and the first one always.
      for (std::uint32_t i = 1; 2 * i < count; ++i) header.stamps[i] = header.stamps[2 * i];
      count = (count + 1) / 2;
    }
    header.stamps[count] = fresh;
    header.stamp_count.store(count + 1, std::memory_order_release);
  }
  return ClockFit(std::move(stamps));
}

ClockFit read_clock(const ArenaHeader& header) {
  const std::uint32_t count = header.stamp_count.load(std::memory_order_acquire);
  return ClockFit(std::vector<ClockStamp>(header.stamps, header.stamps + std::min(count, kMaxStamps)));
}

}  // namespace stagespan
