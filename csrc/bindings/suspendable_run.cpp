// suspendable_run.cpp: the turns of a suspendable run, and its end.
#include "suspendable_run.h"

#include <algorithm>
#include <new>

#include "execution_context.h"
#include "stagespan/cut_off.h"
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
  if (device_ != nullptr) g_device_hooks.load(std::memory_order_acquire)->abandon(device_);
  clear();
  Py_XDECREF(reinterpret_cast<PyObject*>(context_));
}

int SuspendableRun::traverse(visitproc visit, void* arg) {
  Py_VISIT(function_);
  Py_VISIT(args_);
  Py_VISIT(kwargs_);
  Py_VISIT(call_);
  return 0;
}

void SuspendableRun::clear() noexcept {
  drop_from(function_);
  drop_from(args_);
  drop_from(kwargs_);
  drop_from(call_);
}

void SuspendableRun::start() noexcept {
  // The hooks run Python code, which must find that the run has begun.
  state_ = State::kPassing;
  bool on = mode_has(context_->mask);
  // Checked before the hooks, because entered hooks must be left.
  if (on && current_thread().is_stand_in()) {
    Recorder::get().lose(kLostMemory);
    on = false;
  }
  Ref description;
  {
    const Ref args(std::exchange(args_, nullptr));
    const Ref kwargs(std::exchange(kwargs_, nullptr));
    PyObject* const function = function_ != nullptr ? function_ : Py_None;
    if (on && context_->kind != Kind::kSpan && wants_hooks(*context_))
      call_ = hooks_enter(*context_, function, args.get(), kwargs.get());
    if (on && args && describes_calls() && is_in_request())
      description = describe_call(*context_, function, args.get(), kwargs.get());
  }
  if (!on) return;
  ThreadState& thread = current_thread();
  if (thread.attention().load(relaxed) != 0) attend(thread);
  state_ = State::kRecording;
  generation_ = Recorder::get().generation();
  const OpenFrame& below = thread.frames[thread.scope->top];
  span_ = {0,     0, ++thread.next_id, below.as_parent_id.load(relaxed),    thread.scope->request,
           0,     0, context_->stage,  below.as_parent_stage.load(relaxed), below.as_parent_depth.load(relaxed),
           flags_};
  if (context_->kind == Kind::kDebug) span_.flags |= kFlagDebug;
  span_.begin_ticks = suspended_at_ticks_ = now_ticks();
  open_on_device(thread, span_, device_);
  shown_at_ = Recorder::get().show_detached(span_, thread.thread);
  if (description) keep_description(span_.id, description.get());
}

// The frame represents the whole run: under its id, from its start, with its children so far.
OpenFrame* SuspendableRun::open_turn(ThreadState& thread) noexcept {
  OpenFrame* const frame = open_frame(thread, context_->stage, nullptr);
  if (frame == nullptr) return nullptr;
  frame->id.store(0, relaxed);
  store_fence();
  frame->begin_ticks.store(span_.begin_ticks, relaxed);
  frame->parent.store(span_.parent, relaxed);
  frame->as_parent_id.store(span_.id, relaxed);
  frame->child_ticks.store(span_.children_ticks, relaxed);
  frame->depth.store(span_.depth, relaxed);
  frame->as_parent_depth.store(static_cast<std::uint16_t>(span_.depth + 1), relaxed);
  frame->flags.store(static_cast<std::uint16_t>(span_.flags & ~kFrameDevice), relaxed);
  thread.locals[thread.index_of(*frame)].belong_to(span_.request);
  frame->id.store(span_.id, std::memory_order_release);
  return frame;
}

// Removes the run's frame, and spans above it that stay open between turns, from the driver's scope.
bool SuspendableRun::park(ThreadState& thread, OpenFrame& frame) noexcept {
  const std::uint32_t root = thread.index_of(frame);
  Scope& scope = scope_of(thread, root);
  std::uint32_t i = scope.top;
  while (i != root && i != scope.root && i != 0) i = thread.frames[i].below.load(relaxed);
  if (i != root || scope.top == root) return false;
  parked_ = new (std::nothrow) Scope;
  if (parked_ == nullptr) {
    // Removes the frame. The spans above it stay in the driver's scope.
    Recorder::get().lose(kLostMemory);
    return false;
  }
  parked_->holds = 1;
  parked_in_ = thread.serial;
  parked_->top = scope.top;
  parked_->root = root;
  for (i = scope.top; i != root && i != 0; i = thread.frames[i].below.load(relaxed)) thread.locals[i].open_in(parked_);
  thread.locals[root].open_in(parked_);
  scope.top = frame.below.load(relaxed);
  frame.id.store(0, relaxed);
  return true;
}

// Leaves the spans open; drop_if_idle() removes the scope after the last of them.
void SuspendableRun::give_up_parked() noexcept {
  if (parked_ != nullptr) parked_->holds = 0;
  parked_ = nullptr;
}

OpenFrame* SuspendableRun::unpark(ThreadState& thread) noexcept {
  if (parked_ == nullptr) return nullptr;
  if (parked_in_ != thread.serial) {
    // Frames stay in their thread.
    give_up_parked();
    return nullptr;
  }
  Scope* const parked = std::exchange(parked_, nullptr);
  Scope& scope = *thread.scope;
  OpenFrame& frame = thread.frames[parked->root];
  for (std::uint32_t i = parked->top; i != parked->root && i != 0; i = thread.frames[i].below.load(relaxed))
    thread.locals[i].open_in(&scope);
  thread.locals[parked->root].open_in(&scope);
  frame.below.store(scope.top, relaxed);
  scope.top = parked->top;
  delete parked;
  frame.id.store(span_.id, std::memory_order_release);
  return &frame;
}

SuspendableRun::Turn SuspendableRun::begin_turn() noexcept {
  Turn turn;
  turn.is_nested = in_turn_;
  if (in_turn_ || state_ == State::kPassing || state_ == State::kFinished) return turn;
  in_turn_ = true;
  if (state_ == State::kNew) start();
  if (state_ != State::kRecording || generation_ != Recorder::get().generation() || is_cut_off()) return turn;
  ThreadState& thread = current_thread();
  if (thread.attention().load(relaxed) != 0) attend(thread);
  OpenFrame* frame = unpark(thread);
  if (frame == nullptr) frame = open_turn(thread);
  publish(thread);
  const std::uint64_t now = now_ticks();
  span_.suspended_ticks += now > suspended_at_ticks_ ? now - suspended_at_ticks_ : 0;
  turn.thread = &thread;
  turn.frame = frame;
  turn.id = span_.id;
  turn.begin_ticks = now;
  return turn;
}

void SuspendableRun::charge(ThreadState& thread, OpenFrame& parent, std::uint64_t from, std::uint64_t now) noexcept {
  // Coroutines that are driven by hand can take turns while their parent waits for each of them. Their times then
  // overlap, but together they do not exceed the parent's.
  const std::uint64_t parent_ticks = now - std::min(now, parent.begin_ticks.load(relaxed));
  const std::uint64_t charged = parent.child_ticks.load(relaxed);
  const std::uint64_t uncharged = parent_ticks - std::min(parent_ticks, charged);
  charge_parent(thread, thread.index_of(parent), std::min(now - std::min(now, from), uncharged));
}

void SuspendableRun::end_turn(const Turn& turn, std::uint64_t now, bool may_park) noexcept {
  const bool waited = std::exchange(parent_waits_, false);
  if (turn.frame == nullptr || turn.frame->id.load(relaxed) != turn.id) return;
  ThreadState& thread = *turn.thread;
  thread.scope = &scope_of(thread, thread.index_of(*turn.frame));
  span_.children_ticks = turn.frame->child_ticks.load(relaxed);
  const std::uint32_t below = turn.frame->below.load(relaxed);
  OpenFrame& parent = thread.frames[thread.frames[below].effective.load(relaxed)];
  // Turns that another span drives are part of that span's time, which its own parent is charged for.
  if (span_.parent != 0 && parent.id.load(relaxed) == span_.parent) {
    charge(thread, parent, waited ? suspended_at_ticks_ : turn.begin_ticks, now);
    parent_waits_ = true;
  }
  if (!may_park || !park(thread, *turn.frame)) drop_frame(thread, *turn.frame);
  publish(thread);
}

void SuspendableRun::suspend(const Turn& turn, bool parent_waits) noexcept {
  if (turn.is_nested) return;
  in_turn_ = false;
  if (turn.thread == nullptr || turn.thread != t_state) return;
  const std::uint64_t now = now_ticks();
  end_turn(turn, now, true);
  parent_waits_ = parent_waits_ && parent_waits;
  suspended_at_ticks_ = now;
}

void SuspendableRun::finish(const Turn& turn, bool failed, PyObject* result, bool given_up) noexcept {
  if (turn.is_nested) return;
  const State before = std::exchange(state_, State::kFinished);
  in_turn_ = false;
  if (before != State::kRecording || turn.thread == nullptr || turn.thread != t_state) return;
  ErrorAside pending;
  if (call_ != nullptr) hooks_leave(call_);
  span_.end_ticks = now_ticks();
  close_on_device(*turn.thread, span_, device_, is_context(context_->kind));
  if (failed) span_.flags |= kFlagError;
  if (call_ != nullptr) span_.flags |= hooks_exit(call_, result, failed ? pending.value() : nullptr, span_);
  ThreadState& thread = *turn.thread;
  end_turn(turn, span_.end_ticks, given_up);
  give_up_parked();
  Recorder::get().hide_detached(shown_at_);
  shown_at_ = 0;
  commit_span(thread, span_);
  if (failed) note_failure(span_.id, 0, pending.value());
  if (is_context(context_->kind)) complete(*context_, span_, thread, call_);
  drop_from(call_);
  raise_kept();
}

}  // namespace stagespan::python
