// scoped_timer.h: times a C++ scope in the process of the recorder.
#pragma once

#include "recorder.h"

#ifdef STAGESPAN_SCOPE
#error "stagespan/python.h is for other extensions, stagespan/scoped_timer.h for stagespan itself: include one of them"
#endif

namespace stagespan {

/// An open span of the calling thread, small enough to be passed in registers.
struct OpenSpan {
  OpenFrame* frame;  // null when nothing is recorded
  std::uint64_t id;
};

/// Set by the bindings: the scope of the task or greenlet that is running in the calling thread, null if there is none.
/// Only called if tasks have opened spans, and called without the interpreter's lock.
extern std::atomic<Scope* (*)(ThreadState&)> g_current_scope;

/// Opens a span in the calling thread; called when the recorder is on.
OpenSpan open_span(std::uint32_t stage) noexcept;

/// Ends a span that this thread opened. Does nothing if a fork has cleared the arena in the meantime: the frame's id
/// has changed then.
void close_span(OpenSpan span, std::uint16_t flags) noexcept;

/// What the code that runs in the calling thread adds work of a stage to: its innermost open span of the stage.
WorkingSpan working_span(std::uint32_t stage) noexcept;
/// The same in a scope of the thread: the span that `owner` has opened, or else the innermost one of the stage.
WorkingSpan working_span_in(ThreadState& thread, const Scope& scope, std::uint32_t stage, const void* owner) noexcept;
/// The same for what other code has open.
WorkingSpan working_span_of(const ParentLink& link, std::uint32_t stage) noexcept;

/// Times its enclosing scope. Remembers whether the recorder was on when it opened. The functions that do the work are
/// not inlined and take values, so that a timer that is off needs no memory.
class ScopedTimer {
 public:
  [[gnu::always_inline]] explicit ScopedTimer(std::uint32_t stage) noexcept {
    if (!mode_has(kModeEnabled)) return;
    const OpenSpan span = open_span(stage);
    frame_ = span.frame;
    id_ = span.id;
  }

  [[gnu::always_inline]] ~ScopedTimer() {
    if (frame_ != nullptr) close_span({frame_, id_}, flags_);
  }

  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

  void mark_error() noexcept { flags_ |= kFlagError; }

 private:
  // Single values, so that the compiler keeps them in registers, unless the timer is const.
  OpenFrame* frame_ = nullptr;
  std::uint64_t id_ = 0;
  std::uint16_t flags_ = 0;
};

}  // namespace stagespan

#define STAGESPAN_DETAIL_JOIN2(a, b) a##b
#define STAGESPAN_DETAIL_JOIN(a, b) STAGESPAN_DETAIL_JOIN2(a, b)

/// Times the rest of the enclosing scope as a stage. The name is interned once.
#define STAGESPAN_SCOPE(name)                                                    \
  static const std::uint32_t STAGESPAN_DETAIL_JOIN(stagespan_stage_, __LINE__) = \
      ::stagespan::Recorder::get().intern(name);                                 \
  ::stagespan::ScopedTimer STAGESPAN_DETAIL_JOIN(stagespan_timer_, __LINE__) {   \
    STAGESPAN_DETAIL_JOIN(stagespan_stage_, __LINE__)                            \
  }
