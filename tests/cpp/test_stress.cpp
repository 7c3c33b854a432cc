// test_stress.cpp: eight threads, five million spans each, with a reader running.
#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <cstdio>
#include <latch>
#include <new>

#include "support.h"

// Counts a thread's allocations, so that the test can check that spans allocate nothing. Sanitizers have their own
// operators.
static thread_local std::uint64_t t_allocations = 0;

#if !STAGESPAN_TEST_SANITIZED
void* operator new(std::size_t size) {
  ++t_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace stagespan {
namespace {

using test::figures_of;
using test::in_buckets;

// Before the recorder starts, because it reads it only once. The run is shorter under sanitizers, so rings are smaller,
// and their records are overwritten more often while they are read.
const bool g_settings = STAGESPAN_TEST_SANITIZED == 0 || setenv("STAGESPAN_RING_SPANS", "256", 1) == 0;

constexpr unsigned kThreads = 8;
constexpr std::uint64_t kPasses = test::scaled(500'000, 20);
constexpr std::uint64_t kSpansInAPass = 10;  // see pass()
constexpr std::uint64_t kSpans = kPasses * kSpansInAPass;

class Stress : public test::RecorderTest {
 protected:
  void SetUp() override {
    RecorderTest::SetUp();
    for (std::uint32_t i = 0; i < 4; ++i) stages_[i] = recorder().intern("stress." + std::to_string(i));
  }

  // 1 + 2 + 3 + 4 spans of four stages: the depth determines the stage and its number per pass.
  void pass() {
    const ScopedTimer a(stages_[0]);
    for (int i = 0; i < 2; ++i) const ScopedTimer b(stages_[1]);
    const ScopedTimer b(stages_[1]);
    for (int i = 0; i < 3; ++i) const ScopedTimer c(stages_[2]);
    const ScopedTimer c(stages_[2]);
    const ScopedTimer d(stages_[3]);
    const ScopedTimer e(stages_[3]);
  }
  static constexpr std::uint64_t kOf[4] = {1, 3, 4, 2};

  std::uint32_t stages_[4] = {};
};

std::uint64_t resident_bytes() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  unsigned long long size = 0, resident = 0;
  const int read = file == nullptr ? 0 : std::fscanf(file, "%llu %llu", &size, &resident);
  if (file != nullptr) std::fclose(file);
  return read == 2 ? resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

TEST_F(Stress, EightThreadsWithAReaderLoseNothingTearNothingAndTakeNoMemory) {
  const std::uint64_t ring = arena().header().ring_spans;
  const std::uint64_t warm_up = 2 * ring / kSpansInAPass + 1;
  ASSERT_GT(kSpans, ring);

  // GIVEN threads that have run long enough to have touched all the memory that they use
  std::barrier warm(kThreads + 2);
  std::barrier start(kThreads + 2);
  std::atomic<unsigned> running{kThreads};
  std::latch may_leave(1);
  std::atomic<std::uint64_t> allocations{0};
  auto writers = test::start_threads(kThreads, [&](unsigned) {
    for (std::uint64_t i = 0; i < warm_up; ++i) pass();
    warm.arrive_and_wait();
    start.arrive_and_wait();
    const std::uint64_t before = t_allocations;
    for (std::uint64_t i = 0; i < kPasses; ++i) pass();
    allocations.fetch_add(t_allocations - before);
    running.fetch_sub(1);
    may_leave.wait();
  });

  std::atomic<std::uint64_t> spans_seen{0}, open_seen{0}, rounds{0};
  const auto look = [&](Snapshot& before) {
    // THEN a record that is read is complete: nested correctly, with a stage and an id of its own thread
    for (const SpanCopy& span : read_spans(arena())) {
      ASSERT_TRUE(span.stage >= stages_[0] && span.stage <= stages_[3]);
      const std::uint32_t level = span.stage - stages_[0];
      ASSERT_TRUE(span.depth == level || (level == 3 && span.depth == 4));
      ASSERT_EQ(span.parent == 0, span.depth == 0);
      ASSERT_LE(span.begin_ticks, span.end_ticks);
      ASSERT_EQ(span.flags, 0);
      ASSERT_EQ(span.request, 0U);
      ASSERT_EQ(span.suspended_ticks, 0U);
      if (span.parent != 0) {
        ASSERT_LT(span.parent, span.id);
        ASSERT_GE(span.parent + kSpansInAPass, span.id);
      }
      spans_seen.fetch_add(1, std::memory_order_relaxed);
    }
    for (const OpenCopy& open : read_open(arena())) {
      const std::uint32_t level = open.stage - stages_[0];
      ASSERT_TRUE(open.depth == level || (level == 3 && open.depth == 4));
      ASSERT_EQ(open.parent == 0, open.depth == 0);
      ASSERT_LE(open.parent, open.id);
      open_seen.fetch_add(1, std::memory_order_relaxed);
    }
    Snapshot now = test::snapshot();
    for (const std::uint32_t stage : stages_) {
      const StageFigures was = figures_of(before, stage);
      const StageFigures is = figures_of(now, stage);
      ASSERT_GE(is.host.count, was.host.count);
      ASSERT_GE(is.host.sum_ticks, was.host.sum_ticks);
      ASSERT_GE(in_buckets(is.host) + kThreads, was.host.count);
    }
    before = std::move(now);
  };
  std::jthread reader([&] {
    Snapshot before;
    look(before);
    warm.arrive_and_wait();
    look(before);
    start.arrive_and_wait();
    while (running.load() != 0 && !HasFatalFailure()) {
      look(before);
      rounds.fetch_add(1);
    }
  });
  warm.arrive_and_wait();
  const std::uint64_t resident_before = resident_bytes();
  start.arrive_and_wait();
  reader.join();
  while (running.load() != 0) std::this_thread::yield();
  const std::uint64_t resident_after = resident_bytes();

  const auto expect_exact = [&] {
    const Snapshot now = test::snapshot();
    for (std::size_t i = 0; i < 4; ++i) {
      const StageFigures figures = figures_of(now, stages_[i]);
      const std::uint64_t expected = kThreads * (warm_up + kPasses) * kOf[i];
      EXPECT_EQ(figures.host.count, expected);
      EXPECT_EQ(in_buckets(figures.host), expected);
    }
    // THEN the tree adds up: the time of a stage's children is that of the spans under it
    for (std::size_t i = 0; i < 3; ++i) {
      std::uint64_t below = 0;
      for (const std::uint32_t stage : stages_) {
        const StageFigures figures = figures_of(now, stage);
        const auto edge = figures.parents.find(stages_[i]);
        if (edge != figures.parents.end()) below += edge->second.sum_ticks;
      }
      EXPECT_EQ(figures_of(now, stages_[i]).children_ticks, below);
    }
    // THEN the rings' losses are exact
    EXPECT_EQ(overwritten(arena()), kThreads * ((warm_up + kPasses) * kSpansInAPass - ring));
    EXPECT_EQ(read_spans(arena()).size(), kThreads * ring);
    for (std::uint32_t cause = 0; cause < kCauseCount; ++cause)
      EXPECT_EQ(test::lost(static_cast<Cause>(cause)), 0U) << cause;
  };
  expect_exact();
  EXPECT_TRUE(read_open(arena()).empty());
  may_leave.count_down();
  test::join(writers);
  // THEN they are also exact after the threads have left
  expect_exact();

  // THEN a reader was running, and read something
  EXPECT_GT(rounds.load(), 0U);
  EXPECT_GT(spans_seen.load(), 0U);
  // THEN no span allocated anything
  EXPECT_EQ(allocations.load(), 0U);
#if STAGESPAN_TEST_SANITIZED
  (void)resident_before;
  (void)resident_after;
#else
  // THEN memory has not grown. One byte per span would be 40 MB. The reader's vectors (several MB
  // each) come and go, so the limit allows for what malloc keeps of them.
  EXPECT_LT(resident_after, resident_before + (std::uint64_t{32} << 20));
#endif
  RecordProperty("spans", std::to_string(kThreads * kSpans));
}

}  // namespace
}  // namespace stagespan
