// span_path.h: opens and closes a span of the calling thread. The cost of a span depends on this code.
#pragma once

#include <cstdint>

#include "clock.h"
#include "histogram.h"
#include "layout.h"
#include "stage_stats.h"
#include "thread_state.h"

namespace stagespan {

/// Fills a frame that has been taken, and reads the clock.
template <class Clock>
STAGESPAN_HOT void fill_frame(ThreadState& thread, std::uint32_t index, std::uint32_t stage, const void* owner,
                              Clock clock) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  OpenFrame* const frames = thread.frames;
  Scope& scope = *thread.scope;
  const std::uint32_t top = scope.top;
  OpenFrame& frame = frames[index];
  const OpenFrame& below = frames[top];
  const std::uint64_t id = ++thread.next_id;
  const std::uint16_t depth = below.as_parent_depth.load(relaxed);
  frame.parent.store(below.as_parent_id.load(relaxed), relaxed);
  frame.as_parent_id.store(id, relaxed);
  frame.child_ticks.store(0, relaxed);
  frame.stage.store(stage, relaxed);
  frame.as_parent_stage.store(stage, relaxed);
  frame.below.store(top, relaxed);
  frame.effective.store(index, relaxed);
  frame.depth.store(depth, relaxed);
  frame.as_parent_depth.store(static_cast<std::uint16_t>(depth + 1), relaxed);
  frame.flags.store(0, relaxed);
  FrameLocal& local = thread.locals[index];
  local.open_by(owner);
  local.open_in(&scope);
  local.belong_to(scope.request);
  scope.top = index;
  // The clock is read last, so that the span does not include its own opening.
  frame.begin_ticks.store(clock(), relaxed);
  frame.id.store(id, std::memory_order_release);
}

/// Opens a span in the thread's current scope. Returns null and counts it if there is no memory for it.
OpenFrame* open_frame_slow(ThreadState& thread, std::uint32_t stage, const void* owner) noexcept;

/// The fast path of the same. Returns null and changes nothing if the fast path is not possible. The caller then makes
/// one call for the slow path, at its end if possible, so that the fast path does not need to save registers.
STAGESPAN_HOT OpenFrame* try_open_frame(ThreadState& thread, std::uint32_t stage, const void* owner) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  if (thread.attention().load(relaxed) != 0) [[unlikely]]
    return nullptr;
  const std::uint32_t index = thread.free_head;
  if (index >= thread.frame_capacity) [[unlikely]]
    return nullptr;
  const std::uint32_t next = thread.frames[index].below.load(relaxed);
  if (next == 0) [[unlikely]]
    return nullptr;
  thread.free_head = next;
  fill_frame(thread, index, stage, owner, counter_ticks);
  return &thread.frames[index];
}

STAGESPAN_HOT OpenFrame* open_frame(ThreadState& thread, std::uint32_t stage, const void* owner) noexcept {
  OpenFrame* const frame = try_open_frame(thread, stage, owner);
  return frame != nullptr ? frame : open_frame_slow(thread, stage, owner);
}

/// Ends a span that this thread opened, and records it.
void close_frame_at(ThreadState& thread, OpenFrame& frame, std::uint64_t end_ticks, std::uint16_t flags) noexcept;

// The fast path of the same: for an active span that is innermost in the current scope, has no flags, and whose figures
// already have their place. Processors may not start a clock read before every earlier branch is decided and every
// earlier read of memory is done, so back-to-back spans wait for everything that depends on the time just read. Here
// that is only sums at known addresses and no branch, which makes a span a fifth cheaper. Fields are read again rather
// than kept, so that no register must be saved.
STAGESPAN_HOT void close_frame(ThreadState& thread, OpenFrame& frame, std::uint16_t flags) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  const std::uint64_t end_ticks = now_ticks();
  const std::uint32_t own_block = thread.stats[frame.stage.load(relaxed)].load(relaxed) - 1U;
  // An active frame's effective one is itself.
  if (thread.scope->top != frame.effective.load(relaxed) || (flags | frame.flags.load(relaxed)) != 0 ||
      own_block >= kSharedBlock - 1U) [[unlikely]] {
    close_frame_at(thread, frame, end_ticks, flags);
    return;
  }
  StatsBlock& block = thread.blocks[own_block];
  const OpenFrame& below = thread.frames[frame.below.load(relaxed)];
  const std::uint32_t parent_stage = below.as_parent_stage.load(relaxed);
  Edge& edge = likely_edge(block, parent_stage);
  // An edge that is in use has had at least one span, so there is an earlier one.
  std::atomic<std::uint32_t>& bucket = block.buckets[bucket_of(block.latest.load(relaxed) - 1)];
  const std::uint32_t in_bucket = bucket.load(relaxed);
  if (edge.used.load(relaxed) != edge_mark(parent_stage) || in_bucket == 0xffffffffU) [[unlikely]] {
    close_frame_at(thread, frame, end_ticks, flags);
    return;
  }
  bucket.store(in_bucket + 1, relaxed);
  const std::uint64_t child_ticks = frame.child_ticks.load(relaxed);
  if (child_ticks != 0) SingleWriter::add(block.children_ticks, child_ticks);
  const std::uint64_t ticks = ticks_between(frame.begin_ticks.load(relaxed), end_ticks);
  block.latest.store(ticks + 1, relaxed);
  SingleWriter::add(edge.count, std::uint64_t{1});
  SingleWriter::add(edge.sum_ticks, ticks);
  SingleWriter::lower(block.min_ticks, ticks);
  SingleWriter::raise(block.max_ticks, ticks);
  SingleWriter::add(thread.frames[below.effective.load(relaxed)].child_ticks, ticks);

  // An own block means that the thread has a slot, and with it a ring.
  const std::uint64_t number = thread.head;
  SpanRecord& record = thread.ring[number & thread.ring_mask];
  open_record(record);
  record.begin_ticks.store(frame.begin_ticks.load(relaxed), relaxed);
  record.end_ticks.store(end_ticks, relaxed);
  record.id.store(frame.id.load(relaxed), relaxed);
  record.parent.store(frame.parent.load(relaxed), relaxed);
  const std::uint32_t index = frame.effective.load(relaxed);
  record.request.store(thread.locals[index].request, relaxed);
  record.suspended_ticks.store(0, relaxed);
  record.stage.store(frame.stage.load(relaxed), relaxed);
  record.thread.store(thread.thread, relaxed);
  record.depth.store(frame.depth.load(relaxed), relaxed);
  record.flags.store(0, relaxed);
  commit_record(record, number);
  thread.head = number + 1;
  thread.slot->head.store(number + 1, std::memory_order_release);

  thread.scope->top = frame.below.load(relaxed);
  give_frame(thread, index);
}

}  // namespace stagespan
