// test_amounts.cpp: the work of single spans, as another process reads it.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "recording_support.h"
#include "stagespan/text.h"

namespace stagespan {
namespace {

using AmountsBySpan = std::unordered_map<std::uint64_t, std::map<std::uint32_t, Amount>>;

class Amounts : public test::Recordings {
 protected:
  /// The sum of a span's amounts in a unit; NaN if it has none.
  static double amount_of(const RecordingCopy& copy, std::uint64_t span, const std::string& unit) {
    const AmountsBySpan found = read_amounts(copy.arena);
    const auto of_span = found.find(span);
    if (of_span == found.end()) return std::nan("");
    for (const auto& [key, amount] : of_span->second)
      if (copy.arena.work_keys()[key].text == unit) return static_cast<double>(amount.whole) + amount.fraction;
    return std::nan("");
  }
  /// The marks of this process's recording.
  std::string marks() {
    const int fd = open(file_of(getpid()).c_str(), O_RDONLY | O_CLOEXEC);
    const std::string found = recording_marks(fd);
    close(fd);
    return found;
  }
  std::uint64_t first_span_id_ = 1ULL << 60;
};

TEST_F(Amounts, EachUnitOfEachSpanHasItsSum) {
  const std::uint32_t stage = recorder().intern("amounts.stage");
  const ScopedTimer begins_the_recording(stage);
  const WorkingSpan one{first_span_id_, now_ticks()}, other{first_span_id_ + 1, now_ticks()};
  constexpr std::int64_t kExact = (std::int64_t{1} << 53) + 1;
  for (int i = 0; i < 3; ++i) {
    recorder().add_work(stage, "tokens", 100 + i, 0, one);
    recorder().add_work(stage, "frames", 0, 0.25, one);
    recorder().add_work(stage, "tokens", -7, 0, other);
  }
  recorder().add_work(stage, "bytes", kExact, 0, other);
  recorder().add_work(stage, "nothing", 0, 0, other);
  recorder().add_work(stage, "tokens", 1000, 0);
  const RecordingCopy copy = copied();
  EXPECT_EQ(amount_of(copy, one.id, "tokens"), 303);
  EXPECT_EQ(amount_of(copy, one.id, "frames"), 0.75);
  EXPECT_EQ(amount_of(copy, other.id, "tokens"), -21);
  EXPECT_EQ(amount_of(copy, other.id, "nothing"), 0);
  bool is_exact = false;
  const AmountsBySpan all = read_amounts(copy.arena);
  for (const auto& [key, amount] : all.at(other.id)) is_exact |= amount.whole == kExact;
  EXPECT_TRUE(is_exact);
  EXPECT_EQ(test::figures_of(stage).work.at("tokens"), 303 - 21 + 1000);
  // THEN only spans that are asked for are returned
  const std::unordered_set<std::uint64_t> wanted{other.id, 77};
  const AmountsBySpan some = read_amounts(copy.arena, &wanted);
  EXPECT_EQ(some.size(), 1U);
  EXPECT_TRUE(some.contains(other.id));
}

TEST_F(Amounts, ALoopThatAddsALittleEachTimeNeedsOneRecord) {
  const std::uint32_t stage = recorder().intern("amounts.loop");
  const ScopedTimer begins_the_recording(stage);
  const std::uint64_t before = arena().ring_of<AmountRecord>().head.load();
  // GIVEN a span that counts two units in a loop
  const WorkingSpan span{first_span_id_ + 2, now_ticks()};
  for (int i = 0; i < 1000; ++i) {
    recorder().add_work(stage, "tokens", 1, 0, span);
    recorder().add_work(stage, "frames", 2, 0, span);
  }
  EXPECT_EQ(arena().ring_of<AmountRecord>().head.load() - before, 2U);
  const RecordingCopy copy = copied();
  EXPECT_EQ(amount_of(copy, span.id, "tokens"), 1000);
  EXPECT_EQ(amount_of(copy, span.id, "frames"), 2000);
}

TEST_F(Amounts, SumsBeyondTheRangesStayNumbers) {
  const std::uint32_t stage = recorder().intern("amounts.large");
  const ScopedTimer begins_the_recording(stage);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  constexpr double largest = std::numeric_limits<double>::max();
  const WorkingSpan span{first_span_id_ + 3, now_ticks()};
  for (int i = 0; i < 3; ++i) {
    recorder().add_work(stage, "flops", most, 0, span);
    recorder().add_work(stage, "huge", 0, largest, span);
    recorder().add_work(stage, "not finite", 0, std::numeric_limits<double>::infinity(), span);
  }
  const RecordingCopy copy = copied();
  EXPECT_DOUBLE_EQ(amount_of(copy, span.id, "flops"), 3.0 * static_cast<double>(most));
  EXPECT_EQ(amount_of(copy, span.id, "huge"), largest);
  EXPECT_TRUE(std::isnan(amount_of(copy, span.id, "not finite")));
}

TEST_F(Amounts, LaterOnesOverwriteTheOldestAndTheRecordingSaysSinceWhen) {
  const std::uint32_t stage = recorder().intern("amounts.many");
  const ScopedTimer begins_the_recording(stage);
  const std::uint64_t capacity = arena().ring_of<AmountRecord>().capacity;
  const std::uint64_t first = first_span_id_ + 1000, count = capacity + 100;
  std::vector<std::uint64_t> begins;
  for (std::uint64_t i = 0; i < count; ++i) {
    begins.push_back(1000 + i);
    recorder().add_work(stage, "tokens", 1, 0, {first + i, begins.back()});
  }
  // THEN the latest ones are there, and the spans that began after the last one that is gone are whole
  const RecordingCopy copy = copied();
  const AmountsBySpan found = read_amounts(copy.arena);
  EXPECT_FALSE(found.contains(first + 99));
  for (std::uint64_t i = 100; i < count; ++i) ASSERT_TRUE(found.contains(first + i)) << i;
  EXPECT_GE(copy.arena.header().amounts_since_ticks.load(), begins[99]);
}

TEST_F(Amounts, AReaderSeesNoHalfAmounts) {
  const std::uint32_t stage = recorder().intern("amounts.race");
  const ScopedTimer begins_the_recording(stage);
  const std::uint64_t rounds = test::scaled(60'000, 20);
  std::atomic<bool> running{true};
  std::jthread adding([&] {
    for (std::uint64_t i = 1; i <= rounds; ++i)
      recorder().add_work(stage, "tokens", static_cast<std::int64_t>(i), 0, {first_span_id_ * 2 + i, i});
    running.store(false);
  });
  do {
    const RecordingCopy copy = copied();
    const AmountsBySpan found = read_amounts(copy.arena);
    for (const auto& [span, amounts] : found) {
      if (span <= first_span_id_ * 2) continue;
      for (const auto& [key, amount] : amounts)
        ASSERT_EQ(static_cast<std::uint64_t>(amount.whole), span - first_span_id_ * 2);
    }
  } while (running.load());
}

TEST_F(Amounts, MarksChangeWithWhateverIsRecorded) {
  const std::uint32_t stage = recorder().intern("marks.stage"), queue = recorder().intern("marks.queue", kQueue);
  {
    const ScopedTimer begins_the_recording(stage);
  }
  const auto changes = [&](const char* what, auto&& change) {
    const std::string before = marks();
    EXPECT_FALSE(before.empty());
    EXPECT_EQ(marks(), before) << "although nothing was recorded before: " << what;
    change();
    EXPECT_NE(marks(), before) << what;
  };
  changes("a span", [&] { const ScopedTimer span(stage); });
  OpenSpan open{};
  changes("an open span", [&] { open = open_span(stage); });
  changes("its end", [&] { close_span(open, 0); });
  DetachedSpan token;
  changes("a token", [&] { token = recorder().open_detached(stage, 0); });
  changes("its end", [&] { recorder().close_detached(token, 0); });
  changes("work", [&] { recorder().add_work(stage, "tokens", 1, 0); });
  changes("work of a span", [&] { recorder().add_work(stage, "tokens", 1, 0, {first_span_id_ + 5, 1}); });
  changes("the same again", [&] { recorder().add_work(stage, "tokens", 1, 0, {first_span_id_ + 5, 1}); });
  std::uint32_t index = 0;
  SegmentFields start;
  set_text(start.id, "marked");
  start.received_ticks = now_ticks();
  changes("a request", [&] { index = recorder().begin_segment(4711, start); });
  changes("that it is entered", [&] { recorder().enter_segment(4711, index, queue); });
  changes("a chunk", [&] {
    recorder().add_first_chunk(*recorder().segment(4711, index), 3, recorder().intern("f", kFirstChunk),
                               recorder().intern("p", kPartFirstChunk));
  });
  changes("its status", [&] { recorder().set_segment_status(4711, index, kStatusError); });
  changes("its end", [&] { recorder().end_segment(4711, index, kStatusOk); });
  const std::uint64_t numbers[] = {4711};
  changes("a link", [&] { recorder().add_links(1, numbers, 1, 1); });
  changes("a loss", [&] { recorder().lose(kLostHookErrors); });
  changes("a name", [&] { recorder().intern("marks.new"); });
  changes("a reset", [&] { recorder().reset(); });
}

}  // namespace
}  // namespace stagespan
