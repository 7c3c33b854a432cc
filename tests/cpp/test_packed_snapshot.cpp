// Tests of PackedSnapshot: nothing is lost, and it uses little memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>

#include "stagespan/packed_snapshot.h"

namespace stagespan {
namespace {

Distribution random_distribution(std::mt19937_64& random) {
  Distribution result;
  if (random() % 4 == 0) return result;
  // Numbers of every length.
  const auto number = [&] { return random() >> (random() % 64); };
  result.count = number() + 1;
  result.sum_ticks = number();
  result.min_ticks = number();
  result.max_ticks = number();
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket)
    if (random() % 5 == 0) result.buckets.emplace_back(bucket, number());
  return result;
}

AmountDistribution random_amounts(std::mt19937_64& random) {
  AmountDistribution result;
  if (random() % 4 == 0) return result;
  result.count = (random() >> (random() % 64)) + 1;
  result.sum = 1e300;
  result.least = 0.25;
  result.most = static_cast<double>(random());
  result.fractions = random() % 3;
  for (std::uint32_t bucket = 0; bucket < kAmountBuckets; ++bucket)
    if (random() % 5 == 0) result.buckets.emplace_back(bucket, random() >> (random() % 64));
  return result;
}

void expect_same(const AmountDistribution& a, const AmountDistribution& b) {
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.sum, b.sum);
  EXPECT_EQ(a.least, b.least);
  EXPECT_EQ(a.most, b.most);
  EXPECT_EQ(a.fractions, b.fractions);
  EXPECT_EQ(a.buckets, b.buckets);
}

void expect_same(const Distribution& a, const Distribution& b) {
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.sum_ticks, b.sum_ticks);
  EXPECT_EQ(a.min_ticks, b.min_ticks);
  EXPECT_EQ(a.max_ticks, b.max_ticks);
  EXPECT_EQ(a.buckets, b.buckets);
}

TEST(PackedSnapshot, ReturnsWhatWasPacked) {
  std::mt19937_64 random(7);
  for (const std::uint32_t stages : {0U, 1U, 50U}) {
    Snapshot snapshot;
    snapshot.number = random();
    snapshot.ticks = random();
    snapshot.unix_ns = std::numeric_limits<std::int64_t>::min();
    snapshot.ns_per_tick = 0.41;
    snapshot.resets = 3;
    snapshot.is_exact = false;
    for (std::uint32_t i = 0; i < stages; ++i) {
      StageFigures& figures = snapshot.stages[i * 80];
      figures.host = random_distribution(random);
      figures.errors = random();
      figures.suspended_ticks = random() >> 40;
      figures.children_ticks = ~std::uint64_t{0};
      figures.parents = {{kNoStage, {1, 2}}, {kSeveralStages, {random(), random()}}, {i, {0, 0}}};
      figures.work = {{"", -0.5}, {"tokens", 1e300}};
      figures.amounts = {{"", random_amounts(random)}, {"tokens", random_amounts(random)}};
      figures.batch_size = random_amounts(random);
      for (Distribution& figure : figures.device) figure = random_distribution(random);
    }
    const PackedSnapshot packed(snapshot);
    const Snapshot found = packed.unpack();
    EXPECT_EQ(packed.unix_ns(), snapshot.unix_ns);
    EXPECT_EQ(found.number, snapshot.number);
    EXPECT_EQ(found.ticks, snapshot.ticks);
    EXPECT_EQ(found.unix_ns, snapshot.unix_ns);
    EXPECT_EQ(found.ns_per_tick, snapshot.ns_per_tick);
    EXPECT_EQ(found.resets, snapshot.resets);
    EXPECT_EQ(found.is_exact, snapshot.is_exact);
    ASSERT_EQ(found.stages.size(), snapshot.stages.size());
    for (const auto& [stage, figures] : snapshot.stages) {
      const StageFigures& same = found.stages.at(stage);
      expect_same(figures.host, same.host);
      EXPECT_EQ(figures.errors, same.errors);
      EXPECT_EQ(figures.suspended_ticks, same.suspended_ticks);
      EXPECT_EQ(figures.children_ticks, same.children_ticks);
      EXPECT_EQ(figures.work, same.work);
      ASSERT_EQ(figures.amounts.size(), same.amounts.size());
      for (const auto& [unit, amounts] : figures.amounts) expect_same(amounts, same.amounts.at(unit));
      expect_same(figures.batch_size, same.batch_size);
      ASSERT_EQ(figures.parents.size(), same.parents.size());
      for (const auto& [parent, edge] : figures.parents) {
        EXPECT_EQ(edge.count, same.parents.at(parent).count);
        EXPECT_EQ(edge.sum_ticks, same.parents.at(parent).sum_ticks);
      }
      for (std::size_t i = 0; i < figures.device.size(); ++i) expect_same(figures.device[i], same.device[i]);
    }
  }
}

TEST(PackedSnapshot, UsesFewBytes) {
  Snapshot snapshot;
  for (std::uint32_t stage = 0; stage < kMaxStages; ++stage) {
    Distribution& host = snapshot.stages[stage].host;
    host = {100'000, 1ULL << 50, 1ULL << 10, 1ULL << 40, {}};
    for (std::uint32_t bucket = 100; bucket < 200; ++bucket) host.buckets.emplace_back(bucket, 1000);
  }
  // THEN it uses little more than 3 bytes for each bucket
  EXPECT_LT(PackedSnapshot(snapshot).size_bytes(), kMaxStages * 400ULL);
}

}  // namespace
}  // namespace stagespan
