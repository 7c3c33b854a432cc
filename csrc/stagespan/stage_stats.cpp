// stage_stats.cpp: clears blocks, and adds the figures of an ended thread to the shared ones.
#include "stage_stats.h"

namespace stagespan {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
}

void add_histogram(const StatsBlock& block, std::uint64_t* counts) noexcept {
  const std::uint64_t latest = block.latest.load(relaxed);
  if (latest != 0) ++counts[bucket_of(latest - 1)];
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) counts[bucket] += block.buckets[bucket].load(relaxed);
  for (const Wrap& wrap : block.wraps) {
    const std::uint32_t bucket = wrap.bucket_plus_one.load(relaxed);
    if (bucket != 0) counts[bucket - 1] += std::uint64_t{wrap.times.load(relaxed)} << 32;
  }
}

void clear(StatsBlock& block) noexcept {
  block.min_ticks.store(0, relaxed);
  block.max_ticks.store(0, relaxed);
  block.latest.store(0, relaxed);
  block.errors.store(0, relaxed);
  block.suspended_ticks.store(0, relaxed);
  block.children_ticks.store(0, relaxed);
  block.cpu_ns.store(0, relaxed);
  block.cpu_count.store(0, relaxed);
  for (Edge& edge : block.edges) {
    edge.used.store(0, relaxed);
    edge.count.store(0, relaxed);
    edge.sum_ticks.store(0, relaxed);
  }
  for (Wrap& wrap : block.wraps) {
    wrap.bucket_plus_one.store(0, relaxed);
    wrap.times.store(0, relaxed);
  }
  for (std::atomic<std::uint32_t>& bucket : block.buckets) bucket.store(0, relaxed);
}

void fold(const StatsBlock& from, StatsBlock& to) noexcept {
  for (const Edge& edge : from.edges) {
    const std::uint32_t mark = edge.used.load(relaxed);
    if (mark == 0) continue;
    // "Several parents" in one block stays "several parents" in the other: it must not use the edge of a single parent.
    const std::uint32_t parent = edge_parent(mark);
    Edge& into = parent == kSeveralStages ? last_edge(to) : edge_for<ManyWriters>(to, parent);
    ManyWriters::add(into.count, edge.count.load(relaxed));
    ManyWriters::add(into.sum_ticks, edge.sum_ticks.load(relaxed));
  }
  ManyWriters::lower(to.min_ticks, from.min_ticks.load(relaxed));
  ManyWriters::raise(to.max_ticks, from.max_ticks.load(relaxed));
  ManyWriters::add(to.errors, from.errors.load(relaxed));
  ManyWriters::add(to.suspended_ticks, from.suspended_ticks.load(relaxed));
  ManyWriters::add(to.children_ticks, from.children_ticks.load(relaxed));
  ManyWriters::add(to.cpu_ns, from.cpu_ns.load(relaxed));
  ManyWriters::add(to.cpu_count, from.cpu_count.load(relaxed));
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    const std::uint32_t count = from.buckets[bucket].load(relaxed);
    if (count == 0) continue;
    const std::uint32_t before = ManyWriters::add(to.buckets[bucket], count);
    if (before + count < before) note_wrap<ManyWriters>(to, bucket, 1);
  }
  const std::uint64_t latest = from.latest.load(relaxed);
  if (latest != 0) count_span<ManyWriters>(to, latest - 1);
  for (const Wrap& wrap : from.wraps) {
    const std::uint32_t bucket = wrap.bucket_plus_one.load(relaxed);
    if (bucket != 0) note_wrap<ManyWriters>(to, bucket - 1, wrap.times.load(relaxed));
  }
}

}  // namespace stagespan
