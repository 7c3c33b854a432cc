// execution_context.h: which scope of open spans belongs to the code that runs now.
#pragma once

#include <Python.h>

#include "context_variables.h"
#include "object.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

// The thread state's current contextvars.Context distinguishes the spans that are open in one thread. Each asyncio task
// runs in its own context, and so does each greenlet, so that interleaved tasks or greenlets are never nested in each
// other.
//
// Code outside tasks runs in the thread's own context, where opening a span costs one comparison. Inside a
// context that has been entered (a task's step, Context.run, asyncio.to_thread), and in greenlets, each start
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

/// The parent of a span that is opened in this scope now. Inlined, so that it stays in registers: copied through
/// memory, several fields would be loaded at once, and a processor cannot forward several stores to one load.
STAGESPAN_HOT ParentLink innermost(const ThreadState& thread, const Scope& scope) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  const OpenFrame* top = &thread.frames[scope.top];
  // Its thread has not dropped those yet that other threads have ended.
  while ((top->flags.load(relaxed) & kFrameClosedAway) != 0) [[unlikely]]
    top = &thread.frames[top->below.load(relaxed)];
  return {top->as_parent_id.load(relaxed), scope.request, top->as_parent_stage.load(relaxed),
          top->as_parent_depth.load(relaxed)};
}

/// Whether other code of the thread may run while the running code waits: in a task or a greenlet.
bool takes_turns(const ThreadState& thread) noexcept;

/// Whether greenlets may run in this process: only their module can make them.
bool has_greenlets() noexcept;

/// What copies of the scope's context inherit now.
Inherited inherited_from(const ThreadState& thread, const Scope& scope) noexcept;

/// Stores that and, unless it is null, the request object in the current context, and drops a task's scope without open
/// spans.
void publish_slow(ThreadState& thread, PyObject* request = nullptr) noexcept;

/// The same for a scope that is not the current one, because a span or request ended in a context other than its own:
/// for example in an async generator that the event loop closes. Also stores the request object, unless it is null, and
/// frees the scope that a suspended run has left.
void publish_elsewhere(ThreadState& thread, Scope& scope, PyObject* request = nullptr) noexcept;

/// The same for a span of another thread that the calling one ends: the first function is called before, and returns
/// the context of its scope, or nothing; the second one after.
Ref context_of(const FoundFrame& found) noexcept;
void publish_in_thread(std::uint64_t serial, PyObject* context) noexcept;

/// Whether the running code has no scope because there was no memory for one.
inline bool has_no_scope(const ThreadState& thread) noexcept {
  return thread.is_stand_in() || thread.scope == &thread.nowhere;
}

/// The open span that `owner` has opened, or else the innermost one of `stage`, in the running code or where its
/// context was copied; the current request if there is none. A thread that has opened no spans does not get a state by
/// this call.
WorkingSpan working_span(const void* owner, std::uint32_t stage) noexcept;

/// publish_slow() in a task, without a request. Nearly always, the value is changed in place.
void publish_in_task(ThreadState& thread) noexcept;

/// Called when the innermost span of the current scope has changed.
STAGESPAN_HOT void publish(ThreadState& thread) noexcept {
  if (thread.scope->is_task) [[unlikely]]
    publish_in_task(thread);
}

/// Returns false with an exception set if that fails.
bool init_execution_context();

}  // namespace stagespan::python
