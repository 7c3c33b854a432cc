// snapshot.cpp: sums the blocks of all threads, subtracts snapshots, and computes quantiles.
#include "snapshot.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "histogram.h"
#include "stage_stats.h"

namespace stagespan {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr int kYields = 16;
constexpr std::chrono::microseconds kPause{50};
constexpr std::chrono::seconds kMostPatience{1};
constexpr int kMostAttempts = 20'000;  // the same in pauses, in case the clock stops

using Buckets = std::array<std::uint64_t, kBuckets>;

/// The buckets that are not empty.
void take_buckets(const Buckets& buckets, Distribution& to) {
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket)
    if (buckets[bucket] != 0) to.buckets.emplace_back(bucket, buckets[bucket]);
  to.buckets.shrink_to_fit();
}

void add_block(StageFigures& to, Buckets& buckets, const StatsBlock& block) {
  // Until the block's first span is complete, there is no minimum and the block is not read.
  if (block.min_ticks.load(relaxed) > block.max_ticks.load(relaxed)) return;
  std::uint64_t added = 0;
  for (const Edge& edge : block.edges) {
    const std::uint32_t mark = edge.used.load(relaxed);
    const std::uint64_t count = edge.count.load(relaxed);
    if (mark == 0 || count == 0) continue;
    EdgeFigures& into = to.parents[edge_parent(mark)];
    const std::uint64_t ticks = edge.sum_ticks.load(relaxed);
    into.count += count;
    into.sum_ticks += ticks;
    to.host.sum_ticks += ticks;
    added += count;
  }
  if (added == 0) return;
  const std::uint64_t least = block.min_ticks.load(relaxed);
  const std::uint64_t most = block.max_ticks.load(relaxed);
  to.host.min_ticks = to.host.count == 0 ? least : std::min(to.host.min_ticks, least);
  to.host.max_ticks = std::max(to.host.max_ticks, most);
  to.host.count += added;
  to.errors += block.errors.load(relaxed);
  to.suspended_ticks += block.suspended_ticks.load(relaxed);
  to.children_ticks += block.children_ticks.load(relaxed);
  to.cpu_ns += block.cpu_ns.load(relaxed);
  to.cpu_count += block.cpu_count.load(relaxed);
  add_histogram(block, buckets.data());
}

void read_work(ArenaView arena, std::map<std::uint32_t, StageFigures>& stages) {
  if (arena.header().work_key_count.load(std::memory_order_acquire) == 0) return;
  for (std::uint32_t i = 0; i < kMaxWork; ++i) {
    const WorkEntry& entry = arena.work()[i];
    const std::uint64_t key = entry.key.load(std::memory_order_acquire);
    if (key == 0) continue;
    const auto stage = static_cast<std::uint32_t>(key >> 32) - 1;
    const WorkKey& name = arena.work_keys()[key & 0xffffffff];
    stages[stage].work[name.text] += static_cast<double>(entry.whole.load(relaxed)) + entry.fraction.load(relaxed);
  }
}

// Amounts that are being counted may be in some figures and not in others.
void read_work_blocks(ArenaView arena, std::map<std::uint32_t, StageFigures>& stages) {
  const std::uint32_t blocks = arena.header().work_block_count.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < std::min(blocks, kMaxWorkBlocks); ++i) {
    const WorkBlock& block = arena.work_blocks()[i];
    AmountDistribution amounts;
    amounts.count = block.count.load(relaxed);
    const std::uint64_t key = block.key.load(relaxed);
    if (amounts.count == 0 || key == 0) continue;
    amounts.sum = block.sum.load(relaxed);
    amounts.least = block.least.load(relaxed);
    amounts.most = std::max(amounts.least, block.most.load(relaxed));
    amounts.fractions = block.fractions.load(relaxed);
    for (std::uint32_t bucket = 0; bucket < kAmountBuckets; ++bucket)
      if (const std::uint32_t n = block.buckets[bucket].load(relaxed); n != 0) amounts.buckets.emplace_back(bucket, n);
    StageFigures& stage = stages[static_cast<std::uint32_t>(key >> 32) - 1];
    const std::uint64_t unit = key & 0xffffffff;
    (unit == kBatchSizeKey ? stage.batch_size : stage.amounts[arena.work_keys()[unit].text]) = std::move(amounts);
  }
}

// A block with one edge and one writer.
Distribution read_distribution(const StatsBlock& block) {
  Distribution result;
  for (const Edge& edge : block.edges) {
    if (edge.used.load(relaxed) == 0) continue;
    result.count += edge.count.load(relaxed);
    result.sum_ticks += edge.sum_ticks.load(relaxed);
  }
  if (result.count == 0) return result;
  result.min_ticks = block.min_ticks.load(relaxed);
  result.max_ticks = block.max_ticks.load(relaxed);
  if (result.min_ticks > result.max_ticks) result.min_ticks = result.max_ticks = result.sum_ticks / result.count;
  Buckets buckets{};
  add_histogram(block, buckets.data());
  take_buckets(buckets, result);
  return result;
}

void read_device(ArenaView arena, std::map<std::uint32_t, StageFigures>& stages) {
  for (auto& [stage, figures] : stages) {
    const std::uint32_t number = arena.device_stages()[stage].load(std::memory_order_acquire);
    // Parents that did not fit into the table share one block, which is not shown.
    if (number == 0 || number == kMaxDeviceStages) continue;
    for (std::uint32_t figure = 0; figure < kDeviceFigures; ++figure)
      figures.device[figure] = read_distribution(arena.device_block(number - 1, figure));
  }
}

// Subtracts, but not below 0, because a snapshot may have seen slightly more than the next one. Returns the amount that
// could not be subtracted.
std::uint64_t take_off(std::uint64_t& from, std::uint64_t amount) {
  const std::uint64_t taken = std::min(from, amount);
  from -= taken;
  return amount - taken;
}

// The earlier ones may contain a thread's latest span twice.
void subtract(BucketCounts& later, const BucketCounts& earlier) {
  std::map<std::uint32_t, std::uint64_t> left(later.begin(), later.end());
  for (const auto& [bucket, n] : earlier) left[bucket] -= std::min(left[bucket], n);
  std::erase_if(left, [](const auto& entry) { return entry.second == 0; });
  later.assign(left.begin(), left.end());
}

// The difference of `later` and `earlier`. The minimum and maximum of an interval are not recorded, so the bounds of
// the lowest and highest bucket are used.
void subtract(Distribution& later, const Distribution& earlier) {
  take_off(later.count, earlier.count);
  take_off(later.sum_ticks, earlier.sum_ticks);
  subtract(later.buckets, earlier.buckets);
  if (earlier.count == 0 || later.buckets.empty()) return;
  later.min_ticks = std::max(later.min_ticks, bucket_low(later.buckets.front().first));
  // The last bucket has no upper bound.
  const std::uint32_t highest = later.buckets.back().first;
  if (highest != kBuckets - 1) later.max_ticks = std::min(later.max_ticks, bucket_high(highest) - 1);
}

// The same for amounts.
void subtract(AmountDistribution& later, const AmountDistribution& earlier) {
  if (earlier.count == 0) return;
  take_off(later.count, earlier.count);
  take_off(later.fractions, earlier.fractions);
  later.sum = std::max(later.sum - earlier.sum, 0.0);
  subtract(later.buckets, earlier.buckets);
  if (later.buckets.empty()) return;
  const std::uint32_t lowest = later.buckets.front().first;
  if (lowest != 0) later.least = std::max(later.least, amount_bucket_high(lowest - 1));
  later.most = std::min(later.most, amount_bucket_high(later.buckets.back().first));
}

// The spans of a parent move to "several" if a thread leaves whose block had an edge for that parent, and the shared
// block has none. They are subtracted there.
void subtract(std::map<std::uint32_t, EdgeFigures>& later, const std::map<std::uint32_t, EdgeFigures>& earlier) {
  EdgeFigures moved;
  for (const auto& [parent, edge] : earlier) {
    EdgeFigures& now = later[parent];
    moved.count += take_off(now.count, edge.count);
    moved.sum_ticks += take_off(now.sum_ticks, edge.sum_ticks);
  }
  if (const auto several = later.find(kSeveralStages); several != later.end()) {
    take_off(several->second.count, moved.count);
    take_off(several->second.sum_ticks, moved.sum_ticks);
  }
}

// By stage, so that only one histogram at a time is not packed.
std::map<std::uint32_t, StageFigures> read_blocks(ArenaView arena) {
  const ArenaHeader& header = arena.header();
  std::map<std::uint32_t, StageFigures> result;
  const std::uint32_t stages = header.name_count.load(std::memory_order_acquire);
  const std::uint32_t slots = std::min(header.slot_high_water.load(std::memory_order_acquire), kMaxThreads);
  const std::uint32_t overflow = arena.slot(kSharedSlot).stats[kStageOverflow].load(std::memory_order_acquire);
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    StageFigures figures;
    Buckets buckets{};
    const auto read_slot = [&](std::uint32_t index) {
      const std::uint32_t block = arena.slot(index).stats[stage].load(std::memory_order_acquire);
      if (block == 0) return;
      // A shared block is read once: at the stage that the shared slot names as its owner.
      const bool shared = (block & kSharedBlock) != 0;
      if (shared != (index == kSharedSlot) || (shared && block == overflow && stage != kStageOverflow)) return;
      add_block(figures, buckets, arena.blocks()[(block & ~kSharedBlock) - 1]);
    };
    for (std::uint32_t index = 0; index < slots; ++index) read_slot(index);
    read_slot(kSharedSlot);
    if (figures.host.count == 0) continue;
    take_buckets(buckets, figures.host);
    result.emplace(stage, std::move(figures));
  }
  return result;
}

/// The bucket below whose upper bound a share `q` is; there is at least one bucket.
std::uint32_t bucket_at(const BucketCounts& buckets, double q) {
  std::uint64_t total = 0, seen = 0;
  for (const auto& [bucket, n] : buckets) total += n;
  const auto rank = static_cast<std::uint64_t>(std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(total)));
  for (const auto& [bucket, n] : buckets)
    if ((seen += n) >= rank) return bucket;
  return buckets.back().first;
}

}  // namespace

std::optional<double> Distribution::quantile_ticks(double q) const {
  if (count == 0) return std::nullopt;
  const auto low = static_cast<double>(min_ticks);
  const auto high = static_cast<double>(max_ticks);
  // The first span was counted, but is not in a bucket yet: its thread writes it now, or was killed at this point.
  if (buckets.empty())
    return std::clamp(static_cast<double>(sum_ticks) / static_cast<double>(count), low, std::max(low, high));
  const std::uint32_t bucket = bucket_at(buckets, q);
  // The last bucket has no upper bound. The largest span seen is the best estimate.
  if (bucket == kBuckets - 1) return high;
  return std::clamp(bucket_value(bucket), low, std::max(low, high));
}

double AmountDistribution::amount_in(std::uint32_t bucket) const {
  const double high = amount_bucket_high(bucket), low = bucket != 0 ? amount_bucket_high(bucket - 1) : 0;
  if (std::isinf(high)) return most;  // the best estimate, as there is no upper bound
  double amount = 2 * low * high / (low + high);
  if (fractions == 0) amount = high - low <= 1 ? std::floor(high) : std::round(amount);
  return std::clamp(amount, least, most);
}

std::optional<double> AmountDistribution::quantile(double q) const {
  if (count == 0) return std::nullopt;
  return buckets.empty() ? most : amount_in(bucket_at(buckets, q));
}

Snapshot take_snapshot(ArenaView arena, const ClockFit& fit) {
  if (!arena) return {};
  const ArenaHeader& header = arena.header();
  static std::atomic<std::uint64_t> taken{0};
  Snapshot snapshot;
  snapshot.number = taken.fetch_add(1, relaxed) + 1;
  // A reader that holds the recorder's lock never waits here. Other readers wait for the thread that moves figures,
  // which may not be running at the moment, and try again if threads move figures all the time. After a while they
  // accept what they have read.
  const auto deadline = std::chrono::steady_clock::now() + kMostPatience;
  for (int attempt = 0;; ++attempt) {
    const bool is_last = attempt >= kMostAttempts || std::chrono::steady_clock::now() >= deadline;
    const std::uint32_t before = header.fold_version.load(std::memory_order_acquire);
    if ((before & 1) != 0 && !is_last) {
      if (attempt < kYields)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(kPause);
      continue;
    }
    snapshot.ticks = now_ticks();
    snapshot.resets = header.resets.load(relaxed);
    snapshot.stages = read_blocks(arena);
    read_work(arena, snapshot.stages);
    read_work_blocks(arena, snapshot.stages);
    load_fence();
    snapshot.is_exact = (before & 1) == 0 && header.fold_version.load(relaxed) == before;
    if (is_last || snapshot.is_exact) break;
  }
  for (auto& [stage, figures] : snapshot.stages)
    if (stage < kMaxStages) figures.kind = static_cast<StageKind>(arena.name(stage).kind);
  snapshot.unix_ns = fit.unix_ns(snapshot.ticks);
  snapshot.ns_per_tick = fit.ns_per_tick();
  read_device(arena, snapshot.stages);
  return snapshot;
}

Snapshot difference(const Snapshot& later, const Snapshot& earlier) {
  Snapshot result = later;
  if (later.resets != earlier.resets) return result;
  for (const auto& [stage, before] : earlier.stages) {
    const auto of_stage = result.stages.find(stage);
    if (of_stage == result.stages.end()) continue;
    StageFigures& now = of_stage->second;
    subtract(now.host, before.host);
    for (std::uint32_t figure = 0; figure < kDeviceFigures; ++figure)
      subtract(now.device[figure], before.device[figure]);
    take_off(now.errors, before.errors);
    take_off(now.suspended_ticks, before.suspended_ticks);
    take_off(now.children_ticks, before.children_ticks);
    take_off(now.cpu_ns, before.cpu_ns);
    take_off(now.cpu_count, before.cpu_count);
    subtract(now.parents, before.parents);
    std::erase_if(now.parents, [](const auto& entry) { return entry.second.count == 0; });
    for (const auto& [key, amount] : before.work) now.work[key] -= amount;
    for (const auto& [key, amounts] : before.amounts) subtract(now.amounts[key], amounts);
    std::erase_if(now.amounts, [](const auto& entry) { return entry.second.count == 0; });
    subtract(now.batch_size, before.batch_size);
    const bool no_work =
        std::all_of(now.work.begin(), now.work.end(), [](const auto& entry) { return entry.second == 0; });
    if (now.host.count == 0 && no_work && now.amounts.empty() && now.device[kDeviceElapsed].count == 0)
      result.stages.erase(of_stage);
  }
  return result;
}

}  // namespace stagespan
