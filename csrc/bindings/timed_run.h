// timed_run.h: opening and closing one run of a stage from Python, with what its kind adds.
#pragma once

#include <Python.h>

#include <cstdint>

#include "completions.h"
#include "execution_context.h"
#include "object.h"
#include "span_object.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

// A plain span costs a frame. A profiling or debug context adds a completion (its log line); where debug mode,
// a profiler or an accelerator asks for it, its run goes through the hooks of `context`:
//
//   call = enter(span, function, args, kwargs);  clock;  ...  leave(call);  clock;  flags = exit(call, ...)

/// The three functions of `context`; null until it is imported.
struct ContextHooks {
  PyObject* enter = nullptr;
  PyObject* leave = nullptr;
  PyObject* exit = nullptr;
};
extern ContextHooks g_hooks;

/// Stands for "no result" where a block gave none or an exception passed.
extern PyObject* g_missing;

/// Called once a process, when the first completion is queued.
extern PyObject* g_service_start;

/// Set where every always-on context goes through the hooks.
extern bool g_memory_hook;

/// Stages whose always-on contexts go through the hooks because a profiler wants them.
void set_profiled(PyObject* names);
bool is_profiled(std::uint32_t stage) noexcept;

/// Keeps an exception that is meant for the program and only happened to arrive while a hook ran, as
/// KeyboardInterrupt and SystemExit of a signal handler do.
void raise_later(PyObject* error) noexcept;
/// Has what was kept for this thread raised as soon as the program's own code goes on. To be called where no hook
/// runs any more.
void raise_kept() noexcept;
/// Gives what was kept for this thread instead, as a new reference; null if there is nothing.
PyObject* take_kept() noexcept;

/// Looks, until it is there, whether torch has been imported, and calls `callback` once when it has.
void set_torch_callback(PyObject* callback);

bool wants_hooks(const SpanObject& span) noexcept;

/// Whether another span can be opened in the calling thread: hooks that have been entered must be left.
bool has_room() noexcept;

/// Runs the `enter` hooks. Returns the call as a new reference, or null without an exception. Without
/// `raises_later` the caller raises what was kept meanwhile.
PyObject* hooks_enter(SpanObject& span, PyObject* function, PyObject* args, PyObject* kwargs,
                      bool raises_later = true) noexcept;
void hooks_leave(PyObject* call) noexcept;
/// Runs the `exit` hooks and gives the flags that they set on the record.
std::uint16_t hooks_exit(PyObject* call, PyObject* result, PyObject* error, const FinishedSpan& span) noexcept;

/// Has the service thread started, once a process.
void ensure_service() noexcept;

/// Queues the log line of a finished context; `call` may be null.
void complete(const SpanObject& span, const FinishedSpan& finished, ThreadState& thread, PyObject* call) noexcept;

/// Opens a run in the calling thread; a frame that records nothing if the span's kind is off.
STAGESPAN_HOT OpenFrame* begin_run(ThreadState& thread, const SpanObject& span, const void* owner, bool on) noexcept {
  OpenFrame* const frame = on ? open_frame(thread, span.stage, owner) : open_inactive(thread, owner);
  publish(thread);
  if (on) open_on_device(thread, frame);
  return frame;
}

/// Closes a run of a profiling or debug context, or one that was opened in another scope of this thread. Of a run that
/// another thread has closed only the frame is dropped; `span` counts it as open again, because it has been counted
/// off.
void end_run_slow(ThreadState& thread, SpanObject& span, OpenFrame& frame, std::uint16_t flags, PyObject* result,
                  PyObject* error) noexcept;

/// Takes a frame off its scope without recording anything, and what belongs to it away.
void drop_run(ThreadState& thread, OpenFrame& frame) noexcept;

/// Closes a run that this thread opened in its current scope. `result` is what a decorated function returned,
/// `error` what a block raised; both may be null.
STAGESPAN_HOT void end_run(ThreadState& thread, SpanObject& span, OpenFrame& frame, std::uint16_t flags,
                           PyObject* result, PyObject* error) noexcept {
  const bool is_plain = span.kind == Kind::kSpan &&
                        (frame.flags.load(std::memory_order_relaxed) & (kFrameInactive | kFrameClosedAway)) == 0;
  if (!is_plain) [[unlikely]] {
    end_run_slow(thread, span, frame, flags, result, error);
    return;
  }
  close_frame(thread, frame, flags);
  publish(thread);
}

/// Arguments of a vectorcall as the hooks take them; empty with an exception set on failure.
Ref positional_tuple(PyObject* const* args, std::size_t nargsf);
Ref keyword_dict(PyObject* const* args, std::size_t nargsf, PyObject* kwnames);

/// Runs the `enter` hooks for a call of `function`, where its span wants any.
Ref enter_call(SpanObject& span, PyObject* function, PyObject* const* args, std::size_t nargsf,
               PyObject* kwnames) noexcept;

/// Runs `body`, a call of `function` with these arguments, as one run of a stage. Returns and raises what it does.
template <class Body>
STAGESPAN_HOT PyObject* call_timed(SpanObject& span, PyObject* function, PyObject* const* args, std::size_t nargsf,
                                   PyObject* kwnames, Body&& body) noexcept {
  if (!mode_has(span.mask)) return body();
  Ref call;
  if (span.kind != Kind::kSpan) [[unlikely]]
    call = enter_call(span, function, args, nargsf, kwnames);
  ThreadState& thread = current_thread();
  OpenFrame* const frame = open_frame(thread, span.stage, nullptr);
  if (frame == nullptr) [[unlikely]]
    return body();
  const std::uint64_t id = thread.next_id;
  publish(thread);
  FrameLocal& local = thread.locals[thread.index_of(*frame)];
  if (span.kind != Kind::kSpan) local.note = call.release();
  open_on_device(thread, frame);

  PyObject* const result = body();

  // A fork in between has taken the frame away.
  if (t_state != &thread || frame->id.load(std::memory_order_relaxed) != id) [[unlikely]]
    return result;
  // Others may have had their turn in between; this call returns to the scope it was made in.
  thread.scope = local.scope;
  end_run(thread, span, *frame, result != nullptr ? 0 : kFlagError, result, nullptr);
  return result;
}

}  // namespace stagespan::python
