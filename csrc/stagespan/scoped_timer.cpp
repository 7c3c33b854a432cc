// scoped_timer.cpp: opens and closes a span of the calling thread.
#include "scoped_timer.h"

namespace stagespan {

std::atomic<Scope* (*)(ThreadState&)> g_current_scope{nullptr};

namespace {

[[gnu::noinline, gnu::cold]] OpenSpan open_span_slow(std::uint32_t stage) noexcept {
  ThreadState& thread = Recorder::get().this_thread();
  if (thread.scope->takes_turns) {
    // Another task may be running by now: its spans are not children of that scope's.
    const auto current_scope = g_current_scope.load(std::memory_order_relaxed);
    Scope* const current = current_scope != nullptr ? current_scope(thread) : nullptr;
    thread.scope = current != nullptr ? current : &thread.base;
  }
  OpenFrame* const frame = open_frame_slow(thread, stage, nullptr);
  if (frame == nullptr) return {nullptr, 0};
  const std::uint64_t id = thread.next_id;
  open_on_device(thread, frame);
  return {frame, id};
}

[[gnu::noinline]] OpenSpan with_device(ThreadState& thread, OpenFrame& frame) noexcept {
  const std::uint64_t id = thread.next_id;
  device_open(thread, frame);
  return {&frame, id};
}

}  // namespace

OpenSpan open_span(std::uint32_t stage) noexcept {
  ThreadState* const thread = t_state;
  if (thread != nullptr && !thread->scope->takes_turns) [[likely]] {
    OpenFrame* const frame = try_open_frame(*thread, stage, nullptr);
    if (frame != nullptr) [[likely]] {
      if (mode_has(kModeDevice)) [[unlikely]]
        return with_device(*thread, *frame);
      return {frame, thread->next_id};
    }
  }
  return open_span_slow(stage);
}

void close_span(OpenSpan span, std::uint16_t flags) noexcept {
  ThreadState* const thread = t_state;
  if (thread == nullptr || span.frame->id.load(std::memory_order_relaxed) != span.id) [[unlikely]]
    return;
  close_frame(*thread, *span.frame, flags);
}

}  // namespace stagespan
