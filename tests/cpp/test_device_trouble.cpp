// test_device_trouble.cpp: spans and events if drivers, pools and contexts have problems.
#include <algorithm>
#include <barrier>

#include "device_support.h"

namespace stagespan::test {
namespace {

class Trouble : public DeviceTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    attach(GetParam());
    use_own_stream();
  }
};

std::uint64_t timed(std::uint32_t stage) { return figures_of(stage).device[kDeviceElapsed].count; }

TEST_P(Trouble, SpansThatWaitWhenTheDriverGoesAreSettled) {
  // GIVEN spans whose device is busy, for one of which the result was requested
  const std::uint32_t stage = recorder().intern("driver goes");
  for (int i = 0; i < 10; ++i) run(stage, 50e6);
  ThreadState& thread = recorder().this_thread();
  FinishedSpan wanted = made_span(stage, now_ticks(), 10);
  void* device = nullptr;
  open_on_device(thread, wanted, device);
  close_on_device(thread, wanted, device, true);
  // WHEN the driver reports that it has shut down, permanently
  fake().set_fault(kFakeDeinitialised);
  EXPECT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(lost(kLostDeviceFailed), 11U);
  EXPECT_EQ(figures_of(stage).host.count, 10U);
  EXPECT_EQ(timed(stage), 0U);
  const auto result = device::take_result(wanted.id);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->elapsed_ns, kUnknownNs);
}

TEST_P(Trouble, ADriverThatCannotBeQueriedSafelyIsNotQueried) {
  // GIVEN a driver that does not let a thread exchange its capture mode
  const std::uint32_t stage = recorder().intern("cannot be asked");
  fake().set_fault(kFakeNoExchange);
  for (int i = 0; i < 5; ++i) run(stage, 1000);
  const std::uint64_t queries = fake().counts().queries;
  device::set_timeout(0.05);
  EXPECT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(lost(kLostDeviceTimeout), 5U);
  EXPECT_EQ(fake().counts().queries, queries);
  // and when it does again, spans are timed again
  fake().set_fault(kFakeNone);
  device::set_timeout(60);
  const auto [id, told] = run(stage, 1e5);
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(id).elapsed_ns, told);
}

TEST_P(Trouble, EventsThatMayNeverBeQueriedAreGivenUp) {
  // GIVEN a driver that postpones every query
  const std::uint32_t stage = recorder().intern("put off");
  run(stage, 1000);
  fake().set_fault(kFakeQueryLater);
  // WHEN it has been postponed for longer than the time limit of spans
  device::set_timeout(0.05);
  // THEN the span is settled and counted
  EXPECT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(lost(kLostDeviceTimeout), 1U);
  EXPECT_EQ(figures_of(stage).host.count, 1U);
}

TEST_P(Trouble, AnEventThatACaptureTookInIsGivenUp) {
  // GIVEN a capture that begins between the check and the record, and a later span on the same stream
  const std::uint32_t stage = recorder().intern("taken in"), behind = recorder().intern("behind it");
  const OpenSpan span = open_span(stage);
  fake().set_fault(kFakeUnseenCapture);
  close_span(span, 0);
  fake().set_fault(kFakeNone);
  const auto [id, told] = run(behind, 1e5);
  // WHEN the driver reports that such an event cannot be queried
  EXPECT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(fake().counts().queries_in_capture, 1U);
  EXPECT_EQ(lost(kLostDeviceCaptured), 1U);
  EXPECT_EQ(figures_of(stage).host.count, 1U);
  EXPECT_EQ(timed(stage), 0U);
  EXPECT_EQ(result_of(id).elapsed_ns, told);
}

TEST_P(Trouble, TheDefaultStreamIsNotUsedWhileAnotherOneCaptures) {
  const std::uint32_t stage = recorder().intern("default stream, capture");
  void* const captured = fake().make_stream(0);
  use_stream(0, nullptr);
  const OpenSpan across = open_span(stage);
  fake().begin_capture(captured);
  run(stage, 1000);
  close_span(across, 0);
  EXPECT_EQ(device::resolve(1), 0U);
  EXPECT_EQ(fake().end_capture(captured), 1);
  EXPECT_EQ(lost(kLostDeviceCaptured), 2U);
  for (const SpanCopy& span : spans_of(stage)) EXPECT_TRUE((span.flags & kFlagCaptured) != 0);
  const auto [id, told] = run(stage, 1e5);
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(id).elapsed_ns, told);
}

TEST_P(Trouble, ADeviceThatTorchDoesNotHaveIsCounted) {
  const std::uint32_t stage = recorder().intern("no such device");
  fake().make_stream(3);
  fake().use_device(3);
  close_span(open_span(stage), 0);
  EXPECT_EQ(lost(kLostDeviceFailed), 1U);
  EXPECT_EQ(device::pending(), 0U);
  EXPECT_EQ(figures_of(stage).host.count, 1U);
  fake().use_device(0);
  const auto [id, told] = run(stage, 1e5);
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(id).elapsed_ns, told);
}

TEST_P(Trouble, EventsOfSpansThatWereGivenUpAreReusedWhenTheyComplete) {
  // GIVEN a device that is stuck for longer than the time limit of spans, and a thread that has used all its events
  const std::uint32_t stage = recorder().intern("given up"), later = recorder().intern("later");
  fake().launch(current_, 3600e9);
  for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) run(stage, 1);
  device::set_timeout(0);
  EXPECT_EQ(device::resolve(5), 0U);
  ASSERT_EQ(lost(kLostDeviceTimeout), device::kPairsPerThread);
  device::set_timeout(60);
  fake().skip(3601e9);
  for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) device::resolve_pass();
  for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) run(later, 1);
  ASSERT_EQ(device::resolve(10), 0U);
  EXPECT_EQ(timed(later), device::kPairsPerThread);
  EXPECT_EQ(lost(kLostDevicePool), 0U);
}

TEST_P(Trouble, EventsThatFailAreReplaced) {
  const std::uint32_t stage = recorder().intern("given up, then failed"), later = recorder().intern("after failures");
  fake().launch(current_, 3600e9);
  for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) run(stage, 1);
  device::set_timeout(0);
  EXPECT_EQ(device::resolve(5), 0U);
  ASSERT_EQ(lost(kLostDeviceTimeout), device::kPairsPerThread);
  device::set_timeout(60);
  fake().set_fault(kFakeQueryFails);
  for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) device::resolve_pass();
  fake().set_fault(kFakeNone);
  EXPECT_EQ(device::latest()->pairs(), 0U);
  // THEN as many spans as before find events
  fake().skip(3601e9);
  for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) run(later, 1);
  ASSERT_EQ(device::resolve(10), 0U);
  EXPECT_EQ(timed(later), device::kPairsPerThread);
  EXPECT_EQ(lost(kLostDevicePool), 0U);
}

TEST_P(Trouble, AThreadKeepsWithinItsPoolWhateverOthersLeave) {
  const std::uint32_t before = recorder().intern("before they left"), stage = recorder().intern("heir");
  constexpr unsigned kThreads = 3;
  std::barrier all_ran{kThreads}, all_took_over{kThreads};
  auto threads = start_threads(kThreads, [&](unsigned) {
    fake().use_device(0);
    fake().use_stream(0, current_);
    for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) close_span(open_span(before), 0);
    all_ran.arrive_and_wait();
  });
  join(threads);
  ASSERT_EQ(device::resolve(10), 0U);
  std::uint32_t most_pending = 0;
  threads = start_threads(kThreads, [&](unsigned index) {
    fake().use_device(0);
    fake().use_stream(0, current_);
    close_span(open_span(before), 0);
    all_took_over.arrive_and_wait();
    if (index != 0) return;
    while (device::pending() != 0) device::resolve_pass();
    fake().launch(current_, 3600e9);
    for (std::uint32_t i = 0; i < 3 * device::kPairsPerThread; ++i) {
      close_span(open_span(stage), 0);
      if (i % 1024 == 0) device::resolve_pass();
      most_pending = std::max(most_pending, device::pending());
    }
  });
  join(threads);
  EXPECT_LE(most_pending, device::kPairsPerThread);
  fake().skip(3601e9);
  ASSERT_EQ(device::resolve(10), 0U);
  EXPECT_EQ(timed(stage) + lost(kLostDevicePool), 3U * device::kPairsPerThread);
  EXPECT_LE(fake().counts().events, 2U * device::kPairsPerProcess + 16);
}

TEST_P(Trouble, StuckThreadsDoNotKeepTheEventsThatAnotherOneNeeds) {
  const std::uint32_t before = recorder().intern("stood still"), stage = recorder().intern("works on");
  constexpr unsigned kThreads = device::kPairsPerProcess / device::kPairsPerThread;
  std::barrier all_ran{kThreads + 1}, may_leave{kThreads + 1};
  auto threads = start_threads(kThreads, [&](unsigned) {
    fake().use_device(0);
    fake().use_stream(0, current_);
    for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) close_span(open_span(before), 0);
    all_ran.arrive_and_wait();
    may_leave.arrive_and_wait();
  });
  all_ran.arrive_and_wait();
  EXPECT_EQ(device::resolve(10), 0U);
  EXPECT_EQ(timed(before), device::kPairsPerProcess);
  for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) close_span(open_span(stage), 0);
  EXPECT_EQ(device::resolve(10), 0U);
  EXPECT_EQ(timed(stage), device::kPairsPerThread);
  EXPECT_EQ(lost(kLostDevicePool), 0U);
  EXPECT_LE(fake().counts().events, 2U * device::kPairsPerProcess + 16);
  may_leave.arrive_and_wait();
}

TEST_P(Trouble, AThreadThatMovesToAnotherDeviceHasEventsThere) {
  const std::uint32_t stage = recorder().intern("moves house");
  for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) run(stage, 1);
  ASSERT_EQ(device::resolve(10), 0U);
  fake().use_device(1);
  use_stream(1, fake().make_stream(1));
  for (std::uint32_t i = 0; i < device::kPairsPerThread; ++i) run(stage, 1);
  ASSERT_EQ(device::resolve(10), 0U);
  EXPECT_EQ(timed(stage), 2U * device::kPairsPerThread);
  EXPECT_EQ(lost(kLostDevicePool), 0U);
  EXPECT_LE(fake().counts().events, 2U * device::kPairsPerThread + 32);
  EXPECT_EQ(fake().counts().other_context, 0U);
}

INSTANTIATE_TEST_SUITE_P(Drivers, Trouble, ::testing::Values("cuda", "rocm"),
                         [](const auto& test) { return std::string(test.param); });

class Contexts : public DeviceTest {};

TEST_F(Contexts, TwoOfOneDeviceDoNotShareEvents) {
  attach("cuda");
  use_own_stream();
  fake().second_context();
  void* const there = fake().make_stream(3);
  const std::uint32_t here_stage = recorder().intern("first context"),
                      there_stage = recorder().intern("second context"),
                      moving = recorder().intern("from one to the other");
  std::map<std::uint64_t, std::int64_t> told;
  const auto change_to = [&](int context) {
    fake().use_device(context);
    use_stream(0, context == 0 ? stream() : there);
  };
  for (int i = 0; i < 50; ++i) {
    change_to(0);
    told.insert(run(here_stage, 1000 + i));
    const OpenSpan span = open_span(moving);
    const double begin = fake().last_record();
    fake().launch(stream(), 2000);
    change_to(3);
    close_span(span, 0);
    told.emplace(span.id, as_told(begin, fake().last_record()));
    told.insert(run(there_stage, 3000 + i));
    if (i % 10 == 9) {
      EXPECT_EQ(device::resolve(5), 0U);
    }
  }
  // THEN each span has the times of its own context's stream, and no event was used in the other one
  for (const auto& [id, ns] : told) {
    EXPECT_EQ(result_of(id).elapsed_ns, ns);
    EXPECT_EQ(result_of(id).device, 0U);
  }
  EXPECT_EQ(fake().counts().other_context, 0U);
  EXPECT_EQ(lost(kLostDeviceFailed) + lost(kLostDevicePool) + lost(kLostDevicePlace), 0U);
}

class HipAlone : public DeviceTest {};

TEST_F(HipAlone, AnUnusedDeviceIsNotUsed) {
  attach("rocm");
  const std::uint32_t stage = recorder().intern("unused device");
  in_thread([&] {
    fake().use_device(2);
    for (int i = 0; i < 3; ++i) const ScopedTimer timer(stage);
    EXPECT_EQ(fake().counts().contexts_made, 0U);
    EXPECT_EQ(device::pending(), 0U);
    EXPECT_EQ(lost(kLostDeviceFailed), 0U);
    // and after the application has created it, they are timed
    fake().use_stream(2, fake().make_stream(2));
    for (int i = 0; i < 3; ++i) const ScopedTimer timer(stage);
  });
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(figures_of(stage).host.count, 6U);
  EXPECT_EQ(timed(stage), 3U);
}

TEST_F(HipAlone, NothingIsQueriedDuringAKnownCapture) {
  // GIVEN an older driver, in which any query ends a capture, and a span that waits for its device
  attach("rocm");
  use_own_stream();
  const std::uint32_t stage = recorder().intern("old captures");
  const auto [id, told] = run(stage, 1000);
  fake().set_fault(kFakeOldCaptures);
  void* const captured = fake().make_stream(0);
  fake().begin_capture(captured);
  use_stream(0, captured);
  // WHEN a span has met the capture, and results are requested
  run(stage, 1000);
  for (int i = 0; i < 100; ++i) device::resolve_pass();
  EXPECT_EQ(device::pending(), 1U);
  EXPECT_EQ(fake().end_capture(captured), 1);
  ASSERT_EQ(device::resolve(10), 0U);
  EXPECT_EQ(result_of(id).elapsed_ns, told);
}

}  // namespace
}  // namespace stagespan::test
