// timed_run.h: opens and closes one run of a stage from Python, with its hooks and log line.
#pragma once

#include <Python.h>

#include <cstdint>

#include "completions.h"
#include "execution_context.h"
#include "object.h"
#include "request_details.h"
#include "span_object.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

// A plain span only uses a frame. A profiling or debug context also adds a completion (its log line). If debug mode, a
// profiler or an accelerator needs it, its run calls the hooks of `context`:
//
// call = enter(span, function, args, kwargs);  clock;  ...  leave(call);  clock;  flags = exit(call, ...)

/// The three functions of `context`; null until it is imported.
struct ContextHooks {
  PyObject* enter = nullptr;
  PyObject* leave = nullptr;
  PyObject* exit = nullptr;
};
extern ContextHooks g_hooks;

/// The value for "no result", for blocks without an output and for calls that raised an exception.
extern PyObject* g_missing;

/// Called once per process, when the first completion is queued.
extern PyObject* g_service_start;

/// Whether every always-on context runs the hooks.
extern bool g_memory_hook;

/// Stages whose always-on contexts run the hooks because they are profiled.
void set_profiled(PyObject* names);
bool is_profiled(std::uint32_t stage) noexcept;

/// Sets the stages whose plain spans run the hooks. Spans that exist already do not change.
void set_annotated(PyObject* names);

/// Stores an exception for the program that was raised while a hook ran, such as KeyboardInterrupt or SystemExit from a
/// signal handler.
void raise_later(PyObject* error) noexcept;
/// Stores the exception that is set in the same way, and clears it.
void raise_error_later() noexcept;
/// Counts and clears the exception of a hook, which does not affect the timed code; one of the program's is stored.
void lose_hook_error() noexcept;
/// Raises this thread's stored exception as soon as the program's own code continues. Called when no hook is running.
void raise_kept() noexcept;
/// Removes and returns this thread's stored exception as a new reference, or null.
PyObject* take_kept() noexcept;

/// Checks whether torch has been imported, and calls `callback` once when it has.
void set_torch_callback(PyObject* callback);

bool wants_hooks(const SpanObject& span) noexcept;

/// Whether another span can be opened in the calling thread, because hooks that have been entered must be left.
bool has_room() noexcept;

/// Runs the `enter` hooks. Returns the call as a new reference, or null without an exception. Without `raises_later`,
/// the caller raises the exceptions that were stored in the meantime.
PyObject* hooks_enter(SpanObject& span, PyObject* function, PyObject* args, PyObject* kwargs,
                      bool raises_later = true) noexcept;
void hooks_leave(PyObject* call) noexcept;
/// Runs the `exit` hooks, and adds the flags that they set to the record.
std::uint16_t hooks_exit(PyObject* call, PyObject* result, PyObject* error, const FinishedSpan& span) noexcept;

/// Starts the service thread, once per process.
void ensure_service() noexcept;

/// Queues the log line of a finished context; `call` may be null.
void complete(const SpanObject& span, const FinishedSpan& finished, ThreadState& thread, PyObject* call) noexcept;

/// Notes the CPU clock for a run that has just been opened: of a block, which other code of the thread may interrupt if
/// it waits, or of a call. Does nothing where the time could not be told from that of other code.
void begin_cpu_time_of_block(ThreadState& thread, const OpenFrame& frame) noexcept;
void begin_cpu_time_of_call(ThreadState& thread, const OpenFrame& frame) noexcept;

/// Opens a run in the calling thread; a frame that records nothing if the span's kind is off.
STAGESPAN_HOT OpenFrame* begin_run(ThreadState& thread, const SpanObject& span, const void* owner, bool on) noexcept {
  OpenFrame* const frame = on ? open_frame(thread, span.stage, owner) : open_inactive(thread, owner);
  publish(thread);
  if (on) open_on_device(thread, frame);
  return frame;
}

/// Closes a run of a profiling or debug context, or one that was opened in another scope of this thread. If another
/// thread has closed the run, only the frame is dropped; `span` then counts it as open again, because it was already
/// subtracted.
void end_run_slow(ThreadState& thread, SpanObject& span, OpenFrame& frame, std::uint16_t flags, PyObject* result,
                  PyObject* error) noexcept;

/// Removes a frame and its data from its scope without recording it.
void drop_run(ThreadState& thread, OpenFrame& frame) noexcept;

/// Closes a run that this thread opened in its current scope. `result` is what a decorated function returned,
/// `error` what a block raised; both may be null.
STAGESPAN_HOT void end_run(ThreadState& thread, SpanObject& span, OpenFrame& frame, std::uint16_t flags,
                           PyObject* result, PyObject* error) noexcept {
  const bool is_plain = span.kind == Kind::kSpan &&
                        (frame.flags.load(std::memory_order_relaxed) & (kFrameInactive | kFrameClosedAway)) == 0;
  const std::uint64_t failed = (flags & kFlagError) != 0 ? frame.id.load(std::memory_order_relaxed) : 0;
  if (is_plain) [[likely]] {
    close_frame(thread, frame, flags);
    publish(thread);
  } else {
    end_run_slow(thread, span, frame, flags, result, error);
  }
  if (failed != 0) [[unlikely]]
    note_failure(failed, 0, error);
}

/// Arguments of a vectorcall as the hooks take them; empty with an exception set on failure.
Ref positional_tuple(PyObject* const* args, std::size_t nargsf);
Ref keyword_dict(PyObject* const* args, std::size_t nargsf, PyObject* kwnames);

/// Runs the `enter` hooks for a call of `function`, if its span needs any.
Ref enter_call(SpanObject& span, PyObject* function, PyObject* const* args, std::size_t nargsf,
               PyObject* kwnames) noexcept;

/// Sets the functions that describe the arguments of calls in requests; null to end it. `describe(stage, function,
/// args, kwargs)` is called before the clock starts, and `keep(span_id, description)` once the id of the run is known,
/// if the description is not None.
void set_descriptions(PyObject* describe, PyObject* keep);
/// Whether the arguments of calls in requests are described. Costs plain calls nothing: it is read with the mask.
inline bool describes_calls() noexcept { return !mode_has(kModePlainCalls); }
/// The description of a call, or null: it belongs to no request, or its arguments are not described.
Ref describe_call(const SpanObject& span, PyObject* function, PyObject* args, PyObject* kwargs) noexcept;
Ref describe_call(const SpanObject& span, PyObject* function, PyObject* const* args, std::size_t nargsf,
                  PyObject* kwnames) noexcept;
void keep_description(std::uint64_t span_id, PyObject* description) noexcept;

/// Whether the calling thread is in a request at the moment.
bool is_in_request() noexcept;

/// Runs `body`, a call of `function` with these arguments, as one run of a stage whose kind is on. Returns or raises
/// the same as `body`.
template <class Body>
STAGESPAN_HOT PyObject* record_call(SpanObject& span, PyObject* function, PyObject* const* args, std::size_t nargsf,
                                    PyObject* kwnames, Body&& body) noexcept {
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
  if (span.kind != Kind::kSpan) {
    local.note = call.release();
    if (measures_cpu_time(span)) begin_cpu_time_of_call(thread, *frame);
  }
  open_on_device(thread, frame);

  PyObject* const result = body();

  // The frame does not exist after a fork during the call.
  if (t_state != &thread || frame->id.load(std::memory_order_relaxed) != id) [[unlikely]]
    return result;
  // Other tasks may have run during the call, so return to the scope in which it was made.
  thread.scope = &scope_of(thread, thread.index_of(*frame));
  end_run(thread, span, *frame, result != nullptr ? 0 : kFlagError, result, nullptr);
  return result;
}

/// The same with a description of the arguments, if the call is in a request.
template <class Body>
[[gnu::noinline, gnu::cold]] PyObject* call_described(SpanObject& span, PyObject* function, PyObject* const* args,
                                                      std::size_t nargsf, PyObject* kwnames, Body&& body) noexcept {
  const Ref description = is_in_request() ? describe_call(span, function, args, nargsf, kwnames) : Ref();
  const std::uint64_t before = current_thread().next_id;
  std::uint64_t id = before;
  PyObject* const result = record_call(span, function, args, nargsf, kwnames, [&] {
    id = current_thread().next_id;
    return body();
  });
  if (description && id != before) keep_description(id, description.get());
  return result;
}

/// Runs `body` as one run of a stage if its kind is on.
template <class Body>
STAGESPAN_HOT PyObject* call_timed(SpanObject& span, PyObject* function, PyObject* const* args, std::size_t nargsf,
                                   PyObject* kwnames, Body&& body) noexcept {
  if (!mode_has(span.mask | kModePlainCalls)) [[unlikely]] {
    if (!mode_has(span.mask)) return body();
    return call_described(span, function, args, nargsf, kwnames, body);
  }
  return record_call(span, function, args, nargsf, kwnames, body);
}

}  // namespace stagespan::python
