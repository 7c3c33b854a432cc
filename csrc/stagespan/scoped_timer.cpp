// scoped_timer.cpp: opens and closes a span of the calling thread.
#include "scoped_timer.h"

namespace stagespan {

std::atomic<Scope* (*)(ThreadState&)> g_current_scope{nullptr};

namespace {

void find_scope(ThreadState& thread) noexcept {
  if (!thread.scope->takes_turns) return;
  // Another task may be running by now: its spans are not children of that scope's.
  const auto current_scope = g_current_scope.load(std::memory_order_relaxed);
  Scope* const current = current_scope != nullptr ? current_scope(thread) : nullptr;
  thread.scope = current != nullptr ? current : &thread.base;
}

[[gnu::noinline, gnu::cold]] OpenSpan open_span_slow(std::uint32_t stage) noexcept {
  ThreadState& thread = Recorder::get().this_thread();
  find_scope(thread);
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

WorkingSpan working_span(std::uint32_t stage) noexcept {
  ThreadState& thread = Recorder::get().this_thread();
  find_scope(thread);
  return working_span_in(thread, *thread.scope, stage, nullptr);
}

WorkingSpan working_span_in(ThreadState& thread, const Scope& scope, std::uint32_t stage, const void* owner) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  OpenFrame* innermost = nullptr;
  for (std::uint32_t index = scope.top; index != scope.root && index != 0;
       index = thread.frames[index].below.load(relaxed)) {
    OpenFrame& frame = thread.frames[index];
    const bool is_own = owner != nullptr && thread.locals[index].owner == owner;
    if (!is_own && (innermost != nullptr || frame.stage.load(relaxed) != stage)) continue;
    if ((frame.flags.load(relaxed) & (kFrameInactive | kFrameClosedAway)) != 0) continue;
    innermost = &frame;
    if (is_own) break;
  }
  if (innermost != nullptr) return {innermost->id.load(relaxed), innermost->begin_ticks.load(relaxed), innermost};
  const OpenFrame& root = thread.frames[scope.root];
  return working_span_of({root.as_parent_id.load(relaxed), scope.request, root.as_parent_stage.load(relaxed)}, stage);
}

WorkingSpan working_span_of(const ParentLink& link, std::uint32_t stage) noexcept {
  // The start of a span in other code is not known, and is earlier than now.
  if (link.id != 0 && link.stage == stage) return {link.id, now_ticks()};
  return {.request = link.request};
}

void close_span(OpenSpan span, std::uint16_t flags) noexcept {
  ThreadState* const thread = t_state;
  if (thread == nullptr || span.frame->id.load(std::memory_order_relaxed) != span.id) [[unlikely]]
    return;
  close_frame(*thread, *span.frame, flags);
}

}  // namespace stagespan
