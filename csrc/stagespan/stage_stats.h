// stage_stats.h: adds one span to the figures of its stage.
#pragma once

#include <atomic>
#include <cstdint>

#include "histogram.h"
#include "layout.h"

namespace stagespan {

/// The figures that a finished span adds to its stage.
struct SpanFigures {
  std::uint64_t duration_ticks;
  std::uint64_t suspended_ticks;
  std::uint64_t children_ticks;
  std::uint32_t parent_stage;
  bool error;
};

/// Additions by the one thread that owns a block. A plain load and store is enough: no other thread writes, and readers
/// see each figure completely.
struct SingleWriter {
  template <class T>
  static T add(std::atomic<T>& figure, T amount) noexcept {
    const T before = figure.load(std::memory_order_relaxed);
    figure.store(before + amount, std::memory_order_relaxed);
    return before;
  }
  // These two also store values that do not change: a branch would wait for the time just read, see close_frame().
  static void lower(std::atomic<std::uint64_t>& least, std::uint64_t value) noexcept {
    const std::uint64_t before = least.load(std::memory_order_relaxed);
    least.store(value < before ? value : before, std::memory_order_relaxed);
  }
  static void raise(std::atomic<std::uint64_t>& most, std::uint64_t value) noexcept {
    const std::uint64_t before = most.load(std::memory_order_relaxed);
    most.store(value > before ? value : before, std::memory_order_relaxed);
  }
  /// The value that the histogram gets when a span of `ticks` ends: 1 + the ticks of the previous span, or 0.
  static std::uint64_t due(StatsBlock& block, std::uint64_t ticks) noexcept {
    const std::uint64_t before = block.latest.load(std::memory_order_relaxed);
    block.latest.store(ticks + 1, std::memory_order_relaxed);
    return before;
  }
  static bool claim(std::atomic<std::uint32_t>& cell, std::uint32_t value) noexcept {
    if (cell.load(std::memory_order_relaxed) != 0) return false;
    cell.store(value, std::memory_order_relaxed);
    return true;
  }
};

/// Additions to a block that several threads share. They are relaxed, because the figures are independent sums.
struct ManyWriters {
  template <class T>
  static T add(std::atomic<T>& figure, T amount) noexcept {
    return figure.fetch_add(amount, std::memory_order_relaxed);
  }
  static void lower(std::atomic<std::uint64_t>& least, std::uint64_t value) noexcept {
    std::uint64_t seen = least.load(std::memory_order_relaxed);
    while (value < seen && !least.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
  static void raise(std::atomic<std::uint64_t>& most, std::uint64_t value) noexcept {
    std::uint64_t seen = most.load(std::memory_order_relaxed);
    while (value > seen && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
  static std::uint64_t due(StatsBlock&, std::uint64_t ticks) noexcept { return ticks + 1; }
  static bool claim(std::atomic<std::uint32_t>& cell, std::uint32_t value) noexcept {
    std::uint32_t free = 0;
    return cell.compare_exchange_strong(free, value, std::memory_order_relaxed);
  }
};

/// Initialises a zeroed block. Not for a block that another thread may be writing.
inline void prepare(StatsBlock& block) noexcept { block.min_ticks.store(~std::uint64_t{0}, std::memory_order_relaxed); }

// An edge is claimed by writing its parent into `used`, as one word, so that readers and other writers never see half
// an edge. Shifted by three, so that kSeveralStages and kNoStage wrap to 1 and 2, and 0 means a free one.
constexpr std::uint32_t edge_mark(std::uint32_t parent_stage) noexcept { return parent_stage + 3; }
constexpr std::uint32_t edge_parent(std::uint32_t mark) noexcept { return mark - 3; }

/// The edge for all parents after the fourth.
STAGESPAN_HOT Edge& last_edge(StatsBlock& block) noexcept {
  Edge& last = block.edges[kEdges - 1];
  last.used.store(edge_mark(kSeveralStages), std::memory_order_relaxed);
  return last;
}

/// The edge of a parent stage, which is claimed if it is new.
template <class Writer>
STAGESPAN_HOT Edge& edge_for(StatsBlock& block, std::uint32_t parent_stage) noexcept {
  const std::uint32_t mark = edge_mark(parent_stage);
  if (parent_stage == kNoStage) {
    block.edges[0].used.store(mark, std::memory_order_relaxed);
    return block.edges[0];
  }
  for (std::uint32_t i = 1; i + 1 < kEdges; ++i) {
    std::atomic<std::uint32_t>& used = block.edges[i].used;
    if (used.load(std::memory_order_relaxed) == mark) [[likely]]
      return block.edges[i];
    if (Writer::claim(used, mark) || used.load(std::memory_order_relaxed) == mark) return block.edges[i];
  }
  return last_edge(block);
}

/// Notes that a bucket's 32 bits overflowed, so that its count stays exact.
template <class Writer>
void note_wrap(StatsBlock& block, std::uint32_t bucket, std::uint32_t times) noexcept {
  for (Wrap& wrap : block.wraps) {
    if (wrap.bucket_plus_one.load(std::memory_order_relaxed) == bucket + 1 ||
        Writer::claim(wrap.bucket_plus_one, bucket + 1) ||
        wrap.bucket_plus_one.load(std::memory_order_relaxed) == bucket + 1) {
      Writer::add(wrap.times, times);
      return;
    }
  }
}

/// Counts a duration in the histogram.
template <class Writer>
STAGESPAN_HOT void count_span(StatsBlock& block, std::uint64_t ticks) noexcept {
  const std::uint32_t bucket = bucket_of(ticks);
  if (Writer::add(block.buckets[bucket], 1U) == 0xffffffffU) [[unlikely]]
    note_wrap<Writer>(block, bucket, 1);
}

template <class Writer>
STAGESPAN_HOT void add_span(StatsBlock& block, const SpanFigures& span) noexcept {
  Edge& edge = edge_for<Writer>(block, span.parent_stage);
  Writer::add(edge.count, std::uint64_t{1});
  Writer::add(edge.sum_ticks, span.duration_ticks);
  Writer::lower(block.min_ticks, span.duration_ticks);
  Writer::raise(block.max_ticks, span.duration_ticks);
  const std::uint64_t due = Writer::due(block, span.duration_ticks);
  if (due != 0) [[likely]]
    count_span<Writer>(block, due - 1);
  if (span.children_ticks != 0) Writer::add(block.children_ticks, span.children_ticks);
  if (span.suspended_ticks != 0) [[unlikely]]
    Writer::add(block.suspended_ticks, span.suspended_ticks);
  if (span.error) [[unlikely]]
    Writer::add(block.errors, std::uint64_t{1});
}

/// The edge that most spans of this parent stage use in a block written by one thread. This does not search, so it may
/// be another parent's edge.
STAGESPAN_HOT Edge& likely_edge(StatsBlock& block, std::uint32_t parent_stage) noexcept {
  return block.edges[parent_stage == kNoStage ? 0 : 1];
}

/// Adds a block's histogram to `counts`, which has kBuckets elements. If a thread is writing the block, its latest span
/// may be left out or counted twice.
void add_histogram(const StatsBlock& block, std::uint64_t* counts) noexcept;

/// Zeroes a block that readers may be reading.
void clear(StatsBlock& block) noexcept;

/// Adds all figures of `from`, which is no longer written, to the shared block `to`.
void fold(const StatsBlock& from, StatsBlock& to) noexcept;

}  // namespace stagespan
