// clock.cpp: chooses the counter, takes stamps, and fits them.
#include "clock.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "version_change.h"

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

// The kernel removes "tsc" from this list if it has seen the counters of two cores disagree.
bool kernel_trusts_tsc() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/available_clocksource");
  std::string name;
  while (file >> name)
    if (name == "tsc") return true;
  return false;
}
#endif

constexpr int kStampTries = 9;
constexpr std::int64_t kShortestFit_ns = 50'000;
// Waiting for the shortest fit ends after this many stamps, each of which takes about 50 readings, or when the counter
// has advanced by more than the shortest fit takes on any processor. The system's clock has stopped then.
constexpr int kMostFitTries = 1000;
constexpr std::uint64_t kLongestFit_ticks = 5'000'000;
constexpr std::int64_t kShortestPiece_ns = 200'000'000;
constexpr std::int64_t kStampInterval_ns = 1'000'000'000;

}  // namespace

std::int64_t realtime_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::int64_t rounded(double distance) noexcept { return std::llround(std::clamp(distance, -kFarthest, kFarthest)); }

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
  constexpr const char* kNames[] = {"monotonic", "tsc", "cntvct"};
  return kNames[static_cast<std::size_t>(source)];
}

double clock_resolution_ns(ClockSource source, double ns_per_tick) noexcept {
  if (source != ClockSource::kMonotonic) return ns_per_tick;
  timespec step{};
  if (clock_getres(CLOCK_MONOTONIC, &step) != 0) return 0;
  return static_cast<double>(step.tv_sec) * 1e9 + static_cast<double>(step.tv_nsec);
}

ClockStamp take_stamp() noexcept {
  ClockStamp best{};
  std::uint64_t narrowest = std::numeric_limits<std::uint64_t>::max();
  for (int attempt = 0; attempt < kStampTries; ++attempt) {
    const std::uint64_t before = now_ticks();
    const std::int64_t monotonic = monotonic_ns();
    const std::uint64_t after = now_ticks();
    // If the clock was set back in between, the difference is a huge unsigned number, so this bracket is the widest.
    if (attempt != 0 && after - before >= narrowest) continue;
    narrowest = after - before;
    best.ticks = before + ticks_between(before, after) / 2;
    best.monotonic_ns = monotonic;
  }
  std::uint64_t narrowest_ns = std::numeric_limits<std::uint64_t>::max();
  for (int attempt = 0; attempt < kStampTries; ++attempt) {
    const std::int64_t before = monotonic_ns();
    const std::int64_t unix_now = realtime_ns();
    const std::int64_t after = monotonic_ns();
    const auto bracket_ns = static_cast<std::uint64_t>(after - before);
    if (attempt != 0 && bracket_ns >= narrowest_ns) continue;
    narrowest_ns = bracket_ns;
    best.unix_ns = best.monotonic_ns + (unix_now - (before + (after - before) / 2));
  }
  best.bracket_ns = static_cast<std::uint32_t>(std::min<std::uint64_t>(narrowest_ns, UINT32_MAX));
  return best;
}

ClockFit::ClockFit(std::span<const ClockStamp> stamps) noexcept {
  if (stamps.size() > stamps_.size()) stamps = stamps.last(stamps_.size());
  std::copy(stamps.begin(), stamps.end(), stamps_.begin());
  count_ = static_cast<std::uint32_t>(stamps.size());
  if (count_ == 0) stamps_[count_++] = {};
  if (count_ == 1) stamps_[count_++] = stamps_[0];
  const ClockStamp& first = stamps_[0];
  const ClockStamp& last = stamps_[count_ - 1];
  const std::uint64_t ticks = ticks_between(first.ticks, last.ticks);
  const std::int64_t ns = last.monotonic_ns - first.monotonic_ns;
  ns_per_tick_ = ticks > 0 && ns > 0 ? static_cast<double>(ns) / static_cast<double>(ticks) : 1.0;
  unix_offset_ns_ = last.unix_ns - last.monotonic_ns;
}

std::int64_t ClockFit::unix_ns(std::uint64_t ticks) const noexcept {
  const ClockStamp* const upper =
      std::upper_bound(stamps_.data() + 1, stamps_.data() + count_ - 1, ticks,
                       [](std::uint64_t t, const ClockStamp& stamp) { return t < stamp.ticks; });
  const ClockStamp& b = *upper;
  const ClockStamp& a = *(upper - 1);
  // The system's clock may have stopped within a piece. If there is no other piece, the ticks still distinguish
  // times.
  const bool has_rate = b.ticks > a.ticks && (b.monotonic_ns > a.monotonic_ns || count_ > 2);
  const double rate =
      has_rate ? static_cast<double>(b.monotonic_ns - a.monotonic_ns) / static_cast<double>(b.ticks - a.ticks)
               : ns_per_tick_;
  // Integer and fraction are converted separately: a double is exact enough for the distance to the nearer stamp, but
  // not for the date.
  const auto distance = static_cast<double>(static_cast<std::int64_t>(ticks - a.ticks));
  return a.monotonic_ns + unix_offset_ns_ + rounded(distance * rate);
}

std::uint64_t ClockFit::ticks(std::int64_t unix_ns) const noexcept {
  const std::int64_t nearest = unix_offset_ns_ - static_cast<std::int64_t>(kFarthest);
  const std::int64_t farthest = unix_offset_ns_ + static_cast<std::int64_t>(kFarthest);
  const std::int64_t monotonic = std::clamp(unix_ns, nearest, farthest) - unix_offset_ns_;
  const ClockStamp* const upper =
      std::upper_bound(stamps_.data() + 1, stamps_.data() + count_ - 1, monotonic,
                       [](std::int64_t t, const ClockStamp& stamp) { return t < stamp.monotonic_ns; });
  const ClockStamp& b = *upper;
  const ClockStamp& a = *(upper - 1);
  const double rate = b.monotonic_ns > a.monotonic_ns ? static_cast<double>(b.ticks - a.ticks) /
                                                            static_cast<double>(b.monotonic_ns - a.monotonic_ns)
                                                      : 1.0 / ns_per_tick_;
  const double distance = static_cast<double>(monotonic - a.monotonic_ns) * rate;
  return a.ticks + static_cast<std::uint64_t>(rounded(distance));
}

namespace {

// If the system's clock was set back, adjusts the stamps so that they continue to `fresh`. If the counter shows by how
// much the clock was set, all stamps are moved by that amount; otherwise they are removed. Returns the number of
// remaining stamps.
std::uint32_t follow_a_step_back(ArenaHeader& header, std::uint32_t count, const ClockStamp& fresh) noexcept {
  if (count == 0) return 0;
  const ClockStamp& last = header.stamps[count - 1];
  if (fresh.monotonic_ns >= last.monotonic_ns && fresh.ticks >= last.ticks) return count;
  if (count < 2 || fresh.ticks < last.ticks || !detail::g_counter_is_usable) {
    header.stamps[0] = fresh;
    return 1;
  }
  const double ns_per_tick = ClockFit(std::span(header.stamps, count)).ns_per_tick();
  const std::int64_t expected_ns =
      last.monotonic_ns + rounded(static_cast<double>(fresh.ticks - last.ticks) * ns_per_tick);
  const std::int64_t step_ns = fresh.monotonic_ns - expected_ns;
  for (std::uint32_t i = 0; i < count; ++i) header.stamps[i].monotonic_ns += step_ns;
  return count;
}

}  // namespace

ClockFit refresh_clock(ArenaHeader& header) noexcept {
  const VersionChange change(header.stamp_version);
  ClockStamp fresh = take_stamp();
  std::uint32_t count = follow_a_step_back(header, header.stamp_count.load(std::memory_order_relaxed), fresh);
  // Directly after the start, a fit over a shorter time would turn the bracket's error into a wrong rate.
  const ClockStamp& first = header.stamps[0];
  for (int tries = 0; tries < kMostFitTries && fresh.monotonic_ns - first.monotonic_ns < kShortestFit_ns &&
                      fresh.ticks - first.ticks < kLongestFit_ticks;
       ++tries) {
    fresh = take_stamp();
    count = follow_a_step_back(header, count, fresh);
  }

  std::array<ClockStamp, kMaxStamps + 1> stamps;
  std::copy_n(header.stamps, count, stamps.begin());
  std::uint32_t used = count;
  // A short last piece would apply the error of its bracket, as a wrong rate, to later ticks.
  while (used > 1 && fresh.monotonic_ns - stamps[used - 1].monotonic_ns < kShortestPiece_ns) --used;
  stamps[used++] = fresh;
  // The end of the first piece moves until it is long enough for a rate. It is used for times before the start.
  if (count == 2 && header.stamps[1].monotonic_ns - header.stamps[0].monotonic_ns < kStampInterval_ns) count = 1;
  if (count < 2 || fresh.monotonic_ns - header.stamps[count - 1].monotonic_ns >= kStampInterval_ns) {
    if (count == kMaxStamps) {
      // Thin out: keep every other stamp, and always the first one.
      for (std::uint32_t i = 1; i < (count + 1) / 2; ++i) header.stamps[i] = header.stamps[2 * i];
      count = (count + 1) / 2;
    }
    header.stamps[count] = fresh;
    ++count;
  }
  header.stamp_count.store(count, std::memory_order_release);
  return ClockFit(std::span<const ClockStamp>(stamps.data(), used));
}

ClockFit read_clock(const ArenaHeader& header) noexcept {
  const std::uint32_t count = header.stamp_count.load(std::memory_order_acquire);
  return ClockFit(std::span<const ClockStamp>(header.stamps, std::min(count, kMaxStamps)));
}

}  // namespace stagespan
