// test_recording.cpp: another process reads what a process recorded, whatever happened to the process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <map>
#include <new>

#include "recording_support.h"

namespace stagespan {
namespace {

using test::kRing;
using test::Recordings;

constexpr std::uint64_t kSequence = (std::uint64_t{1} << 40) - 1;  // of an id: the rest distinguishes threads

/// What a victim counts itself, in memory that it shares with the test.
struct Log {
  struct alignas(64) OfThread {
    std::atomic<std::uint64_t> begun;
    std::atomic<std::uint64_t> ended;
    std::atomic<std::uint32_t> thread;
  } threads[8];

  static Log* make() {
    void* const memory = mmap(nullptr, sizeof(Log), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : new (memory) Log{};
  }
};

/// Sets a flag also if an assertion fails, because threads that wait for it are joined.
struct AtEnd {
  std::atomic<bool>& flag;
  ~AtEnd() { flag.store(true); }
};

TEST_F(Recordings, AProcessKilledAtAnyMomentLeavesAllSpansThatHadEnded) {
  test::Random random(11);
  SCOPED_TRACE(random.trace());
  constexpr unsigned kWriters = 8;
  std::uint32_t stages[kWriters];
  for (unsigned i = 0; i < kWriters; ++i) stages[i] = recorder().intern("writer " + std::to_string(i));
  const std::uint32_t outer = recorder().intern("main");
  for (std::uint64_t round = 0; round < test::scaled(200, 40); ++round) {
    SCOPED_TRACE(round);
    Log* const log = Log::make();
    ASSERT_NE(log, nullptr);
    const pid_t victim = fork();
    if (victim == 0) {
      const ScopedTimer timer(outer);
      const auto threads = test::start_threads(kWriters, [&](unsigned i) {
        Log::OfThread& own = log->threads[i];
        own.thread.store(static_cast<std::uint32_t>(gettid()));
        for (std::uint64_t n = 1;; ++n) {
          own.begun.store(n, std::memory_order_release);
          {
            const ScopedTimer span(stages[i]);
          }
          own.ended.store(n, std::memory_order_release);
        }
      });
      pause();
      _exit(0);
    }
    while (file_of(victim).empty()) usleep(200);
    usleep(static_cast<useconds_t>(random.below(8000)));
    kill(victim, SIGKILL);
    waitpid(victim, nullptr, 0);
    RecordingCopy copy;
    ASSERT_EQ(read(file_of(victim), copy), "");
    EXPECT_EQ(copy.damaged, 0U);
    EXPECT_EQ(copy.missing_bytes, 0U);
    std::map<std::uint32_t, std::vector<SpanCopy>> of_thread;
    for (const SpanCopy& span : read_spans(copy.arena)) of_thread[span.thread].push_back(span);
    std::map<std::uint32_t, OpenCopy> open;
    for (const OpenCopy& span : read_open(copy.arena)) open[span.thread] = span;
    if (log->threads[0].begun.load() != 0) {
      EXPECT_EQ(open.at(static_cast<std::uint32_t>(victim)).stage, outer);
    }
    const Snapshot snapshot = take_snapshot(copy.arena, copy.fit);
    for (unsigned i = 0; i < kWriters; ++i) {
      SCOPED_TRACE(i);
      const std::uint64_t ended = log->threads[i].ended.load(), begun = log->threads[i].begun.load();
      const std::uint32_t thread = log->threads[i].thread.load();
      if (begun == 0) continue;  // it had not begun by then
      const auto found = snapshot.stages.find(stages[i]);
      const std::uint64_t count = found == snapshot.stages.end() ? 0 : found->second.host.count;
      EXPECT_GE(count, ended);
      EXPECT_LE(count, begun);
      std::vector<SpanCopy>& spans = of_thread[thread];
      std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
      EXPECT_GE(spans.size() + 1, std::min(ended, kRing));
      if (spans.empty()) continue;
      EXPECT_GE(spans.back().id & kSequence, ended);
      for (std::size_t k = 0; k < spans.size(); ++k) {
        EXPECT_EQ(spans[k].stage, stages[i]);
        EXPECT_EQ(spans[k].depth, 0);
        EXPECT_LE(spans[k].begin_ticks, spans[k].end_ticks);
        if (k == 0) continue;
        EXPECT_EQ(spans[k].id, spans[k - 1].id + 1);
        EXPECT_GE(spans[k].begin_ticks, spans[k - 1].end_ticks);
      }
      // THEN the sum of the durations is right, if the ring still has all of them
      if (count == spans.size() && count == ended && begun == ended) {
        std::uint64_t sum = 0;
        for (const SpanCopy& span : spans) sum += span.end_ticks - span.begin_ticks;
        EXPECT_EQ(found->second.host.sum_ticks, sum);
      }
      if (open.contains(thread)) {
        EXPECT_EQ(open.at(thread).stage, stages[i]);
        EXPECT_GE(open.at(thread).id & kSequence, spans.back().id & kSequence);
      }
    }
    munmap(log, sizeof(Log));
  }
}

TEST_F(Recordings, ALiveProcessIsReadWhileItWrites) {
  const std::uint32_t outer = recorder().intern("live.outer"), inner = recorder().intern("live.inner");
  std::atomic<bool> is_over{false};
  auto threads = test::start_threads(3, [&](unsigned) {
    while (!is_over.load(std::memory_order_relaxed)) {
      const ScopedTimer a(outer);
      const ScopedTimer b(inner);
    }
  });
  {
    const ScopedTimer own(outer);
  }
  const AtEnd stop{is_over};
  const std::string path = file_of(getpid());
  std::uint64_t before = 0;
  for (std::uint64_t round = 0; round < test::scaled(200, 40); ++round) {
    RecordingCopy copy;
    ASSERT_EQ(read(path, copy), "");
    EXPECT_EQ(copy.damaged, 0U);
    for (const SpanCopy& span : read_spans(copy.arena)) {
      ASSERT_LE(span.begin_ticks, span.end_ticks);
      ASSERT_EQ(span.depth, span.stage == inner ? 1 : 0);
      ASSERT_EQ(span.parent == 0, span.stage == outer);
      if (span.stage == inner) {
        ASSERT_EQ(span.parent + 1, span.id);
      }
    }
    for (const OpenCopy& span : read_open(copy.arena)) ASSERT_TRUE(span.stage == inner || span.stage == outer);
    const Snapshot snapshot = take_snapshot(copy.arena, copy.fit);
    const std::uint64_t count = test::figures_of(snapshot, inner).host.count;
    EXPECT_GE(count, before);
    before = count;
  }
  is_over.store(true);
  threads.clear();
  // THEN in the end they equal those of the process itself
  RecordingCopy copy;
  ASSERT_EQ(read(path, copy), "");
  EXPECT_EQ(test::figures_of(take_snapshot(copy.arena, copy.fit), inner).host.count, test::count_of(inner));
}

TEST_F(Recordings, NoChildWritesItsParentsFile) {
  const std::uint32_t stage = recorder().intern("storm"), of_child = recorder().intern("storm.child");
  constexpr unsigned kWriters = 4;
  std::atomic<bool> is_over{false};
  std::latch all_write(kWriters);
  auto threads = test::start_threads(kWriters, [&](unsigned) {
    {
      const ScopedTimer span(stage);
    }
    all_write.count_down();
    while (!is_over.load(std::memory_order_relaxed)) {
      for (int k = 0; k < 500; ++k) const ScopedTimer span(stage);
      usleep(500);  // otherwise they would use the processors, and not the children
    }
  });
  const AtEnd stop{is_over};
  all_write.wait();  // a thread that starts may hold a lock of a sanitizer's allocator
  for (std::uint64_t i = 0; i < test::scaled(1000, 100); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      for (int k = 0; k < 3; ++k) const ScopedTimer span(of_child);
      RecordingCopy copy;
      if (!read(file_of(getpid()), copy).empty()) _exit(1);
      const Snapshot snapshot = take_snapshot(copy.arena, copy.fit);
      if (snapshot.stages.size() != 1 || test::figures_of(snapshot, of_child).host.count != 3) _exit(2);
      if (read_spans(copy.arena).size() != 3 || copy.names.at(stage) != "storm") _exit(3);
      recorder().end_recording();
      _exit(file_of(getpid()).empty() ? 0 : 4);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  is_over.store(true);
  threads.clear();
  // THEN the parent's file has the parent's spans, and none of its children's
  RecordingCopy copy;
  ASSERT_EQ(read(file_of(getpid()), copy), "");
  const Snapshot snapshot = take_snapshot(copy.arena, copy.fit);
  EXPECT_EQ(test::figures_of(snapshot, stage).host.count, test::count_of(stage));
  EXPECT_EQ(test::figures_of(snapshot, of_child).host.count, 0U);
}

TEST_F(Recordings, MoreThreadsAndDeeperSpansGrowTheFile) {
  const std::uint32_t stage = recorder().intern("deep");
  test::in_thread([&] {
    constexpr int kDepth = 1000;
    std::vector<OpenSpan> open;
    for (int i = 0; i < kDepth; ++i) open.push_back(open_span(stage));
    RecordingCopy copy;
    ASSERT_EQ(read(file_of(getpid()), copy), "");
    const auto thread = static_cast<std::uint32_t>(gettid());
    const std::vector<OpenCopy> found = read_open(copy.arena);
    EXPECT_EQ(std::count_if(found.begin(), found.end(), [&](const auto& span) { return span.thread == thread; }),
              kDepth);
    while (!open.empty()) {
      close_span(open.back(), 0);
      open.pop_back();
    }
  });
  const std::uint64_t before = test::count_of(stage);
  for (int i = 0; i < 20; ++i) test::in_thread([&] { const ScopedTimer span(stage); });
  RecordingCopy copy;
  ASSERT_EQ(read(file_of(getpid()), copy), "");
  EXPECT_EQ(test::figures_of(take_snapshot(copy.arena, copy.fit), stage).host.count, before + 20);
}

}  // namespace
}  // namespace stagespan
