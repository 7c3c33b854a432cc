// thread_state.h: the state that one thread uses to open and close spans. Other threads do not write it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "arena.h"
#include "clock.h"
#include "layout.h"
#include "mode.h"
#include "open_work.h"
#include "stage_stats.h"

namespace stagespan {

/// A number that threads read while another one writes it, as cheap as a plain number.
template <class Number>
class Watched {
 public:
  Watched(Number value = 0) noexcept : value_(value) {}
  Watched(const Watched& other) noexcept : value_(other) {}
  Watched& operator=(const Watched& other) noexcept { return *this = Number{other}; }
  Watched& operator=(Number value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  operator Number() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<Number> value_;
};

/// One execution context's stack of open spans: the thread's own (`context` as the bindings see it), or that of an
/// asyncio task or greenlet that takes turns with others on the same thread.
struct Scope {
  const void* context = nullptr;
  Watched<std::uint32_t> top = 0;      // innermost open frame, or `root`
  std::uint32_t root = 0;              // a frame that is never shown; contains the parent of the outermost span
  Watched<std::uint64_t> request = 0;  // written with the interpreter's lock, also by other threads
  void* entered = nullptr;             // the bindings' own: the innermost request that was entered in it
  std::uint32_t holds = 0;             // the number of reasons to keep a task's scope although it has no open span
  bool is_task = false;
  bool takes_turns = false;  // with other scopes, so the thread's current scope may be a different one by now
  bool is_follower = false;  // belongs to the open span of the code that entered the context
};

struct FreeMemory {
  void operator()(void* memory) const noexcept { std::free(memory); }
};

/// The parent of a span that is opened now.
struct ParentLink {
  std::uint64_t id = 0;
  std::uint64_t request = 0;
  std::uint32_t stage = kNoStage;
  std::uint16_t depth = 0;
};

/// A finished span, wherever it was kept while it was open.
struct FinishedSpan {
  std::uint64_t begin_ticks;
  std::uint64_t end_ticks;
  std::uint64_t id;
  std::uint64_t parent;
  std::uint64_t request;
  std::uint64_t suspended_ticks;
  std::uint64_t children_ticks;
  std::uint32_t stage;
  std::uint32_t parent_stage;
  std::uint16_t depth;
  std::uint16_t flags;

  std::uint64_t duration_ticks() const noexcept { return ticks_between(begin_ticks, end_ticks); }
};

/// The scopes of a thread's tasks. Owned by the thread, filled by the bindings, which know what a task is.
struct ScopeTable {
  virtual ~ScopeTable() = default;
};

struct ThreadState;

/// The functions of the device layer for a span. They run on a thread that holds or times the span. They do not wait,
/// and they do not raise exceptions.
struct DeviceHooks {
  /// Records the start of a span of `stage` on the current stream. Returns null if the span is not timed on a device;
  /// `flags` then shows whether a capture is the reason.
  void* (*begin)(ThreadState& thread, std::uint32_t stage, std::uint16_t& flags) noexcept;
  /// Records the end of a finished span on the stream of its start. kFrameDevice stays in the span's flags if there
  /// will be a result. If `wanted`, the result is kept until it is requested.
  void (*end)(ThreadState& thread, void* device, FinishedSpan& span, bool wanted) noexcept;
  /// Releases the result of `begin`.
  void (*abandon)(void* device) noexcept;
  /// Called when the thread ends.
  void (*leave)(ThreadState& thread) noexcept;
};

/// Set when a device is first attached, and never reset.
extern std::atomic<const DeviceHooks*> g_device_hooks;

/// Spans of a thread that measure CPU time and are open at once. If there are more, the oldest ones do not get it.
inline constexpr std::uint32_t kMostCpuBegins = 256;

/// For how long a thread of this process was ready to run without a processor (schedstat in /proc); negative if the
/// kernel does not tell it.
std::int64_t run_delay_ns(pid_t native_id) noexcept;

/// What the kernel has counted of a thread (getrusage, and `run_delay_ns`).
struct SystemCounts {
  std::int64_t page_faults = 0;
  std::int64_t voluntary_switches = 0;    // context switches because the thread waited
  std::int64_t involuntary_switches = 0;  // because others got the processor
  std::int64_t system_us = 0;             // CPU time in the kernel
  std::int64_t run_delay_us = -1;         // ready to run without a processor; negative if unknown
};

/// The CPU clock of a thread at the start of one of its open spans.
struct CpuBegin {
  std::uint64_t span = 0;  // its id; 0 if there is none
  std::int64_t cpu_ns = 0;
  std::uint64_t turn = 0;  // the bindings' own: tells whether other code of the thread has run since
  bool is_call = false;    // of a function, which ends before any other code of its thread goes on
  SystemCounts system{};   // only while they are counted
};

struct ThreadState {
  // Every span uses the first cache lines.
  OpenFrame* frames = nullptr;
  FrameLocal* locals = nullptr;
  Scope* scope = nullptr;
  std::uint64_t next_id = 0;  // the last id that was used; see Recorder::first_id
  std::uint32_t free_head = 1;
  std::uint32_t frame_capacity = 0;
  std::uint32_t thread = 0;
  SpanRecord* ring = nullptr;  // null if the thread did not find a slot
  std::uint64_t head = 0;
  std::uint64_t ring_mask = 0;
  std::atomic<std::uint32_t>* stats = nullptr;
  StatsBlock* blocks = nullptr;
  ThreadSlot* slot = nullptr;

  Scope base{.context = this};  // no context has this address, so the first span looks up its context
  // The scope of code for which there was no memory for one. No span opens in it.
  Scope nowhere{.context = this, .takes_turns = true};
  // Distinguishes threads that use the same memory one after another.
  static inline std::atomic<std::uint64_t> serials{0};
  const std::uint64_t serial = serials.fetch_add(1, std::memory_order_relaxed) + 1;
  std::uint32_t slot_index = kSharedSlot;
  std::uint64_t ident = 0;
  ThreadName name{};
  // Its frames beyond its own ones, which nobody else sees: those that are free, and the last chunk that it took. An
  // index below 1 + frame_capacity means none.
  std::uint32_t hidden_free = 0;
  std::uint32_t hidden_chunk = 0;
  std::unique_ptr<FrameLocal[], FreeMemory> locals_storage;  // only without an arena
  std::vector<std::uint32_t> retired_blocks;                 // taken by a reset; guarded by Recorder::cold_mutex()
  std::unique_ptr<OpenFrame[]> frames_storage;               // only without an arena
  std::unique_ptr<ScopeTable> scopes;                        // created by the bindings when a task first opens a span
  void* device = nullptr;                                    // owned by the device layer
  // Null until one of its spans asks for CPU time. The begins are those of such spans, the outermost first.
  CpuTime* cpu_times = nullptr;
  std::unique_ptr<CpuBegin[], FreeMemory> cpu_begins;
  std::uint32_t cpu_begin_count = 0;
  // The end of the last work for a request that is known (Recorder::last_work), the request, and the number of records
  // in the ring that were searched for it.
  std::uint64_t work_ticks = 0;
  std::uint64_t work_request = 0;
  std::uint64_t work_head = 0;

  /// Reasons not to use the fast path, which other threads set. Threads without a slot share it.
  std::atomic<std::uint16_t>& attention() const noexcept { return frames->attention; }
  std::uint32_t index_of(const OpenFrame& frame) const noexcept { return static_cast<std::uint32_t>(&frame - frames); }
  /// Whether a frame is none of those that readers see.
  bool is_hidden(std::uint32_t index) const noexcept { return index >= frame_capacity; }
  /// Whether this state does not belong to a single thread: it opens no spans, and threads without memory share it.
  bool is_stand_in() const noexcept { return (attention().load(std::memory_order_relaxed) & kAttentionNoMemory) != 0; }
};

// Initial-exec, because a general access would cost a call for every span. C libraries other than glibc have no space
// for it in a library that is loaded late, and refuse to load the library.
#if defined(STAGESPAN_HAS_GLIBC)
#define STAGESPAN_INITIAL_EXEC __attribute__((tls_model("initial-exec")))
#else
#define STAGESPAN_INITIAL_EXEC
#endif

/// The calling thread's state, null until it opens its first span.
extern constinit thread_local ThreadState* t_state STAGESPAN_INITIAL_EXEC;

/// Statistics of a stage if the thread does not have its own block yet, or shares one.
void add_span_slow(ThreadState& thread, std::uint32_t stage, const SpanFigures& figures) noexcept;

/// Drops frames whose spans other threads have ended. Called before a span opens if there is a reason for attention.
void attend(ThreadState& thread) noexcept;

/// Removes a frame from the middle of its scope. `charged_until`: the end of its time if the frame below was charged
/// for it; the time that the frames above will also be charged for is subtracted again.
void unlink_frame(ThreadState& thread, Scope& scope, std::uint32_t index, std::uint64_t charged_until) noexcept;

/// Makes the frame with this index the bottom of a scope.
void make_root(ThreadState& thread, std::uint32_t index, const ParentLink& link) noexcept;

/// The innermost span in the thread's own code, if it belongs to `request`. The thread may be running. False if there
/// is none. Called with the interpreter's lock.
bool innermost_of_request(ThreadState& thread, std::uint64_t request, ParentLink& link) noexcept;

/// Reserves the frames from this one on in the recording, before the first of them is written.
void reserve_frames(ThreadState& thread, std::uint32_t first) noexcept;

/// The same if no frame of the thread's own is at the head of the free ones.
std::uint32_t take_hidden_frame(ThreadState& thread) noexcept;

/// Takes a free frame and returns its index; 0 if there is none. If all frames that the thread shows are in use, it is
/// one that is not shown (is_hidden).
STAGESPAN_HOT std::uint32_t take_frame(ThreadState& thread) noexcept {
  const std::uint32_t index = thread.free_head;
  if (index >= thread.frame_capacity) [[unlikely]]
    return take_hidden_frame(thread);
  std::uint32_t next = thread.frames[index].below.load(std::memory_order_relaxed);
  if (next == 0) [[unlikely]] {  // never used before: the free list continues with its neighbour
    next = index + 1;
    if (thread.slot != nullptr) {
      if (index % kFramesAtOnce == 0) reserve_frames(thread, index);
      thread.slot->frames_high_water.store(next, std::memory_order_relaxed);
    }
  }
  thread.free_head = next;
  return index;
}

STAGESPAN_HOT void give_frame(ThreadState& thread, std::uint32_t index) noexcept {
  OpenFrame& frame = thread.frames[index];
  // The id is cleared first, because readers must not take the next span's fields for this span's.
  frame.id.store(0, std::memory_order_relaxed);
  store_fence();
  frame.below.store(thread.free_head, std::memory_order_relaxed);
  thread.free_head = index;
}

/// Writes a finished span to the statistics.
STAGESPAN_HOT void add_figures(ThreadState& thread, std::uint32_t stage, const SpanFigures& figures) noexcept {
  const std::uint32_t block = thread.stats[stage].load(std::memory_order_relaxed);
  if (block - 1U < kSharedBlock - 1U) [[likely]]
    add_span<SingleWriter>(thread.blocks[block - 1], figures);
  else
    add_span_slow(thread, stage, figures);
}

/// Writes a finished span to the ring.
STAGESPAN_HOT void show_span(ThreadState& thread, const FinishedSpan& span) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  if (thread.ring == nullptr) [[unlikely]]
    return;
  const std::uint64_t number = thread.head;
  SpanRecord& record = thread.ring[number & thread.ring_mask];
  open_record(record);
  record.begin_ticks.store(span.begin_ticks, relaxed);
  record.end_ticks.store(span.end_ticks, relaxed);
  record.id.store(span.id, relaxed);
  record.parent.store(span.parent, relaxed);
  record.request.store(span.request, relaxed);
  record.suspended_ticks.store(span.suspended_ticks, relaxed);
  record.stage.store(span.stage, relaxed);
  record.thread.store(thread.thread, relaxed);
  record.depth.store(span.depth, relaxed);
  record.flags.store(span.flags & kFlagPublished, relaxed);
  commit_record(record, number);
  thread.head = number + 1;
  thread.slot->head.store(number + 1, std::memory_order_release);
}

/// Counts the work that was added to a finished span.
void count_work(const FinishedSpan& span) noexcept;

/// Writes a finished span to the statistics and to the ring.
STAGESPAN_HOT void commit_span(ThreadState& thread, const FinishedSpan& span) noexcept {
  add_figures(thread, span.stage,
              {span.duration_ticks(), span.suspended_ticks, span.children_ticks, span.parent_stage,
               (span.flags & kFlagError) != 0});
  show_span(thread, span);
  if (g_span_work.may_have(span.id)) [[unlikely]]
    count_work(span);
}

/// Notes the CPU clock of the calling thread for a span that has just begun. `begin.cpu_ns` is set here.
void begin_cpu_time(ThreadState& thread, CpuBegin begin) noexcept;
/// Removes and returns what was noted for a span of the calling thread.
CpuBegin take_cpu_begin(ThreadState& thread, std::uint64_t span) noexcept;
/// The CPU time of the calling thread.
std::int64_t thread_cpu_ns() noexcept;
/// Whether spans that measure CPU time also count what the kernel does for their thread.
void set_system_counts(bool on) noexcept;
bool has_system_counts() noexcept;
/// What the kernel has counted of the calling thread until now.
SystemCounts system_counts() noexcept;
/// commit_span() with the CPU time of the span, which may be kUnknownNs.
void commit_span_with_cpu_time(ThreadState& thread, const FinishedSpan& span, std::int64_t cpu_ns) noexcept;

/// The device's part of a span on the stack; see DeviceHooks.
void device_open(ThreadState& thread, OpenFrame& frame) noexcept;
void device_close(ThreadState& thread, const OpenFrame& frame, FinishedSpan& span, bool wanted) noexcept;
/// For a frame that is dropped without being recorded.
void device_drop(ThreadState& thread, const OpenFrame& frame) noexcept;

/// Opens the device's part of a span whose host clock is already running.
STAGESPAN_HOT void open_on_device(ThreadState& thread, OpenFrame* frame) noexcept {
  if (mode_has(kModeDevice)) [[unlikely]]
    if (frame != nullptr) device_open(thread, *frame);
}

/// Closes the device's part of a span whose host clock has stopped.
STAGESPAN_HOT void close_on_device(ThreadState& thread, const OpenFrame& frame, FinishedSpan& span,
                                   bool wanted) noexcept {
  if ((span.flags & kFrameDevice) != 0) [[unlikely]]
    device_close(thread, frame, span, wanted);
}

/// The same two for a span outside the stack.
inline void open_on_device(ThreadState& thread, FinishedSpan& span, void*& device) noexcept {
  if (!mode_has(kModeDevice)) return;
  const DeviceHooks* const hooks = g_device_hooks.load(std::memory_order_acquire);
  if (hooks == nullptr) return;
  device = hooks->begin(thread, span.stage, span.flags);
  if (device != nullptr) span.flags |= kFrameDevice;
}
inline void close_on_device(ThreadState& thread, FinishedSpan& span, void*& device, bool wanted) noexcept {
  if (device == nullptr) return;
  g_device_hooks.load(std::memory_order_acquire)->end(thread, device, span, wanted);
  device = nullptr;
}

/// A frame for a span that is off, so that every end finds its own begin. Does not read the clock.
OpenFrame* open_inactive(ThreadState& thread, const void* owner) noexcept;

/// The scope of an open frame. If the arena has been replaced since the frame was opened (cut_off.h), this is the scope
/// in which no span opens.
STAGESPAN_HOT Scope& scope_of(ThreadState& thread, std::uint32_t index) noexcept {
  Scope* const scope = thread.locals[index].scope;
  return scope != nullptr ? *scope : thread.nowhere;
}

/// Removes a frame from its scope without recording anything. See unlink_frame() for `charged_until`.
STAGESPAN_HOT void drop_frame(ThreadState& thread, OpenFrame& frame, std::uint64_t charged_until = 0) noexcept {
  const std::uint32_t index = thread.index_of(frame);
  Scope& scope = scope_of(thread, index);
  if (scope.top == index) [[likely]]
    scope.top = frame.below.load(std::memory_order_relaxed);
  else
    unlink_frame(thread, scope, index, charged_until);
  give_frame(thread, index);
}

/// The finished span of `frame`, which ended at `end_ticks`.
STAGESPAN_HOT FinishedSpan finished(const ThreadState& thread, const OpenFrame& frame, std::uint64_t end_ticks,
                                    std::uint16_t flags) noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  const std::uint32_t index = thread.index_of(frame);
  const OpenFrame& below = thread.frames[frame.below.load(relaxed)];
  const std::uint16_t frame_flags = frame.flags.load(std::memory_order_acquire);
  std::uint32_t parent_stage = below.as_parent_stage.load(relaxed);
  if ((frame_flags & kFrameOrphan) != 0) [[unlikely]]
    parent_stage = thread.locals[index].parent_stage;
  return {frame.begin_ticks.load(relaxed),
          end_ticks,
          frame.id.load(relaxed),
          frame.parent.load(relaxed),
          thread.locals[index].request,
          0,
          frame.child_ticks.load(relaxed),
          frame.stage.load(relaxed),
          parent_stage,
          frame.depth.load(relaxed),
          static_cast<std::uint16_t>(flags | frame_flags)};
}

/// Charges a child's time to the innermost active span at or below `below`.
STAGESPAN_HOT void charge_parent(ThreadState& thread, std::uint32_t below, std::uint64_t ticks) noexcept {
  OpenFrame& parent = thread.frames[thread.frames[below].effective.load(std::memory_order_relaxed)];
  SingleWriter::add(parent.child_ticks, ticks);
}

}  // namespace stagespan
