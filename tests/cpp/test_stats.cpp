// test_stats.cpp: one block of statistics: exact with one or many writers, and when it is added to another.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <memory>

#include "support.h"

namespace stagespan {
namespace {

using test::Random;

constexpr auto relaxed = std::memory_order_relaxed;

// --- one block ------------------------------------------------------------------------------------------

std::unique_ptr<StatsBlock> new_block() {
  auto block = std::make_unique<StatsBlock>();
  prepare(*block);
  return block;
}

SpanFigures some_span(Random& random, std::uint32_t parents) {
  const std::uint64_t duration = random.engine()() >> random.between(20, 63);
  return {duration, random.chance(3) ? random.below(1000) : 0, random.chance(2) ? random.below(1000) : 0,
          random.chance(parents) ? kNoStage : static_cast<std::uint32_t>(random.below(parents)), random.chance(5)};
}

/// The expected content of a block, computed the simple way.
struct Model {
  std::uint64_t count = 0, sum = 0, errors = 0, suspended = 0, children = 0;
  std::uint64_t min = ~std::uint64_t{0}, max = 0;
  std::map<std::uint32_t, std::uint64_t> buckets;
  std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> parents;

  void add(const SpanFigures& span) {
    ++count;
    sum += span.duration_ticks;
    errors += span.error;
    suspended += span.suspended_ticks;
    children += span.children_ticks;
    min = std::min(min, span.duration_ticks);
    max = std::max(max, span.duration_ticks);
    ++buckets[bucket_of(span.duration_ticks)];
    ++parents[span.parent_stage].first;
    parents[span.parent_stage].second += span.duration_ticks;
  }
};

/// A block's histogram as readers see it.
std::vector<std::uint64_t> counts_of(const StatsBlock& block) {
  std::vector<std::uint64_t> counts(kBuckets);
  add_histogram(block, counts.data());
  return counts;
}

void expect_equal(const StatsBlock& block, const Model& model) {
  std::uint64_t count = 0, sum = 0;
  std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>> parents;
  for (const Edge& edge : block.edges) {
    count += edge.count;
    sum += edge.sum_ticks;
    if (edge.count == 0) continue;
    parents[edge_parent(edge.used)].first += edge.count;
    parents[edge_parent(edge.used)].second += edge.sum_ticks;
  }
  EXPECT_EQ(count, model.count);
  EXPECT_EQ(sum, model.sum);
  EXPECT_EQ(block.errors, model.errors);
  EXPECT_EQ(block.suspended_ticks, model.suspended);
  EXPECT_EQ(block.children_ticks, model.children);
  EXPECT_EQ(block.min_ticks, model.min);
  EXPECT_EQ(block.max_ticks, model.max);
  const std::vector<std::uint64_t> counts = counts_of(block);
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    const auto expected = model.buckets.find(bucket);
    ASSERT_EQ(counts[bucket], expected == model.buckets.end() ? 0 : expected->second) << bucket;
  }
  if (model.parents.size() < kEdges) {
    EXPECT_EQ(parents, model.parents);
  }
}

TEST(StatsBlock, OneWriterIsExact) {
  Random random(8801);
  SCOPED_TRACE(random.trace());
  const auto block = new_block();
  Model model;
  // GIVEN spans of any duration, under up to four parents
  for (int i = 0; i < 20'000; ++i) {
    const SpanFigures span = some_span(random, 3);
    add_span<SingleWriter>(*block, span);
    model.add(span);
  }
  expect_equal(*block, model);
}

TEST(StatsBlock, ManyWritersAreExact) {
  constexpr unsigned kThreads = 4;
  const std::uint64_t rounds = test::scaled(100'000, 20);
  const auto block = new_block();
  std::vector<Model> models(kThreads);
  std::barrier start(kThreads);
  auto threads = test::start_threads(kThreads, [&](unsigned i) {
    Random random(8810 + i);
    start.arrive_and_wait();
    for (std::uint64_t n = 0; n < rounds; ++n) {
      const SpanFigures span = some_span(random, 3);
      add_span<ManyWriters>(*block, span);
      models[i].add(span);
    }
  });
  test::join(threads);
  Model total;
  for (const Model& model : models) {
    total.count += model.count;
    total.sum += model.sum;
    total.errors += model.errors;
    total.suspended += model.suspended;
    total.children += model.children;
    total.min = std::min(total.min, model.min);
    total.max = std::max(total.max, model.max);
    for (const auto& [bucket, n] : model.buckets) total.buckets[bucket] += n;
    for (const auto& [parent, edge] : model.parents) {
      total.parents[parent].first += edge.first;
      total.parents[parent].second += edge.second;
    }
  }
  // THEN nothing is lost, including edges that several threads claimed at once
  expect_equal(*block, total);
}

TEST(StatsBlock, ParentsBeyondTheFourthAreSummedTogether) {
  const auto block = new_block();
  // GIVEN spans under seven parents, including the top level and the first stage
  const std::uint32_t parents[] = {kNoStage, 0, 7, 8, 9, 10, 11};
  for (const std::uint32_t parent : parents)
    for (const std::uint32_t& p : parents)
      if (&p <= std::find(std::begin(parents), std::end(parents), parent))
        add_span<SingleWriter>(*block, {100, 0, 0, parent, false});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(edge_parent(block->edges[i].used), parents[i]);
    EXPECT_EQ(block->edges[i].count, static_cast<std::uint64_t>(i + 1));
  }
  EXPECT_EQ(edge_parent(block->edges[5].used), kSeveralStages);
  EXPECT_EQ(block->edges[5].count, 6U + 7);
  EXPECT_EQ(block->edges[5].sum_ticks, 1300U);
}

TEST(StatsBlock, TheTopLevelIsNeverAmongTheOthers) {
  const auto block = new_block();
  for (const std::uint32_t parent : {7U, 8U, 9U, 10U, 11U, 12U})
    add_span<SingleWriter>(*block, {100, 0, 0, parent, false});
  add_span<SingleWriter>(*block, {250, 0, 0, kNoStage, false});
  // THEN it has its own edge, so that the total of a report is complete
  EXPECT_EQ(edge_parent(block->edges[0].used), kNoStage);
  EXPECT_EQ(block->edges[0].count, 1U);
  EXPECT_EQ(block->edges[0].sum_ticks, 250U);
}

TEST(StatsBlock, EveryParentHasADistinctMark) {
  // GIVEN the special parents, and those at both ends of the table
  const std::uint32_t parents[] = {0, 1, 2, kMaxStages - 1, kNoStage, kSeveralStages};
  for (const std::uint32_t parent : parents) {
    // THEN it differs from that of a free edge, and can be converted back
    EXPECT_NE(edge_mark(parent), 0U);
    EXPECT_EQ(edge_parent(edge_mark(parent)), parent);
  }
}

template <class Writer>
void expect_wraps_are_noted() {
  const auto block = new_block();
  // One writer counts a span when the next one ends.
  const auto add = [&](std::uint64_t ticks) {
    add_span<Writer>(*block, {ticks, 0, 0, kNoStage, false});
    add_span<Writer>(*block, {3, 0, 0, kNoStage, false});
  };
  // GIVEN as many buckets as can overflow, each with 32 bits full
  for (std::uint32_t i = 0; i < kWraps; ++i) block->buckets[bucket_of(1000 << i)].store(0xffffffff);
  for (std::uint32_t i = 0; i < kWraps; ++i) {
    add(std::uint64_t{1000} << i);
    block->buckets[bucket_of(1000 << i)].store(0xffffffff);
    add(std::uint64_t{1000} << i);
  }
  for (std::uint32_t i = 0; i < kWraps; ++i) {
    EXPECT_EQ(block->buckets[bucket_of(1000 << i)], 0U);
    EXPECT_EQ(block->wraps[i].bucket_plus_one, bucket_of(1000 << i) + 1);
    EXPECT_EQ(block->wraps[i].times, 2U);
  }
  block->buckets[1].store(0xffffffff);
  add(1);
  EXPECT_EQ(block->buckets[1], 0U);
}

TEST(StatsBlock, OverflowingBucketsAreNotedByOneWriter) { expect_wraps_are_noted<SingleWriter>(); }
TEST(StatsBlock, OverflowingBucketsAreNotedByManyWriters) { expect_wraps_are_noted<ManyWriters>(); }

TEST(StatsBlock, FoldingCarriesBucketsOver32Bits) {
  const std::uint32_t bucket = bucket_of(5000);
  const auto to = new_block();
  std::uint64_t expected = 0;
  for (const std::uint64_t count : {0xffffffffULL, 1ULL, 0xfffffff0ULL, 0x20ULL, 0x7'0000'0003ULL}) {
    const auto from = new_block();
    from->edges[0].used.store(edge_mark(kNoStage));
    from->edges[0].count.store(count);
    from->buckets[bucket].store(static_cast<std::uint32_t>(count));
    if (count >> 32 != 0) {
      from->wraps[0].bucket_plus_one.store(bucket + 1);
      from->wraps[0].times.store(static_cast<std::uint32_t>(count >> 32));
    }
    fold(*from, *to);
    expected += count;
    EXPECT_EQ(counts_of(*to)[bucket], expected);
    EXPECT_EQ(to->edges[0].count, expected);
  }
}

TEST(StatsBlock, FoldedBlocksEqualOneThatWroteEverything) {
  for (std::uint64_t seed = 8900; seed < 8920; ++seed) {
    Random random(seed);
    SCOPED_TRACE(random.trace());
    const auto to = new_block();
    Model model;
    const std::uint64_t blocks = random.between(1, 5);
    for (std::uint64_t b = 0; b < blocks; ++b) {
      const auto from = new_block();
      const std::uint64_t spans = random.below(500);
      for (std::uint64_t i = 0; i < spans; ++i) {
        const SpanFigures span = some_span(random, 3);
        add_span<SingleWriter>(*from, span);
        model.add(span);
      }
      fold(*from, *to);
    }
    expect_equal(*to, model);
  }
}

TEST(StatsBlock, FoldingKeepsSeveralParentsSeparateFromSingleOnes) {
  const auto from = new_block();
  const auto to = new_block();
  for (std::uint32_t parent = 10; parent < 17; ++parent) add_span<SingleWriter>(*from, {1, 0, 0, parent, false});
  fold(*from, *to);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(edge_parent(to->edges[1 + i].used), 10 + i);
  EXPECT_EQ(edge_parent(to->edges[5].used), kSeveralStages);
  EXPECT_EQ(to->edges[5].count, 3U);
  const auto only_several = new_block();
  last_edge(*only_several).count.store(5);
  const auto target = new_block();
  fold(*only_several, *target);
  EXPECT_EQ(target->edges[1].used, 0U);
  EXPECT_EQ(target->edges[5].count, 5U);
}

TEST(StatsBlock, AClearedBlockIsANewOne) {
  Random random(8802);
  SCOPED_TRACE(random.trace());
  // GIVEN a block with figures in all fields
  const auto block = new_block();
  for (int i = 0; i < 5000; ++i) add_span<SingleWriter>(*block, some_span(random, 20));
  note_wrap<SingleWriter>(*block, 7, 3);
  clear(*block);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(block.get());
  EXPECT_TRUE(std::all_of(bytes, bytes + sizeof(StatsBlock), [](unsigned char byte) { return byte == 0; }));
}

}  // namespace
}  // namespace stagespan
