// scoped_timer.cpp: opening and closing a span of the calling thread.
#include "scoped_timer.h"

namespace stagespan {

OpenSpan open_span(std::uint32_t stage) noexcept {
  ThreadState* thread = t_state;
  if (thread == nullptr) [[unlikely]]
    thread = &Recorder::get().attach();
  OpenFrame* const frame = open_frame(*thread, stage, nullptr);
  return {frame, thread->next_id};
}

void close_span(OpenSpan span, std::uint16_t flags) noexcept {
  ThreadState* const thread = t_state;
  if (thread == nullptr || span.frame->id.load(std::memory_order_relaxed) != span.id) [[unlikely]]
    return;
  close_frame(*thread, *span.frame, flags);
}

}  // namespace stagespan
