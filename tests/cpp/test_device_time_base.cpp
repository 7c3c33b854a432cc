// test_device_time_base.cpp: positions of a device's events on the host's timeline, for a known device clock.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <functional>

#include "device/time_base.h"
#include "support.h"

namespace {

/// Moves the time of this process forward, so that no test waits.
double g_skipped_ns = 0;
void skip(double duration_ns) { g_skipped_ns += duration_ns; }

// Before the recorder starts, because it reads it only once: a clock that skip() moves.
const bool g_settings = setenv("STAGESPAN_CLOCK", "monotonic", 1) == 0;

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
  const std::int64_t ns = now->tv_nsec + static_cast<std::int64_t>(g_skipped_ns);
  now->tv_sec += ns / 1'000'000'000;
  now->tv_nsec = ns % 1'000'000'000;
  return 0;
}

namespace stagespan::test {
namespace {

using device::Event;
using device::EventState;
using device::StreamRef;
using device::StreamState;
using device::TimeBase;

/// An idle device: an event completes when it is recorded, unless a test says otherwise.
class Scripted final : public device::EventBackend {
 public:
  explicit Scripted(const ClockFit& fit) : fit_(fit) {}

  const char* name() const noexcept override { return "scripted"; }
  StreamState current_stream(StreamRef&) noexcept override { return StreamState::kOk; }
  StreamState state_of(const StreamRef&) noexcept override { return StreamState::kOk; }
  Event create_event(const StreamRef&) noexcept override { return &events_.emplace_back(-1); }
  void destroy_event(Event) noexcept override {}
  bool record(Event event, const StreamRef&) noexcept override {
    *static_cast<double*>(event) = now_ns();
    return true;
  }
  bool begin_resolving() noexcept override { return true; }
  void end_resolving() noexcept override {}
  EventState query(Event, const StreamRef&) noexcept override { return on_query(); }
  bool elapsed_ns(Event begin, Event end, const StreamRef&, double& ns) noexcept override {
    ns = (*static_cast<double*>(end) - *static_cast<double*>(begin)) * clock_rate;
    return true;
  }
  bool record_base(Event event, const StreamRef& where) noexcept override {
    ++bases;
    return record(event, where);
  }

  int last_error() const noexcept override { return 0; }

  double now_ns() const { return static_cast<double>(fit_.unix_ns(now_ticks())); }

  std::function<EventState()> on_query = [] { return EventState::kDone; };
  double clock_rate = 1;  // the device's clock relative to the host's
  int bases = 0;

 private:
  const ClockFit& fit_;
  std::deque<double> events_;
};

class Base : public RecorderTest {
 protected:
  /// The difference between the position and the true time of an event that completes now.
  double placed_wrong_by_ns(Scripted& device, const ClockFit& fit) {
    const std::uint64_t begin = now_ticks();
    const Event event = device.create_event(where_);
    device.record(event, where_);
    std::int64_t origin = 0;
    const auto after = base_.after_ns(device, event, where_, begin, fit, origin);
    EXPECT_TRUE(after.has_value());
    return static_cast<double>(origin) + after.value_or(0) - *static_cast<double*>(event);
  }

  TimeBase base_;
  StreamRef where_;
};

TEST_F(Base, IsWithinTheReportedBracket) {
  const ClockFit fit = recorder().clock_fit();
  Scripted device(fit);
  EXPECT_EQ(base_.error_ns(), std::nullopt);
  const std::int64_t before_ns = monotonic_ns();
  base_.refresh(device, where_, fit);
  const std::int64_t took_ns = monotonic_ns() - before_ns;
  ASSERT_TRUE(base_.error_ns().has_value());
  EXPECT_LE(*base_.error_ns(), static_cast<double>(took_ns) + 500);
  EXPECT_NEAR(placed_wrong_by_ns(device, fit), 0, *base_.error_ns() + 500);
}

TEST_F(Base, TheNarrowestBracketOfAFewIsKept) {
  // GIVEN a device that answers late at first
  const ClockFit fit = recorder().clock_fit();
  Scripted device(fit);
  device.on_query = [&device] {
    if (device.bases == 1) skip(20e6);
    return EventState::kDone;
  };
  base_.refresh(device, where_, fit);
  EXPECT_GE(device.bases, 2);
  ASSERT_TRUE(base_.error_ns().has_value());
  EXPECT_LT(*base_.error_ns(), 10e6);
}

TEST_F(Base, ABusyDeviceIsNotWaitedFor) {
  // GIVEN a device whose private stream is behind other work
  const ClockFit fit = recorder().clock_fit();
  Scripted device(fit);
  device.on_query = [] { return EventState::kNotReady; };
  for (int i = 0; i < 100; ++i) base_.refresh(device, where_, fit);
  // THEN there is none, positions are unknown rather than wrong, and there were few tries
  EXPECT_EQ(base_.error_ns(), std::nullopt);
  std::int64_t origin = 0;
  EXPECT_EQ(base_.after_ns(device, device.create_event(where_), where_, now_ticks(), fit, origin), std::nullopt);
  EXPECT_LE(device.bases, 2 * 5);
}

TEST_F(Base, ABaseThatMayNotBeQueriedIsUnknown) {
  const ClockFit fit = recorder().clock_fit();
  Scripted device(fit);
  device.on_query = [] { return EventState::kLater; };
  base_.refresh(device, where_, fit);
  EXPECT_EQ(base_.error_ns(), std::nullopt);
}

TEST_F(Base, IsCreatedAgainWithoutTheEarlierError) {
  const ClockFit fit = recorder().clock_fit();
  Scripted device(fit);
  device.on_query = [] {
    skip(0.3e9);
    return EventState::kDone;
  };
  base_.refresh(device, where_, fit);
  const double first_error = base_.error_ns().value();
  ASSERT_GE(first_error, 0.15e9);
  const double first_wrong = std::fabs(placed_wrong_by_ns(device, fit));
  EXPECT_GE(first_wrong, 0.14e9);  // the event completed at the bracket's begin
  EXPECT_LE(first_wrong, first_error * 1.01);
  // WHEN a base is requested soon, nothing is done; after seconds, a new one is created
  const int bases = device.bases;
  const std::uint64_t made_at = base_.made_at_ticks();
  base_.refresh(device, where_, fit);
  EXPECT_EQ(device.bases, bases);
  device.on_query = [] { return EventState::kDone; };
  skip(5e9);
  base_.refresh(device, where_, fit);
  // THEN its error is its own, and positions do not include the first one's
  EXPECT_GT(base_.made_at_ticks(), made_at);
  EXPECT_LT(*base_.error_ns(), first_error / 4);
  EXPECT_LT(std::fabs(placed_wrong_by_ns(device, fit)), *base_.error_ns() * 1.01 + 0.01e9);
}

TEST_F(Base, ADeviceWithAnotherClockRateIsFollowed) {
  // GIVEN a device clock that loses 0.4 ms per second, and two bases 2.5 s apart
  const ClockFit fit = recorder().clock_fit();
  Scripted device(fit);
  device.clock_rate = 1 - 4e-4;
  base_.refresh(device, where_, fit);
  skip(2.5e9);
  base_.refresh(device, where_, fit);
  skip(1e9);
  // THEN its position is computed with the rate of the two, and not wrong by 400 us
  EXPECT_LT(std::fabs(placed_wrong_by_ns(device, fit)), 2 * *base_.error_ns() + 100'000);
}

TEST_F(Base, AnEventIsPlacedByTheLatestBaseBeforeIt) {
  const ClockFit fit = recorder().clock_fit();
  Scripted device(fit);
  const std::uint64_t begin = now_ticks();
  const Event event = device.create_event(where_);
  device.record(event, where_);
  skip(1e6);
  base_.refresh(device, where_, fit);
  std::int64_t origin = 0;
  const auto after = base_.after_ns(device, event, where_, begin, fit, origin);
  ASSERT_TRUE(after.has_value());
  EXPECT_LT(*after, 0);
  EXPECT_NEAR(static_cast<double>(origin) + *after, *static_cast<double*>(event), *base_.error_ns() + 500);
}

}  // namespace
}  // namespace stagespan::test
