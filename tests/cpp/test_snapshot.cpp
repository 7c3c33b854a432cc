// test_snapshot.cpp: quantiles compared with an exact sort, and the difference of two snapshots.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "stagespan/snapshot.h"
#include "support.h"

namespace stagespan {
namespace {

using test::figures_of;
using test::in_buckets;
using test::made_span;
using test::Random;

class Snapshots : public test::RecorderTest {
 protected:
  void run(std::uint32_t stage, const std::vector<std::uint64_t>& durations) {
    for (const std::uint64_t duration : durations)
      commit_span(recorder().this_thread(), made_span(stage, 1000, duration));
  }
};

const double kShares[] = {0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1};

double exact_quantile(const std::vector<std::uint64_t>& sorted, double q) {
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return static_cast<double>(sorted[rank == 0 ? 0 : rank - 1]);
}

TEST_F(Snapshots, QuantilesAreWithinThreePercentOfAnExactSort) {
  Random random(9901);
  SCOPED_TRACE(random.trace());
  const std::pair<const char*, std::function<double()>> shapes[] = {
      {"uniform", [&] { return 1e5 * random.unit(); }},
      {"log-normal", [&] { return std::exp(14 + 2 * random.normal()); }},
      {"heavy tail", [&] { return 1000 / std::pow(1 - random.unit(), 1.2); }},
      {"two peaks", [&] { return random.chance(2) ? 3000 + 10 * random.normal() : 9e8 + 1e6 * random.normal(); }},
      {"constant", [] { return 123'456'789.0; }},
      {"few ticks", [&] { return 40 * random.unit(); }},
      {"hours", [&] { return 3e13 * random.unit(); }},
  };
  for (const auto& [name, draw] : shapes) {
    for (const std::size_t size : {1U, 2U, 3U, 10U, 1000U, 20'000U}) {
      SCOPED_TRACE(std::string(name) + " x " + std::to_string(size));
      const std::uint32_t stage = recorder().intern(std::string("quantile ") + name + std::to_string(size));
      std::vector<std::uint64_t> durations;
      for (std::size_t i = 0; i < size; ++i) durations.push_back(static_cast<std::uint64_t>(std::abs(draw())));
      run(stage, durations);
      std::sort(durations.begin(), durations.end());
      const Distribution host = figures_of(stage).host;
      for (const double q : kShares) {
        // THEN each is within 3 % of the exact one, and within the range of the durations
        const double exact = exact_quantile(durations, q);
        const std::optional<double> quantile = host.quantile_ticks(q);
        ASSERT_TRUE(quantile.has_value());
        EXPECT_NEAR(*quantile, exact, 0.03 * exact) << q;
        EXPECT_GE(*quantile, static_cast<double>(durations.front()));
        EXPECT_LE(*quantile, static_cast<double>(durations.back()));
      }
      EXPECT_EQ(host.count, size);
      EXPECT_EQ(host.min_ticks, durations.front());
      EXPECT_EQ(host.max_ticks, durations.back());
      std::uint64_t sum = 0;
      for (const std::uint64_t duration : durations) sum += duration;
      EXPECT_EQ(host.sum_ticks, sum);
    }
  }
}

TEST_F(Snapshots, QuantilesDoNotGoDownAsTheShareGoesUp) {
  Random random(9902);
  SCOPED_TRACE(random.trace());
  const std::uint32_t stage = recorder().intern("quantile order");
  std::vector<std::uint64_t> durations;
  for (int i = 0; i < 3000; ++i) durations.push_back(random.engine()() >> random.between(18, 60));
  run(stage, durations);
  const Distribution host = figures_of(stage).host;
  double before = 0;
  for (int i = 0; i <= 1000; ++i) {
    // GIVEN increasing shares
    const double now = *host.quantile_ticks(i / 1000.0);
    ASSERT_GE(now, before);
    before = now;
  }
  // THEN shares outside 0 to 1 give its ends
  EXPECT_EQ(host.quantile_ticks(-5), host.quantile_ticks(0));
  EXPECT_EQ(host.quantile_ticks(7), host.quantile_ticks(1));
}

TEST_F(Snapshots, AnEmptyDistributionHasNoQuantiles) {
  const Distribution none;
  EXPECT_FALSE(none.quantile_ticks(0.5).has_value());
}

TEST_F(Snapshots, ASpanThatIsNotInABucketYetHasQuantiles) {
  // GIVEN a thread that was killed after it had counted its first span, but before the span was in the histogram
  Distribution one;
  one.count = 1;
  one.sum_ticks = one.min_ticks = one.max_ticks = 7;
  for (const double q : {0.0, 0.5, 1.0}) EXPECT_EQ(one.quantile_ticks(q), 7.0);
}

TEST_F(Snapshots, DurationsBeyondTheBucketsKeepTheirMaximum) {
  const std::uint32_t stage = recorder().intern("beyond");
  const std::uint64_t day = 86400ULL * 3'000'000'000;
  run(stage, {1000, day});
  const Distribution host = figures_of(stage).host;
  EXPECT_EQ(host.max_ticks, day);
  EXPECT_EQ(host.sum_ticks, day + 1000);
  EXPECT_EQ(*host.quantile_ticks(1), static_cast<double>(day));
  const Snapshot earlier = test::snapshot();
  run(stage, {day});
  const Distribution since = figures_of(difference(test::snapshot(), earlier), stage).host;
  EXPECT_EQ(since.max_ticks, day);
  EXPECT_EQ(*since.quantile_ticks(0.5), static_cast<double>(day));
}

TEST_F(Snapshots, ASnapshotHasItsTime) {
  const std::uint64_t before = now_ticks();
  const Snapshot snapshot = test::snapshot();
  const std::uint64_t after = now_ticks();
  const ClockFit fit = recorder().clock_fit();
  EXPECT_GE(snapshot.ticks, before);
  EXPECT_LE(snapshot.ticks, after);
  EXPECT_NEAR(static_cast<double>(snapshot.unix_ns - fit.unix_ns(snapshot.ticks)), 0, 1e6);
  EXPECT_GT(snapshot.ns_per_tick, 0);
}

TEST_F(Snapshots, OnlyStagesThatHaveRunAreInASnapshot) {
  const std::uint32_t ran = recorder().intern("ran");
  const std::uint32_t only_named = recorder().intern("only named");
  run(ran, {5});
  const Snapshot snapshot = test::snapshot();
  EXPECT_TRUE(snapshot.stages.contains(ran));
  EXPECT_FALSE(snapshot.stages.contains(only_named));
  EXPECT_EQ(snapshot.stages.size(), 1U);
}

TEST_F(Snapshots, ADifferenceIsWhatHappenedBetween) {
  Random random(9903);
  SCOPED_TRACE(random.trace());
  const std::uint32_t parents[] = {recorder().intern("difference.a"), recorder().intern("difference.b")};
  const std::uint32_t stages[] = {recorder().intern("difference.0"), recorder().intern("difference.1"),
                                  recorder().intern("difference.2")};
  Snapshot earlier = test::snapshot();
  for (int round = 0; round < 30; ++round) {
    std::map<std::uint32_t, std::vector<std::uint64_t>> durations;
    std::map<std::uint32_t, std::uint64_t> errors, suspended, children, under_a;
    for (const std::uint32_t stage : stages) {
      if (random.chance(3)) continue;
      const std::uint64_t count = random.between(1, 200);
      for (std::uint64_t i = 0; i < count; ++i) {
        FinishedSpan span = made_span(stage, 1000, random.engine()() >> random.between(20, 60));
        const bool a = random.chance(2);
        span.parent_stage = parents[a ? 0 : 1];
        span.flags = random.chance(4) ? kFlagError : 0;
        span.suspended_ticks = random.below(50);
        span.children_ticks = random.below(50);
        commit_span(recorder().this_thread(), span);
        durations[stage].push_back(span.duration_ticks());
        errors[stage] += (span.flags & kFlagError) != 0;
        suspended[stage] += span.suspended_ticks;
        children[stage] += span.children_ticks;
        under_a[stage] += a;
      }
    }
    const Snapshot later = test::snapshot();
    const Snapshot between = difference(later, earlier);
    ASSERT_EQ(between.stages.size(), durations.size());
    for (auto& [stage, sorted] : durations) {
      std::sort(sorted.begin(), sorted.end());
      const StageFigures figures = figures_of(between, stage);
      std::uint64_t sum = 0;
      for (const std::uint64_t duration : sorted) sum += duration;
      ASSERT_EQ(figures.host.count, sorted.size());
      ASSERT_EQ(in_buckets(figures.host), sorted.size());
      ASSERT_EQ(figures.host.sum_ticks, sum);
      ASSERT_EQ(figures.errors, errors[stage]);
      ASSERT_EQ(figures.suspended_ticks, suspended[stage]);
      ASSERT_EQ(figures.children_ticks, children[stage]);
      ASSERT_EQ(figures.parents.contains(parents[0]) ? figures.parents.at(parents[0]).count : 0, under_a[stage]);
      // THEN minimum and maximum are bounds, at most a bucket away
      ASSERT_LE(figures.host.min_ticks, sorted.front());
      ASSERT_GE(figures.host.max_ticks, sorted.back());
      ASSERT_EQ(bucket_of(figures.host.min_ticks), bucket_of(sorted.front()));
      ASSERT_EQ(bucket_of(figures.host.max_ticks), bucket_of(sorted.back()));
      for (const double q : kShares)
        ASSERT_NEAR(*figures.host.quantile_ticks(q), exact_quantile(sorted, q),
                    0.03 * exact_quantile(sorted, q) + 1e-9);
    }
    earlier = later;
  }
}

TEST_F(Snapshots, ADifferenceIsExactIfAParentMovesToSeveral) {
  const std::uint32_t stage = recorder().intern("difference.moved");
  const std::uint32_t late = recorder().intern("difference.late");
  const auto run_under = [&](std::uint32_t parent, int times) {
    for (int i = 0; i < times; ++i) {
      FinishedSpan span = made_span(stage, 1000, 10);
      span.parent_stage = parent;
      commit_span(recorder().this_thread(), span);
    }
  };
  // GIVEN a thread that has left, whose spans had as many parents as have separate edges
  test::in_thread([&] {
    for (int i = 0; i < 4; ++i) run_under(recorder().intern("difference.parent." + std::to_string(i)), 1);
  });
  Snapshot earlier;
  test::in_thread([&] {
    // GIVEN a snapshot while another thread is alive, which has spans of one more parent
    run_under(late, 3);
    earlier = test::snapshot();
    ASSERT_EQ(figures_of(earlier, stage).parents.at(late).count, 3U);
  });
  // WHEN it has left, so that they are among those of several parents, and more spans have ended
  run_under(kNoStage, 2);
  const StageFigures between = figures_of(difference(test::snapshot(), earlier), stage);
  // THEN the parents are those of the later spans
  EXPECT_EQ(between.host.count, 2U);
  ASSERT_EQ(between.parents.size(), 1U);
  EXPECT_EQ(between.parents.at(kNoStage).count, 2U);
  EXPECT_EQ(between.parents.at(kNoStage).sum_ticks, 20U);
}

TEST_F(Snapshots, ADifferenceOverAResetIsEverythingSinceTheReset) {
  const std::uint32_t stage = recorder().intern("difference over a reset");
  run(stage, {10, 20, 30});
  const Snapshot earlier = test::snapshot();
  recorder().reset();
  run(stage, {40});
  const Snapshot between = difference(test::snapshot(), earlier);
  EXPECT_EQ(figures_of(between, stage).host.count, 1U);
  EXPECT_EQ(figures_of(between, stage).host.sum_ticks, 40U);
}

TEST_F(Snapshots, ADurationIsNeverNegative) {
  const std::uint32_t stage = recorder().intern("backwards");
  // GIVEN a span that ended before it began, according to another core's counter
  FinishedSpan span = made_span(stage, 1000, 0);
  span.end_ticks = 990;
  commit_span(recorder().this_thread(), span);
  EXPECT_EQ(figures_of(stage).host.max_ticks, 0U);
  EXPECT_EQ(figures_of(stage).host.sum_ticks, 0U);
}

}  // namespace
}  // namespace stagespan
