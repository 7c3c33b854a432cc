// recorder_detached.cpp: spans outside the stack: tokens, suspended coroutines, ends in other threads, records.
#include <algorithm>
#include <utility>

#include "recorder.h"

namespace stagespan {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::uint32_t kDetachedProbes = 64;

}  // namespace

std::uint32_t Recorder::show_detached(const FinishedSpan& span, std::uint32_t thread) noexcept {
  OpenFrame* const frames = arena_.detached();
  const std::uint32_t start = detached_hint_.fetch_add(1, relaxed);
  for (std::uint32_t probe = 0; probe < kDetachedProbes; ++probe) {
    const std::uint32_t index = (start + probe) % kMaxDetached;
    OpenFrame& frame = frames[index];
    std::uint32_t free = 0;
    // Acquire: the previous span's fields are no longer in use.
    if (!frame.below.compare_exchange_strong(free, 1, std::memory_order_acquire)) continue;
    store_fence();  // a reader that sees a field of this span sees that the previous one has been removed
    frame.begin_ticks.store(span.begin_ticks, relaxed);
    frame.parent.store(span.parent, relaxed);
    frame.as_parent_id.store(span.request, relaxed);  // not a parent while it is here
    frame.stage.store(span.stage, relaxed);
    frame.depth.store(span.depth, relaxed);
    frame.flags.store(span.flags, relaxed);
    frame.effective.store(thread, relaxed);  // for a detached frame: the thread that opened it
    frame.id.store(span.id, std::memory_order_release);
    std::atomic<std::uint32_t>& high_water = arena_.header().detached_high_water;
    for (std::uint32_t seen = high_water.load(relaxed); seen <= index;)
      if (high_water.compare_exchange_weak(seen, index + 1, std::memory_order_release, relaxed)) break;
    return index + 1;
  }
  lose(kLostDetached);
  return 0;
}

void Recorder::hide_detached(std::uint32_t shown_at) noexcept {
  if (shown_at == 0) return;
  OpenFrame& frame = arena_.detached()[shown_at - 1];
  frame.id.store(0, relaxed);
  frame.below.store(0, std::memory_order_release);
}

DetachedSpan Recorder::open_detached(std::uint32_t stage, std::uint16_t flags) {
  ThreadState& thread = this_thread();
  if (thread.attention().load(relaxed) != 0) attend(thread);
  const OpenFrame& below = thread.frames[thread.scope->top];
  DetachedSpan detached{{0, 0, ++thread.next_id, below.as_parent_id.load(relaxed), thread.scope->request, 0, 0, stage,
                         below.as_parent_stage.load(relaxed), below.as_parent_depth.load(relaxed), flags},
                        0};
  detached.span.begin_ticks = now_ticks();
  open_on_device(thread, detached.span, detached.device);
  detached.shown_at = show_detached(detached.span, thread.thread);
  return detached;
}

void Recorder::close_detached(DetachedSpan& detached, std::uint16_t flags) {
  detached.span.end_ticks = now_ticks();
  detached.span.flags |= flags;
  ThreadState& thread = this_thread();
  close_on_device(thread, detached.span, detached.device, false);
  // After a fork the frame may be another span's.
  if (detached.shown_at != 0 && arena_.detached()[detached.shown_at - 1].id.load(relaxed) == detached.span.id)
    hide_detached(detached.shown_at);
  detached.shown_at = 0;
  commit_span(thread, detached.span);
}

FoundFrame Recorder::find_elsewhere(const void* owner_key) noexcept {
  const std::lock_guard lock(cold_);
  FoundFrame latest;
  std::uint64_t latest_begin = 0;
  for (ThreadState* state : threads_) {
    for_each_frame(*state, [&](std::uint32_t index) {
      OpenFrame& frame = state->frames[index];
      const std::uint64_t id = frame.id.load(std::memory_order_acquire);
      if (id == 0 || state->locals[index].opened_by() != owner_key) return;
      if ((frame.flags.load(relaxed) & kFrameClosedAway) != 0) return;
      const std::uint64_t begin = frame.begin_ticks.load(relaxed);
      if (latest && begin < latest_begin) return;
      latest = {state, &frame, id, state->serial};
      latest_begin = begin;
    });
  }
  return latest;
}

bool Recorder::innermost_elsewhere(std::uint64_t serial, std::uint64_t request, ParentLink& link) {
  bool is_found = false;
  with_thread(serial, [&](ThreadState& thread) { is_found = innermost_of_request(thread, request, link); });
  return is_found;
}

bool Recorder::take_away_locked(const FoundFrame& opened, void** note) noexcept {
  ThreadState& owner = *opened.thread;
  OpenFrame& frame = *opened.frame;
  // The owner may have left, or the span may have ended, since the caller found it. The frame may now be another
  // span's.
  if (std::find(threads_.begin(), threads_.end(), &owner) == threads_.end() || frame.id.load(relaxed) != opened.id ||
      (frame.flags.fetch_or(kFrameClosedAway, relaxed) & kFrameClosedAway) != 0)
    return false;
  if (note != nullptr) *note = std::exchange(owner.locals[owner.index_of(frame)].note, nullptr);
  return true;
}

bool Recorder::close_away(const FoundFrame& opened, std::uint16_t flags, FinishedSpan* span, void** note) noexcept {
  const std::uint64_t end_ticks = now_ticks();
  FinishedSpan ended;
  {
    const std::lock_guard lock(cold_);
    if (!take_away_locked(opened, note)) {
      lose(kLostUnmatched);
      return false;
    }
    ended = finished(*opened.thread, *opened.frame, end_ticks, flags);
    // Its events belong to the owner, which may be dropping them at this moment.
    if ((ended.flags & kFrameDevice) != 0) lose(kLostDeviceElsewhere);
    ended.flags &= static_cast<std::uint16_t>(~kFrameDevice);
    opened.thread->attention().fetch_or(kAttentionClosedAway, std::memory_order_release);
  }
  commit_span(this_thread(), ended);
  if (span != nullptr) *span = ended;
  return true;
}

bool Recorder::drop_away(const FoundFrame& opened, void** note) noexcept {
  const std::lock_guard lock(cold_);
  if (!take_away_locked(opened, note)) return false;
  opened.thread->attention().fetch_or(kAttentionClosedAway, std::memory_order_release);
  return true;
}

bool Recorder::record(std::uint32_t stage, std::int64_t begin_ns, std::int64_t end_ns, std::uint16_t flags) {
  if (!arena_) return false;
  const PublishedClock clock = published_clock();
  const std::uint64_t begin = clock.ticks(begin_ns);
  const std::uint64_t end = clock.ticks(end_ns);
  if (end_ns < begin_ns || end < begin || static_cast<std::int64_t>(begin) < 0 || static_cast<std::int64_t>(end) < 0) {
    lose(kLostRecords);
    return false;
  }
  ThreadState& thread = this_thread();
  if (thread.attention().load(relaxed) != 0) attend(thread);
  const OpenFrame& below = thread.frames[thread.scope->top];
  commit_span(thread, {begin, end, ++thread.next_id, below.as_parent_id.load(relaxed), thread.scope->request, 0, 0,
                       stage, below.as_parent_stage.load(relaxed), below.as_parent_depth.load(relaxed),
                       static_cast<std::uint16_t>(flags | kFlagRecorded)});
  return true;
}

}  // namespace stagespan
