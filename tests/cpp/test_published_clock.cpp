// test_published_clock.cpp: times that were returned do not change, and follow the system's clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "stagespan/published_clock.h"
#include "support.h"

namespace stagespan {
namespace {

using test::Random;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr double kTicksPerNs = 2.5961;

/// A counter, a system clock that is adjusted and set, and the stamps that connect them.
class World {
 public:
  // The recorder waits as long before its first reading.
  explicit World(Random& random) : random_(random) {
    take_stamp();
    pass(60e-6);
  }

  std::uint64_t now() const { return ticks_; }
  std::int64_t unix_now() const { return monotonic() + offset_ns_; }

  void pass(double seconds) {
    const auto ticks = static_cast<std::uint64_t>(seconds * 1e9 * kTicksPerNs);
    ticks_ += ticks;
    monotonic_ns_ += static_cast<double>(ticks) / kTicksPerNs * (1 + steered_);
  }
  void steer(double parts_per_million) { steered_ = parts_per_million * 1e-6; }
  void set(std::int64_t by_ns) { offset_ns_ += by_ns; }

  /// The current result of a reading of the clock, with stamps as the recorder keeps them.
  ClockFit fit() {
    if (monotonic() - stamps_.back().monotonic_ns >= kSecond) take_stamp();
    std::vector<ClockStamp> stamps = stamps_;
    while (stamps.size() > 1 && monotonic() - stamps.back().monotonic_ns < kSecond / 5) stamps.pop_back();
    stamps.push_back(stamp());
    return ClockFit(stamps);
  }

 private:
  std::int64_t monotonic() const { return std::llround(monotonic_ns_); }
  ClockStamp stamp() {
    const std::int64_t error_ns = static_cast<std::int64_t>(random_.below(41)) - 20;
    return {ticks_, monotonic() + error_ns, monotonic() + error_ns + offset_ns_, 40, 0};
  }
  void take_stamp() {
    stamps_.push_back(stamp());
    if (stamps_.size() > 60) stamps_.erase(stamps_.begin() + 1);
  }

  Random& random_;
  std::uint64_t ticks_ = 123'456'789'012;
  double monotonic_ns_ = 5e9;
  double steered_ = 0;
  std::int64_t offset_ns_ = 1'760'000'000 * kSecond;
  std::vector<ClockStamp> stamps_;
};

/// Reads like the recorder.
void read(PublishedClock& clock, World& world) {
  if (clock.is_due(world.now())) clock.follow(world.fit(), world.now());
  clock.settle(world.now());
}

/// From a few microseconds to minutes.
double some_pause_s(Random& random) { return std::pow(10.0, random.unit() * 7.5 - 5.5); }

TEST(PublishedClock, TimesDoNotChange) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    SCOPED_TRACE(random.trace());
    World world(random);
    PublishedClock clock;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
    std::vector<std::pair<std::int64_t, std::int64_t>> times;
    for (int reading = 0; reading < 100; ++reading) {
      const std::uint64_t before = world.now();
      world.pass(some_pause_s(random));
      if (random.chance(5)) world.steer(random.unit() * 1000 - 500);
      if (random.chance(20)) world.set(static_cast<std::int64_t>(random.below(20 * kSecond)) - 10 * kSecond);
      world.pass(some_pause_s(random));
      // WHEN spans that ended since the last reading are read
      read(clock, world);
      for (int i = 0; i < 20; ++i) {
        const std::uint64_t end = before + random.below(world.now() - before + 1);
        const std::uint64_t begin = end - std::min(random.below(1ULL << random.below(40)), end);
        spans.emplace_back(begin, end);
        times.emplace_back(clock.unix_ns(begin), clock.end_ns(begin, end));
      }
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const auto [begin, end] = spans[i];
        ASSERT_EQ(clock.unix_ns(begin), times[i].first) << i << " of " << spans.size();
        ASSERT_EQ(clock.end_ns(begin, end), times[i].second) << i << " of " << spans.size();
        ASSERT_GE(times[i].second, times[i].first);
      }
    }
  }
}

TEST(PublishedClock, FollowsAClockThatIsAdjusted) {
  Random random(1);
  SCOPED_TRACE(random.trace());
  World world(random);
  PublishedClock clock;
  for (int reading = 0; reading < 200; ++reading) {
    if (reading % 20 == 0) world.steer(random.unit() * 100 - 50);
    world.pass(0.5 + random.unit());
    read(clock, world);
    // THEN the present is right except for the adjustment since the last reading, at most
    ASSERT_NEAR(static_cast<double>(clock.unix_ns(world.now()) - world.unix_now()), 0, 200'000) << reading;
    // THEN soon after it is right within some microseconds
    if (reading % 20 > 12) {
      ASSERT_NEAR(static_cast<double>(clock.unix_ns(world.now()) - world.unix_now()), 0, 5000) << reading;
    }
  }
}

TEST(PublishedClock, ALongTimeWithoutAReadingIsInterpolated) {
  Random random(2);
  // GIVEN a process that is read directly after its start, when no rate can be known
  World world(random);
  PublishedClock clock;
  read(clock, world);
  const std::uint64_t begin = world.now();
  const std::int64_t begin_ns = world.unix_now();
  world.pass(1800);
  const std::uint64_t middle = world.now();
  const std::int64_t middle_ns = world.unix_now();
  world.pass(1800);
  read(clock, world);
  // THEN times and durations in between are right
  EXPECT_NEAR(static_cast<double>(clock.unix_ns(middle) - middle_ns), 0, 1000);
  EXPECT_NEAR(static_cast<double>(clock.unix_ns(world.now()) - world.unix_now()), 0, 1000);
  EXPECT_NEAR(static_cast<double>(clock.end_ns(begin, middle) - clock.unix_ns(begin) - (middle_ns - begin_ns)), 0,
              1000);
}

TEST(PublishedClock, ASpanKeepsItsLengthWhenTheClockIsSet) {
  Random random(3);
  for (const std::int64_t by_ns : {-3600 * kSecond, 3600 * kSecond, -5'000'000L, 5'000'000L}) {
    SCOPED_TRACE(by_ns);
    // GIVEN a span that is open while the system's clock is set
    World world(random);
    world.pass(3);
    PublishedClock clock;
    read(clock, world);
    const std::uint64_t begin = world.now();
    const std::int64_t begin_ns = clock.unix_ns(begin);
    world.pass(2);
    world.set(by_ns);
    world.pass(2);
    read(clock, world);
    // THEN its start and duration are right
    EXPECT_EQ(clock.unix_ns(begin), begin_ns);
    EXPECT_NEAR(static_cast<double>(clock.end_ns(begin, world.now()) - begin_ns), 4e9, 1000);
    // THEN later spans have the clock's new time
    world.pass(2);
    read(clock, world);
    EXPECT_NEAR(static_cast<double>(clock.unix_ns(world.now()) - world.unix_now()), 0, 3000);
  }
}

TEST(PublishedClock, TimeGoesUpWithTheTicks) {
  Random random(4);
  SCOPED_TRACE(random.trace());
  // GIVEN a clock that is adjusted, but not set
  World world(random);
  PublishedClock clock;
  const std::uint64_t first = world.now();
  for (int reading = 0; reading < 200; ++reading) {
    world.steer(random.unit() * 1000 - 500);
    world.pass(some_pause_s(random));
    read(clock, world);
  }
  std::vector<std::uint64_t> ticks;
  for (int i = 0; i < 100'000; ++i) ticks.push_back(first - 1'000'000 + random.below(world.now() - first + 2'000'000));
  std::sort(ticks.begin(), ticks.end());
  for (std::size_t i = 1; i < ticks.size(); ++i) ASSERT_GE(clock.unix_ns(ticks[i]), clock.unix_ns(ticks[i - 1]));
}

TEST(PublishedClock, TicksAndTimeCanBeConvertedBothWays) {
  Random random(5);
  SCOPED_TRACE(random.trace());

  World world(random);
  PublishedClock clock;
  const std::int64_t first_ns = world.unix_now();
  for (int reading = 0; reading < 50; ++reading) {
    world.steer(random.unit() * 1000 - 500);
    world.pass(some_pause_s(random));
    read(clock, world);
  }
  for (int i = 0; i < 10'000; ++i) {
    // WHEN a time before, within or after what was read is converted to ticks and back
    const std::int64_t unix_ns =
        first_ns - 40 * kSecond +
        static_cast<std::int64_t>(random.unit() * static_cast<double>(world.unix_now() - first_ns + 1000 * kSecond));
    ASSERT_NEAR(static_cast<double>(clock.unix_ns(clock.ticks(unix_ns)) - unix_ns), 0, 2);
  }
  // THEN times outside of everything stay within 64 bits
  for (const std::int64_t extreme : {INT64_MIN, INT64_MAX, std::int64_t{0}}) clock.ticks(extreme);
}

TEST(PublishedClock, ItsSizeIsBounded) {
  Random random(6);
  SCOPED_TRACE(random.trace());
  // GIVEN a clock with large adjustments, read each second, ten times as often as turns fit
  World world(random);
  PublishedClock clock;
  std::vector<std::uint64_t> ticks;
  std::vector<std::int64_t> times;
  for (std::uint32_t reading = 0; reading < 10 * PublishedClock::kMostTurns; ++reading) {
    world.steer(random.unit() * 100 - 50);
    world.pass(1.1);
    read(clock, world);
    ticks.push_back(world.now());
    times.push_back(clock.unix_ns(world.now()));
    // THEN times of the last minutes are unchanged
    for (std::size_t i = ticks.size() - std::min<std::size_t>(ticks.size(), 100); i < ticks.size(); ++i)
      ASSERT_EQ(clock.unix_ns(ticks[i]), times[i]) << i << " of " << ticks.size();
    // THEN it continues to follow the clock
    ASSERT_NEAR(static_cast<double>(times.back() - world.unix_now()), 0, 2e6) << reading;
  }
  // THEN times long ago have moved by at most the adjustment of a few seconds
  for (std::size_t i = 0; i < ticks.size(); ++i)
    ASSERT_NEAR(static_cast<double>(clock.unix_ns(ticks[i]) - times[i]), 0, 1e6) << i;
}

TEST(PublishedClock, AClockThatIsStoppedDoesNoHarm) {
  Random random(7);
  World world(random);
  world.steer(-1e6);
  PublishedClock clock;
  std::int64_t before = 0;
  for (int reading = 0; reading < 50; ++reading) {
    world.pass(some_pause_s(random));
    read(clock, world);
    const std::int64_t now = clock.unix_ns(world.now());
    EXPECT_NEAR(static_cast<double>(clock.unix_ns(clock.ticks(now)) - now), 0, 2);
    EXPECT_GE(clock.end_ns(world.now() - 100, world.now()), clock.unix_ns(world.now() - 100));
    before = now;
  }
  EXPECT_NE(before, 0);
}

TEST(PublishedClock, TheRecordersIsTheSystemsClock) {
  Recorder& recorder = Recorder::get();
  for (int i = 0; i < 50; ++i) {
    timespec before;
    clock_gettime(CLOCK_REALTIME, &before);
    const std::uint64_t ticks = now_ticks();
    const PublishedClock clock = recorder.published_clock();
    // THEN it equals the system's time, within a hundred microseconds on a slow machine
    const std::int64_t before_ns = before.tv_sec * kSecond + before.tv_nsec;
    EXPECT_NEAR(static_cast<double>(clock.unix_ns(ticks) - before_ns), 0, 1e8);
    EXPECT_GE(clock.unix_ns(ticks), before_ns - 2000);
  }
}

}  // namespace
}  // namespace stagespan
