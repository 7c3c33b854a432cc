// timed_run.cpp: runs hooks, queues log lines, and calls a function as a run.
#include "timed_run.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "peak_memory.h"
#include "stage_names.h"
#include "stagespan/clock.h"
#include "stagespan/cut_off.h"

namespace stagespan::python {

ContextHooks g_hooks;
PyObject* g_missing = nullptr;
PyObject* g_service_start = nullptr;
bool g_memory_hook = false;

namespace {

PyObject* g_torch_callback = nullptr;
PyObject* g_describe = nullptr;
PyObject* g_keep_description = nullptr;

// Stages by name, or all of them.
class NamedStages {
 public:
  // With an exception set if `names` cannot be iterated over.
  void set(PyObject* names) {
    all_ = false;
    std::fill(std::begin(named_), std::end(named_), false);
    const Ref iterator(PyObject_GetIter(names));
    if (!iterator) return;
    while (const Ref name{PyIter_Next(iterator.get())}) {
      if (PyUnicode_Check(name.get()) && PyUnicode_CompareWithASCIIString(name.get(), "*") == 0) all_ = true;
      named_[stage_of(name.get())] = true;
    }
  }
  bool has(std::uint32_t stage) const noexcept { return all_ || named_[stage]; }

 private:
  bool all_ = false;
  bool named_[kMaxStages] = {};
};

NamedStages g_profiled;
NamedStages g_annotated;
std::uint32_t g_service_generation = ~0U;

struct KeptError {
  unsigned long thread;
  PyObject* error;
};
constexpr std::size_t kMostKept = 64;
KeptError g_kept[kMostKept];
std::size_t g_kept_count = 0;

int raise_pending(void* owned) {
  const Ref error(static_cast<PyObject*>(owned));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  return -1;
}

bool is_main_thread() noexcept {
  const Ref threading(PyImport_ImportModule("threading"));
  const Ref thread(threading ? PyObject_CallMethod(threading.get(), "main_thread", nullptr) : nullptr);
  const Ref ident(thread ? PyObject_GetAttrString(thread.get(), "ident") : nullptr);
  const bool is_main = ident && PyLong_AsUnsignedLong(ident.get()) == PyThread_get_thread_ident();
  PyErr_Clear();
  return is_main;
}

// Looks for torch until it is found, and never imports it.
void look_for_torch() noexcept {
  PyObject* const modules = PyImport_GetModuleDict();
  if (modules == nullptr || PyDict_GetItemString(modules, "torch") == nullptr) return;
  const Ref callback(std::exchange(g_torch_callback, nullptr));
  const Ref done(PyObject_CallNoArgs(callback.get()));
  if (!done) lose_hook_error();
}

}  // namespace

void ensure_service() noexcept {
  const std::uint32_t generation = Recorder::get().generation();
  if (g_service_start == nullptr || g_service_generation == generation || Py_IsInitialized() == 0) return;
  g_service_generation = generation;
  const Ref done(PyObject_CallNoArgs(g_service_start));
  if (!done) lose_hook_error();
  // It cannot be started during an import or a fork. Then the next finished context starts it.
  if (done.get() == Py_False) g_service_generation = ~0U;
}

void raise_later(PyObject* error) noexcept {
  if (error == nullptr) return;
  if (g_kept_count == kMostKept) {  // of as many threads at once
    Recorder::get().lose(kLostHookErrors);
    return;
  }
  g_kept[g_kept_count++] = {PyThread_get_thread_ident(), Py_NewRef(error)};
}

void raise_error_later() noexcept {
  {
    ErrorAside error;
    raise_later(error.value());
  }
  PyErr_Clear();
}

void lose_hook_error() noexcept {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0) return raise_error_later();
  Recorder::get().lose(kLostHookErrors);
  PyErr_Clear();
}

namespace {

[[gnu::noinline, gnu::cold]] PyObject* take_what_is_kept() noexcept {
  // Removed from the list before they are freed, because code that runs then may add another one.
  PyObject* errors[kMostKept];
  std::size_t count = 0, left = 0;
  for (std::size_t i = 0; i < g_kept_count; ++i) {
    if (g_kept[i].thread == PyThread_get_thread_ident())
      errors[count++] = g_kept[i].error;
    else
      g_kept[left++] = g_kept[i];
  }
  g_kept_count = left;
  // A second exception that came before the first was raised is dropped with it.
  for (std::size_t i = 1; i < count; ++i) Py_DECREF(errors[i]);
  return count == 0 ? nullptr : errors[0];
}

[[gnu::noinline, gnu::cold]] void raise_what_is_kept() noexcept {
  const ErrorAside pending;
  const bool is_main = is_main_thread();
  PyObject* const error = take_what_is_kept();
  if (error == nullptr || (is_main && Py_AddPendingCall(raise_pending, error) == 0)) return;
  if (!is_main) PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), reinterpret_cast<PyObject*>(Py_TYPE(error)));
  Py_DECREF(error);
}

}  // namespace

PyObject* take_kept() noexcept {
  if (g_kept_count == 0) [[likely]]
    return nullptr;
  return take_what_is_kept();
}

void raise_kept() noexcept {
  if (g_kept_count != 0) [[unlikely]]
    raise_what_is_kept();
}

void set_profiled(PyObject* names) { g_profiled.set(names); }

void set_annotated(PyObject* names) {
  g_annotated.set(names);
  forget_cached_names();
}

bool is_profiled(std::uint32_t stage) noexcept { return g_profiled.has(stage); }

bool is_annotated(std::uint32_t stage) noexcept { return g_annotated.has(stage); }

void set_torch_callback(PyObject* callback) { keep(g_torch_callback, callback); }

bool wants_hooks(const SpanObject& span) noexcept {
  // A finalizer at the end of the interpreter, when the modules no longer exist.
  if (Py_IsInitialized() == 0) return false;
  if (g_torch_callback != nullptr) {
    const ErrorAside pending;
    look_for_torch();
  }
  if (g_hooks.enter == nullptr || span.kind == Kind::kSpan) return false;
  if (span.kind == Kind::kExtended) return is_annotated(span.stage);
  return span.kind == Kind::kDebug || g_memory_hook || span.capture_memory || is_profiled(span.stage);
}

void set_descriptions(PyObject* describe, PyObject* keep_one) {
  if (describe == nullptr) g_mode.fetch_or(kModePlainCalls, std::memory_order_relaxed);
  keep(g_describe, describe);
  keep(g_keep_description, keep_one);
  if (describe != nullptr && !is_cut_off()) g_mode.fetch_and(~kModePlainCalls, std::memory_order_relaxed);
}

bool is_in_request() noexcept {
  ThreadState& thread = current_thread();
  if (thread.attention().load(std::memory_order_relaxed) != 0) attend(thread);
  return thread.scope->request != 0;
}

Ref describe_call(const SpanObject& span, PyObject* function, PyObject* args, PyObject* kwargs) noexcept {
  const ErrorAside pending;
  const Ref describe(Py_XNewRef(g_describe));
  if (!describe || args == nullptr || kwargs == nullptr || Py_IsInitialized() == 0) return Ref();
  PyObject* const arguments[] = {span.name, function, args, kwargs};
  Ref description(PyObject_Vectorcall(describe.get(), arguments, 4, nullptr));
  if (!description) lose_hook_error();
  raise_kept();
  return description.get() == Py_None ? Ref() : std::move(description);
}

void keep_description(std::uint64_t span_id, PyObject* description) noexcept {
  const ErrorAside pending;
  const Ref keep_one(Py_XNewRef(g_keep_description)), id(PyLong_FromUnsignedLongLong(span_id));
  if (!keep_one) return;
  PyObject* const arguments[] = {id.get(), description};
  const Ref done(id ? PyObject_Vectorcall(keep_one.get(), arguments, 2, nullptr) : nullptr);
  if (!done) lose_hook_error();
  raise_kept();
}

bool has_room() noexcept {
  ThreadState& thread = current_thread();
  const std::uint32_t index = take_frame(thread);
  if (index != 0) give_frame(thread, index);
  return index != 0;
}

PyObject* hooks_enter(SpanObject& span, PyObject* function, PyObject* args, PyObject* kwargs,
                      bool raises_later) noexcept {
  const ErrorAside pending;
  // A block has no arguments.
  const Ref no_args(args == nullptr ? PyTuple_New(0) : Py_NewRef(args));
  const Ref no_kwargs(kwargs == nullptr ? PyDict_New() : Py_NewRef(kwargs));
  if (!no_args || !no_kwargs) {
    lose_hook_error();
    return nullptr;
  }
  PyObject* const arguments[] = {reinterpret_cast<PyObject*>(&span), function, no_args.get(), no_kwargs.get()};
  PyObject* const call = PyObject_Vectorcall(g_hooks.enter, arguments, 4, nullptr);
  if (call == nullptr) lose_hook_error();
  if (raises_later) raise_kept();
  return call;
}

void hooks_leave(PyObject* call) noexcept {
  // A waiting exception would be raised in the hooks, which must be left.
  if (Py_MakePendingCalls() != 0) lose_hook_error();
  const Ref done(PyObject_CallOneArg(g_hooks.leave, call));
  if (!done) lose_hook_error();
}

std::uint16_t hooks_exit(PyObject* call, PyObject* result, PyObject* error, const FinishedSpan& span) noexcept {
  const PublishedClock clock = Recorder::get().published_clock();
  const Ref id(PyLong_FromUnsignedLongLong(span.id));
  const Ref begin(PyLong_FromLongLong(clock.unix_ns(span.begin_ticks)));
  const Ref end(PyLong_FromLongLong(clock.end_ns(span.begin_ticks, span.end_ticks)));
  if (!id || !begin || !end) {
    lose_hook_error();
    return 0;
  }
  PyObject* const arguments[] = {
      call,     result != nullptr ? result : g_missing, error != nullptr ? error : Py_None, id.get(), begin.get(),
      end.get()};
  const Ref flags(PyObject_Vectorcall(g_hooks.exit, arguments, 6, nullptr));
  const long value = flags ? PyLong_AsLong(flags.get()) : 0;
  if (PyErr_Occurred() != nullptr) {
    lose_hook_error();
    return 0;
  }
  return static_cast<std::uint16_t>(value) & kFlagPublished;
}

void complete(const SpanObject& span, const FinishedSpan& finished, ThreadState& thread, PyObject* call) noexcept {
  Completion completion{finished.begin_ticks,
                        finished.end_ticks,
                        thread.ident,
                        -1,
                        span.stage,
                        thread.thread,
                        std::uint32_t{finished.flags} & kFlagPublished,
                        finished.request};
  if ((finished.flags & kFrameDevice) != 0) completion.device_span = finished.id;
  if (call == nullptr) {
    completion.peak_bytes = peak_resident_bytes();
  } else {
    // The memory hook has stored the accelerator's peak here.
    const Ref peak(PyObject_GetAttrString(call, "peak_bytes"));
    if (peak && PyLong_Check(peak.get())) {
      completion.peak_bytes = PyLong_AsLongLong(peak.get());
      completion.flags |= kCompletionDeviceMemory;
    } else {
      completion.peak_bytes = peak_resident_bytes();
    }
    PyErr_Clear();
  }
  push_completion(completion);
  ensure_service();
}

namespace {

// Whether the running Python code can be suspended in a place that its thread does not show: a generator anywhere, a
// coroutine outside of tasks.
bool may_yield_unseen(const ThreadState& thread) noexcept {
  PyFrameObject* const frame = PyEval_GetFrame();
  if (frame == nullptr) return false;
  PyCodeObject* const code = PyFrame_GetCode(frame);
  const int flags = code->co_flags;
  Py_DECREF(reinterpret_cast<PyObject*>(code));
  if ((flags & (CO_GENERATOR | CO_ASYNC_GENERATOR)) != 0) return true;
  return (flags & (CO_COROUTINE | CO_ITERABLE_COROUTINE)) != 0 && !takes_turns(thread);
}

// The CPU time of a run that ends now, and what the kernel has counted; unknown if other code of the thread has run in
// between.
std::int64_t take_cpu_ns(ThreadState& thread, const OpenFrame& frame, std::optional<SystemCounts>& system) noexcept {
  const std::int64_t now_ns = thread_cpu_ns();
  const CpuBegin begin = take_cpu_begin(thread, frame.id.load(std::memory_order_relaxed));
  if (begin.span == 0) return kUnknownNs;
  const bool has_switched = thread_state()->context_ver != begin.turn;
  if (has_switched && (has_greenlets() || (!begin.is_call && takes_turns(thread)))) return kUnknownNs;
  if (has_system_counts()) {
    const SystemCounts now = system_counts();
    system = SystemCounts{
        now.page_faults - begin.system.page_faults, now.voluntary_switches - begin.system.voluntary_switches,
        now.involuntary_switches - begin.system.involuntary_switches, now.system_us - begin.system.system_us};
    if (now.run_delay_us >= 0 && begin.system.run_delay_us >= 0)
      system->run_delay_us = now.run_delay_us - begin.system.run_delay_us;
  }
  return now_ns - begin.cpu_ns;
}

}  // namespace

void begin_cpu_time_of_block(ThreadState& thread, const OpenFrame& frame) noexcept {
  const std::uint64_t id = frame.id.load(std::memory_order_relaxed);
  if (id != 0 && !may_yield_unseen(thread)) begin_cpu_time(thread, {id, 0, thread_state()->context_ver, false});
}

void begin_cpu_time_of_call(ThreadState& thread, const OpenFrame& frame) noexcept {
  begin_cpu_time(thread, {frame.id.load(std::memory_order_relaxed), 0, thread_state()->context_ver, true});
}

void end_run_slow(ThreadState& thread, SpanObject& span, OpenFrame& frame, std::uint16_t flags, PyObject* result,
                  PyObject* error) noexcept {
  ErrorAside pending;
  FrameLocal& local = thread.locals[thread.index_of(frame)];
  const std::uint16_t frame_flags = frame.flags.load(std::memory_order_relaxed);
  if ((frame_flags & kFrameClosedAway) != 0) {
    ++span.open;
    Recorder::get().lose(kLostUnmatched);
    drop_run(thread, frame);
  } else if ((frame_flags & kFrameInactive) != 0) {
    drop_run(thread, frame);
  } else if (span.kind == Kind::kSpan) {
    Scope& scope = scope_of(thread, thread.index_of(frame));
    close_frame(thread, frame, flags);
    publish_elsewhere(thread, scope);
  } else {
    const Ref call(static_cast<PyObject*>(std::exchange(local.note, nullptr)));
    if (call) hooks_leave(call.get());
    std::optional<SystemCounts> system;
    const std::int64_t cpu_ns = measures_cpu_time(span) ? take_cpu_ns(thread, frame, system) : kUnknownNs;
    FinishedSpan finished_span = finished(thread, frame, now_ticks(), flags);
    close_on_device(thread, frame, finished_span, is_context(span.kind));
    if (span.kind == Kind::kDebug) finished_span.flags |= kFlagDebug;
    if (call)
      finished_span.flags |= hooks_exit(call.get(), result, error != nullptr ? error : pending.value(), finished_span);
    Scope& scope = scope_of(thread, thread.index_of(frame));
    if (system) Recorder::get().add_system_counts(finished_span, *system);  // before readers see the span
    commit_span_with_cpu_time(thread, finished_span, cpu_ns);
    charge_parent(thread, frame.below.load(std::memory_order_relaxed), finished_span.duration_ticks());
    drop_frame(thread, frame, finished_span.end_ticks);
    publish_elsewhere(thread, scope);
    if (is_context(span.kind)) complete(span, finished_span, thread, call.get());
    raise_kept();
  }
  // The hooks, or code that ran when references were dropped, may have changed the current scope.
  publish(current_thread());
}

void drop_run(ThreadState& thread, OpenFrame& frame) noexcept {
  FrameLocal& local = thread.locals[thread.index_of(frame)];
  Scope& scope = scope_of(thread, thread.index_of(frame));
  // An inactive frame has no id, so it is not visible that it was removed.
  local.open_by(nullptr);
  const Ref call(static_cast<PyObject*>(std::exchange(local.note, nullptr)));
  device_drop(thread, frame);
  drop_frame(thread, frame);
  publish_elsewhere(thread, scope);
}

Ref positional_tuple(PyObject* const* args, std::size_t nargsf) {
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  Ref result(PyTuple_New(count));
  for (Py_ssize_t i = 0; result && i < count; ++i) PyTuple_SET_ITEM(result.get(), i, Py_NewRef(args[i]));
  return result;
}

Ref keyword_dict(PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  PyObject* const* const values = args + PyVectorcall_NARGS(nargsf);
  Ref result(PyDict_New());
  for (Py_ssize_t i = 0; result && kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i)
    if (PyDict_SetItem(result.get(), PyTuple_GET_ITEM(kwnames, i), values[i]) != 0) return Ref();
  return result;
}

Ref describe_call(const SpanObject& span, PyObject* function, PyObject* const* args, std::size_t nargsf,
                  PyObject* kwnames) noexcept {
  const Ref positional = positional_tuple(args, nargsf);
  const Ref named = keyword_dict(args, nargsf, kwnames);
  if (!positional || !named) lose_hook_error();
  return describe_call(span, function, positional.get(), named.get());
}

Ref enter_call(SpanObject& span, PyObject* function, PyObject* const* args, std::size_t nargsf,
               PyObject* kwnames) noexcept {
  if (!wants_hooks(span) || !has_room()) return Ref();
  const Ref positional = positional_tuple(args, nargsf);
  const Ref named = keyword_dict(args, nargsf, kwnames);
  if (!positional || !named) {
    lose_hook_error();
    return Ref();
  }
  return Ref(hooks_enter(span, function, positional.get(), named.get()));
}

}  // namespace stagespan::python
