// test_work_distributions.cpp: the amounts that runs and requests have had, as distributions.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <random>
#include <vector>

#include "recording_support.h"
#include "stagespan/histogram.h"
#include "stagespan/snapshot.h"
#include "stagespan/span_path.h"

namespace stagespan {
namespace {

using test::figures_of;
using test::lost;

FinishedSpan finished_span(std::uint64_t id, std::uint32_t stage) {
  FinishedSpan span{};
  span.id = id;
  span.stage = stage;
  return span;
}

class WorkDistributions : public test::Recordings {
 protected:
  /// A run of a stage that has had these amounts of a unit.
  void run(std::uint32_t stage, const std::string& unit, const std::vector<double>& amounts,
           std::uint64_t request = 0) {
    ThreadState& thread = recorder().this_thread();
    thread.scope->request = request;
    OpenFrame* const frame = open_frame(thread, stage, nullptr);
    thread.scope->request = 0;
    for (const double amount : amounts)
      recorder().add_work(stage, unit, 0, amount, {frame->id.load(), frame->begin_ticks.load(), frame});
    close_frame(thread, *frame, 0);
  }
  AmountDistribution of(std::uint32_t stage, const std::string& unit) {
    const auto amounts = figures_of(stage).amounts;
    const auto found = amounts.find(unit);
    return found != amounts.end() ? found->second : AmountDistribution{};
  }
};

TEST_F(WorkDistributions, ARunCountsOnceWithItsSum) {
  const std::uint32_t stage = recorder().intern("distributions.run");
  for (int i = 1; i <= 100; ++i) run(stage, "tokens", {1, i - 1.0});
  run(stage, "other", {});
  const AmountDistribution found = of(stage, "tokens");
  EXPECT_EQ(found.count, 100U);
  EXPECT_EQ(found.sum, 5050);
  EXPECT_EQ(found.least, 1);
  EXPECT_EQ(found.most, 100);
  EXPECT_EQ(found.fractions, 0U);
  EXPECT_EQ(found.quantile(0.2), 20);
  EXPECT_NEAR(found.quantile(0.95).value(), 95, 95 * 0.031);
  EXPECT_NEAR(found.quantile(1).value(), 100, 100 * 0.031);
  // THEN a run without amounts is not in it, and a run that is open is not counted yet
  EXPECT_EQ(of(stage, "other").count, 0U);
  ThreadState& thread = recorder().this_thread();
  OpenFrame* const frame = open_frame(thread, stage, nullptr);
  recorder().add_work(stage, "tokens", 7, 0, {frame->id.load(), frame->begin_ticks.load(), frame});
  EXPECT_EQ(of(stage, "tokens").count, 100U);
  close_frame(thread, *frame, 0);
  EXPECT_EQ(of(stage, "tokens").count, 101U);
}

TEST_F(WorkDistributions, AmountsOfEverySizeAreCounted) {
  const std::uint32_t stage = recorder().intern("distributions.sizes");
  const double largest = std::numeric_limits<double>::max();
  for (const double amount : {0.0, 0.37, 1e-300, 1e15, largest, largest}) run(stage, "units", {amount});
  const AmountDistribution found = of(stage, "units");
  EXPECT_EQ(found.count, 6U);
  EXPECT_EQ(found.sum, largest);
  EXPECT_EQ(found.least, 0);
  EXPECT_EQ(found.most, largest);
  EXPECT_EQ(found.fractions, 2U);
  EXPECT_NEAR(found.quantile(0.5).value(), 0.37, 0.37 * 0.031);
  EXPECT_EQ(found.quantile(1), largest);
  EXPECT_EQ(lost(kLostWork), 0U);
  // THEN what is not an amount is lost
  const double infinite = std::numeric_limits<double>::infinity();
  run(stage, "units", {std::nan("")});
  run(stage, "units", {infinite});
  run(stage, "units", {-1});
  run(stage, "units", {largest, largest});
  EXPECT_EQ(of(stage, "units").count, 6U);
  EXPECT_EQ(lost(kLostWork), 4U);
  // THEN a correction is a part of the sum
  run(stage, "units", {5, -3});
  EXPECT_EQ(of(stage, "units").count, 7U);
}

TEST_F(WorkDistributions, ARequestCountsTheSumOfItsSpansAndOfThoseInside) {
  const std::uint32_t stage = recorder().intern("distributions.decode");
  const std::uint32_t pipeline = recorder().intern_pipeline("distributions", kRequestOk);
  run(stage, "tokens", {10}, 4001);
  run(stage, "tokens", {5}, 4001);
  run(stage, "images", {2}, 4001);
  run(stage, "tokens", {100}, 4002);
  run(stage, "tokens", {7}, 4003);
  recorder().pass_request_work(4003, 4002);
  recorder().count_request_work(4001, pipeline, 0);
  recorder().count_request_work(4002, pipeline, 3);
  recorder().count_request_work(4004, pipeline, 42);
  recorder().count_request_work(4001, pipeline, 0);
  EXPECT_EQ(of(stage, "tokens").count, 4U);
  const AmountDistribution tokens = of(pipeline, "tokens");
  EXPECT_EQ(tokens.count, 3U);
  EXPECT_EQ(tokens.sum, 15 + 107 + 42);
  EXPECT_EQ(tokens.least, 15);
  EXPECT_EQ(of(pipeline, "images").sum, 2);
}

TEST_F(WorkDistributions, ASpanThatEndsElsewhereIsCounted) {
  const std::uint32_t stage = recorder().intern("distributions.elsewhere");
  ThreadState& thread = recorder().this_thread();
  OpenFrame* const frame = open_frame(thread, stage, nullptr);
  const std::uint64_t id = frame->id.load();
  // GIVEN amounts from a thread that only knows the span's id
  test::in_thread([&] { recorder().add_work(stage, "tokens", 3, 0, {id, now_ticks()}); });
  close_frame(thread, *frame, 0);
  EXPECT_EQ(of(stage, "tokens").count, 1U);
  DetachedSpan token = recorder().open_detached(stage, 0);
  recorder().add_work(stage, "tokens", 4, 0, {token.span.id, token.span.begin_ticks});
  recorder().close_detached(token, 0);
  EXPECT_EQ(of(stage, "tokens").sum, 7);
  // THEN a thread that ends inside a span has not completed a run
  test::in_thread([&] {
    OpenFrame* const left = open_frame(recorder().this_thread(), stage, nullptr);
    recorder().add_work(stage, "tokens", 9, 0, {left->id.load(), left->begin_ticks.load(), left});
  });
  EXPECT_EQ(of(stage, "tokens").count, 2U);
  EXPECT_FALSE(g_span_work.may_have(id));
}

TEST_F(WorkDistributions, SumsOfSpansThatNeverEndAreReplaced) {
  const std::uint32_t stage = recorder().intern("distributions.never");
  constexpr std::uint64_t kFirst = std::uint64_t{900} << 32, kOpen = 20'000;
  for (std::uint64_t i = 0; i < kOpen; ++i) recorder().add_work(stage, "tokens", 1, 0, {kFirst + i, 1});
  const std::uint64_t replaced = lost(kLostWork);
  EXPECT_GT(replaced, 0U);
  for (std::uint64_t i = 0; i < kOpen; ++i) recorder().count_span_work(finished_span(kFirst + i, stage));
  EXPECT_EQ(of(stage, "tokens").count, kOpen - replaced);
}

TEST_F(WorkDistributions, TheDifferenceOfSnapshotsAndAReset) {
  const std::uint32_t stage = recorder().intern("distributions.difference");
  run(stage, "tokens", {1000});
  const Snapshot earlier = test::snapshot();
  for (int i = 0; i < 3; ++i) run(stage, "tokens", {8});
  const StageFigures between = figures_of(difference(test::snapshot(), earlier), stage);
  EXPECT_EQ(between.amounts.at("tokens").count, 3U);
  EXPECT_EQ(between.amounts.at("tokens").sum, 24);
  EXPECT_EQ(between.amounts.at("tokens").quantile(1), 8);
  EXPECT_FALSE(difference(earlier, earlier).stages.contains(stage));
  recorder().reset();
  EXPECT_EQ(of(stage, "tokens").count, 0U);
  run(stage, "tokens", {3});
  EXPECT_EQ(of(stage, "tokens").least, 3);
}

// In a child, because it fills the table.
TEST_F(WorkDistributions, FurtherKeysShareADistribution) {
  const auto fill = [&] {
    const std::uint32_t room = kMaxWorkBlocks - 1 - arena().header().work_block_count.load();
    for (std::uint32_t i = 0; i < room; ++i)
      recorder().count_batch(recorder().intern("distributions." + std::to_string(i)), 1, 0, nullptr, 0);
    if (lost(kLostWork) != 0) return 1;
    for (std::uint32_t i = 0; i < 50; ++i)
      recorder().count_batch(recorder().intern("distributions.more" + std::to_string(i)), 2, 0, nullptr, 0);
    if (lost(kLostWork) != 50) return 2;
    if (arena().header().work_block_count.load() != kMaxWorkBlocks) return 3;
    return of(kStageOverflow, kForeignName).sum == 100 ? 0 : 4;
  };
  EXPECT_EXIT(_exit(fill()), ::testing::ExitedWithCode(0), "");
}

TEST_F(WorkDistributions, TheyAreReadFromAProcessThatWasKilled) {
  const std::uint32_t stage = recorder().intern("distributions.killed");
  constexpr int kRuns = 1000;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 1; i <= kRuns; ++i) run(stage, "tokens", {static_cast<double>(i)});
    const bool is_told = write(ready[1], "x", 1) == 1;
    while (is_told) run(stage, "tokens", {1});
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  RecordingCopy copy;
  ASSERT_EQ(read(file_of(child), copy), "");
  const AmountDistribution found = figures_of(take_snapshot(copy.arena, copy.fit), stage).amounts.at("tokens");
  EXPECT_EQ(copy.damaged, 0U);
  EXPECT_GE(found.count, static_cast<std::uint64_t>(kRuns));
  EXPECT_EQ(found.most, kRuns);
  std::uint64_t in_buckets = 0;
  for (const auto& [bucket, n] : found.buckets) in_buckets += n;
  EXPECT_LE(in_buckets - found.count, 1U);
}

}  // namespace
}  // namespace stagespan
