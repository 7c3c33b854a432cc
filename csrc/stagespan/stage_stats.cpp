// stage_stats.cpp: folding a leaving thread's figures into the shared ones.
#include "stage_stats.h"

namespace stagespan {

void fold(const StatsBlock& from, StatsBlock& to) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  for (const Edge& edge : from.edges) {
    const std::uint32_t mark = edge.used.load(relaxed);
    if (mark == 0) continue;
    Edge& into = edge_for<ManyWriters>(to, edge_parent(mark));
    ManyWriters::add(into.count, edge.count.load(relaxed));
    ManyWriters::add(into.sum_ticks, edge.sum_ticks.load(relaxed));
  }
  ManyWriters::lower(to.min_ticks, from.min_ticks.load(relaxed));
  ManyWriters::raise(to.max_ticks, from.max_ticks.load(relaxed));
  ManyWriters::add(to.errors, from.errors.load(relaxed));
  ManyWriters::add(to.suspended_ticks, from.suspended_ticks.load(relaxed));
  ManyWriters::add(to.children_ticks, from.children_ticks.load(relaxed));
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    const std::uint32_t count = from.buckets[bucket].load(relaxed);
    if (count == 0) continue;
    const std::uint32_t before = ManyWriters::add(to.buckets[bucket], count);
    if (before + count < before) note_wrap<ManyWriters>(to, bucket, 1);
  }
  for (const Wrap& wrap : from.wraps) {
    const std::uint32_t bucket = wrap.bucket_plus_one.load(relaxed);
    if (bucket != 0) note_wrap<ManyWriters>(to, bucket - 1, wrap.times.load(relaxed));
  }
}

}  // namespace stagespan
