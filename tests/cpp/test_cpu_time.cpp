// test_cpu_time.cpp: the CPU times of spans, as another process reads them.
#include <gtest/gtest.h>

#include "recording_support.h"

namespace stagespan {
namespace {

using test::kRing;

class CpuTimes : public test::Recordings {};

TEST_F(CpuTimes, BelongToTheirSpansWhileTheRingWraps) {
  const std::uint32_t asks = recorder().intern("cpu.asks"), plain = recorder().intern("cpu.plain");
  constexpr std::int64_t kSpans = 3 * kRing / 2;
  for (std::int64_t i = 0; i < kSpans; ++i) {
    test::commit_with_cpu_time(asks, 1000 + i);
    const ScopedTimer between(plain);
  }
  const RecordingCopy copy = copied();
  std::int64_t expected = 1000 + kSpans - static_cast<std::int64_t>(kRing) / 2;
  for (const SpanCopy& span : read_spans(copy.arena)) {
    if (span.stage == plain || span.stage == asks) {
      EXPECT_EQ(span.cpu_ns, span.stage == asks ? expected++ : kUnknownNs);
    }
  }
  EXPECT_EQ(expected, 1000 + kSpans);
  const StageFigures figures = test::figures_of(asks);
  EXPECT_EQ(figures.cpu_count, static_cast<std::uint64_t>(kSpans));
  EXPECT_EQ(figures.cpu_ns, static_cast<std::uint64_t>(kSpans * 1000 + kSpans * (kSpans - 1) / 2));
  EXPECT_EQ(test::figures_of(plain).cpu_count, 0U);
}

TEST_F(CpuTimes, OfSeveralThreadsAreInTheirOwnTables) {
  const std::uint32_t stage = recorder().intern("cpu.threads");
  for (std::int64_t thread = 0; thread < 4; ++thread)
    test::in_thread([&] {
      for (int i = 0; i < 10; ++i) test::commit_with_cpu_time(stage, thread);
    });
  std::int64_t sum = 0, count = 0;
  const RecordingCopy copy = copied();
  for (const SpanCopy& span : read_spans(copy.arena)) {
    if (span.stage != stage) continue;
    EXPECT_NE(span.cpu_ns, kUnknownNs);
    sum += span.cpu_ns;
    ++count;
  }
  EXPECT_EQ(count, 40);
  EXPECT_EQ(sum, 60);
  EXPECT_EQ(test::figures_of(stage).cpu_ns, 60U);
}

TEST_F(CpuTimes, ABeginIsTakenOnce) {
  ThreadState& thread = recorder().this_thread();
  for (std::uint64_t id = 1; id <= 2 * kMostCpuBegins; ++id) begin_cpu_time(thread, {id, 0, id, false});
  EXPECT_EQ(take_cpu_begin(thread, 1).span, 0U);
  for (const std::uint64_t id : {std::uint64_t{2 * kMostCpuBegins}, std::uint64_t{2 * kMostCpuBegins - 9}}) {
    EXPECT_EQ(take_cpu_begin(thread, id).turn, id);
    EXPECT_EQ(take_cpu_begin(thread, id).span, 0U);
  }
}

}  // namespace
}  // namespace stagespan
