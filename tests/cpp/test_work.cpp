// test_work.cpp: work counters by stage and key.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support.h"

namespace stagespan {
namespace {

using test::figures_of;
using test::lost;

class Work : public test::RecorderTest {
 protected:
  std::map<std::string, double> work_of(std::uint32_t stage) { return figures_of(stage).work; }
};

TEST_F(Work, AmountsAddUpByStageAndKey) {
  const std::uint32_t decode = recorder().intern("work.decode");
  const std::uint32_t encode = recorder().intern("work.encode");
  // GIVEN amounts of two kinds for two stages, whole and fractional, negative and 0
  recorder().add_work(decode, "tokens", 230, 0);
  recorder().add_work(decode, "tokens", 20, 0.25);
  recorder().add_work(decode, "tokens", -50, 0);
  recorder().add_work(decode, "frames", 0, 1.5);
  recorder().add_work(encode, "tokens", 7, 0);
  recorder().add_work(encode, "nothing", 0, 0);
  // THEN each sum has its own stage and key; an amount of 0 counts too
  EXPECT_EQ(work_of(decode), (std::map<std::string, double>{{"tokens", 200.25}, {"frames", 1.5}}));
  EXPECT_EQ(work_of(encode), (std::map<std::string, double>{{"tokens", 7}, {"nothing", 0}}));
}

TEST_F(Work, AStageThatOnlyWorkedIsShownWithoutTimes) {
  const std::uint32_t stage = recorder().intern("work.only");
  recorder().add_work(stage, "tokens", 5, 0);
  const Snapshot snapshot = test::snapshot();
  ASSERT_TRUE(snapshot.stages.contains(stage));
  EXPECT_EQ(figures_of(snapshot, stage).host.count, 0U);
  EXPECT_FALSE(figures_of(snapshot, stage).host.quantile_ticks(0.5).has_value());
}

TEST_F(Work, WholeNumbersStayExactBeyondWhatADoubleHolds) {
  const std::uint32_t stage = recorder().intern("work.exact");
  // GIVEN a sum of 2^53, beyond which a double cannot represent every integer
  recorder().add_work(stage, "bytes", std::int64_t{1} << 53, 0);
  for (int i = 0; i < 1000; ++i) recorder().add_work(stage, "bytes", 1, 0);
  EXPECT_EQ(work_of(stage).at("bytes"), 0x1p53 + 1000);
}

TEST_F(Work, SumsBeyond64BitsKeepTheirSign) {
  const std::uint32_t stage = recorder().intern("work.large");
  // GIVEN ten seconds at 400 TFLOP/s
  constexpr std::int64_t kOperations = 4'000'000'000'000'000;
  // WHEN they are added for 6.7 hours, and the same is subtracted from another counter
  for (int i = 0; i < 2400; ++i) {
    recorder().add_work(stage, "flops", kOperations, 0);
    recorder().add_work(stage, "spare", -kOperations, 0.5);
  }
  // THEN the sums are right within a double's precision
  EXPECT_DOUBLE_EQ(work_of(stage).at("flops"), 2400.0 * kOperations);
  EXPECT_DOUBLE_EQ(work_of(stage).at("spare"), -2400.0 * kOperations + 1200);
  const Snapshot earlier = test::snapshot();
  for (int i = 0; i < 2400; ++i) recorder().add_work(stage, "flops", kOperations, 0);
  EXPECT_DOUBLE_EQ(figures_of(difference(test::snapshot(), earlier), stage).work.at("flops"), 2400.0 * kOperations);
}

TEST_F(Work, SumsBeyondADoubleStayAtTheLargestOne) {
  const std::uint32_t stage = recorder().intern("work.largest");
  constexpr double largest = std::numeric_limits<double>::max();
  // GIVEN amounts near the largest number
  for (int i = 0; i < 3; ++i) {
    recorder().add_work(stage, "more", 7, largest);
    recorder().add_work(stage, "less", -7, -largest);
    recorder().add_work(stage, "carried", std::numeric_limits<std::int64_t>::max(), largest);
  }
  EXPECT_EQ(work_of(stage).at("more"), largest);
  EXPECT_EQ(work_of(stage).at("less"), -largest);
  EXPECT_EQ(work_of(stage).at("carried"), largest);
  EXPECT_EQ(lost(kLostWork), 0U);
}

TEST_F(Work, ASumThatGrowsBeyond64BitsIsReadCompletely) {
  const std::uint32_t stage = recorder().intern("work.carried");
  constexpr std::int64_t kAmount = std::int64_t{1} << 62;
  const std::uint64_t rounds = test::scaled(200'000, 20);
  std::atomic<bool> running{true};
  std::jthread adding([&] {
    for (std::uint64_t i = 0; i < rounds; ++i) recorder().add_work(stage, "flops", kAmount, 0);
    running.store(false);
  });
  double before = 0;
  while (running.load()) {
    const Snapshot now = take_snapshot(arena(), recorder().clock_fit());
    const auto found = now.stages.find(stage);
    const double sum = found == now.stages.end() ? 0 : found->second.work.at("flops");
    // THEN it only increases, by whole amounts
    ASSERT_GE(sum, before);
    ASSERT_EQ(std::fmod(sum, 0x1p62), 0);
    before = sum;
  }
  adding.join();
  EXPECT_EQ(work_of(stage).at("flops"), static_cast<double>(rounds) * 0x1p62);
}

TEST_F(Work, ManyThreadsAddExactly) {
  constexpr unsigned kThreads = 8;
  const std::uint64_t rounds = test::scaled(20'000, 20);
  std::uint32_t stages[3];
  for (int i = 0; i < 3; ++i) stages[i] = recorder().intern("work.threads." + std::to_string(i));
  // GIVEN threads that add to the same counters, while a reader reads them
  std::atomic<unsigned> running{kThreads};
  auto threads = test::start_threads(kThreads, [&](unsigned) {
    for (std::uint64_t i = 0; i < rounds; ++i)
      for (const std::uint32_t stage : stages) recorder().add_work(stage, "units", 3, 0.5);
    running.fetch_sub(1);
  });
  double before = 0;
  while (running.load() != 0) {
    const Snapshot now = test::snapshot();
    const StageFigures figures = figures_of(now, stages[0]);
    const double amount = figures.work.contains("units") ? figures.work.at("units") : 0;
    ASSERT_GE(amount, before);
    before = amount;
  }
  test::join(threads);
  for (const std::uint32_t stage : stages)
    EXPECT_EQ(work_of(stage).at("units"), static_cast<double>(kThreads * rounds) * 3.5);
}

TEST_F(Work, LongKeysAreCutBetweenCharacters) {
  const std::uint32_t stage = recorder().intern("work.long");
  std::string key = "x";
  while (key.size() < 200) key += "\xC3\xA4";
  recorder().add_work(stage, key, 1, 0);
  recorder().add_work(stage, key, 1, 0);
  const auto work = work_of(stage);
  ASSERT_EQ(work.size(), 1U);
  EXPECT_EQ(work.begin()->first, key.substr(0, 63));
  EXPECT_EQ(work.begin()->second, 2);
  recorder().reset();
  recorder().add_work(stage, "x" + key, 1, 0);
  EXPECT_EQ(work_of(stage).begin()->first, "x" + key.substr(0, 61));
}

TEST_F(Work, AResetRemovesTheAmountsButNotTheKeys) {
  const std::uint32_t stage = recorder().intern("work.reset");
  recorder().add_work(stage, "tokens", 5, 0.5);
  const std::uint32_t keys = arena().header().work_key_count.load();
  recorder().reset();
  EXPECT_TRUE(work_of(stage).empty());
  recorder().add_work(stage, "tokens", 2, 0);
  EXPECT_EQ(work_of(stage).at("tokens"), 2);
  EXPECT_EQ(arena().header().work_key_count.load(), keys);
}

TEST_F(Work, WorkBetweenTwoSnapshotsIsTheirDifference) {
  const std::uint32_t stage = recorder().intern("work.difference");
  recorder().add_work(stage, "tokens", 100, 0);
  const Snapshot earlier = test::snapshot();
  recorder().add_work(stage, "tokens", 23, 0);
  recorder().add_work(stage, "frames", 4, 0);
  const Snapshot between = difference(test::snapshot(), earlier);
  EXPECT_EQ(figures_of(between, stage).work.at("tokens"), 23);
  EXPECT_EQ(figures_of(between, stage).work.at("frames"), 4);
  // THEN a stage without work since is not in it
  EXPECT_FALSE(difference(earlier, earlier).stages.contains(stage));
}

// The last two tests fill the tables, each in a separate child.

TEST_F(Work, BeyondTheTableOfKeysWorkIsCounted) {
  const auto fill = [&] {
    const std::uint32_t stage = recorder().intern("work.keys");
    // GIVEN as many keys as fit beside the one of all others
    const std::uint32_t room = kMaxWorkKeys - 1 - arena().header().work_key_count.load();
    for (std::uint32_t i = 0; i < room; ++i) recorder().add_work(stage, "key" + std::to_string(i), 1, 0);
    if (lost(kLostWork) != 0) return 1;
    for (std::uint32_t i = 0; i < 50; ++i) recorder().add_work(stage, "more" + std::to_string(i), 1, 0);
    if (lost(kLostWork) != 50) return 2;
    recorder().add_work(stage, "key0", 41, 0);
    if (work_of(stage).at("key0") != 42) return 3;
    if (work_of(stage).at(kForeignName) != 50) return 4;
    return work_of(stage).size() == room + 1 ? 0 : 5;
  };
  EXPECT_EXIT(_exit(fill()), ::testing::ExitedWithCode(0), "");
}

TEST_F(Work, BeyondTheTableOfCountersWorkIsCounted) {
  const auto fill = [&] {
    // GIVEN as many pairs of stage and key as fit
    std::vector<std::uint32_t> stages;
    for (std::uint32_t i = 0; i < kMaxWork / 64 + 2; ++i)
      stages.push_back(recorder().intern("work.full." + std::to_string(i)));
    const auto key = [](std::uint32_t i) { return "full" + std::to_string(i % 64); };
    for (std::uint32_t i = 0; i < kMaxWork; ++i) recorder().add_work(stages[i / 64], key(i), 1, 0);
    if (lost(kLostWork) != 0) return 1;
    recorder().add_work(stages.back(), key(0), 1, 0);
    if (lost(kLostWork) != 1) return 2;
    std::size_t counters = 0;
    for (const auto& [stage, figures] : test::snapshot().stages) counters += figures.work.size();
    return counters == kMaxWork ? 0 : 3;
  };
  EXPECT_EXIT(_exit(fill()), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace stagespan
