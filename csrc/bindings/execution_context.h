// execution_context.h: which scope of open spans belongs to the code that runs now.
#pragma once

#include <Python.h>

#include "object.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

// The thread state's current contextvars.Context distinguishes the spans that are open in one thread. Each asyncio task
// runs in its own context, and so does each greenlet, so that interleaved tasks or greenlets are never nested in each
// other.
//
// Code outside tasks runs in the thread's own context, where opening a span costs one comparison. Inside a
// context that has been entered (a task's step, Context.run, asyncio.to_thread), and in greenlets, each begin
// and end also stores the innermost span in a context variable: code that copies the context, as create_task does,
// takes along the span that was open where it was copied. A thread's own context holds only the thread's serial
// number: in a copy of it, what is innermost in that thread is looked up when the copy first opens a span.

/// Makes the scope of the running code the thread's current scope.
void switch_scope(ThreadState& thread, PyObject* context) noexcept;

/// The calling thread with its current scope. The interpreter's lock is held.
STAGESPAN_HOT ThreadState& current_thread() noexcept {
  ThreadState* thread = t_state;
  if (thread == nullptr) [[unlikely]]
    thread = &Recorder::get().attach();
  PyObject* const context = thread_state()->context;
  if (context != thread->scope->context) [[unlikely]]
    switch_scope(*thread, context);
  return *thread;
}

/// Stores the innermost span for copies of the context, and drops a task's scope without open spans.
void publish_slow(ThreadState& thread) noexcept;

/// Drops a scope without open spans that is not current: that of a task, or one that a generator left.
void drop_if_idle(ThreadState& thread, Scope& scope) noexcept;

/// Called when the innermost span of the current scope has changed.
STAGESPAN_HOT void publish(ThreadState& thread) noexcept {
  if (thread.scope->is_task) [[unlikely]]
    publish_slow(thread);
}

/// Makes a request current in this execution context and its copies. Returns the previous one.
std::uint64_t enter_request(std::uint64_t request);
/// Ends it, in whichever execution context of this thread it is current, and restores the previous one.
void exit_request(std::uint64_t request, std::uint64_t before);
/// The request of the running code, or 0.
std::uint64_t current_request();

/// For the module's method table: the functions that pass span and request to other threads.
extern PyMethodDef g_execution_context_functions[];

/// Creates the context variable. Returns false with an exception set if that fails.
bool init_execution_context();

}  // namespace stagespan::python
