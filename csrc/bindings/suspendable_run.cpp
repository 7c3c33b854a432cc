// suspendable_run.cpp: turns, and what the whole run comes to.
#include "suspendable_run.h"

#include <new>

#include "execution_context.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {
constexpr auto relaxed = std::memory_order_relaxed;
}

SuspendableRun::SuspendableRun(SpanObject* span, PyObject* function, PyObject* args, PyObject* kwargs,
                               std::uint16_t flags) noexcept
    : flags_(flags),
      context_(span),
      function_(Py_XNewRef(function)),
      args_(Py_XNewRef(args)),
      kwargs_(Py_XNewRef(kwargs)) {
  Py_INCREF(reinterpret_cast<PyObject*>(span));
}

SuspendableRun::~SuspendableRun() {
  if (state_ == State::kRecording && generation_ == Recorder::get().generation())
    Recorder::get().hide_detached(shown_at_);
  clear();
  Py_DECREF(reinterpret_cast<PyObject*>(context_));
}

int SuspendableRun::traverse(visitproc visit, void* arg) {
  Py_VISIT(function_);
  Py_VISIT(args_);
  Py_VISIT(kwargs_);
  Py_VISIT(call_);
  return 0;
}

void SuspendableRun::clear() noexcept {
  Py_CLEAR(function_);
  Py_CLEAR(args_);
  Py_CLEAR(kwargs_);
  Py_CLEAR(call_);
}

void SuspendableRun::start(ThreadState& thread) noexcept {
  if (!mode_has(context_->mask)) {
    state_ = State::kPassing;
    return;
  }
  if (context_->kind != Kind::kSpan && wants_hooks(*context_))
    call_ = hooks_enter(*context_, function_ != nullptr ? function_ : Py_None, args_, kwargs_);
  Py_CLEAR(args_);
  Py_CLEAR(kwargs_);
  state_ = State::kRecording;
  generation_ = Recorder::get().generation();
  const OpenFrame& below = thread.frames[thread.scope->top];
  span_ = {0,
           0,
           ++thread.next_id,
           below.as_parent_id.load(relaxed),
           thread.scope->request,
           0,
           0,
           context_->stage,
           below.as_parent_stage.load(relaxed),
           below.as_parent_depth.load(relaxed),
           flags_};
  if (context_->kind == Kind::kDebug) span_.flags |= kFlagDebug;
  span_.begin_ticks = suspended_at_ticks_ = now_ticks();
  shown_at_ = Recorder::get().show_detached(span_, thread.thread);
}

SuspendableRun::Turn SuspendableRun::begin_turn() noexcept {
  if (state_ == State::kPassing || state_ == State::kFinished) return {};
  ThreadState& thread = current_thread();
  if (state_ == State::kNew) start(thread);
  if (state_ != State::kRecording || generation_ != Recorder::get().generation()) return {};
  OpenFrame* const frame = open_frame(thread, context_->stage, nullptr);
  if (frame != nullptr) {
    // The frame stands for the whole run: under its id, from its begin.
    frame->id.store(0, relaxed);
    store_fence();
    frame->begin_ticks.store(span_.begin_ticks, relaxed);
    frame->parent.store(span_.parent, relaxed);
    frame->as_parent_id.store(span_.id, relaxed);
    frame->depth.store(span_.depth, relaxed);
    frame->as_parent_depth.store(static_cast<std::uint16_t>(span_.depth + 1), relaxed);
    frame->flags.store(span_.flags, relaxed);
    thread.locals[thread.index_of(*frame)].note = nullptr;
    frame->id.store(span_.id, std::memory_order_release);
  }
  publish(thread);
  span_.suspended_ticks += now_ticks() - suspended_at_ticks_;
  return {&thread, frame, span_.id};
}

void SuspendableRun::end_turn(const Turn& turn) noexcept {
  if (turn.frame == nullptr || turn.frame->id.load(relaxed) != turn.id) return;
  ThreadState& thread = *turn.thread;
  thread.scope = thread.locals[thread.index_of(*turn.frame)].scope;
  span_.children_ticks += turn.frame->child_ticks.load(relaxed);
  drop_frame(thread, *turn.frame);
  publish(thread);
}

void SuspendableRun::suspend(const Turn& turn) noexcept {
  if (turn.thread == nullptr) return;
  suspended_at_ticks_ = now_ticks();
  if (turn.thread == t_state) end_turn(turn);
}

void SuspendableRun::finish(const Turn& turn, bool failed, PyObject* result) noexcept {
  const State before = state_;
  state_ = State::kFinished;
  if (before != State::kRecording || turn.thread == nullptr || turn.thread != t_state) return;
  ErrorAside pending;
  if (call_ != nullptr) hooks_leave(call_);
  span_.end_ticks = now_ticks();
  if (failed) span_.flags |= kFlagError;
  if (call_ != nullptr) span_.flags |= hooks_exit(call_, result, failed ? pending.value() : nullptr, span_);
  ThreadState& thread = *turn.thread;
  // Whoever waits for a coroutine waits for all of it. A generator's consumer works between its turns, so only
  // the turns are a part of the consumer's time.
  if (turn.frame != nullptr && turn.frame->id.load(relaxed) == turn.id) {
    const std::uint32_t below = turn.frame->below.load(relaxed);
    const OpenFrame& parent = thread.frames[thread.frames[below].effective.load(relaxed)];
    if (parent.id.load(relaxed) == span_.parent && span_.parent != 0) {
      const std::uint64_t whole = span_.duration_ticks();
      const bool generator = (flags_ & kFlagGenerator) != 0;
      charge_parent(thread, below, generator ? whole - std::min(whole, span_.suspended_ticks) : whole);
    }
    end_turn(turn);
  }
  Recorder::get().hide_detached(shown_at_);
  shown_at_ = 0;
  commit_span(thread, span_);
  if (context_->kind != Kind::kSpan) complete(*context_, span_, thread, call_);
  Py_CLEAR(call_);
}

}  // namespace stagespan::python
