// test_ring.cpp: the rings of finished spans: overwritten spans are counted, and complete spans are read.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "support.h"

namespace stagespan {
namespace {

using test::made_span;
using test::spans_of;

constexpr std::uint32_t kRing = 256;
const bool g_small_rings = setenv("STAGESPAN_RING_SPANS", "200", 1) == 0;  // rounded up to a power of two

// The spans of one request, and whether all since that time are there.
std::pair<std::vector<SpanCopy>, bool> read_request(ArenaView arena, std::uint64_t request, std::uint64_t since_ticks) {
  std::uint64_t complete_from = 0;
  return {read_requests(arena, {request}, since_ticks, &complete_from), since_ticks >= complete_from};
}

class Ring : public test::RecorderTest {
 protected:
  ThreadState& thread() { return recorder().this_thread(); }
};

TEST_F(Ring, HasTheSizeThatWasAskedForRoundedUp) {
  // GIVEN a wish for 200 spans per thread
  // THEN a ring holds the next power of two
  EXPECT_EQ(arena().header().ring_spans, kRing);
  EXPECT_EQ(thread().ring_mask, kRing - 1);
}

TEST_F(Ring, LosesNothingUntilItIsFull) {
  const std::uint32_t stage = recorder().intern("full");
  // GIVEN as many spans as fit into a ring
  for (std::uint32_t i = 0; i < kRing; ++i) const ScopedTimer timer(stage);
  EXPECT_EQ(spans_of(stage).size(), kRing);
  EXPECT_EQ(overwritten(arena()), 0U);
  const std::uint64_t first = spans_of(stage)[0].id;
  {
    const ScopedTimer timer(stage);
  }
  EXPECT_EQ(spans_of(stage).size(), kRing);
  EXPECT_EQ(overwritten(arena()), 1U);
  EXPECT_EQ(spans_of(stage)[0].id, first + 1);
}

TEST_F(Ring, CountsWhatItLosesExactlyAndKeepsTheNewest) {
  const std::uint32_t stage = recorder().intern("wraps");
  std::uint64_t written = 0;
  // GIVEN rounds of spans that are never a whole number of rings
  for (const std::uint64_t more : {1U, 100U, kRing - 1, kRing, kRing + 1, 5 * kRing + 17}) {
    for (std::uint64_t i = 0; i < more; ++i, ++written) {
      FinishedSpan span = made_span(stage, 1000 + written, 1);
      span.request = written;
      commit_span(thread(), span);
    }
    const std::vector<SpanCopy> spans = spans_of(stage);
    // THEN the newest are there, in order, and the number of the others is known
    const std::uint64_t held = std::min<std::uint64_t>(written, kRing);
    ASSERT_EQ(spans.size(), held);
    for (std::uint64_t i = 0; i < held; ++i) ASSERT_EQ(spans[i].request, written - held + i);
    EXPECT_EQ(overwritten(arena()), written - held);
  }
  // THEN the statistics have lost nothing
  EXPECT_EQ(test::count_of(stage), written);
}

TEST_F(Ring, HoldsAllFieldsOfASpan) {
  const std::uint32_t stage = recorder().intern("fields");
  FinishedSpan span{};
  span.begin_ticks = 0xfedcba9876543210;
  span.end_ticks = 0xfedcba9876543211;
  span.id = ~std::uint64_t{0};
  span.parent = ~std::uint64_t{0} - 1;
  span.request = ~std::uint64_t{0} - 2;
  span.suspended_ticks = ~std::uint64_t{0} - 3;
  span.stage = stage;
  span.parent_stage = kNoStage;
  span.depth = 0xffff;
  span.flags = 0xffff;
  commit_span(thread(), span);
  const std::vector<SpanCopy> spans = spans_of(stage);
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(test::fields(spans[0]),
            std::tuple(span.begin_ticks, span.end_ticks, span.id, span.parent, span.request, span.suspended_ticks,
                       stage, thread().thread, std::uint16_t{0xffff}, std::uint16_t{kFlagPublished}));
}

TEST_F(Ring, ReadsInTheOrderOfBeginsOverAllThreads) {
  const std::uint32_t stage = recorder().intern("order");
  // GIVEN nested spans of several threads, so that they end in another order than they began
  auto threads = test::start_threads(4, [&](unsigned) {
    for (int i = 0; i < 20; ++i) {
      const ScopedTimer outer(stage);
      const ScopedTimer inner(stage);
    }
  });
  test::join(threads);
  const std::vector<SpanCopy> spans = spans_of(stage);
  ASSERT_EQ(spans.size(), 160U);
  for (std::size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1].begin_ticks, spans[i].begin_ticks);
}

TEST_F(Ring, OutlivesItsThreadAndKeepsItsNumbers) {
  const std::uint32_t stage = recorder().intern("reuse");
  const std::uint32_t threads_before = arena().header().slot_high_water.load();
  const std::uint32_t count = 2 * kMaxThreads;
  for (std::uint32_t i = 0; i < count; ++i)
    test::in_thread([&] {
      const ScopedTimer outer(stage);
      const ScopedTimer inner(stage);
    });
  const std::vector<SpanCopy> spans = spans_of(stage);
  // THEN those of threads that have left are there, and none is lost
  EXPECT_EQ(spans.size(), 2 * count);
  EXPECT_EQ(overwritten(arena()), 0U);
  // THEN they have shared a few slots
  EXPECT_LE(arena().header().slot_high_water.load(), std::max(threads_before, kExitedSlotsKept) + 1);
  std::map<std::uint64_t, std::uint32_t> ids;
  for (const SpanCopy& span : spans) EXPECT_TRUE(ids.emplace(span.id, span.thread).second);
  for (const SpanCopy& span : spans) {
    if (span.depth == 0) continue;
    ASSERT_TRUE(ids.contains(span.parent));
    EXPECT_EQ(ids[span.parent], span.thread);
  }
  EXPECT_EQ(test::count_of(stage), 2 * count);
}

TEST_F(Ring, IdsStayUniqueOverResetsAndReusedSlots) {
  const std::uint32_t stage = recorder().intern("ids");
  std::set<std::uint64_t> ids;
  std::size_t total = 0;
  for (int round = 0; round < 3; ++round) {
    // GIVEN threads that come and go, with a reset in between
    for (int i = 0; i < 300; ++i) test::in_thread([&] { const ScopedTimer timer(stage); });
    for (const SpanCopy& span : spans_of(stage)) {
      ids.insert(span.id);
      ++total;
    }
    recorder().reset();
  }
  // THEN no id occurs twice
  EXPECT_EQ(total, 900U);
  EXPECT_EQ(ids.size(), total);
}

TEST_F(Ring, TheRecordWhoseNumberLooksLikeNoneIsLeftOut) {
  const std::uint32_t stage = recorder().intern("wrap32");
  test::in_thread([&] {
    // GIVEN a ring in which almost 2^32 records have been written
    ThreadState& self = recorder().this_thread();
    const std::uint64_t start = (std::uint64_t{1} << 32) - 10;
    self.head = start;
    self.slot->head.store(start);
    self.slot->floor.store(start);
    for (std::uint64_t i = 0; i < 20; ++i) {
      FinishedSpan span = made_span(stage, 1000 + i, 1);
      span.request = i;
      commit_span(self, span);
    }
    // THEN all are read except the one whose number, in 32 bits, is that of a record being written
    const std::vector<SpanCopy> spans = spans_of(stage);
    EXPECT_EQ(spans.size(), 19U);
    for (const SpanCopy& span : spans) EXPECT_NE(span.request, 9U);
    EXPECT_EQ(overwritten(arena()), 0U);
  });
}

// --- requests -------------------------------------------------------------------------------------------

TEST_F(Ring, ARequestIsReadFromAllThreads) {
  const std::uint32_t stage = recorder().intern("requests");
  const std::uint64_t since = now_ticks();
  const auto run = [&] {
    for (std::uint64_t request = 1; request <= 3; ++request) {
      recorder().this_thread().scope->request = request;
      for (std::uint64_t i = 0; i < request * 10; ++i) const ScopedTimer timer(stage);
    }
    recorder().this_thread().scope->request = 0;
  };
  run();
  test::in_thread(run);
  for (std::uint64_t request = 1; request <= 3; ++request) {
    const auto [spans, complete] = read_request(arena(), request, since);
    EXPECT_EQ(spans.size(), 2 * request * 10);
    EXPECT_TRUE(complete);
    for (const SpanCopy& span : spans) EXPECT_EQ(span.request, request);
  }
}

TEST_F(Ring, AnOverwrittenRequestIsMarkedAsIncomplete) {
  const std::uint32_t stage = recorder().intern("requests.wrap");
  {
    const ScopedTimer before(stage);
  }
  const std::uint64_t since = now_ticks();
  thread().scope->request = 4;
  for (std::uint32_t i = 0; i < 2 * kRing; ++i) const ScopedTimer timer(stage);
  thread().scope->request = 0;
  const auto [wrapped, all_of_wrapped] = read_request(arena(), 4, since);
  EXPECT_EQ(wrapped.size(), kRing);
  EXPECT_FALSE(all_of_wrapped);
  // THEN one that began later is complete: what was overwritten ended before it
  const std::uint64_t later = now_ticks();
  thread().scope->request = 5;
  for (std::uint32_t i = 0; i < 10; ++i) const ScopedTimer timer(stage);
  thread().scope->request = 0;
  const auto [spans, complete] = read_request(arena(), 5, later);
  EXPECT_EQ(spans.size(), 10U);
  EXPECT_TRUE(complete);
}

TEST_F(Ring, RecordedTimesDoNotHideARequestsSpans) {
  const std::uint32_t stage = recorder().intern("requests.record");
  const std::uint64_t since = now_ticks();
  const std::int64_t long_ago = recorder().clock_fit().unix_ns(since) - 60'000'000'000;
  thread().scope->request = 6;
  for (std::uint32_t i = 0; i < 10; ++i) const ScopedTimer timer(stage);
  ASSERT_TRUE(recorder().record(stage, long_ago, long_ago + 1000, 0));
  for (std::uint32_t i = 0; i < 10; ++i) const ScopedTimer timer(stage);
  thread().scope->request = 0;
  const auto [spans, complete] = read_request(arena(), 6, since);
  EXPECT_EQ(spans.size(), 21U);
  EXPECT_TRUE(complete);
}

// --- reading while writers wrap -------------------------------------------------------------------------

// Every field of these spans follows from one number, so that a torn record can be detected.
FinishedSpan telling_span(std::uint32_t stage, std::uint64_t n) {
  FinishedSpan span{};
  span.begin_ticks = n * 3;
  span.end_ticks = n * 3 + 1 + n % 7;
  span.id = n ^ 0xaaaaaaaaaaaaaaaa;
  span.parent = ~n;
  span.request = n * 0x9e3779b97f4a7c15;
  span.suspended_ticks = n + 12345;
  span.stage = stage;
  span.parent_stage = kNoStage;
  span.depth = static_cast<std::uint16_t>(n);
  span.flags = static_cast<std::uint16_t>(n & kFlagPublished);
  return span;
}

void expect_whole(const SpanCopy& span, std::uint32_t stage) {
  const std::uint64_t n = span.id ^ 0xaaaaaaaaaaaaaaaa;
  const FinishedSpan should = telling_span(stage, n);
  ASSERT_EQ(test::fields(span),
            std::tuple(should.begin_ticks, should.end_ticks, should.id, should.parent, should.request,
                       should.suspended_ticks, stage, span.thread, should.depth, should.flags))
      << n;
}

TEST_F(Ring, NoRecordIsReadTornWhileWritersWrap) {
  constexpr unsigned kThreads = 3;
  const std::uint32_t stage = recorder().intern("torn");
  const std::uint64_t rounds = test::scaled(4'000'000, 80);
  std::atomic<unsigned> running{kThreads};
  auto threads = test::start_threads(kThreads, [&](unsigned i) {
    ThreadState& self = recorder().this_thread();
    for (std::uint64_t n = 0; n < rounds; ++n) commit_span(self, telling_span(stage, n * kThreads + i));
    running.fetch_sub(1);
  });
  std::atomic<std::uint64_t> seen{0};
  const auto read = [&](unsigned) {
    bool last = false;
    while (!last) {
      last = running.load() == 0;
      for (const SpanCopy& span : read_spans(arena())) {
        if (span.stage != stage) continue;
        expect_whole(span, stage);
        seen.fetch_add(1, std::memory_order_relaxed);
      }
      if (HasFatalFailure()) return;
    }
  };
  auto readers = test::start_threads(2, read);
  test::join(threads);
  test::join(readers);
  // THEN every record that was read was complete, and the losses are exact
  EXPECT_GE(seen.load(), kThreads * kRing);
  EXPECT_EQ(overwritten(arena()), kThreads * (rounds - kRing));
  EXPECT_EQ(spans_of(stage).size(), kThreads * kRing);
  EXPECT_EQ(test::count_of(stage), kThreads * rounds);
}

}  // namespace
}  // namespace stagespan
