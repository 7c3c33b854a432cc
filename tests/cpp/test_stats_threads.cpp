// test_stats_threads.cpp: statistics of threads: added up when they leave, and shared when blocks run out.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <latch>

#include "support.h"

namespace stagespan {
namespace {

using test::count_of;
using test::figures_of;
using test::in_buckets;
using test::lost;
using test::made_span;
using test::Random;

class Stats : public test::RecorderTest {
 protected:
  ThreadState& thread() { return recorder().this_thread(); }

  void expect_consistent(const StageFigures& figures, std::uint64_t count) {
    EXPECT_EQ(figures.host.count, count);
    EXPECT_EQ(in_buckets(figures.host), count);
    std::uint64_t in_edges = 0, ticks = 0;
    for (const auto& [parent, edge] : figures.parents) {
      in_edges += edge.count;
      ticks += edge.sum_ticks;
    }
    EXPECT_EQ(in_edges, count);
    EXPECT_EQ(ticks, figures.host.sum_ticks);
  }
};

// --- reading while threads come and go ------------------------------------------------------------------
// First: a snapshot reads every slot and name that was ever used, and later tests use all of them. These tests find
// more the more snapshots are taken in the meantime.

/// Snapshots while threads run and leave: no figure decreases, and none is missing or counted twice.
void expect_whole_while_threads_leave(bool with_lock) {
  Recorder& recorder = Recorder::get();
  constexpr unsigned kAtOnce = 6;
  const std::uint64_t threads_in_all = test::scaled(2000, 10);
  const std::uint32_t stages[] = {recorder.intern("leaving.0"), recorder.intern("leaving.1"),
                                  recorder.intern("leaving.2")};
  std::atomic<std::uint64_t> begun[3] = {};
  std::atomic<std::uint64_t> ended[3] = {};
  std::atomic<std::uint64_t> started{0};
  std::atomic<unsigned> running{kAtOnce};
  auto spawners = test::start_threads(kAtOnce, [&](unsigned i) {
    Random random(600 + i);
    while (started.fetch_add(1) < threads_in_all) {
      const std::uint64_t spans = random.below(200);
      const std::uint64_t first = random.below(3);
      test::in_thread([&] {
        for (std::uint64_t n = 0; n < spans; ++n) {
          const std::size_t s = (first + n) % 3;
          begun[s].fetch_add(1);
          {
            const ScopedTimer timer(stages[s]);
          }
          ended[s].fetch_add(1);
        }
      });
    }
    running.fetch_sub(1);
  });
  Snapshot before;
  std::uint64_t snapshots = 0;
  bool last = false;
  while (!last) {
    last = running.load() == 0;
    const std::uint64_t at_least[3] = {ended[0].load(), ended[1].load(), ended[2].load()};
    const Snapshot now = with_lock ? test::snapshot() : take_snapshot(recorder.arena(), recorder.clock_fit());
    ++snapshots;
    ASSERT_TRUE(now.is_exact || !with_lock);
    if (!now.is_exact) continue;  // on a busy machine, a reader without the lock may give up
    for (std::size_t s = 0; s < 3; ++s) {
      const StageFigures was = figures_of(before, stages[s]);
      const StageFigures is = figures_of(now, stages[s]);
      // THEN all spans that had ended are in it, and none twice
      ASSERT_GE(is.host.count, at_least[s]);
      ASSERT_LE(is.host.count, begun[s].load());
      ASSERT_GE(is.host.count, was.host.count);
      ASSERT_GE(is.host.sum_ticks, was.host.sum_ticks);
      ASSERT_GE(is.host.max_ticks, was.host.max_ticks);
      ASSERT_GE(in_buckets(is.host) + kAtOnce, is.host.count);
      // Threads continue between the reading of counts and of buckets.
      ASSERT_LE(in_buckets(is.host), begun[s].load() + kAtOnce);
      if (was.host.count != 0) {
        ASSERT_LE(is.host.min_ticks, was.host.min_ticks);
        for (const auto& [bucket, n] : was.host.buckets) {
          const auto found =
              std::lower_bound(is.host.buckets.begin(), is.host.buckets.end(), std::pair(bucket, std::uint64_t{0}));
          // The latest span of a running thread may be counted twice.
          const bool is_there = found != is.host.buckets.end() && found->first == bucket;
          ASSERT_GE((is_there ? found->second : 0) + kAtOnce, n);
        }
      }
    }
    before = now;
    if (with_lock) std::this_thread::yield();  // threads that wait for the lock get it
  }
  test::join(spawners);
  // THEN in the end everything is exact
  for (std::size_t s = 0; s < 3; ++s) EXPECT_EQ(count_of(stages[s]), ended[s].load());
  EXPECT_GT(snapshots, 1U);
}

TEST_F(Stats, NothingIsMissingOrDoubleWhileThreadsLeave) { expect_whole_while_threads_leave(true); }

TEST_F(Stats, NothingIsMissingOrDoubleForAReaderWithoutTheLock) { expect_whole_while_threads_leave(false); }

// --- threads that leave, and blocks that run out ----------------------------------------------------------

TEST_F(Stats, FiguresOfThreadsThatLiveAndHaveLeftAddUp) {
  const std::uint32_t stage = recorder().intern("add up");
  // GIVEN threads that leave one after another, and one that stays
  std::uint64_t total = 0, ticks = 0;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    test::in_thread([&] {
      for (std::uint64_t n = 0; n < i; ++n) commit_span(thread(), made_span(stage, 1, i * 100 + n));
    });
    for (std::uint64_t n = 0; n < i; ++n) ticks += i * 100 + n;
    total += i;
    const StageFigures figures = figures_of(stage);
    expect_consistent(figures, total);
    EXPECT_EQ(figures.host.sum_ticks, ticks);
    EXPECT_EQ(figures.host.min_ticks, 100U);
    EXPECT_EQ(figures.host.max_ticks, i * 100 + i - 1);
    commit_span(thread(), made_span(stage, 1, 100));
    ++total;
    ticks += 100;
  }
  EXPECT_EQ(lost(kLostBlocks), 0U);
  EXPECT_EQ(lost(kLostThreads), 0U);
}

TEST_F(Stats, BlocksOfThreadsThatHaveLeftAreUsedAgain) {
  const std::uint32_t stage = recorder().intern("reused blocks");
  test::in_thread([&] { const ScopedTimer timer(stage); });
  const std::uint32_t blocks = arena().header().block_count.load();
  constexpr std::uint32_t kThreads = kMaxThreads + 40;
  for (std::uint32_t i = 0; i < kThreads; ++i) test::in_thread([&] { const ScopedTimer timer(stage); });
  // THEN they have taken one additional block, and nothing was lost
  EXPECT_LE(arena().header().block_count.load(), blocks + 1);
  EXPECT_EQ(count_of(stage), kThreads + 1U);
}

TEST_F(Stats, MoreThreadsThanSlotsAreTimedWithoutRecords) {
  const std::uint32_t stage = recorder().intern("slots");
  const std::uint32_t other = recorder().intern("slots.other");
  constexpr unsigned kThreads = kMaxThreads + 40;
  constexpr std::uint64_t kSpans = 20;
  {
    const ScopedTimer timer(other);
  }  // this thread has its own slot
  std::latch all_ran(kThreads);
  std::latch may_leave(1);
  auto threads = test::start_threads(kThreads, [&](unsigned) {
    for (std::uint64_t i = 0; i < kSpans; ++i) {
      const ScopedTimer outer(stage);
      const ScopedTimer inner(other);
    }
    all_ran.count_down();
    may_leave.wait();
  });
  all_ran.wait();
  // THEN their statistics are complete while they are alive, and spans without a record are counted
  expect_consistent(figures_of(stage), kThreads * kSpans);
  expect_consistent(figures_of(other), kThreads * kSpans + 1);
  EXPECT_EQ(figures_of(other).parents.at(stage).count, kThreads * kSpans);
  EXPECT_EQ(lost(kLostThreads), 2 * kSpans * (kThreads - (kMaxThreads - 1)));
  EXPECT_EQ(lost(kLostBlocks), 0U);
  EXPECT_EQ(test::spans_of(stage).size(), (kMaxThreads - 1) * kSpans);
  may_leave.count_down();
  test::join(threads);
  // THEN nothing is lost when they leave
  expect_consistent(figures_of(stage), kThreads * kSpans);
  const std::uint64_t lost_before = lost(kLostThreads);
  test::in_thread([&] { const ScopedTimer timer(stage); });
  EXPECT_EQ(lost(kLostThreads), lost_before);
  EXPECT_EQ(count_of(stage), kThreads * kSpans + 1);
}

TEST_F(Stats, TheOnlySlotThatWasLeftIsUsedAgain) {
  const std::uint32_t stage = recorder().intern("the only slot");
  {
    const ScopedTimer timer(stage);
  }  // this thread has its own slot
  std::latch all_ran(kMaxThreads - 1);
  std::latch may_leave(1);
  std::latch may_leave_first(1);
  auto threads = test::start_threads(kMaxThreads - 1, [&](unsigned i) {
    {
      const ScopedTimer timer(stage);
    }
    all_ran.count_down();
    (i == 0 ? may_leave_first : may_leave).wait();
  });
  all_ran.wait();
  EXPECT_EQ(arena().header().slot_high_water.load(), kMaxThreads);
  may_leave_first.count_down();
  threads.front().join();
  test::in_thread([&] { const ScopedTimer timer(stage); });
  EXPECT_EQ(lost(kLostThreads), 0U);
  EXPECT_EQ(test::spans_of(stage).size(), kMaxThreads + 1U);
  may_leave.count_down();
  for (std::size_t i = 1; i < threads.size(); ++i) threads[i].join();
}

TEST_F(Stats, WhenOwnBlocksRunOutThreadsShareThem) {
  constexpr unsigned kThreads = 40;
  constexpr std::uint32_t kStages = 200;  // 8,000 pairs of thread and stage, more than there are blocks
  constexpr std::uint64_t kSpans = 3;
  std::vector<std::uint32_t> stages;
  for (std::uint32_t i = 0; i < kStages; ++i) stages.push_back(recorder().intern("share." + std::to_string(i)));
  std::latch all_ran(kThreads);
  std::latch may_leave(1);
  auto threads = test::start_threads(kThreads, [&](unsigned i) {
    for (std::uint64_t n = 0; n < kSpans; ++n)
      for (std::uint32_t s = 0; s < kStages; ++s) const ScopedTimer timer(stages[(s + i * 7) % kStages]);
    all_ran.count_down();
    may_leave.wait();
  });
  all_ran.wait();
  EXPECT_GT(lost(kLostBlocks), 0U);
  Snapshot snapshot = test::snapshot();
  for (const std::uint32_t stage : stages) expect_consistent(figures_of(snapshot, stage), kThreads * kSpans);
  may_leave.count_down();
  test::join(threads);
  snapshot = test::snapshot();
  for (const std::uint32_t stage : stages) expect_consistent(figures_of(snapshot, stage), kThreads * kSpans);
  EXPECT_EQ(count_of(kStageOverflow), 0U);
  recorder().reset();
  test::in_thread([&] { const ScopedTimer timer(stages[0]); });
  EXPECT_EQ(lost(kLostBlocks), 0U);
}

TEST_F(Stats, WhenAllBlocksRunOutTheOverflowTakesTheRest) {
  const auto fill = [&] {
    // GIVEN four threads that each run nearly all possible stages
    std::vector<std::uint32_t> stages;
    for (std::uint32_t i = 0; stages.empty() || stages.back() != kStageOverflow; ++i)
      stages.push_back(recorder().intern("all." + std::to_string(i)));
    stages.pop_back();
    constexpr unsigned kThreads = 4;
    std::latch all_ran(kThreads);
    std::latch may_leave(1);
    auto threads = test::start_threads(kThreads, [&](unsigned) {
      for (int n = 0; n < 2; ++n)
        for (const std::uint32_t stage : stages) const ScopedTimer timer(stage);
      all_ran.count_down();
      may_leave.wait();
    });
    all_ran.wait();
    const auto total = [](const Snapshot& snapshot) {
      std::uint64_t count = 0, buckets = 0;
      for (const auto& [stage, figures] : snapshot.stages) {
        count += figures.host.count;
        buckets += in_buckets(figures.host);
      }
      return count == buckets ? count : 0;
    };
    if (arena().header().block_count.load() != kMaxBlocks) return 1;
    // THEN no span is lost: those without a block are summed up in the overflow block
    const Snapshot now = test::snapshot();
    if (figures_of(now, kStageOverflow).host.count == 0) return 2;
    if (total(now) != 2 * kThreads * stages.size()) return 3;
    may_leave.count_down();
    test::join(threads);
    if (total(test::snapshot()) != 2 * kThreads * stages.size()) return 4;
    // THEN the next thread's are not lost either
    test::in_thread([&] {
      for (const std::uint32_t stage : stages) const ScopedTimer timer(stage);
    });
    return total(test::snapshot()) == (2 * kThreads + 1) * stages.size() ? 0 : 5;
  };
  EXPECT_EXIT(_exit(fill()), ::testing::ExitedWithCode(0), "");
}

// In a thread, makes a span ready, then runs it 10,000 times while another thread holds the recorder's lock.
void run_while_locked(const std::function<void()>& make_ready, const std::function<void()>& span) {
  std::latch ready(1);
  std::latch go(1);
  std::atomic<bool> done{false};
  const std::jthread worker([&] {
    make_ready();
    ready.count_down();
    go.wait();
    for (int i = 0; i < 10'000; ++i) span();
    done = true;
    done.notify_one();
  });
  ready.wait();
  const std::lock_guard lock(Recorder::get().cold_mutex());
  go.count_down();
  done.wait(false);
}

TEST_F(Stats, AnOwnBlockNeedsNoLock) {
  const std::uint32_t stage = recorder().intern("no lock");
  const std::uint32_t inner = recorder().intern("no lock.inner");
  const auto span = [&] {
    const ScopedTimer outer(stage);
    const ScopedTimer timer(inner);
  };
  run_while_locked(span, span);
  EXPECT_EQ(count_of(stage), 10'001U);
}

TEST_F(Stats, ASharedBlockNeedsNoLock) {
  const std::uint32_t stage = recorder().intern("no lock.shared");
  // GIVEN a thread that shares its block, because no separate one was free
  const auto span = [&] { const ScopedTimer timer(stage); };
  test::in_thread(span);  // its block becomes the shared one
  run_while_locked([&] { thread().stats[stage].store(arena().slot(kSharedSlot).stats[stage].load()); }, span);
  EXPECT_EQ(count_of(stage), 10'001U);
}

}  // namespace
}  // namespace stagespan
