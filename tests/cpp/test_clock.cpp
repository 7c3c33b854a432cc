// test_clock.cpp: the fit of ticks to time, with synthetic stamps and real ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "stagespan/clock.h"
#include "support.h"

namespace stagespan {
namespace {

using test::Random;

constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t realtime_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::int64_t>(now.tv_sec) * kSecond + now.tv_nsec;
}

/// A counter together with a system clock whose rate changes at given times.
class World {
 public:
  World(double ticks_per_ns, std::uint64_t first_ticks, std::int64_t first_unix_ns)
      : ticks_per_ns_(ticks_per_ns), first_ticks_(first_ticks), first_unix_ns_(first_unix_ns) {}

  /// From `at_s` on, the system's clock is faster than the counter by `parts_per_million`.
  void steer(double at_s, double parts_per_million) { steers_.push_back({at_s * 1e9, parts_per_million * 1e-6}); }

  std::uint64_t ticks(double elapsed_ns) const {
    return first_ticks_ + static_cast<std::uint64_t>(std::llround(elapsed_ns * ticks_per_ns_));
  }
  std::int64_t monotonic_ns(double elapsed_ns) const {
    double total = elapsed_ns;
    for (std::size_t i = 0; i < steers_.size(); ++i) {
      const double end = i + 1 < steers_.size() ? std::min(steers_[i + 1].at_ns, elapsed_ns) : elapsed_ns;
      if (end > steers_[i].at_ns) total += (end - steers_[i].at_ns) * steers_[i].share;
    }
    return 5 * kSecond + std::llround(total);
  }
  std::int64_t unix_ns(double elapsed_ns) const { return monotonic_ns(elapsed_ns) - 5 * kSecond + first_unix_ns_; }

  ClockStamp stamp(double elapsed_ns, double error_ns = 0) const {
    const std::int64_t monotonic = monotonic_ns(elapsed_ns) + std::llround(error_ns);
    return {ticks(elapsed_ns), monotonic, monotonic - 5 * kSecond + first_unix_ns_, 100, 0};
  }

 private:
  struct Steer {
    double at_ns;
    double share;
  };
  double ticks_per_ns_;
  std::uint64_t first_ticks_;
  std::int64_t first_unix_ns_;
  std::vector<Steer> steers_;
};

World some_world(double ticks_per_ns = 2.5961) { return World(ticks_per_ns, 123'456'789'012, 1'760'000'000 * kSecond); }

const double kRates[] = {0.025, 0.0625, 1.0, 2.5961, 4.7};  // two of aarch64, CLOCK_MONOTONIC, two of x86-64

TEST(ClockFit, StaysWithinAMicrosecondOverAMinuteOfStampsWithBracketsOf100ns) {
  Random random(7001);
  SCOPED_TRACE(random.trace());
  for (const double rate : kRates) {
    SCOPED_TRACE(rate);
    // GIVEN a minute of stamps, one per second, each off by at most half its bracket of 100 ns
    const World world = some_world(rate);
    std::vector<ClockStamp> stamps;
    for (int second = 0; second <= 60; ++second) stamps.push_back(world.stamp(second * 1e9, random.unit() * 100 - 50));
    const ClockFit fit(stamps);
    // THEN no time in it, or a second beyond, is off by more than a microsecond
    for (int i = 0; i < 5000; ++i) {
      const double elapsed = random.unit() * 61e9;
      ASSERT_LE(std::abs(fit.unix_ns(world.ticks(elapsed)) - world.unix_ns(elapsed)), 1000) << elapsed;
    }
    EXPECT_NEAR(fit.ns_per_tick() * rate, 1, 1e-7);
    EXPECT_NEAR(fit.duration_ns(world.ticks(1e9) - world.ticks(0)), 1e9, 100);
  }
}

TEST(ClockFit, StaysWithinAMicrosecondOverAMinuteWithNoStampBetween) {
  // GIVEN two stamps a minute apart, with the largest errors that brackets of 100 ns allow
  const World world = some_world();
  const ClockFit fit({world.stamp(0, -50), world.stamp(60e9, 50)});
  Random random(7002);
  SCOPED_TRACE(random.trace());
  for (int i = 0; i < 5000; ++i) {
    const double elapsed = random.unit() * 60e9;
    ASSERT_LE(std::abs(fit.unix_ns(world.ticks(elapsed)) - world.unix_ns(elapsed)), 60) << elapsed;
  }
}

TEST(ClockFit, FollowsAClockWhoseRateIsAdjusted) {
  Random random(7003);
  SCOPED_TRACE(random.trace());
  World world = some_world();
  std::vector<ClockStamp> stamps;
  for (int second = 0; second <= 60; ++second) {
    if (second % 3 == 1) world.steer(second, random.unit() * 1000 - 500);
  }
  for (int second = 0; second <= 60; ++second) stamps.push_back(world.stamp(second * 1e9, random.unit() * 100 - 50));
  const ClockFit fit(stamps);
  for (int i = 0; i < 20'000; ++i) {
    const double elapsed = random.unit() * 60e9;
    // THEN every time is right within a microsecond, however much the rate has changed
    ASSERT_LE(std::abs(fit.unix_ns(world.ticks(elapsed)) - world.unix_ns(elapsed)), 1000) << elapsed;
  }
}

TEST(ClockFit, TimeNeverGoesBack) {
  Random random(7004);
  for (const double rate : kRates) {
    SCOPED_TRACE(random.trace());
    SCOPED_TRACE(rate);
    World world = some_world(rate);
    for (int second = 0; second < 50; second += 5) world.steer(second, random.unit() * 1000 - 500);
    std::vector<ClockStamp> stamps;
    double at = 0;
    for (int i = 0; i < 40; ++i) stamps.push_back(world.stamp(at += 2e8 + random.unit() * 3e9, random.unit() * 100));
    const ClockFit fit(stamps);
    std::vector<std::uint64_t> ticks;
    for (const ClockStamp& stamp : stamps)
      for (std::uint64_t i = 0; i < 9; ++i) ticks.push_back(stamp.ticks + i - 4);
    for (int i = 0; i < 10'000; ++i) ticks.push_back(world.ticks(random.unit() * (at + 20e9)) - 5'000'000'000);
    std::sort(ticks.begin(), ticks.end());
    std::int64_t before = std::numeric_limits<std::int64_t>::min();
    for (const std::uint64_t t : ticks) {
      const std::int64_t now = fit.unix_ns(t);
      ASSERT_GE(now, before) << t;
      before = now;
    }
  }
}

TEST(ClockFit, TicksAndTimeCanBeConvertedBothWays) {
  Random random(7005);
  for (const double rate : kRates) {
    SCOPED_TRACE(random.trace());
    SCOPED_TRACE(rate);
    // GIVEN a fit of several pieces
    World world = some_world(rate);
    world.steer(2, 200);
    world.steer(5, -300);
    const ClockFit fit({world.stamp(0), world.stamp(2e9), world.stamp(5e9), world.stamp(9e9)});
    for (int i = 0; i < 10'000; ++i) {
      // WHEN a time before, within or after the stamps is converted to ticks and back, or ticks to time and back
      const auto ticks = world.ticks(random.unit() * 12e9) - static_cast<std::uint64_t>(1e9 * rate);
      const std::int64_t unix_ns = fit.unix_ns(ticks);
      // THEN the error is at most the coarser of the two units
      ASSERT_NEAR(static_cast<double>(static_cast<std::int64_t>(fit.ticks(unix_ns) - ticks)), 0, 1 + rate);
      ASSERT_NEAR(static_cast<double>(fit.unix_ns(fit.ticks(unix_ns)) - unix_ns), 0, 1 + 1 / rate);
    }
  }
}

TEST(ClockFit, ConvertsTimesLongBeforeTheFirstStamp) {
  const World world = some_world();
  const ClockFit fit({world.stamp(0, 50), world.stamp(2e9, -50), world.stamp(4e9)});
  const std::uint64_t before = world.ticks(0) - (world.ticks(100e9) - world.ticks(0));
  // THEN the first piece's rate is used: 100 ns in 2 s, 50 times
  EXPECT_NEAR(static_cast<double>(fit.unix_ns(before) - world.unix_ns(0) + 100 * kSecond), 0, 6000);
  EXPECT_NEAR(static_cast<double>(static_cast<std::int64_t>(fit.ticks(world.unix_ns(0) - 100 * kSecond) - before)), 0,
              6000 * 2.6);
}

TEST(ClockFit, TimesOutsideOfEverythingStayWithin64Bits) {
  for (const double rate : kRates) {
    SCOPED_TRACE(rate);
    const World world = some_world(rate);
    const ClockFit fit({world.stamp(0), world.stamp(3e9)});
    // GIVEN the smallest and largest numbers
    // THEN nothing overflows, and the order is kept
    EXPECT_GT(fit.unix_ns(std::numeric_limits<std::uint64_t>::max() / 2), fit.unix_ns(world.ticks(0)));
    EXPECT_LT(fit.unix_ns(0), fit.unix_ns(world.ticks(0)));
    const auto latest = static_cast<std::int64_t>(fit.ticks(std::numeric_limits<std::int64_t>::max()));
    const auto earliest = static_cast<std::int64_t>(fit.ticks(std::numeric_limits<std::int64_t>::min()));
    EXPECT_GT(latest, static_cast<std::int64_t>(world.ticks(0)));
    EXPECT_LT(earliest, 0);
  }
}

TEST(ClockFit, FewerThanTwoStampsAreATickANanosecond) {
  const World world = some_world();
  const ClockFit none({});
  const ClockFit one({world.stamp(0)});
  EXPECT_EQ(none.unix_ns(17), 17);
  EXPECT_EQ(one.unix_ns(world.ticks(0) + 17), world.unix_ns(0) + 17);
  EXPECT_EQ(one.ticks(world.unix_ns(0) + 17), world.ticks(0) + 17);
}

// --- stamps in an arena's header ------------------------------------------------------------------------

class ClockStamps : public ::testing::Test {
 protected:
  void SetUp() override {
    choose_clock("auto");
    const ClockStamp first = take_stamp();
    ClockStamp later = first;
    while (later.monotonic_ns - first.monotonic_ns < 2'000'000) later = take_stamp();
    ns_per_tick_ = ClockFit({first, later}).ns_per_tick();
    header().stamps[0] = take_stamp();
    header().stamp_count.store(1);
  }

  ArenaHeader& header() { return *header_; }
  std::uint32_t count() { return header().stamp_count.load(); }
  double ns_per_tick() const { return ns_per_tick_; }

  /// Simulates elapsed time for the stamps: moves them into the past.
  void pass(double seconds) {
    for (std::uint32_t i = 0; i < count(); ++i) header().stamps[i] = earlier(header().stamps[i], seconds);
  }

  ClockStamp earlier(ClockStamp stamp, double seconds) const {
    stamp.ticks -= static_cast<std::uint64_t>(seconds * 1e9 / ns_per_tick_);
    stamp.monotonic_ns -= static_cast<std::int64_t>(seconds * 1e9);
    stamp.unix_ns -= static_cast<std::int64_t>(seconds * 1e9);
    return stamp;
  }

  void expect_in_order() {
    for (std::uint32_t i = 1; i < count(); ++i) {
      EXPECT_GT(header().stamps[i].ticks, header().stamps[i - 1].ticks) << i;
      EXPECT_GT(header().stamps[i].monotonic_ns, header().stamps[i - 1].monotonic_ns) << i;
    }
  }

 private:
  double ns_per_tick_ = 1;
  std::unique_ptr<ArenaHeader> header_ = std::make_unique<ArenaHeader>();
};

TEST_F(ClockStamps, TheFirstPieceGrowsUntilItIsASecondLong) {
  // GIVEN a recorder that was read directly after its start, and so has a first piece of microseconds
  refresh_clock(header());
  ASSERT_EQ(count(), 2U);
  const ClockStamp first = header().stamps[0];
  ASSERT_LT(header().stamps[1].monotonic_ns - first.monotonic_ns, kSecond);
  pass(0.5);
  refresh_clock(header());
  EXPECT_EQ(count(), 2U);
  EXPECT_GE(header().stamps[1].monotonic_ns - header().stamps[0].monotonic_ns, kSecond / 2);
  pass(3);
  refresh_clock(header());
  // THEN the piece has grown, so its rate, which is used for times before the start, is known
  EXPECT_EQ(count(), 2U);
  EXPECT_GE(header().stamps[1].monotonic_ns - header().stamps[0].monotonic_ns, 3 * kSecond);
  pass(2);
  refresh_clock(header());
  EXPECT_EQ(count(), 3U);
  expect_in_order();
}

TEST_F(ClockStamps, ReadingOftenAddsNoStamps) {
  // GIVEN a recorder with a piece of two seconds
  pass(2);
  refresh_clock(header());
  ASSERT_EQ(count(), 2U);
  // WHEN it is read a hundred times within a short time
  for (int i = 0; i < 100; ++i) refresh_clock(header());
  EXPECT_EQ(count(), 2U);
}

TEST_F(ClockStamps, ThinningKeepsTheFirstStampAndTheOrderAndTheTime) {
  constexpr int kReads = 250;
  constexpr double kApart_s = 1.01;
  const double uptime_s =
      std::min(static_cast<double>(monotonic_ns()), static_cast<double>(now_ticks()) * ns_per_tick()) / 1e9;
  if (uptime_s < 300) GTEST_SKIP() << "the clocks began " << uptime_s << " s ago: stamps would lie before that";
  // GIVEN a recorder that is read about once a second, four times as often as stamps fit
  std::vector<ClockStamp> all = {header().stamps[0]};
  for (int i = 0; i < kReads; ++i) {
    pass(kApart_s);
    for (ClockStamp& stamp : all) stamp = earlier(stamp, kApart_s);
    const ClockFit fit = refresh_clock(header());
    ASSERT_LE(count(), kMaxStamps);
    expect_in_order();
    ASSERT_EQ(header().stamps[0].ticks, all.front().ticks);
    const ClockStamp& last = header().stamps[count() - 1];
    all.push_back(last);
    // THEN the times of all stamps are converted correctly, including those that were removed
    for (const ClockStamp& stamp : all)
      ASSERT_NEAR(static_cast<double>(fit.unix_ns(stamp.ticks) - last.unix_ns),
                  static_cast<double>(stamp.monotonic_ns - last.monotonic_ns), 200'000);
  }
  EXPECT_GE(count(), kMaxStamps / 2);
  EXPECT_GE(header().stamps[count() - 1].monotonic_ns - header().stamps[0].monotonic_ns, kReads * kSecond);
}

TEST_F(ClockStamps, AnArenaThatIsOnlyReadHasTheSameTimes) {
  // GIVEN a header with stamps, the last one just taken
  pass(2);
  const ClockFit fresh = refresh_clock(header());
  const ClockFit read = read_clock(header());
  const std::uint64_t ticks = header().stamps[1].ticks - 1000;
  EXPECT_EQ(read.unix_ns(ticks), fresh.unix_ns(ticks));
  header().stamp_count.store(0);
  EXPECT_EQ(read_clock(header()).unix_ns(5), 5);
  header().stamp_count.store(1'000'000);
  read_clock(header());
}

TEST_F(ClockStamps, AClockThatIsSetBackIsFollowed) {
  constexpr std::int64_t kHour = 3600 * kSecond;
  for (const int pieces : {0, 1, 2}) {
    SCOPED_TRACE(pieces);
    header().stamps[0] = take_stamp();
    header().stamp_count.store(1);
    for (int i = 0; i < pieces; ++i) {
      pass(2);
      refresh_clock(header());
    }
    const std::uint64_t before = now_ticks() - static_cast<std::uint64_t>(1e9 / ns_per_tick());
    const std::int64_t unix_before = realtime_ns() - kSecond;
    for (std::uint32_t i = 0; i < count(); ++i) header().stamps[i].monotonic_ns += kHour;
    const ClockFit fit = refresh_clock(header());
    // THEN there is a fit with the counter's rate, within the bracket of the shortest one
    EXPECT_NEAR(fit.ns_per_tick() / ns_per_tick(), 1, pieces == 0 ? 0.1 : 1e-3);
    // THEN earlier times are converted as before
    EXPECT_NEAR(static_cast<double>(fit.unix_ns(before) - unix_before), 0, pieces == 0 ? 0.1e9 : 5e6);
    expect_in_order();
    // THEN the next fits continue from there
    pass(2);
    EXPECT_NEAR(refresh_clock(header()).ns_per_tick() / ns_per_tick(), 1, 1e-3);
    expect_in_order();
  }
}

TEST_F(ClockStamps, TicksThatGoBackBeginAfresh) {
  for (const char* const wish : {"auto", "monotonic"}) {
    SCOPED_TRACE(wish);
    choose_clock(wish);
    // GIVEN a recorder whose stamps are an hour ahead, as after a move to another machine
    header().stamps[0] = take_stamp();
    header().stamp_count.store(1);
    const double before_ns = ClockFit({header().stamps[0]}).ns_per_tick();
    EXPECT_EQ(before_ns, 1);
    pass(2);
    refresh_clock(header());
    pass(-3600);
    const std::uint64_t ticks = now_ticks();
    const std::int64_t now = realtime_ns();
    const ClockFit fit = refresh_clock(header());
    // THEN times from now on, and durations, are right
    EXPECT_NEAR(static_cast<double>(fit.unix_ns(ticks) - now), 0, 5e6);
    const double rate = std::strcmp(wish, "monotonic") == 0 ? 1 : ns_per_tick();
    EXPECT_NEAR(fit.ns_per_tick() / rate, 1, 0.1);
    expect_in_order();
  }
  choose_clock("auto");
}

TEST(Clock, TicksApartAreThoseBetweenWhicheverCameFirst) {
  // GIVEN two readings, of which the first may be slightly or far ahead
  // THEN they are never negative, and never centuries
  EXPECT_EQ(ticks_between(10, 25), 15U);
  EXPECT_EQ(ticks_between(25, 10), 0U);
  EXPECT_EQ(ticks_apart(10, 25), 15U);
  EXPECT_EQ(ticks_apart(25, 10), 15U);
  EXPECT_EQ(ticks_apart(5, 5), 0U);
}

// --- the real clock -------------------------------------------------------------------------------------

TEST_F(ClockStamps, RealTimeIsWithinTheBrackets) {
  for (const char* const wish : {"auto", "monotonic"}) {
    SCOPED_TRACE(wish);
    choose_clock(wish);
    header().stamps[0] = take_stamp();
    header().stamp_count.store(1);
    for (int i = 0; i < 50; ++i) {
      // GIVEN a tick between two readings of the system's clock
      const std::int64_t before = realtime_ns();
      const std::uint64_t ticks = now_ticks();
      const std::int64_t after = realtime_ns();
      const ClockFit fit = refresh_clock(header());
      // THEN it is between them, within the error that the clock reports. The counter's own bracket is as wide. This
      // fails if the system's clock is set back during the test.
      const std::int64_t slack = 2 * std::int64_t{fit.bracket_ns()} + 1000;
      EXPECT_GE(fit.unix_ns(ticks), before - slack);
      EXPECT_LE(fit.unix_ns(ticks), after + slack);
    }
  }
  choose_clock("auto");
}

TEST_F(ClockStamps, StampsHoldTheClocksTogether) {
  const std::int64_t monotonic_before = monotonic_ns();
  const std::uint64_t ticks_before = now_ticks();
  const ClockStamp stamp = take_stamp();
  EXPECT_GE(stamp.ticks, ticks_before);
  EXPECT_LE(stamp.ticks, now_ticks());
  EXPECT_GE(stamp.monotonic_ns, monotonic_before);
  EXPECT_LE(stamp.monotonic_ns, monotonic_ns());
}

TEST_F(ClockStamps, AWishForTheSystemsClockIsGranted) {
  // GIVEN a wish for CLOCK_MONOTONIC
  EXPECT_EQ(choose_clock("monotonic"), ClockSource::kMonotonic);
  const std::int64_t before = monotonic_ns();
  const auto ticks = static_cast<std::int64_t>(now_ticks());
  EXPECT_GE(ticks, before);
  EXPECT_LE(ticks, monotonic_ns());
  EXPECT_STREQ(clock_name(ClockSource::kMonotonic), "monotonic");
  const ClockSource best = choose_clock("auto");
  EXPECT_EQ(choose_clock("tsc"), best);
  EXPECT_EQ(choose_clock(nullptr), best);
  EXPECT_EQ(choose_clock("nonsense"), best);
}

TEST_F(ClockStamps, TicksDoNotGoBackInAThread) {
  std::uint64_t before = now_ticks();
  for (int i = 0; i < 1'000'000; ++i) {
    const std::uint64_t now = now_ticks();
    ASSERT_GE(now, before);
    before = now;
  }
}

}  // namespace
}  // namespace stagespan
