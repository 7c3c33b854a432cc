// thread_state.cpp: rare operations on a thread's open spans.
#include "thread_state.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cut_off.h"
#include "recorder.h"
#include "span_path.h"

namespace stagespan {

constinit thread_local ThreadState* t_state STAGESPAN_INITIAL_EXEC = nullptr;

std::atomic<const DeviceHooks*> g_device_hooks{nullptr};

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

// Lets everything above see `frame` as what is below it. For frames that are not spans of their own.
void pass_through(OpenFrame& frame, const OpenFrame& below) noexcept {
  frame.as_parent_id.store(below.as_parent_id.load(relaxed), relaxed);
  frame.as_parent_stage.store(below.as_parent_stage.load(relaxed), relaxed);
  frame.as_parent_depth.store(below.as_parent_depth.load(relaxed), relaxed);
  frame.effective.store(below.effective.load(relaxed), relaxed);
}

// The frame with this index ends before the one that was opened in it. That one remains its child in the figures, as in
// its record. Both are charged to the frame below, so the time that they share is subtracted again.
void leave_child_behind(ThreadState& thread, std::uint32_t child, std::uint32_t index,
                        std::uint64_t charged_until) noexcept {
  OpenFrame& frame = thread.frames[index];
  OpenFrame& orphan = thread.frames[child];
  if ((orphan.flags.load(relaxed) & kFrameOrphan) == 0) {
    thread.locals[child].parent_stage = frame.as_parent_stage.load(relaxed);
    // Release: a thread that ends the span in place of this one also reads the parent.
    orphan.flags.fetch_or(kFrameOrphan, std::memory_order_release);
  }
  const std::uint64_t shared_from = std::max(orphan.begin_ticks.load(relaxed), frame.begin_ticks.load(relaxed));
  if (charged_until <= shared_from) return;
  const OpenFrame& below = thread.frames[frame.below.load(relaxed)];
  OpenFrame& parent = thread.frames[below.effective.load(relaxed)];
  const std::uint64_t charged = parent.child_ticks.load(relaxed);
  parent.child_ticks.store(charged - std::min(charged, charged_until - shared_from), relaxed);
}

// The parent of a span opened above this frame. False if the frame is not complete at the moment.
bool copy_link(const OpenFrame& frame, std::uint64_t request, ParentLink& link) noexcept {
  const std::uint64_t id = frame.id.load(std::memory_order_acquire);
  link = {frame.as_parent_id.load(relaxed), request, frame.as_parent_stage.load(relaxed),
          frame.as_parent_depth.load(relaxed)};
  const bool is_span = (frame.flags.load(relaxed) & (kFrameInactive | kFrameRoot)) == 0;
  load_fence();
  return frame.id.load(relaxed) == id && (!is_span || link.id == id);
}

void drop_closed_away(ThreadState& thread) noexcept {
  Recorder::get().for_each_frame(thread, [&](std::uint32_t index) {
    OpenFrame& frame = thread.frames[index];
    if (frame.id.load(relaxed) == 0 || (frame.flags.load(std::memory_order_acquire) & kFrameClosedAway) == 0) return;
    device_drop(thread, frame);
    drop_frame(thread, frame);
  });
}

std::uint32_t take_frame_in_scope(ThreadState& thread) noexcept {
  return thread.scope == &thread.nowhere || is_cut_off() ? 0 : take_frame(thread);
}

[[gnu::noinline, gnu::cold]] OpenFrame* no_frame_left() noexcept {
  if (!is_cut_off()) Recorder::get().lose(kLostMemory);
  return nullptr;
}

std::atomic<bool> g_system_counts{false};

}  // namespace

std::int64_t run_delay_ns(pid_t native_id) noexcept {
  char text[96];
  std::snprintf(text, sizeof text, "/proc/self/task/%d/schedstat", static_cast<int>(native_id));
  const int file = ::open(text, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  const ssize_t size = ::read(file, text, sizeof text - 1);
  ::close(file);
  text[std::max<ssize_t>(size, 0)] = '\0';
  long long ran_ns = 0, delay_ns = 0;
  return std::sscanf(text, "%lld %lld", &ran_ns, &delay_ns) == 2 ? delay_ns : -1;
}

std::int64_t thread_cpu_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void set_system_counts(bool on) noexcept { g_system_counts.store(on, relaxed); }

bool has_system_counts() noexcept { return g_system_counts.load(relaxed); }

SystemCounts system_counts() noexcept {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const std::int64_t delay_ns = run_delay_ns(static_cast<pid_t>(::syscall(SYS_gettid)));
  return {usage.ru_minflt + usage.ru_majflt, usage.ru_nvcsw, usage.ru_nivcsw,
          std::int64_t{usage.ru_stime.tv_sec} * 1'000'000 + usage.ru_stime.tv_usec,
          delay_ns < 0 ? delay_ns : delay_ns / 1000};
}

void begin_cpu_time(ThreadState& thread, CpuBegin begin) noexcept {
  if (thread.cpu_begins == nullptr) {
    thread.cpu_begins.reset(static_cast<CpuBegin*>(std::calloc(kMostCpuBegins, sizeof(CpuBegin))));
    if (thread.cpu_begins == nullptr) return;  // the time stays unknown
    Recorder::get().claim_cpu_times(thread);
  }
  CpuBegin* const begins = thread.cpu_begins.get();
  // Those of spans that were dropped are never taken.
  if (thread.cpu_begin_count == kMostCpuBegins) {
    std::copy(begins + kMostCpuBegins / 2, begins + kMostCpuBegins, begins);
    thread.cpu_begin_count = kMostCpuBegins / 2;
  }
  CpuBegin& added = begins[thread.cpu_begin_count++];
  added = begin;
  if (has_system_counts()) added.system = system_counts();
  added.cpu_ns = thread_cpu_ns();
}

CpuBegin take_cpu_begin(ThreadState& thread, std::uint64_t span) noexcept {
  CpuBegin* const begins = thread.cpu_begins.get();
  for (std::uint32_t i = thread.cpu_begin_count; i-- > 0;) {
    if (begins[i].span != span) continue;
    const CpuBegin begin = begins[i];
    std::copy(begins + i + 1, begins + thread.cpu_begin_count, begins + i);
    --thread.cpu_begin_count;
    return begin;
  }
  return {};
}

void commit_span_with_cpu_time(ThreadState& thread, const FinishedSpan& span, std::int64_t cpu_ns) noexcept {
  const bool is_known = cpu_ns >= 0;
  if (is_known && thread.cpu_times != nullptr) {
    CpuTime& time = thread.cpu_times[thread.head & thread.ring_mask];
    time.span.store(0, relaxed);
    store_fence();  // a reader that sees this time sees that the previous one has been removed
    time.cpu_ns.store(static_cast<std::uint64_t>(cpu_ns), relaxed);
    time.span.store(span.id, std::memory_order_release);
  }
  commit_span(thread, span);
  // Counted after the span, which gets its stage a block.
  const std::uint32_t block = thread.stats[span.stage].load(relaxed);
  if (!is_known || block == 0) return;
  StatsBlock& figures = thread.blocks[(block & ~kSharedBlock) - 1];
  const auto add = [&](auto writer) {
    writer.add(figures.cpu_ns, static_cast<std::uint64_t>(cpu_ns));
    writer.add(figures.cpu_count, std::uint64_t{1});
  };
  if ((block & kSharedBlock) == 0)
    add(SingleWriter{});
  else
    add(ManyWriters{});
}

void reserve_frames(ThreadState& thread, std::uint32_t first) noexcept {
  if (first != 0) Recorder::get().reserve_frames(thread.slot_index, first);  // those of the root are already allocated
}

std::uint32_t take_hidden_frame(ThreadState& thread) noexcept {
  // Hidden frames that were given back lie on top of the thread's own. These come first, because they are shown.
  while (thread.free_head > thread.frame_capacity) {
    const std::uint32_t index = thread.free_head;
    thread.free_head = thread.frames[index].below.load(relaxed);
    thread.frames[index].below.store(thread.hidden_free, relaxed);
    thread.hidden_free = index;
  }
  if (thread.free_head < thread.frame_capacity) return take_frame(thread);
  if (thread.hidden_free == 0 && !Recorder::get().take_hidden_chunk(thread)) return 0;
  const std::uint32_t index = thread.hidden_free;
  thread.hidden_free = thread.frames[index].below.load(relaxed);
  return index;
}

void add_span_slow(ThreadState& thread, std::uint32_t stage, const SpanFigures& figures) noexcept {
  Recorder& recorder = Recorder::get();
  const std::uint32_t block = recorder.claim_block(thread, stage);
  StatsBlock& target = thread.blocks[(block & ~kSharedBlock) - 1];
  if ((block & kSharedBlock) != 0)
    add_span<ManyWriters>(target, figures);
  else
    add_span<SingleWriter>(target, figures);
  if (thread.ring == nullptr) recorder.lose(kLostThreads);
}

void device_open(ThreadState& thread, OpenFrame& frame) noexcept {
  const DeviceHooks* const hooks = g_device_hooks.load(std::memory_order_acquire);
  if (hooks == nullptr) return;
  std::uint16_t flags = 0;
  void* const device = hooks->begin(thread, frame.stage.load(relaxed), flags);
  if (device != nullptr) {
    thread.locals[thread.index_of(frame)].device = device;
    flags |= kFrameDevice;
  }
  // Another thread may already be ending the span.
  if (flags != 0) frame.flags.fetch_or(flags, relaxed);
}

void device_close(ThreadState& thread, const OpenFrame& frame, FinishedSpan& span, bool wanted) noexcept {
  void* const device = std::exchange(thread.locals[thread.index_of(frame)].device, nullptr);
  if (device != nullptr)
    g_device_hooks.load(std::memory_order_acquire)->end(thread, device, span, wanted);
  else
    span.flags &= static_cast<std::uint16_t>(~kFrameDevice);
}

void device_drop(ThreadState& thread, const OpenFrame& frame) noexcept {
  if ((frame.flags.load(relaxed) & kFrameDevice) == 0) return;
  void* const device = std::exchange(thread.locals[thread.index_of(frame)].device, nullptr);
  if (device != nullptr) g_device_hooks.load(std::memory_order_acquire)->abandon(device);
}

void make_root(ThreadState& thread, std::uint32_t index, const ParentLink& link) noexcept {
  OpenFrame& root = thread.frames[index];
  root.as_parent_id.store(link.id, relaxed);
  root.as_parent_stage.store(link.stage, relaxed);
  root.as_parent_depth.store(link.depth, relaxed);
  root.effective.store(index, relaxed);
  root.child_ticks.store(0, relaxed);
  root.flags.store(kFrameRoot, relaxed);
}

bool innermost_of_request(ThreadState& thread, std::uint64_t request, ParentLink& link) noexcept {
  constexpr int kTries = 4;                                // the thread may be opening and closing spans
  const bool is_current = thread.base.request == request;  // the bindings write it with the interpreter's lock
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::uint32_t index = thread.base.top;
    // The thread may give a frame of the walk to another scope, so the walk is not longer than a stack usually is.
    for (std::uint32_t steps = 0; steps < kMaxFrames; ++steps) {
      const OpenFrame& frame = thread.frames[index];
      const bool is_root = index == thread.base.root;
      const bool is_over = (frame.flags.load(relaxed) & kFrameClosedAway) != 0;
      if (!is_over && (is_current || (!is_root && thread.locals[index].belongs_to() == request))) {
        if (copy_link(frame, request, link)) return true;
        break;
      }
      if (is_root) return false;
      index = frame.below.load(relaxed);
    }
  }
  return false;
}

void attend(ThreadState& thread) noexcept {
  const std::uint16_t reasons = thread.attention().load(relaxed);
  // Threads without a slot share the word, and may have other reasons.
  std::uint16_t settled = thread.slot == nullptr ? 0 : reasons & (kAttentionClosedAway | kAttentionAsked);
  if (thread.slot != nullptr && thread.scope != &thread.nowhere) settled |= reasons & kAttentionNoScope;
  if (settled != 0) thread.attention().fetch_and(static_cast<std::uint16_t>(~settled), std::memory_order_acquire);
  if ((reasons & kAttentionClosedAway) != 0) drop_closed_away(thread);
  if ((reasons & kAttentionAsked) != 0)
    if (void (*const hook)() noexcept = Recorder::get().on_command.load(relaxed); hook != nullptr) hook();
}

OpenFrame* open_frame_slow(ThreadState& thread, std::uint32_t stage, const void* owner) noexcept {
  attend(thread);
  const std::uint32_t index = take_frame_in_scope(thread);
  if (index == 0) return no_frame_left();
  // The spans of a thread without a slot are counted when they end.
  if (thread.is_hidden(index) && thread.slot != nullptr) Recorder::get().lose(kLostOpen);
  fill_frame(thread, index, stage, owner, now_ticks);
  return &thread.frames[index];
}

void close_frame_at(ThreadState& thread, OpenFrame& frame, std::uint64_t end_ticks, std::uint16_t flags) noexcept {
  FinishedSpan span = finished(thread, frame, end_ticks, flags);
  close_on_device(thread, frame, span, false);
  commit_span(thread, span);
  charge_parent(thread, frame.below.load(relaxed), span.duration_ticks());
  drop_frame(thread, frame, end_ticks);
}

void unlink_frame(ThreadState& thread, Scope& scope, std::uint32_t index, std::uint64_t charged_until) noexcept {
  const std::uint32_t below = thread.frames[index].below.load(relaxed);
  std::uint32_t above = scope.top;
  std::uint32_t lowest_above = 0;
  std::uint32_t child = 0;
  while (above != index && above != scope.root && above != 0) {  // 0: the arena has been replaced; see cut_off.h
    lowest_above = above;
    const std::uint16_t flags = thread.frames[above].flags.load(relaxed);
    if ((flags & kFrameRoot) != 0)
      child = 0;  // a root in the middle: the frames above it have another parent
    else if ((flags & kFrameInactive) == 0)
      child = above;
    above = thread.frames[above].below.load(relaxed);
  }
  if (above != index || lowest_above == 0) return;
  if (child != 0) leave_child_behind(thread, child, index, charged_until);
  thread.frames[lowest_above].below.store(below, relaxed);
  // Inactive frames above copied the fields of the frame that is removed. From bottom to top they now copy those of the
  // frame below. There is one for each switch in the middle of a span, so the quadratic walk is short.
  for (bool again = true; again;) {
    again = false;
    for (std::uint32_t i = scope.top; i != below && i != scope.root && i != 0;
         i = thread.frames[i].below.load(relaxed)) {
      OpenFrame& frame = thread.frames[i];
      if ((frame.flags.load(relaxed) & kFrameInactive) == 0) continue;
      const OpenFrame& under = thread.frames[frame.below.load(relaxed)];
      if (frame.effective.load(relaxed) == under.effective.load(relaxed)) continue;
      pass_through(frame, under);
      again = true;
    }
  }
}

OpenFrame* open_inactive(ThreadState& thread, const void* owner) noexcept {
  if (thread.attention().load(relaxed) != 0) attend(thread);
  const std::uint32_t index = take_frame_in_scope(thread);
  if (index == 0) return no_frame_left();
  Scope& scope = *thread.scope;
  OpenFrame& frame = thread.frames[index];
  pass_through(frame, thread.frames[scope.top]);
  frame.flags.store(kFrameInactive, relaxed);
  frame.below.store(scope.top, relaxed);
  thread.locals[index].open_by(owner);
  thread.locals[index].open_in(&scope);
  scope.top = index;
  return &frame;
}

}  // namespace stagespan
