// test_no_arena.cpp: a process that cannot have an arena continues, untimed.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "support.h"

namespace stagespan {
namespace {

TEST(NoArena, NothingIsRecordedAndNothingFails) {
#if STAGESPAN_TEST_SANITIZED
  GTEST_SKIP() << "sanitizers reserve more addresses than the limit of this test";
#else
  // GIVEN a process with less address space than the smallest arena needs
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * 4096 + (rlim_t{32} << 20);
  ASSERT_LT(limit, pages * 4096 + smallest_arena_bytes());
  const rlimit limits{limit, limit};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limits), 0);
  Recorder& recorder = Recorder::get();
  ASSERT_FALSE(recorder.arena());
  EXPECT_FALSE(mode_has(kModeEnabled));
  const std::uint32_t stage = recorder.intern("without an arena");
  EXPECT_EQ(stage, kStageOverflow);
  EXPECT_EQ(recorder.name_of(stage), "(overflow)");
  EXPECT_TRUE(recorder.names().empty());
  {
    const ScopedTimer timer(stage);
  }
  {
    STAGESPAN_SCOPE("without an arena, by macro");
  }
  recorder.add_work(stage, "tokens", 5, 0.5);
  recorder.lose(kLostHookErrors);
  EXPECT_FALSE(recorder.record(stage, 1, 2, 0));
  recorder.reset();
  const ClockFit fit = recorder.clock_fit();
  EXPECT_GT(fit.unix_ns(now_ticks()), 0);
  EXPECT_TRUE(take_snapshot(recorder.arena(), fit).stages.empty());
  EXPECT_TRUE(read_spans(recorder.arena()).empty());
  EXPECT_TRUE(read_open(recorder.arena()).empty());
  EXPECT_EQ(overwritten(recorder.arena()), 0U);
  int key = 0;
  EXPECT_FALSE(recorder.find_elsewhere(&key));
  // THEN starts and ends of spans that are off are still paired, in threads that come and go as well
  const auto open_and_drop = [&] {
    ThreadState& thread = recorder.this_thread();
    OpenFrame* const outer = open_inactive(thread, &key);
    OpenFrame* const inner = open_inactive(thread, &key);
    ASSERT_NE(outer, nullptr);
    ASSERT_NE(inner, nullptr);
    drop_frame(thread, *outer);
    drop_frame(thread, *inner);
    EXPECT_EQ(thread.scope->top, thread.scope->root);
  };
  open_and_drop();
  test::in_thread(open_and_drop);
#endif
}

}  // namespace
}  // namespace stagespan
