// test_spans_elsewhere.cpp: spans that other threads end, tokens, recorded times, and reading open spans.
#include <gtest/gtest.h>

#include <barrier>

#include "support.h"

namespace stagespan {
namespace {

using test::count_of;
using test::figures_of;
using test::lost;
using test::Random;
using test::spans_of;

constexpr auto relaxed = std::memory_order_relaxed;

class SpansElsewhere : public test::OpenSpansTest {};

// --- ends by other threads ------------------------------------------------------------------------------

TEST_F(SpansElsewhere, AnotherThreadMayEndASpan) {
  const std::uint32_t stage = recorder().intern("away");
  const std::uint32_t next = recorder().intern("away.next");
  const int key = 0;
  std::barrier step(2);
  std::uint64_t id = 0;
  std::jthread owner([&] {
    id = open(stage, &key).id.load(relaxed);
    step.arrive_and_wait();
    step.arrive_and_wait();
    const ScopedTimer timer(next);
    EXPECT_EQ(own_open().size(), 1U);
    EXPECT_EQ(own_open()[0].parent, 0U);
    EXPECT_EQ(own_open()[0].depth, 0);
  });
  step.arrive_and_wait();
  const FoundFrame found = recorder().find_elsewhere(&key);
  EXPECT_TRUE(found);
  if (found) recorder().close_away(found, kFlagError);
  EXPECT_TRUE(read_open(arena()).empty());
  EXPECT_FALSE(recorder().find_elsewhere(&key));
  const std::vector<SpanCopy> spans = spans_of(stage);
  step.arrive_and_wait();
  owner.join();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].id, id);
  EXPECT_EQ(spans[0].flags, kFlagError);
  EXPECT_EQ(figures_of(stage).errors, 1U);
  EXPECT_EQ(count_of(stage), 1U);
  EXPECT_EQ(lost(kLostAbandoned), 0U);
}

TEST_F(SpansElsewhere, ASpanIsEndedOnceHoweverManyThreadsTry) {
  const std::uint32_t stage = recorder().intern("away.once");
  constexpr unsigned kThreads = 4;
  for (int round = 0; round < 50; ++round) {
    const int key = round;
    open(stage, &key);
    OpenFrame& inner = open(stage);
    std::barrier start(kThreads);
    auto threads = test::start_threads(kThreads, [&](unsigned) {
      const FoundFrame found = recorder().find_elsewhere(&key);
      start.arrive_and_wait();
      if (found) recorder().close_away(found, 0);
    });
    test::join(threads);
    close(inner);
    ASSERT_EQ(count_of(stage), 2U * static_cast<unsigned>(round) + 2);
  }
  // THEN the later tries are counted too
  EXPECT_EQ(lost(kLostUnmatched), 50U * (kThreads - 1));
  {
    const ScopedTimer timer(stage);
  }
  EXPECT_TRUE(own_open().empty());
  EXPECT_EQ(thread().scope->top, 0U);
}

TEST_F(SpansElsewhere, AnEndThatComesAfterTheOwnerHasLeftIsCountedAndHarmless) {
  const std::uint32_t stage = recorder().intern("away.left");
  const int key = 0;
  FoundFrame found;
  std::barrier step(2);
  std::jthread owner([&] {
    open(stage, &key);
    step.arrive_and_wait();
    step.arrive_and_wait();
  });
  step.arrive_and_wait();
  found = recorder().find_elsewhere(&key);
  step.arrive_and_wait();
  owner.join();
  ASSERT_TRUE(found);
  recorder().close_away(found, 0);
  EXPECT_EQ(lost(kLostUnmatched), 1U);
  EXPECT_EQ(lost(kLostAbandoned), 1U);
  EXPECT_EQ(count_of(stage), 0U);
}

TEST_F(SpansElsewhere, AnEndAfterTheFrameHasAnotherSpanDoesNotAffectThatOne) {
  const std::uint32_t stage = recorder().intern("away.ended");
  const std::uint32_t next = recorder().intern("away.next");
  const int key = 0;
  OpenFrame& first = open(stage, &key);
  FoundFrame found;
  test::in_thread([&] { found = recorder().find_elsewhere(&key); });
  ASSERT_TRUE(found);
  close(first);
  OpenFrame& second = open(next, &key);
  ASSERT_EQ(&second, &first);
  test::in_thread([&] {
    EXPECT_FALSE(recorder().close_away(found, 0));
    EXPECT_FALSE(recorder().drop_away(found, nullptr));
  });
  EXPECT_EQ(lost(kLostUnmatched), 1U);
  EXPECT_EQ(own_open().size(), 1U);
  close(second);
  EXPECT_EQ(count_of(next), 1U);
  EXPECT_EQ(count_of(stage), 1U);
}

TEST_F(SpansElsewhere, TheLatestSpanOfAnOwnerIsFoundFirst) {
  const std::uint32_t one = recorder().intern("away.first");
  const std::uint32_t two = recorder().intern("away.second");
  const int key = 0;
  open(one, &key);
  open(two, &key);
  OpenFrame& other = open(one, &one);
  test::in_thread([&] {
    // THEN the later one is found first, then the earlier one, then none
    FoundFrame found = recorder().find_elsewhere(&key);
    ASSERT_TRUE(found);
    EXPECT_EQ(found.frame->stage.load(relaxed), two);
    recorder().close_away(found, 0);
    found = recorder().find_elsewhere(&key);
    ASSERT_TRUE(found);
    EXPECT_EQ(found.frame->stage.load(relaxed), one);
    recorder().close_away(found, 0);
    EXPECT_FALSE(recorder().find_elsewhere(&key));
  });
  close(other);
  {
    const ScopedTimer timer(one);
  }
  EXPECT_TRUE(own_open().empty());
}

TEST_F(SpansElsewhere, SpansEndElsewhereWhileOtherThreadsGoOn) {
  const std::uint32_t stage = recorder().intern("away.busy");
  const std::uint32_t nested = recorder().intern("away.busy.nested");
  constexpr unsigned kOwners = 3;
  const std::uint64_t wanted = test::scaled(300, 1);
  int keys[kOwners] = {};
  int own_key = 0;
  std::atomic<bool> left[kOwners] = {};
  std::atomic<unsigned> running{kOwners};
  std::atomic<std::uint64_t> ended_away{0};
  std::atomic<std::uint64_t> rounds{0};
  auto owners = test::start_threads(kOwners, [&](unsigned i) {
    while (ended_away.load() < wanted) {
      OpenFrame& own = open(stage, &own_key);
      {
        const ScopedTimer timer(nested);
      }
      close(own);
      rounds.fetch_add(1);
      if (left[i].load()) continue;
      open(stage, &keys[i]);
      left[i].store(true);
      {
        const ScopedTimer timer(nested);
      }
    }
    running.fetch_sub(1);
  });
  bool last = false;
  while (!last) {
    last = running.load() == 0;
    for (unsigned i = 0; i < kOwners; ++i) {
      if (!left[i].load()) continue;
      const FoundFrame found = recorder().find_elsewhere(&keys[i]);
      if (!found) continue;  // its owner has left
      recorder().close_away(found, 0);
      ended_away.fetch_add(1);
      left[i].store(false);
    }
  }
  test::join(owners);
  EXPECT_EQ(count_of(stage) + lost(kLostUnmatched), rounds.load() + ended_away.load());
  EXPECT_LE(lost(kLostAbandoned), kOwners);
  EXPECT_TRUE(read_open(arena()).empty());
}

// --- tokens ---------------------------------------------------------------------------------------------

TEST_F(SpansElsewhere, ATokenIsOpenUntilAnyThreadEndsIt) {
  const std::uint32_t outer = recorder().intern("token.outer");
  const std::uint32_t stage = recorder().intern("token");
  const std::uint32_t inner = recorder().intern("token.inner");
  OpenFrame& around = open(outer);
  thread().scope->request = 77;
  DetachedSpan token = recorder().open_detached(stage, kFlagAsync);
  thread().scope->request = 0;
  std::vector<OpenCopy> open_now = read_open(arena());
  // THEN it is shown outside the stack, as the span's child
  ASSERT_EQ(open_now.size(), 2U);
  EXPECT_TRUE(open_now[1].detached);
  EXPECT_EQ(open_now[1].stage, stage);
  EXPECT_EQ(open_now[1].parent, around.id.load(relaxed));
  EXPECT_EQ(open_now[1].depth, 1);
  EXPECT_EQ(open_now[1].thread, thread().thread);
  OpenFrame& other = open(inner);
  EXPECT_EQ(other.parent.load(relaxed), around.id.load(relaxed));
  close(other);
  close(around);
  test::in_thread([&] { recorder().close_detached(token, kFlagError); });
  EXPECT_TRUE(read_open(arena()).empty());
  const std::vector<SpanCopy> spans = spans_of(stage);
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].id, token.span.id);
  EXPECT_EQ(spans[0].request, 77U);
  EXPECT_EQ(spans[0].flags, kFlagAsync | kFlagError);
  EXPECT_EQ(figures_of(stage).parents.begin()->first, outer);
  // THEN it is not part of the time of its parent's own children
  EXPECT_EQ(figures_of(outer).children_ticks, figures_of(inner).host.sum_ticks);
}

TEST_F(SpansElsewhere, MoreTokensThanCanBeShownAreTimedToo) {
  const std::uint32_t stage = recorder().intern("token.many");
  std::vector<DetachedSpan> tokens;
  for (std::uint32_t i = 0; i < kMaxDetached + 100; ++i) tokens.push_back(recorder().open_detached(stage, 0));
  // THEN as many as possible are shown, and the others are counted
  EXPECT_EQ(read_open(arena()).size(), kMaxDetached);
  EXPECT_EQ(lost(kLostDetached), 100U);
  for (DetachedSpan& token : tokens) recorder().close_detached(token, 0);
  // THEN all were timed, and frames are free again
  EXPECT_EQ(count_of(stage), kMaxDetached + 100);
  EXPECT_TRUE(read_open(arena()).empty());
  DetachedSpan again = recorder().open_detached(stage, 0);
  EXPECT_EQ(read_open(arena()).size(), 1U);
  recorder().close_detached(again, 0);
}

TEST_F(SpansElsewhere, TokensOfManyThreadsAreShownCompletely) {
  constexpr unsigned kThreads = 4;
  const std::uint32_t stages[] = {recorder().intern("token.whole.0"), recorder().intern("token.whole.1")};
  const std::uint64_t rounds = test::scaled(100'000, 20);
  std::atomic<unsigned> running{kThreads};
  auto threads = test::start_threads(kThreads, [&](unsigned) {
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const bool odd = (round & 1) != 0;
      DetachedSpan token = recorder().open_detached(stages[odd], odd ? kFlagAsync : kFlagGenerator);
      recorder().close_detached(token, 0);
    }
    running.fetch_sub(1);
  });
  while (running.load() != 0) {
    for (const OpenCopy& copy : read_open(arena())) {
      ASSERT_TRUE((copy.stage == stages[1] && copy.flags == kFlagAsync) ||
                  (copy.stage == stages[0] && copy.flags == kFlagGenerator))
          << recorder().name_of(copy.stage) << " " << copy.flags << " " << copy.id << " " << copy.detached << " "
          << copy.parent;
      ASSERT_EQ(copy.parent, 0U);
    }
  }
  test::join(threads);
  EXPECT_EQ(count_of(stages[0]) + count_of(stages[1]), kThreads * rounds);
  EXPECT_TRUE(read_open(arena()).empty());
}

TEST_F(SpansElsewhere, RecordedTimesAreChildren) {
  const std::uint32_t outer = recorder().intern("record.outer");
  const std::uint32_t stage = recorder().intern("record");
  const ClockFit fit = recorder().clock_fit();
  const std::int64_t now_ns = fit.unix_ns(now_ticks());
  {
    const ScopedTimer timer(outer);
    // GIVEN times measured by other code
    EXPECT_TRUE(recorder().record(stage, now_ns - 5'000'000, now_ns - 2'000'000, kFlagError));
    EXPECT_TRUE(recorder().record(stage, now_ns - 1000, now_ns - 1000, 0));
  }
  const StageFigures figures = figures_of(stage);
  EXPECT_EQ(figures.host.count, 2U);
  EXPECT_EQ(figures.errors, 1U);
  EXPECT_EQ(figures.parents.at(outer).count, 2U);
  EXPECT_NEAR(fit.duration_ns(static_cast<double>(figures.host.max_ticks)), 3e6, 1e4);
  EXPECT_EQ(spans_of(stage)[0].flags, kFlagError | kFlagRecorded);
  // THEN those that end before they begin, or are out of range, are only counted
  EXPECT_FALSE(recorder().record(stage, now_ns, now_ns - 1'000'000, 0));
  EXPECT_FALSE(recorder().record(stage, std::numeric_limits<std::int64_t>::min(), now_ns, 0));
  EXPECT_FALSE(
      recorder().record(stage, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), 0));
  EXPECT_FALSE(
      recorder().record(stage, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(), 0));
  EXPECT_EQ(lost(kLostRecords), 4U);
  EXPECT_EQ(count_of(stage), 2U);
}

// --- reading while spans open and close -----------------------------------------------------------------

TEST_F(SpansElsewhere, OpenSpansAreReadCompletelyWhileThreadsRun) {
  constexpr unsigned kThreads = 4;
  constexpr std::uint16_t kDepth = 6;
  std::uint32_t stages[kDepth];
  for (std::uint16_t i = 0; i < kDepth; ++i) stages[i] = recorder().intern("whole." + std::to_string(i));
  const std::uint64_t rounds = test::scaled(200'000, 20);
  std::atomic<unsigned> running{kThreads};
  auto threads = test::start_threads(kThreads, [&](unsigned i) {
    Random random(300 + i);
    const auto nest = [&](auto&& self, std::uint16_t depth) -> void {
      const ScopedTimer timer(stages[depth]);
      if (depth + 1 < kDepth && !random.chance(4)) self(self, static_cast<std::uint16_t>(depth + 1));
    };
    for (std::uint64_t round = 0; round < rounds; ++round) nest(nest, 0);
    running.fetch_sub(1);
  });
  std::uint64_t seen = 0;
  while (running.load() != 0) {
    for (const OpenCopy& copy : read_open(arena())) {
      ASSERT_LT(copy.depth, kDepth);
      ASSERT_EQ(copy.stage, stages[copy.depth]);
      ASSERT_EQ(copy.parent == 0, copy.depth == 0);
      ASSERT_LT(copy.parent, copy.id);
      if (copy.parent != 0) {
        ASSERT_EQ(copy.parent >> 48, copy.id >> 48);
      }
      ASSERT_NE(copy.ident, 0U);
      ++seen;
    }
  }
  test::join(threads);
  EXPECT_GT(seen, 0U);
  EXPECT_TRUE(read_open(arena()).empty());
}

TEST_F(SpansElsewhere, AnOpenSpanIsNeverAttributedToAnotherThread) {
  const std::uint64_t rounds = test::scaled(300, 2);
  std::atomic<bool> done{false};
  // GIVEN threads that come and go, each with a name and a span that contain the same number
  std::uint32_t stages[4];
  for (int i = 0; i < 4; ++i) stages[i] = recorder().intern("owner-" + std::to_string(i));
  std::jthread churn([&] {
    for (std::uint64_t round = 0; round < rounds; ++round) {
      auto threads = test::start_threads(4, [&](unsigned i) {
        pthread_setname_np(pthread_self(), ("owner-" + std::to_string(i)).c_str());
        const ScopedTimer timer(stages[i]);
        std::this_thread::yield();
      });
      test::join(threads);
    }
    done = true;
  });
  while (!done) {
    for (const OpenCopy& copy : read_open(arena())) ASSERT_EQ(recorder().name_of(copy.stage), copy.thread_name);
  }
  churn.join();
}

}  // namespace
}  // namespace stagespan
