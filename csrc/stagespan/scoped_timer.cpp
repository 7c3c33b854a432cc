// scoped_timer.cpp: opening and closing a span of the calling thread.
#include "scoped_timer.h"

namespace stagespan {

std::atomic<bool (*)(const ThreadState&)> g_scope_is_current{nullptr};

OpenSpan open_span(std::uint32_t stage) noexcept {
  ThreadState* thread = t_state;
  if (thread == nullptr) [[unlikely]]
    thread = &Recorder::get().attach();
  if (thread->scope->is_task) [[unlikely]] {
    // Another task may have taken its turn since: its spans are no children of that scope's.
    const auto is_current = g_scope_is_current.load(std::memory_order_relaxed);
    if (is_current == nullptr || !is_current(*thread)) thread->scope = &thread->base;
  }
  OpenFrame* const frame = open_frame(*thread, stage, nullptr);
  const std::uint64_t id = thread->next_id;
  open_on_device(*thread, frame);
  return {frame, id};
}

void close_span(OpenSpan span, std::uint16_t flags) noexcept {
  ThreadState* const thread = t_state;
  if (thread == nullptr || span.frame->id.load(std::memory_order_relaxed) != span.id) [[unlikely]]
    return;
  close_frame(*thread, *span.frame, flags);
}

}  // namespace stagespan
