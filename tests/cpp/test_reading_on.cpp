// test_reading_on.cpp: reading each record once, and reading another thread's open spans, while threads write.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <unordered_set>

#include "stagespan/reader.h"
#include "support.h"

namespace stagespan {
namespace {

TEST(ReadingOn, EachRecordIsReadOnceOrCounted) {
  Recorder& recorder = Recorder::get();
  const std::uint32_t outer = recorder.intern("reading.outer"), inner = recorder.intern("reading.inner");
  constexpr unsigned kThreads = 4;
  const std::uint64_t each = test::scaled(200'000, 20);
  std::atomic<unsigned> left{kThreads};
  ReadPositions positions = positions_of_newest(recorder.arena());
  std::vector<std::jthread> writers = test::start_threads(kThreads, [&](unsigned) {
    for (std::uint64_t i = 0; i < each; ++i) {
      const ScopedTimer around(outer);
      const ScopedTimer timer(inner);
    }
    left.fetch_sub(1);
  });
  std::unordered_set<std::uint64_t> seen;
  std::uint64_t read = 0;
  for (bool is_last = false; !is_last;) {
    is_last = left.load() == 0;
    for (const SpanCopy& span : read_new_spans(recorder.arena(), positions)) {
      ++read;
      seen.insert(span.id);
    }
  }
  EXPECT_EQ(seen.size(), read);
  EXPECT_EQ(read + positions.overwritten, 2 * each * kThreads);
  EXPECT_TRUE(read_new_spans(recorder.arena(), positions).empty());
}

TEST(ReadingOn, AThreadThatStartsLaterIsReadFromItsBegin) {
  Recorder& recorder = Recorder::get();
  const std::uint32_t stage = recorder.intern("reading.later");
  ReadPositions positions = positions_of_newest(recorder.arena());
  for (int i = 0; i < 10; ++i) test::in_thread([&] { const ScopedTimer timer(stage); });
  EXPECT_EQ(read_new_spans(recorder.arena(), positions).size(), 10U);
  // THEN those that a reset removed are not lost
  test::in_thread([&] { const ScopedTimer timer(stage); });
  recorder.reset();
  test::in_thread([&] { const ScopedTimer timer(stage); });
  EXPECT_EQ(read_new_spans(recorder.arena(), positions).size(), 1U);
  EXPECT_EQ(positions.overwritten, 0U);
}

TEST(ReadingOn, AnotherThreadsInnermostSpanIsOneOfItsOwn) {
  Recorder& recorder = Recorder::get();
  const std::uint32_t stages[] = {recorder.intern("there.0"), recorder.intern("there.1"), recorder.intern("there.2")};
  // GIVEN a thread that opens and closes nested spans
  std::atomic<std::uint64_t> serial{0};
  std::atomic<bool> stop{false};
  std::jthread writer([&] {
    serial.store(recorder.this_thread().serial);
    while (!stop.load(std::memory_order_relaxed)) {
      const ScopedTimer first(stages[0]);
      const ScopedTimer second(stages[1]);
      const ScopedTimer third(stages[2]);
    }
  });
  while (serial.load() == 0) std::this_thread::yield();
  ParentLink link;
  std::uint64_t found = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (found < test::scaled(200'000, 20) && std::chrono::steady_clock::now() < deadline) {
    if (!recorder.innermost_elsewhere(serial.load(), 0, link) || link.id == 0) continue;
    ++found;
    ASSERT_GE(link.depth, 1);
    ASSERT_LE(link.depth, 3);
    ASSERT_EQ(link.stage, stages[link.depth - 1]);
  }
  stop.store(true);
  writer.join();
  EXPECT_GT(found, 0U);
  // THEN it gets nothing for a thread that has ended
  EXPECT_FALSE(recorder.innermost_elsewhere(serial.load(), 0, link));
}

}  // namespace
}  // namespace stagespan
