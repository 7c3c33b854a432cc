// test_device_backends.cpp: the requirements of every driver, tested with fakes.
#include <chrono>
#include <cmath>

#include "device_support.h"

namespace stagespan::test {
namespace {

class Backend : public DeviceTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    attach(GetParam());
    use_own_stream();
  }
};

TEST_P(Backend, ASpanHasWhatItsQueueRan) {
  // GIVEN a stage with a kernel of 2 ms
  const std::uint32_t stage = recorder().intern("kernel");
  const auto [id, told] = run(stage, 2e6);
  EXPECT_EQ(device::pending(), 1U);
  EXPECT_EQ(device::resolve(5), 0U);
  const DeviceFields copy = result_of(id);
  EXPECT_EQ(copy.elapsed_ns, told);
  EXPECT_GE(copy.elapsed_ns, 2'000'000);
  const StageFigures figures = figures_of(stage);
  EXPECT_EQ(figures.device[kDeviceElapsed].count, 1U);
  EXPECT_EQ(figures.device[kDeviceElapsed].sum_ticks, static_cast<std::uint64_t>(told));
  EXPECT_EQ(figures.device[kDeviceElapsed].min_ticks, figures.device[kDeviceElapsed].max_ticks);
  EXPECT_EQ(figures.host.count, 1U);
  EXPECT_EQ(fake().counts().synchronisations, 0U);
}

TEST_P(Backend, QueueAndTailCloseWithHostAndDevice) {
  // GIVEN a device whose time is known, and a stream that is busy for a minute, so that a stage's kernel has to wait
  const std::uint32_t stage = recorder().intern("waiting"), first = recorder().intern("first");
  constexpr double kBusy_ns = 60e9;
  run(first, 1000);
  ASSERT_EQ(device::resolve(5), 0U);
  const auto error_ns = device::attached()->resolver().base_error_ns();
  ASSERT_TRUE(error_ns.has_value());
  run(first, kBusy_ns);
  const OpenSpan waiting = open_span(stage);
  const double begin = fake().last_record();
  fake().launch(current_, 5e6);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));  // for a host time that cannot be overlooked
  close_span(waiting, 0);
  fake().skip(kBusy_ns + 5e6);
  ASSERT_EQ(device::resolve(5), 0U);
  const DeviceFields copy = result_of(waiting.id);
  ASSERT_NE(copy.queue_ns, kUnknownNs);
  const SpanCopy span = spans_of(stage).front();
  const ClockFit fit = recorder().clock_fit();
  const std::int64_t host = std::llround(fit.duration_ns(static_cast<double>(span.end_ticks - span.begin_ticks)));
  EXPECT_NEAR(static_cast<double>(copy.queue_ns + copy.elapsed_ns), static_cast<double>(host + copy.tail_ns), 2000);
  const ClockStamp stamp = take_stamp();
  const double queue_ns =
      begin - static_cast<double>(fit.unix_ns(span.begin_ticks) - stamp.unix_ns + stamp.monotonic_ns);
  EXPECT_NEAR(static_cast<double>(copy.queue_ns), queue_ns, *error_ns + 20'000);
  EXPECT_GT(copy.queue_ns, 1'000'000);
  EXPECT_GT(copy.tail_ns, copy.elapsed_ns - host);
}

TEST_P(Backend, EachStreamAndDeviceIsItsOwn) {
  const std::uint32_t slow = recorder().intern("slow"), quick = recorder().intern("quick"),
                      other = recorder().intern("other device");
  void* const second = fake().make_stream(0);
  void* const elsewhere = fake().make_stream(1);
  const auto [slow_id, slow_told] = run(slow, 3.5e9);
  use_stream(0, second);
  const auto [quick_id, quick_told] = run(quick, 1e5);
  fake().use_device(1);
  use_stream(1, elsewhere);
  const auto [other_id, other_told] = run(other, 3e5);
  fake().skip(1e6);
  EXPECT_EQ(device::resolve(0), 1U);
  // THEN the others are already known, and the slow one in the end
  EXPECT_EQ(result_of(quick_id).elapsed_ns, quick_told);
  EXPECT_EQ(result_of(other_id).elapsed_ns, other_told);
  EXPECT_EQ(result_of(other_id).device, 1U);
  EXPECT_EQ(result_of(slow_id).elapsed_ns, kUnknownNs);
  fake().skip(3.5e9);
  EXPECT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(slow_id).elapsed_ns, slow_told);
  EXPECT_EQ(fake().counts().other_context, 0U);
}

TEST_P(Backend, TheEndIsRecordedOnTheStreamOfTheBegin) {
  const std::uint32_t stage = recorder().intern("moves on");
  const OpenSpan span = open_span(stage);
  const double begin = fake().last_record();
  fake().launch(current_, 1e6);
  fake().use_device(1);
  use_stream(1, fake().make_stream(1));
  close_span(span, 0);
  const double end = fake().last_record();
  // THEN it is timed on the stream where it began, and the current device has not changed
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(span.id).elapsed_ns, as_told(begin, end));
  EXPECT_GE(result_of(span.id).elapsed_ns, 1'000'000);
  EXPECT_EQ(result_of(span.id).device, 0U);
  EXPECT_EQ(fake().counts().other_context, 0U);
  const auto [id, told] = run(stage, 1e5);
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(id).device, 1U);
}

TEST_P(Backend, TheDefaultStreamOfACudaContextIsTimedToo) {
  const std::uint32_t stage = recorder().intern("default stream");
  use_stream(0, nullptr);
  const auto [id, told] = run(stage, 1e6);
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(id).elapsed_ns, told);
}

TEST_P(Backend, NestedSpansHaveTheirOwn) {
  const std::uint32_t outer = recorder().intern("outer"), inner = recorder().intern("inner");
  const OpenSpan span = open_span(outer);
  const double begin = fake().last_record();
  const auto [first, first_told] = run(inner, 1e6);
  const auto [second, second_told] = run(inner, 2e6);
  close_span(span, 0);
  const std::int64_t told = as_told(begin, fake().last_record());
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(span.id).elapsed_ns, told);
  EXPECT_EQ(result_of(first).elapsed_ns, first_told);
  EXPECT_EQ(result_of(second).elapsed_ns, second_told);
  EXPECT_GE(told, first_told + second_told - 2);
}

TEST_P(Backend, DetachedSpansHaveTheirOwn) {
  // GIVEN a span outside the stack that another thread ends
  const std::uint32_t stage = recorder().intern("token");
  DetachedSpan token;
  {
    const Interpreter lock(needs_interpreter());
    token = recorder().open_detached(stage, 0);
  }
  fake().launch(current_, 1e6);
  in_thread([&] {
    const Interpreter lock(needs_interpreter());
    recorder().close_detached(token, 0);
  });
  // THEN it is timed on the stream where it began
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_GE(result_of(token.span.id).elapsed_ns, 1'000'000);
}

TEST_P(Backend, SamplingTimesEveryNthOfAStage) {
  device::set_every(4);
  const std::uint32_t a = recorder().intern("sampled a"), b = recorder().intern("sampled b");
  for (int i = 0; i < 16; ++i) {
    run(a, 1000);
    run(b, 1000);
  }
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(figures_of(a).device[kDeviceElapsed].count, 4U);
  EXPECT_EQ(figures_of(b).device[kDeviceElapsed].count, 4U);
  device::set_every(0);
  run(a, 1000);
  EXPECT_EQ(device::pending(), 0U);
  EXPECT_EQ(figures_of(a).host.count, 17U);
}

TEST_P(Backend, ACaptureStaysValidWhileSpansAreResolved) {
  const std::uint32_t before = recorder().intern("before"), inside = recorder().intern("inside");
  const auto [early, early_told] = run(before, 20e6);
  void* const captured = fake().make_stream(0);
  const OpenSpan across = open_span(recorder().intern("across"));
  use_stream(0, captured);
  fake().begin_capture(captured);
  std::atomic<bool> stop{false};
  std::thread resolver([&] {
    while (!stop.load()) device::resolve_pass();
  });
  for (int i = 0; i < 100; ++i) run(inside, 1000);
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  stop.store(true);
  resolver.join();
  EXPECT_EQ(fake().end_capture(captured), 1);
  close_span(across, 0);
  EXPECT_EQ(fake().counts().queries_while_capturing, 0U);
  EXPECT_EQ(fake().counts().queries_in_capture, 0U);
  EXPECT_EQ(lost(kLostDeviceCaptured), 100U);
  for (const SpanCopy& span : spans_of(inside)) EXPECT_TRUE((span.flags & kFlagCaptured) != 0);
  EXPECT_EQ(figures_of(inside).device[kDeviceElapsed].count, 0U);
  EXPECT_EQ(figures_of(inside).host.count, 100U);
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(early).elapsed_ns, early_told);
  EXPECT_NE(result_of(across.id).elapsed_ns, kUnknownNs);
  // and a replay, which is one launch, is timed as a whole
  const auto [replay, told] = run(recorder().intern("replay"), 3e6);
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(replay).elapsed_ns, told);
}

TEST_P(Backend, ACaptureThatBeginsInASpanIsNotTimed) {
  const std::uint32_t stage = recorder().intern("captured end");
  const OpenSpan span = open_span(stage);
  fake().begin_capture(current_);
  close_span(span, 0);
  EXPECT_EQ(fake().end_capture(current_), 1);
  EXPECT_EQ(device::resolve(1), 0U);
  EXPECT_EQ(lost(kLostDeviceCaptured), 1U);
  EXPECT_TRUE((spans_of(stage).front().flags & kFlagCaptured) != 0);
}

TEST_P(Backend, AnExhaustedPoolLeavesHostTime) {
  const std::uint32_t stage = recorder().intern("many");
  fake().launch(current_, 3600e9);
  constexpr std::uint64_t kSpans = 2 * device::kQueueSpans;
  for (std::uint64_t i = 0; i < kSpans; ++i) run(stage, 1);
  EXPECT_EQ(figures_of(stage).host.count, kSpans);
  EXPECT_LE(device::pending(), device::kPairsPerThread);
  EXPECT_LE(fake().counts().events, 2U * device::kPairsPerThread + 16);
  EXPECT_EQ(lost(kLostDevicePool) + device::pending(), kSpans);
  fake().skip(3601e9);
  ASSERT_EQ(device::resolve(10), 0U);
  EXPECT_EQ(figures_of(stage).device[kDeviceElapsed].count + lost(kLostDevicePool), kSpans);
  // and the events are reused
  const auto [id, told] = run(stage, 1e5);
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(result_of(id).elapsed_ns, told);
}

TEST_P(Backend, AnEventThatNeverCompletesIsGivenUp) {
  const std::uint32_t stage = recorder().intern("hangs");
  device::set_timeout(0.05);
  fake().set_fault(kFakeNeverDone);
  run(stage, 1e6);
  EXPECT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(lost(kLostDeviceTimeout), 1U);
  EXPECT_EQ(figures_of(stage).host.count, 1U);
  EXPECT_EQ(figures_of(stage).device[kDeviceElapsed].count, 0U);
}

TEST_P(Backend, ADriverThatFailsIsNoLongerUsed) {
  // GIVEN a driver that begins to fail, in each of its ways
  for (const int fault : {kFakeRecordFails, kFakeNoEvents, kFakeShimFails, kFakeDeinitialised}) {
    attach(GetParam());
    use_own_stream();
    const std::uint32_t stage = recorder().intern("fails " + std::to_string(fault));
    fake().set_fault(fault);
    for (int i = 0; i < 100; ++i) run(stage, 1000);
    EXPECT_EQ(figures_of(stage).host.count, 100U);
    EXPECT_EQ(figures_of(stage).device[kDeviceElapsed].count, 0U);
    EXPECT_FALSE(mode_has(kModeDevice)) << fault;
    EXPECT_TRUE(device::attached()->has_failed());
    fake().set_fault(kFakeNone);
    EXPECT_EQ(device::resolve(5), 0U);
  }
  EXPECT_GT(lost(kLostDeviceFailed) + lost(kLostDevicePool), 0U);
}

TEST_P(Backend, AQueryThatFailsIsCounted) {
  const std::uint32_t stage = recorder().intern("query fails");
  run(stage, 1000);
  fake().set_fault(kFakeQueryFails);
  EXPECT_EQ(device::resolve(1), 0U);
  EXPECT_EQ(lost(kLostDeviceFailed), 1U);
  EXPECT_EQ(figures_of(stage).host.count, 1U);
}

TEST_P(Backend, ManyThreadsAndThoseThatLeave) {
  const std::uint32_t stage = recorder().intern("threads");
  constexpr unsigned kThreads = 6;
  const std::uint64_t each = scaled(2000, 10);
  std::atomic<bool> stop{false};
  std::thread resolver([&] {
    while (!stop.load()) device::resolve_pass();
  });
  std::atomic<std::uint64_t> timed{0};
  for (int round = 0; round < 3; ++round) {
    auto threads = start_threads(kThreads, [&](unsigned index) {
      const int device = static_cast<int>(index % 3);
      fake().use_device(device);
      void* const own = fake().make_stream(device);
      fake().use_stream(device, own);
      for (std::uint64_t i = 0; i < each; ++i) {
        wait_until_pending(300);
        const OpenSpan span = open_span(stage);
        fake().launch(own, 500);
        close_span(span, 0);
        timed.fetch_add(1);
      }
    });
    join(threads);
  }
  stop.store(true);
  resolver.join();
  ASSERT_EQ(device::resolve(10), 0U);
  EXPECT_EQ(figures_of(stage).host.count, timed.load());
  EXPECT_EQ(figures_of(stage).device[kDeviceElapsed].count, timed.load());
  EXPECT_EQ(lost(kLostDevicePool), 0U);
  EXPECT_EQ(lost(kLostDeviceFailed), 0U);
  EXPECT_EQ(fake().counts().other_context, 0U);
  EXPECT_EQ(fake().counts().synchronisations, 0U);
}

TEST_P(Backend, SpansThatNobodyEndsGiveTheirEventsBack) {
  const std::uint32_t stage = recorder().intern("left open");
  for (int i = 0; i < 50; ++i) {
    in_thread([&] {
      fake().use_device(0);
      void* const own = fake().make_stream(0);
      fake().use_stream(0, own);
      for (int n = 0; n < 10; ++n) open_span(stage);
    });
    device::resolve_pass();
  }
  EXPECT_EQ(device::pending(), 0U);
  // THEN the events were used by one thread after another
  EXPECT_LE(fake().counts().events, 100U);
}

TEST_P(Backend, PositionsAreWithinTheReportedError) {
  // GIVEN an idle device, on which a span's events complete while the host records them
  const std::uint32_t stage = recorder().intern("position");
  run(stage, 1000);
  ASSERT_EQ(device::resolve(5), 0U);
  const auto error_ns = device::attached()->resolver().base_error_ns();
  ASSERT_TRUE(error_ns.has_value());
  const OpenSpan span = open_span(stage);
  const double begin = fake().last_record();
  close_span(span, 0);
  ASSERT_EQ(device::resolve(5), 0U);
  // THEN it is where the fake, which uses the host's clock, has it
  const ClockFit fit = recorder().clock_fit();
  const SpanCopy copy = spans_of(stage).back();
  const ClockStamp stamp = take_stamp();
  const double placed = static_cast<double>(fit.unix_ns(copy.begin_ticks) + result_of(span.id).queue_ns);
  const double truth = begin + static_cast<double>(stamp.unix_ns - stamp.monotonic_ns);
  EXPECT_NEAR(placed, truth, *error_ns + 20'000);
}

TEST_P(Backend, AResetForgetsResults) {
  const std::uint32_t stage = recorder().intern("forgotten");
  const auto [id, told] = run(stage, 1000);
  ASSERT_EQ(device::resolve(5), 0U);
  recorder().reset();
  EXPECT_EQ(result_of(id).elapsed_ns, kUnknownNs);
  EXPECT_EQ(figures_of(stage).device[kDeviceElapsed].count, 0U);
  run(stage, 1000);
  ASSERT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(figures_of(stage).device[kDeviceElapsed].count, 1U);
}

TEST_P(Backend, AThreadThatNeverUsedTheDeviceIsNotALoss) {
  const std::uint32_t stage = recorder().intern("host only");
  const std::uint64_t records = fake().counts().records;
  in_thread([&] {
    // With HIP, each thread has a current device from its start, which is unused here.
    if (fake().kind() == "rocm") fake().use_device(2);
    const ScopedTimer timer(stage);
  });
  EXPECT_EQ(device::pending(), 0U);
  EXPECT_EQ(fake().counts().records, records);
  EXPECT_EQ(fake().counts().contexts_made, 0U);
  EXPECT_EQ(figures_of(stage).host.count, 1U);
  EXPECT_EQ(lost(kLostDeviceFailed), 0U);
}

TEST_P(Backend, RequestedResultsAreKept) {
  const std::uint32_t stage = recorder().intern("wanted");
  ThreadState& thread = recorder().this_thread();
  FinishedSpan span = made_span(stage, now_ticks(), 10);
  void* device = nullptr;
  {
    const Interpreter lock(needs_interpreter());
    open_on_device(thread, span, device);
    ASSERT_NE(device, nullptr);
    fake().launch(current_, 1e6);
    close_on_device(thread, span, device, true);
  }
  EXPECT_TRUE((span.flags & kFrameDevice) != 0);
  EXPECT_FALSE(device::take_result(span.id).has_value());
  ASSERT_EQ(device::resolve(5), 0U);
  const auto result = device::take_result(span.id);
  ASSERT_TRUE(result.has_value());
  EXPECT_GE(result->elapsed_ns, 1'000'000);
  EXPECT_FALSE(device::take_result(span.id).has_value());
}

std::string name_of(const ::testing::TestParamInfo<const char*>& test) { return test.param; }

INSTANTIATE_TEST_SUITE_P(Drivers, Backend, ::testing::Values("cuda", "rocm"), name_of);
#ifdef STAGESPAN_TEST_PYTHON

TEST_F(DeviceTest, AnAcceleratorThatCannotBeTimedSaysWhy) {
  fake_ = &Fake::of("npu");
  ASSERT_TRUE(fake_->is_loaded());
  for (const auto& [fault, why] :
       {std::pair{kFakeNoEvents, "cannot create timing events"}, std::pair{kFakeShimFails, "current stream"}}) {
    fake().reset();
    fake().set_fault(fault);
    std::string reason;
    EXPECT_EQ(find_backend("npu", reason), nullptr);
    EXPECT_NE(reason.find(why), std::string::npos) << reason;
  }
}

INSTANTIATE_TEST_SUITE_P(TorchEvents, Backend, ::testing::Values("npu"), name_of);
#endif

}  // namespace
}  // namespace stagespan::test
