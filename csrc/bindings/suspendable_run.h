// suspendable_run.h: one run of a coroutine or generator, which is on a thread's stack only in its turns.
#pragma once

#include <Python.h>

#include <cstdint>

#include "object.h"
#include "span_object.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

/// A run that begins with its first turn and lasts until it is finished. In each turn it is the innermost span
/// of the context that drives it; between turns it is shown as open but is not a parent, and the time is
/// counted as suspended. Spans that its code has open between turns go with it, so that other spans do not get
/// into them. Turns may happen on different threads.
class SuspendableRun {
 public:
  /// `call` is made by the `enter` hooks when the first turn begins; the arguments are kept until then.
  SuspendableRun(SpanObject* span, PyObject* function, PyObject* args, PyObject* kwargs, std::uint16_t flags) noexcept;
  ~SuspendableRun();
  SuspendableRun(const SuspendableRun&) = delete;
  SuspendableRun& operator=(const SuspendableRun&) = delete;

  /// A turn in progress; the caller keeps it on its stack.
  struct Turn {
    ThreadState* thread = nullptr;  // null when nothing is recorded
    OpenFrame* frame = nullptr;
    std::uint64_t id = 0;
    std::uint64_t begin_ticks = 0;
    bool is_nested = false;  // requested during another turn: the code will refuse it
  };

  Turn begin_turn() noexcept;
  /// The code has ended its turn and will have another. `parent_waits`: the code that drives it can do nothing until
  /// then, so that the time in between is part of the parent's time, like the turns.
  void suspend(const Turn& turn, bool parent_waits) noexcept;
  /// The code has ended: with `result`, with the pending exception if `failed`, or by being closed. `given_up`:
  /// it will not be driven any more, although it may not have ended yet.
  void finish(const Turn& turn, bool failed, PyObject* result, bool given_up = false) noexcept;

  bool started() const noexcept { return state_ != State::kNew; }
  bool finished() const noexcept { return state_ == State::kFinished; }
  int traverse(visitproc visit, void* arg);
  void clear() noexcept;

 private:
  enum class State : std::uint8_t { kNew, kRecording, kPassing, kFinished };

  void start() noexcept;
  OpenFrame* open_turn(ThreadState& thread) noexcept;
  OpenFrame* unpark(ThreadState& thread) noexcept;
  bool park(ThreadState& thread, OpenFrame& frame) noexcept;
  void give_up_parked() noexcept;
  void end_turn(const Turn& turn, std::uint64_t now, bool may_park) noexcept;
  void charge(ThreadState& thread, OpenFrame& parent, std::uint64_t from, std::uint64_t now) noexcept;

  State state_ = State::kNew;
  bool in_turn_ = false;
  bool parent_waits_ = false;
  std::uint16_t flags_;
  std::uint32_t shown_at_ = 0;
  std::uint32_t generation_ = 0;
  std::uint64_t suspended_at_ticks_ = 0;
  FinishedSpan span_{};
  Scope* parked_ = nullptr;      // the run's frame and those above it, between turns
  std::uint64_t parked_in_ = 0;  // serial of the thread whose frames they are
  SpanObject* context_;
  PyObject* function_;
  PyObject* args_;
  PyObject* kwargs_;
  PyObject* call_ = nullptr;
  void* device_ = nullptr;  // the events of the whole run
};

}  // namespace stagespan::python
