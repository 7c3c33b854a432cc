// execution_context.h: which scope of open spans belongs to the code that runs now.
#pragma once

#include <Python.h>

#include "object.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

// The thread state's current contextvars.Context distinguishes the spans that are open in one thread. Each
// asyncio task runs in its own context, and so does each greenlet, so that tasks or greenlets which take turns
// never become each other's parents.
//
// Code outside tasks runs in the thread's own context, where opening a span costs one comparison. Inside a
// context that has been entered (a task's step, Context.run, asyncio.to_thread), and in greenlets, each begin
// and end also stores the innermost span in a context variable: code that copies the context, as create_task does,
// takes along the span that was open where it was copied. A thread's own context holds only the thread's serial
// number: in a copy of it, what is innermost in that thread is looked up when the copy first opens a span.

/// Makes the scope of the code that runs now the thread's current one.
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

/// Stores what is innermost now for those who copy the context; drops a task's scope that has nothing left.
void publish_slow(ThreadState& thread) noexcept;

/// Lets go of a scope that has nothing left, when it is not the one whose turn it is: a task's, or one that a
/// generator has left behind.
void drop_if_idle(ThreadState& thread, Scope& scope) noexcept;

/// To be called whenever the current scope's innermost span has changed.
STAGESPAN_HOT void publish(ThreadState& thread) noexcept {
  if (thread.scope->is_task) [[unlikely]]
    publish_slow(thread);
}

/// Makes a request current in this execution context and in those copied from it; gives the one before.
std::uint64_t enter_request(std::uint64_t request);
/// Ends it, in whichever execution context of this thread it is current, and makes the one before current again.
void exit_request(std::uint64_t request, std::uint64_t before);
/// The request of the code that runs now; 0 if it belongs to none.
std::uint64_t current_request();

/// For the module's method table: what a callable takes along to run in another thread.
extern PyMethodDef g_execution_context_functions[];

/// Creates the context variable. False with an exception set when that fails.
bool init_execution_context();

}  // namespace stagespan::python
