// recorder.cpp: names, threads coming and going, statistics blocks, spans kept outside the stack.
#include "recorder.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace stagespan {

std::atomic<std::uint32_t> g_mode{0};

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::uint32_t kSlotlessFrames = 256;
constexpr std::uint32_t kDetachedProbes = 64;
constexpr std::uint32_t kIdSlotShift = 48;
constexpr std::uint32_t kIdGenerationShift = 40;

std::uint32_t ring_spans_wanted() {
  const char* text = std::getenv("STAGESPAN_RING_SPANS");
  if (text == nullptr) return kDefaultRingSpans;
  char* end = nullptr;
  const unsigned long wanted = std::strtoul(text, &end, 10);
  if (end == text || *end != '\0' || wanted < 64 || wanted > (1UL << 20)) return kDefaultRingSpans;
  return std::bit_ceil(static_cast<std::uint32_t>(wanted));
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Cuts a long name without splitting a character, and ends it with a hash of the whole.
std::string shortened(std::string_view name) {
  if (name.size() <= kMaxNameBytes) return std::string(name);
  std::size_t length = kMaxNameBytes - 17;
  while (length > 0 && (static_cast<unsigned char>(name[length]) & 0xC0) == 0x80) --length;
  static constexpr char digits[] = "0123456789abcdef";
  std::string result(name.substr(0, length));
  result += '~';
  const std::uint64_t hash = fnv1a(name);
  for (int shift = 60; shift >= 0; shift -= 4) result += digits[(hash >> shift) & 15];
  return result;
}

/// Takes a thread's leave when it ends.
struct ThreadGuard {
  ThreadState* thread = nullptr;
  ~ThreadGuard() {
    if (thread != nullptr && t_state == thread) {
      Recorder::get().detach(thread);
      t_state = nullptr;
    }
  }
};

thread_local ThreadGuard t_guard;

}  // namespace

Recorder& Recorder::get() {
  static Recorder* const recorder = new Recorder;
  return *recorder;
}

Recorder::Recorder() : clock_source_(choose_clock(std::getenv("STAGESPAN_CLOCK"))) {
  arena_ = create_arena({ring_spans_wanted()});
  if (!arena_) return;  // the switch stays off: nothing is recorded, nothing else changes
  prepare_arena();
  intern("(overflow)");
  intern("(invalid name)");
  pthread_atfork([] { get().cold_.lock(); }, [] { get().cold_.unlock(); },
                 [] {
                   get().after_fork();
                   get().cold_.unlock();
                 });
  g_mode.store(kModeEnabled, relaxed);
}

void Recorder::prepare_arena() {
  ArenaHeader& header = arena_.header();
  header.clock_source = static_cast<std::uint32_t>(clock_source_);
  header.stamps[0] = take_stamp();
  header.stamp_count.store(1, std::memory_order_release);
  free_blocks_.clear();
  arena_.slot(kSharedSlot).state.store(kSlotLive, relaxed);
  shared_block_locked(kStageOverflow);
}

std::uint32_t Recorder::intern(std::string_view name) {
  if (!arena_) return kStageOverflow;
  const std::lock_guard lock(cold_);
  return intern_locked(name);
}

std::uint32_t Recorder::intern_locked(std::string_view name) {
  std::string key = shortened(name);
  if (const auto found = stages_.find(key); found != stages_.end()) return found->second;
  ArenaHeader& header = arena_.header();
  const std::uint32_t stage = header.name_count.load(relaxed);
  const std::uint32_t used = header.name_pool_used.load(relaxed);
  if (stage >= kMaxStages || used + key.size() > kNamePoolBytes) {
    lose(kLostNames);
    return kStageOverflow;
  }
  std::memcpy(arena_.name_pool() + used, key.data(), key.size());
  arena_.name(stage) = {used, static_cast<std::uint32_t>(key.size())};
  header.name_pool_used.store(used + static_cast<std::uint32_t>(key.size()), relaxed);
  // Release: a reader that sees the count sees the names.
  header.name_count.store(stage + 1, std::memory_order_release);
  stages_.emplace(std::move(key), stage);
  return stage;
}

std::string Recorder::name_of(std::uint32_t stage) const {
  if (!arena_ || stage >= arena_.header().name_count.load(std::memory_order_acquire)) return "(overflow)";
  const NameEntry& entry = arena_.name(stage);
  return {arena_.name_pool() + entry.offset, entry.length_bytes};
}

std::vector<std::string> Recorder::names() const {
  std::vector<std::string> result;
  if (!arena_) return result;
  const std::uint32_t count = arena_.header().name_count.load(std::memory_order_acquire);
  result.reserve(count);
  for (std::uint32_t stage = 0; stage < count; ++stage) result.push_back(name_of(stage));
  return result;
}

void Recorder::add_work(std::uint32_t stage, std::string_view key, std::int64_t whole, double fraction) {
  if (!arena_) return;
  std::uint32_t index;
  {
    const std::lock_guard lock(cold_);
    ArenaHeader& header = arena_.header();
    std::string text(key.substr(0, kWorkKeyBytes));
    auto found = work_keys_.find(text);
    if (found == work_keys_.end()) {
      index = header.work_key_count.load(relaxed);
      if (index >= kMaxWorkKeys) {
        lose(kLostWork);
        return;
      }
      std::memcpy(arena_.work_keys()[index].text, text.data(), text.size());
      header.work_key_count.store(index + 1, std::memory_order_release);
      found = work_keys_.emplace(std::move(text), index).first;
    }
    index = found->second;
  }
  const std::uint64_t wanted = (std::uint64_t{stage} + 1) << 32 | index;
  const std::uint32_t start = (stage * 31 + index * 7) % kMaxWork;
  for (std::uint32_t probe = 0; probe < kMaxWork; ++probe) {
    WorkEntry& entry = arena_.work()[(start + probe) % kMaxWork];
    std::uint64_t seen = entry.key.load(relaxed);
    if (seen == 0 && entry.key.compare_exchange_strong(seen, wanted, relaxed)) seen = wanted;
    if (seen != wanted) continue;
    if (whole != 0) entry.whole.fetch_add(whole, relaxed);
    if (fraction != 0) {
      double before = entry.fraction.load(relaxed);
      while (!entry.fraction.compare_exchange_weak(before, before + fraction, relaxed)) {
      }
    }
    return;
  }
  lose(kLostWork);
}

// --- threads ---------------------------------------------------------------------------------------------

std::uint64_t Recorder::first_id(std::uint32_t slot_index) const noexcept {
  // A forked child uses the parent's slots again. Ids of its own keep a span that was open at the fork from
  // being taken for one of the child's.
  return (std::uint64_t{slot_index} + 1) << kIdSlotShift | std::uint64_t{generation() & 0xff} << kIdGenerationShift;
}

void Recorder::settle(ThreadState& thread, std::uint32_t slot_index) noexcept {
  thread.blocks = arena_.blocks();
  thread.slot_index = slot_index;
  ThreadSlot& slot = arena_.slot(slot_index);
  thread.stats = slot.stats;
  if (slot_index != kSharedSlot) {
    thread.slot = &slot;
    thread.frames = arena_.frames(slot_index);
    thread.frame_capacity = kMaxFrames;
    thread.ring = arena_.ring(slot_index);
    thread.ring_mask = arena_.header().ring_spans - 1;
    thread.head = slot.head.load(relaxed);
    thread.next_id = slot.next_id.load(relaxed);
    if (thread.next_id == 0) thread.next_id = first_id(slot_index);
    slot.thread.store(thread.thread, relaxed);
    slot.ident.store(thread.ident, relaxed);
    pthread_getname_np(pthread_self(), slot.name, sizeof(slot.name));
    slot.state.store(kSlotLive, std::memory_order_release);
  } else {
    // No slot is left: open spans are kept in memory of the thread's own, and records are counted as lost.
    if (!thread.frames_storage) thread.frames_storage.reset(new OpenFrame[kSlotlessFrames]{});
    thread.frames = thread.frames_storage.get();
    thread.frame_capacity = kSlotlessFrames;
    thread.next_id = first_id(kMaxThreads + (slotless_threads_++ % 30000));
  }
  thread.free_head = 1;
  thread.base.top = thread.base.root = 0;
  make_root(thread, 0, {});
}

ThreadState& Recorder::attach() {
  auto* thread = new ThreadState;
  thread->thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
  thread->ident = static_cast<std::uint64_t>(pthread_self());
  thread->locals_storage.reset(new FrameLocal[kMaxFrames]);
  thread->locals = thread->locals_storage.get();
  thread->scope = &thread->base;

  const std::lock_guard lock(cold_);
  ArenaHeader& header = arena_.header();
  std::uint32_t chosen = header.slot_high_water.load(relaxed);
  if (chosen < kMaxThreads) {
    header.slot_high_water.store(chosen + 1, std::memory_order_release);
  } else {
    // All were used before: take the one whose thread left longest ago, so that the spans of those that left
    // lately can still be read.
    chosen = kSharedSlot;
    std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
    for (std::uint32_t i = 0; i < kMaxThreads; ++i) {
      const ThreadSlot& slot = arena_.slot(i);
      if (slot.state.load(relaxed) != kSlotExited || slot.exited_ticks.load(relaxed) >= oldest) continue;
      oldest = slot.exited_ticks.load(relaxed);
      chosen = i;
    }
  }
  settle(*thread, chosen);
  threads_.push_back(thread);
  t_state = thread;
  t_guard.thread = thread;
  return *thread;
}

void Recorder::detach(ThreadState* thread) noexcept {
  const std::lock_guard lock(cold_);
  std::uint64_t open = 0;
  const std::uint32_t end = thread->slot != nullptr ? thread->slot->frames_high_water.load(relaxed)
                                                    : thread->frame_capacity;
  for (std::uint32_t index = 1; index < end; ++index) {
    OpenFrame& frame = thread->frames[index];
    if (frame.id.load(relaxed) != 0 && (frame.flags.load(relaxed) & kFrameClosedAway) == 0) ++open;
    frame.id.store(0, relaxed);
    frame.below.store(0, relaxed);
  }
  if (open != 0) lose(kLostAbandoned, open);
  if (thread->slot != nullptr) {
    ThreadSlot& slot = *thread->slot;
    fold_thread(slot);
    slot.next_id.store(thread->next_id, relaxed);
    slot.frames_high_water.store(0, relaxed);
    slot.exited_ticks.store(now_ticks(), relaxed);
    slot.state.store(kSlotExited, std::memory_order_release);
  }
  std::erase(threads_, thread);
  delete thread;
}

void Recorder::fold_thread(ThreadSlot& slot) noexcept {
  ArenaHeader& header = arena_.header();
  // Odd while figures move, so that a reader which saw some of them twice or not at all tries again.
  header.fold_version.fetch_add(1, std::memory_order_acq_rel);
  const std::uint32_t stages = header.name_count.load(relaxed);
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    const std::uint32_t block = slot.stats[stage].load(relaxed);
    slot.stats[stage].store(0, relaxed);
    if (block == 0 || (block & kSharedBlock) != 0) continue;
    StatsBlock& own = arena_.blocks()[block - 1];
    // The first thread to leave hands its block over as it is; later ones are added to it.
    std::atomic<std::uint32_t>& shared = arena_.slot(kSharedSlot).stats[stage];
    if (shared.load(relaxed) == 0) {
      shared.store(block | kSharedBlock, std::memory_order_release);
      continue;
    }
    fold(own, arena_.blocks()[(shared.load(relaxed) & ~kSharedBlock) - 1]);
    std::memset(static_cast<void*>(&own), 0, sizeof(own));
    free_blocks_.push_back(block);
  }
  header.fold_version.fetch_add(1, std::memory_order_acq_rel);
}

// --- statistics blocks -----------------------------------------------------------------------------------

std::uint32_t Recorder::take_block_locked() noexcept {
  std::uint32_t block = 0;
  if (!free_blocks_.empty()) {
    block = free_blocks_.back();
    free_blocks_.pop_back();
  } else {
    ArenaHeader& header = arena_.header();
    const std::uint32_t used = header.block_count.load(relaxed);
    if (used >= kMaxBlocks) return 0;
    header.block_count.store(used + 1, relaxed);
    block = used + 1;
  }
  prepare(arena_.blocks()[block - 1]);
  return block;
}

std::uint32_t Recorder::shared_block_locked(std::uint32_t stage) noexcept {
  std::atomic<std::uint32_t>& entry = arena_.slot(kSharedSlot).stats[stage];
  std::uint32_t block = entry.load(relaxed);
  if (block != 0) return block;
  block = take_block_locked();
  if (block == 0) return arena_.slot(kSharedSlot).stats[kStageOverflow].load(relaxed);
  entry.store(block | kSharedBlock, std::memory_order_release);
  return block | kSharedBlock;
}

std::uint32_t Recorder::claim_block(ThreadState& thread, std::uint32_t stage) noexcept {
  const std::uint32_t seen = thread.stats[stage].load(std::memory_order_acquire);
  if (seen != 0) return seen;
  const std::lock_guard lock(cold_);
  // A quarter of the blocks is kept for shared ones, so that every stage has figures of its own for longer.
  if (thread.slot != nullptr &&
      (!free_blocks_.empty() || arena_.header().block_count.load(relaxed) < kMaxBlocks - kMaxBlocks / 4)) {
    const std::uint32_t block = take_block_locked();
    if (block != 0) {
      // Release: a reader that finds the block finds it prepared.
      thread.stats[stage].store(block, std::memory_order_release);
      return block;
    }
  }
  const std::uint32_t block = shared_block_locked(stage);
  lose(kLostBlocks);
  thread.stats[stage].store(block, std::memory_order_release);
  return block;
}

// --- spans outside the stack -----------------------------------------------------------------------------

std::uint32_t Recorder::show_detached(const FinishedSpan& span, std::uint32_t thread) noexcept {
  OpenFrame* const frames = arena_.detached();
  const std::uint32_t start = detached_hint_.fetch_add(1, relaxed);
  for (std::uint32_t probe = 0; probe < kDetachedProbes; ++probe) {
    const std::uint32_t index = (start + probe) % kMaxDetached;
    OpenFrame& frame = frames[index];
    std::uint32_t free = 0;
    // Acquire: the fields of the span that was here before are done with.
    if (!frame.below.compare_exchange_strong(free, 1, std::memory_order_acquire)) continue;
    frame.begin_ticks.store(span.begin_ticks, relaxed);
    frame.parent.store(span.parent, relaxed);
    frame.stage.store(span.stage, relaxed);
    frame.depth.store(span.depth, relaxed);
    frame.flags.store(span.flags, relaxed);
    frame.effective.store(thread, relaxed);  // of a detached frame: the thread that opened it
    frame.id.store(span.id, std::memory_order_release);
    return index + 1;
  }
  lose(kLostDetached);
  return 0;
}

void Recorder::hide_detached(std::uint32_t shown_at) noexcept {
  if (shown_at == 0) return;
  OpenFrame& frame = arena_.detached()[shown_at - 1];
  frame.id.store(0, relaxed);
  frame.below.store(0, std::memory_order_release);
}

DetachedSpan Recorder::open_detached(std::uint32_t stage, std::uint16_t flags) {
  ThreadState& thread = this_thread();
  const OpenFrame& below = thread.frames[thread.scope->top];
  DetachedSpan detached{{0, 0, ++thread.next_id, below.as_parent_id.load(relaxed), thread.scope->request, 0, 0, stage,
                         below.as_parent_stage.load(relaxed), below.as_parent_depth.load(relaxed), flags},
                        0};
  detached.span.begin_ticks = now_ticks();
  detached.shown_at = show_detached(detached.span, thread.thread);
  return detached;
}

void Recorder::close_detached(DetachedSpan& detached, std::uint16_t flags) {
  detached.span.end_ticks = now_ticks();
  detached.span.flags |= flags;
  hide_detached(detached.shown_at);
  detached.shown_at = 0;
  commit_span(this_thread(), detached.span);
}

OpenFrame* Recorder::find_elsewhere(const void* owner_key, ThreadState** thread) {
  const std::lock_guard lock(cold_);
  OpenFrame* latest = nullptr;
  for (ThreadState* state : threads_) {
    const std::uint32_t end =
        state->slot != nullptr ? state->slot->frames_high_water.load(relaxed) : state->frame_capacity;
    for (std::uint32_t index = 1; index < end; ++index) {
      OpenFrame& frame = state->frames[index];
      if (frame.id.load(std::memory_order_acquire) == 0 || state->locals[index].owner != owner_key) continue;
      if ((frame.flags.load(relaxed) & kFrameClosedAway) != 0) continue;
      if (latest != nullptr && frame.begin_ticks.load(relaxed) < latest->begin_ticks.load(relaxed)) continue;
      latest = &frame;
      *thread = state;
    }
  }
  return latest;
}

void Recorder::close_away(ThreadState& owner, OpenFrame& frame, std::uint16_t flags) {
  const FinishedSpan span = finished(owner, frame, now_ticks(), flags);
  commit_span(this_thread(), span);
  frame.flags.fetch_or(kFrameClosedAway, std::memory_order_release);
  owner.attention.fetch_or(kAttentionClosedAway, std::memory_order_release);
}

bool Recorder::record(std::uint32_t stage, std::int64_t begin_ns, std::int64_t end_ns, std::uint16_t flags) {
  const ClockFit fit = clock_fit();
  const std::uint64_t begin = fit.ticks(begin_ns);
  const std::uint64_t end = fit.ticks(end_ns);
  if (end < begin || static_cast<std::int64_t>(begin) < 0) {
    lose(kLostRecords);
    return false;
  }
  ThreadState& thread = this_thread();
  const OpenFrame& below = thread.frames[thread.scope->top];
  commit_span(thread, {begin, end, ++thread.next_id, below.as_parent_id.load(relaxed), thread.scope->request, 0, 0,
                       stage, below.as_parent_stage.load(relaxed), below.as_parent_depth.load(relaxed), flags});
  return true;
}

// --- the whole -------------------------------------------------------------------------------------------

ClockFit Recorder::clock_fit() {
  const std::lock_guard lock(cold_);
  return refresh_clock(arena_.header());
}

void Recorder::reset() {
  if (!arena_) return;
  const std::lock_guard lock(cold_);
  const std::uint32_t high_water = arena_.header().slot_high_water.load(relaxed);
  clear_arena(arena_);
  prepare_arena();
  arena_.header().slot_high_water.store(high_water, relaxed);
  for (std::uint32_t i = 0; i < high_water; ++i) arena_.slot(i).state.store(kSlotExited, relaxed);
  for (ThreadState* thread : threads_) {
    if (thread->slot != nullptr) {
      thread->slot->thread.store(thread->thread, relaxed);
      thread->slot->ident.store(thread->ident, relaxed);
      thread->slot->state.store(kSlotLive, relaxed);
    }
    thread->attention.fetch_or(kAttentionReset, std::memory_order_release);
  }
  if (t_state != nullptr) attend(*t_state);
}

void Recorder::after_fork() noexcept {
  // The child starts its own recording in what is, copy on write, its own memory. States of threads that do
  // not exist here are left as they are: a span that was open in the parent finds that its frame's id has
  // changed, and goes by.
  generation_.fetch_add(1, relaxed);
  clear_arena(arena_);
  prepare_arena();
  threads_.clear();
  t_state = nullptr;
  t_guard.thread = nullptr;
}

}  // namespace stagespan
