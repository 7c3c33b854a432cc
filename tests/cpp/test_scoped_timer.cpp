// test_scoped_timer.cpp: timing scopes, switching the recorder at any moment, resets while threads
// run.
#include <gtest/gtest.h>

#include <barrier>
#include <stdexcept>

#include "stagespan/scoped_timer.h"
#include "support.h"

namespace stagespan {
namespace {

using test::count_of;
using test::figures_of;
using test::in_buckets;
using test::lost;
using test::Random;
using test::spans_of;

class Timers : public test::RecorderTest {
 protected:
  void TearDown() override { g_mode.store(kModeEnabled); }

  void enable() { g_mode.fetch_or(kModeEnabled); }
  void disable() { g_mode.fetch_and(~std::uint32_t{kModeEnabled}); }
};

TEST_F(Timers, AScopeIsTimed) {
  const std::uint32_t stage = recorder().intern("scope");
  const std::uint64_t before = now_ticks();
  {
    const ScopedTimer timer(stage);
  }
  const std::uint64_t after = now_ticks();
  const std::vector<SpanCopy> spans = spans_of(stage);
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_GE(spans[0].begin_ticks, before);
  EXPECT_LE(spans[0].end_ticks, after);
  EXPECT_LE(spans[0].begin_ticks, spans[0].end_ticks);
  EXPECT_EQ(spans[0].flags, 0);
  EXPECT_EQ(spans[0].suspended_ticks, 0U);
}

void timed_by_macro() { STAGESPAN_SCOPE("macro"); }

TEST_F(Timers, TheMacroTimesTheRestOfItsScope) {
  // GIVEN a function, and a block with two scopes in a row
  const std::uint32_t stage = recorder().intern("macro");
  for (int i = 0; i < 5; ++i) timed_by_macro();
  {
    STAGESPAN_SCOPE("macro.outer");
    STAGESPAN_SCOPE("macro.inner");
  }
  EXPECT_EQ(count_of(stage), 5U);
  EXPECT_EQ(count_of(recorder().intern("macro.outer")), 1U);
  EXPECT_EQ(figures_of(recorder().intern("macro.inner")).parents.begin()->first, recorder().intern("macro.outer"));
}

TEST_F(Timers, AnErrorIsMarkedIfItIsReported) {
  const std::uint32_t stage = recorder().intern("error");
  // GIVEN a scope that is left by an exception and marked as failed, and one that ends normally
  const auto fail = [&] {
    ScopedTimer timer(stage);
    timer.mark_error();
    throw std::runtime_error("as expected");
  };
  EXPECT_THROW(fail(), std::runtime_error);
  {
    const ScopedTimer timer(stage);
  }
  EXPECT_EQ(figures_of(stage).errors, 1U);
  EXPECT_EQ(figures_of(stage).host.count, 2U);
  EXPECT_EQ(spans_of(stage)[0].flags, kFlagError);
  EXPECT_EQ(spans_of(stage)[1].flags, 0);
}

// --- on and off -----------------------------------------------------------------------------------------

TEST_F(Timers, NothingIsTimedWhileOff) {
  const std::uint32_t stage = recorder().intern("off");
  disable();
  for (int i = 0; i < 10; ++i) const ScopedTimer timer(stage);
  EXPECT_EQ(count_of(stage), 0U);
  EXPECT_TRUE(read_open(arena()).empty());
  enable();
  {
    const ScopedTimer timer(stage);
  }
  // THEN only later spans are recorded
  EXPECT_EQ(count_of(stage), 1U);
}

TEST_F(Timers, ASpanEndsAsItBeganIfTheRecorderIsSwitchedOff) {
  const std::uint32_t outer = recorder().intern("off in mid-span");
  const std::uint32_t inner = recorder().intern("off in mid-span.inner");
  {
    const ScopedTimer timer(outer);
    disable();
    const ScopedTimer off(inner);
  }
  // THEN the span is counted, the one inside is not, and none is left open
  EXPECT_EQ(count_of(outer), 1U);
  EXPECT_EQ(count_of(inner), 0U);
  EXPECT_TRUE(read_open(arena()).empty());
}

TEST_F(Timers, ASpanStaysUntimedIfTheRecorderIsSwitchedOn) {
  const std::uint32_t outer = recorder().intern("on in mid-span");
  const std::uint32_t inner = recorder().intern("on in mid-span.inner");
  {
    disable();
    const ScopedTimer off(outer);
    enable();
    const ScopedTimer timer(inner);
  }
  // THEN the span is not counted, and the one inside is at top level
  EXPECT_EQ(count_of(outer), 0U);
  EXPECT_EQ(count_of(inner), 1U);
  EXPECT_EQ(figures_of(inner).parents.begin()->first, kNoStage);
}

TEST_F(Timers, SwitchedAtAnyMomentByAnotherThreadEveryBeginFindsItsEnd) {
  constexpr unsigned kThreads = 4;
  const std::uint32_t stage = recorder().intern("switched");
  const std::uint64_t rounds = test::scaled(200'000, 20);
  // GIVEN threads that nest spans
  std::atomic<unsigned> running{kThreads};
  auto threads = test::start_threads(kThreads, [&](unsigned) {
    for (std::uint64_t i = 0; i < rounds; ++i) {
      const ScopedTimer a(stage);
      const ScopedTimer b(stage);
      const ScopedTimer c(stage);
    }
    running.fetch_sub(1);
  });
  std::uint64_t switches = 0;
  while (running.load() != 0) {
    disable();
    enable();
    ++switches;
  }
  test::join(threads);
  EXPECT_TRUE(read_open(arena()).empty());
  EXPECT_EQ(lost(kLostAbandoned), 0U);
  EXPECT_EQ(lost(kLostUnmatched), 0U);
  EXPECT_LE(count_of(stage), 3 * kThreads * rounds);
  EXPECT_EQ(in_buckets(figures_of(stage).host), count_of(stage));
  EXPECT_GT(switches, 0U);
}

// --- reset ----------------------------------------------------------------------------------------------

TEST_F(Timers, AResetRemovesEverything) {
  const std::uint32_t stage = recorder().intern("reset");
  // GIVEN spans of a live thread, of one that has left, and losses
  for (int i = 0; i < 10'000; ++i) const ScopedTimer timer(stage);
  test::in_thread([&] {
    for (int i = 0; i < 10'000; ++i) const ScopedTimer timer(stage);
  });
  recorder().lose(kLostHookErrors, 5);
  ASSERT_GT(overwritten(arena()), 0U);
  const std::uint32_t resets = test::snapshot().resets;
  recorder().reset();
  EXPECT_TRUE(test::snapshot().stages.empty());
  EXPECT_TRUE(read_spans(arena()).empty());
  EXPECT_EQ(overwritten(arena()), 0U);
  for (std::uint32_t cause = 0; cause < kCauseCount; ++cause) EXPECT_EQ(lost(static_cast<Cause>(cause)), 0U);
  EXPECT_EQ(test::snapshot().resets, resets + 1);
  for (int i = 0; i < 7; ++i) const ScopedTimer timer(stage);
  EXPECT_EQ(count_of(stage), 7U);
  EXPECT_EQ(spans_of(stage).size(), 7U);
  EXPECT_EQ(in_buckets(figures_of(stage).host), 7U);
}

TEST_F(Timers, SpansThatAreOpenAtAResetStayOpenAndAreCountedWhenTheyEnd) {
  const std::uint32_t outer = recorder().intern("over a reset");
  const std::uint32_t inner = recorder().intern("over a reset.inner");
  DetachedSpan token{};
  std::uint64_t outer_id = 0;
  {
    const ScopedTimer timer(outer);
    token = recorder().open_detached(inner, 0);
    outer_id = read_open(arena())[0].id;
    recorder().reset();
    EXPECT_EQ(read_open(arena()).size(), 2U);
    const ScopedTimer child(inner);
    EXPECT_EQ(read_open(arena())[2].parent, outer_id);
  }
  recorder().close_detached(token, 0);
  EXPECT_EQ(count_of(outer), 1U);
  EXPECT_EQ(count_of(inner), 2U);
  EXPECT_EQ(spans_of(outer)[0].id, outer_id);
  EXPECT_TRUE(read_open(arena()).empty());
}

TEST_F(Timers, BlocksThatAResetSetAsideAreUsedAgain) {
  std::vector<std::uint32_t> stages;
  for (int i = 0; i < 50; ++i) stages.push_back(recorder().intern("set aside." + std::to_string(i)));
  const auto run = [&] {
    for (const std::uint32_t stage : stages) const ScopedTimer timer(stage);
  };
  run();
  recorder().reset();
  run();
  const std::uint32_t blocks = arena().header().block_count.load();
  // GIVEN a thread that runs through a thousand resets
  for (std::uint64_t i = 0; i < test::scaled(1000, 20); ++i) {
    recorder().reset();
    run();
    // THEN its figures are those since the last one
    ASSERT_EQ(count_of(stages[49]), 1U);
  }
  // THEN it has taken no more blocks than in the beginning
  EXPECT_LE(arena().header().block_count.load(), blocks + 1);
  EXPECT_EQ(lost(kLostBlocks), 0U);
}

TEST_F(Timers, AResetWhileThreadsRunDoesNotAffectThem) {
  constexpr unsigned kThreads = 4;
  constexpr std::uint64_t kSpans = 1000;
  const std::uint32_t outer = recorder().intern("racing.outer");
  const std::uint32_t inner = recorder().intern("racing.inner");
  const std::uint32_t other = recorder().intern("racing.other");
  const int rounds = static_cast<int>(test::scaled(200, 20));
  // GIVEN threads that run spans, tokens, work and losses, and then, between two barriers, an exact number of spans
  std::barrier step(kThreads + 1);
  std::atomic<bool> racing{true};
  std::atomic<bool> done{false};
  auto threads = test::start_threads(kThreads, [&](unsigned i) {
    Random random(50 + i);
    while (true) {
      step.arrive_and_wait();
      if (done) return;
      while (racing.load(std::memory_order_relaxed)) {
        const ScopedTimer a(outer);
        const ScopedTimer b(inner);
        if (random.chance(16)) {
          DetachedSpan token = recorder().open_detached(other, 0);
          recorder().close_detached(token, 0);
        }
        if (random.chance(64)) recorder().add_work(other, "units", 1, 0);
        if (random.chance(512)) test::in_thread([&] { const ScopedTimer timer(other); });
      }
      step.arrive_and_wait();
      step.arrive_and_wait();
      for (std::uint64_t n = 0; n < kSpans; ++n) {
        const ScopedTimer a(outer);
        const ScopedTimer b(inner);
      }
      step.arrive_and_wait();
    }
  });
  const auto reset_and_read = [&] {
    recorder().reset();
    for (const auto& [stage, figures] : test::snapshot().stages) {
      ASSERT_LT(figures.host.count, std::uint64_t{1} << 32);
      ASSERT_LE(figures.host.min_ticks, figures.host.max_ticks);
    }
    for (const SpanCopy& span : read_spans(arena()))
      ASSERT_TRUE(span.stage == outer || span.stage == inner || span.stage == other);
    read_open(arena());
  };
  const auto expect_exact = [&] {
    const Snapshot now = test::snapshot();
    ASSERT_EQ(figures_of(now, outer).host.count, kThreads * kSpans);
    ASSERT_EQ(figures_of(now, inner).host.count, kThreads * kSpans);
    ASSERT_EQ(in_buckets(figures_of(now, inner).host), kThreads * kSpans);
    ASSERT_EQ(figures_of(now, outer).children_ticks, figures_of(now, inner).host.sum_ticks);
    ASSERT_FALSE(now.stages.contains(other));
    ASSERT_EQ(read_spans(arena()).size(), 2 * kThreads * kSpans);
    ASSERT_EQ(overwritten(arena()), 0U);
    ASSERT_TRUE(read_open(arena()).empty());
    ASSERT_EQ(lost(kLostAbandoned), 0U);
  };
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    racing = true;
    step.arrive_and_wait();
    for (int i = 0; i < 20; ++i) reset_and_read();
    racing = false;
    step.arrive_and_wait();
    recorder().reset();
    step.arrive_and_wait();
    step.arrive_and_wait();
    // THEN the figures after the last reset are exact
    expect_exact();
  }
  done = true;
  step.arrive_and_wait();
  test::join(threads);
}

// --- a thread's last moments ----------------------------------------------------------------------------

std::uint32_t g_late_stage = 0;

struct TimesItsDestructor {
  bool armed = false;
  ~TimesItsDestructor() {
    if (armed) const ScopedTimer timer(g_late_stage);
  }
};
thread_local TimesItsDestructor t_early;
thread_local TimesItsDestructor t_late;

TEST_F(Timers, SpansInDestructorsOfThreadLocalsAreCountedAndKeepNoSlot) {
  g_late_stage = recorder().intern("destructor");
  const std::uint32_t stage = recorder().intern("destructor.before");
  for (std::uint32_t i = 0; i < kMaxThreads + 20; ++i) {
    test::in_thread([&] {
      t_early.armed = true;
      {
        const ScopedTimer timer(stage);
      }
      t_late.armed = true;
    });
  }
  EXPECT_EQ(count_of(stage), kMaxThreads + 20);
  EXPECT_EQ(count_of(g_late_stage), 2 * (kMaxThreads + 20));
  EXPECT_EQ(lost(kLostThreads), 0U);
  std::uint32_t live = 0;
  for (std::uint32_t i = 0; i < kMaxThreads; ++i) live += arena().slot(i).state.load() == kSlotLive;
  EXPECT_LE(live, 1U);
}

TEST_F(Timers, SpansInDestructorsOfThreadKeysKeepNoSlot) {
  static std::uint32_t stage;
  stage = recorder().intern("key destructor");
  pthread_key_t key;
  ASSERT_EQ(pthread_key_create(&key, [](void*) { const ScopedTimer timer(stage); }), 0);
  for (std::uint32_t i = 0; i < kMaxThreads + 20; ++i) {
    test::in_thread([&] {
      {
        const ScopedTimer timer(stage);
      }
      pthread_setspecific(key, &stage);
    });
  }
  pthread_key_delete(key);
  // THEN every span was counted, and the next thread finds a slot
  EXPECT_EQ(count_of(stage), 2 * (kMaxThreads + 20));
  EXPECT_EQ(lost(kLostThreads), 0U);
}

TEST_F(Timers, AThreadsNameAndIdsAreThoseOfItsFirstSpan) {
  const std::uint32_t stage = recorder().intern("thread name");
  test::in_thread([&] {
    pthread_setname_np(pthread_self(), "fifteen chars..");
    const ScopedTimer timer(stage);
    const std::vector<OpenCopy> open = read_open(arena());
    ASSERT_EQ(open.size(), 1U);
    EXPECT_STREQ(open[0].thread_name, "fifteen chars..");
    EXPECT_EQ(open[0].ident, static_cast<std::uint64_t>(pthread_self()));
    EXPECT_EQ(open[0].thread, recorder().this_thread().thread);
  });
}

}  // namespace
}  // namespace stagespan
