// recorder.cpp: names, threads coming and going, statistics blocks, spans kept outside the stack.
#include "recorder.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

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

// At most `most` bytes of a text, without splitting a UTF-8 character.
std::string_view cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

// Cuts a long name, and ends it with a hash of the whole.
std::string shortened(std::string_view name) {
  if (name.size() <= kMaxNameBytes) return std::string(name);
  static constexpr char digits[] = "0123456789abcdef";
  std::string result(cut(name, kMaxNameBytes - 17));
  result += '~';
  const std::uint64_t hash = fnv1a(name);
  for (int shift = 60; shift >= 0; shift -= 4) result += digits[(hash >> shift) & 15];
  return result;
}

// Takes a thread's leave when it ends. A key's destructor runs after those of all thread_local objects, and
// again when one of another key has opened a span since: so spans of late destructors are neither lost nor keep
// their thread's slot.
pthread_key_t g_leave_key;
bool g_has_leave_key = false;

void leave(void* thread) {
  if (thread != t_state) return;
  t_state = nullptr;
  Recorder::get().detach(static_cast<ThreadState*>(thread));
}

void leave_at_exit(ThreadState* thread) noexcept {
  if (g_has_leave_key) pthread_setspecific(g_leave_key, thread);
}

/// While one lives, figures move from block to block, and readers that saw some of them twice or not at all try
/// again: the version is odd.
class FiguresMove {
 public:
  explicit FiguresMove(ArenaHeader& header) noexcept : version_(header.fold_version) {
    version_.fetch_add(1, relaxed);
    store_fence();
  }
  ~FiguresMove() { version_.fetch_add(1, std::memory_order_release); }
  FiguresMove(const FiguresMove&) = delete;
  FiguresMove& operator=(const FiguresMove&) = delete;

 private:
  std::atomic<std::uint32_t>& version_;
};

}  // namespace

Recorder& Recorder::get() {
  static Recorder* const recorder = new Recorder;
  return *recorder;
}

Recorder::Recorder() : clock_source_(choose_clock(std::getenv("STAGESPAN_CLOCK"))) {
  arena_ = create_arena({ring_spans_wanted()});
  if (!arena_) return;  // the switch stays off: nothing is recorded, nothing else changes
  free_blocks_.reserve(kMaxBlocks);
  g_has_leave_key = pthread_key_create(&g_leave_key, leave) == 0;
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
  const std::lock_guard lock(cold_);
  ArenaHeader& header = arena_.header();
  std::string text(cut(key, kWorkKeyBytes));
  auto found = work_keys_.find(text);
  if (found == work_keys_.end()) {
    const std::uint32_t count = header.work_key_count.load(relaxed);
    if (count >= kMaxWorkKeys) {
      lose(kLostWork);
      return;
    }
    std::memcpy(arena_.work_keys()[count].text, text.data(), text.size());
    header.work_key_count.store(count + 1, std::memory_order_release);
    found = work_keys_.emplace(std::move(text), count).first;
  }
  const std::uint32_t index = found->second;
  const std::uint64_t wanted = (std::uint64_t{stage} + 1) << 32 | index;
  const std::uint32_t start = (stage * 31 + index * 7) % kMaxWork;
  for (std::uint32_t probe = 0; probe < kMaxWork; ++probe) {
    WorkEntry& entry = arena_.work()[(start + probe) % kMaxWork];
    const std::uint64_t seen = entry.key.load(relaxed);
    if (seen != 0 && seen != wanted) continue;
    entry.whole.fetch_add(whole, relaxed);
    SingleWriter::add(entry.fraction, fraction);
    // Release: who sees the key sees its text, and an amount.
    if (seen == 0) entry.key.store(wanted, std::memory_order_release);
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
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    const auto words = std::bit_cast<std::array<std::uint64_t, 2>>(name);
    slot.name[0].store(words[0], relaxed);
    slot.name[1].store(words[1], relaxed);
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
  if (!detail::g_counter_is_usable) thread->attention.store(kAttentionNoCounter, relaxed);
  // Zeroed pages that nobody has touched yet cost nothing; most threads never nest deep.
  thread->locals_storage.reset(static_cast<FrameLocal*>(std::calloc(kMaxFrames, sizeof(FrameLocal))));
  if (!thread->locals_storage) throw std::bad_alloc();
  thread->locals = thread->locals_storage.get();
  thread->scope = &thread->base;

  const std::lock_guard lock(cold_);
  if (!arena_) {
    // Nothing is recorded; what opens and closes spans still finds frames to pair them by.
    thread->frames_storage.reset(new OpenFrame[kSlotlessFrames]{});
    thread->frames = thread->frames_storage.get();
    thread->frame_capacity = kSlotlessFrames;
    make_root(*thread, 0, {});
    t_state = thread;
    return *thread;
  }
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
  leave_at_exit(thread);
  return *thread;
}

void Recorder::detach(ThreadState* thread) noexcept {
  if (const DeviceHooks* const hooks = g_device_hooks.load(std::memory_order_acquire); hooks != nullptr) {
    for (std::uint32_t i = 0; thread->device_open && i < thread->frame_capacity; ++i)
      if (thread->device_open[i] != nullptr) hooks->abandon(thread->device_open[i]);
    if (thread->device != nullptr) hooks->leave(*thread);
  }
  const std::lock_guard lock(cold_);
  std::uint64_t open = 0;
  const std::uint32_t end =
      thread->slot != nullptr ? thread->slot->frames_high_water.load(relaxed) : thread->frame_capacity;
  for (std::uint32_t index = 1; index < end; ++index) {
    OpenFrame& frame = thread->frames[index];
    if (frame.id.load(relaxed) != 0 && (frame.flags.load(relaxed) & kFrameClosedAway) == 0) ++open;
    frame.id.store(0, relaxed);
    frame.below.store(0, relaxed);
  }
  if (open != 0) lose(kLostAbandoned, open);
  if (thread->slot != nullptr) {
    ThreadSlot& slot = *thread->slot;
    free_retired_locked(*thread);
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
  const FiguresMove move(header);
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
    free_block_locked(block);
  }
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

void Recorder::free_block_locked(std::uint32_t block) noexcept {
  clear(arena_.blocks()[block - 1]);
  free_blocks_.push_back(block);
}

// Blocks that a reset took from a thread, which may have been writing to one of them. Called where the thread is
// known not to be.
void Recorder::free_retired_locked(ThreadState& thread) noexcept {
  for (const std::uint32_t block : thread.retired_blocks) free_block_locked(block);
  thread.retired_blocks.clear();
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
  free_retired_locked(thread);
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
  if (thread.slot != nullptr) lose(kLostBlocks);  // without a slot it is the thread that found no room
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
    store_fence();  // a reader that sees a field of this span sees that the one before has left
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
  if (thread.attention.load(relaxed) != 0) attend(thread);
  const OpenFrame& below = thread.frames[thread.scope->top];
  DetachedSpan detached{{0, 0, ++thread.next_id, below.as_parent_id.load(relaxed), thread.scope->request, 0, 0, stage,
                         below.as_parent_stage.load(relaxed), below.as_parent_depth.load(relaxed), flags},
                        0};
  detached.span.begin_ticks = now_ticks();
  open_on_device(thread, detached.span, detached.device);
  detached.shown_at = show_detached(detached.span, thread.thread);
  return detached;
}

void Recorder::close_detached(DetachedSpan& detached, std::uint16_t flags) {
  detached.span.end_ticks = now_ticks();
  detached.span.flags |= flags;
  ThreadState& thread = this_thread();
  close_on_device(thread, detached.span, detached.device, false);
  // After a fork the frame may be another span's.
  if (detached.shown_at != 0 && arena_.detached()[detached.shown_at - 1].id.load(relaxed) == detached.span.id)
    hide_detached(detached.shown_at);
  detached.shown_at = 0;
  commit_span(thread, detached.span);
}

OpenFrame* Recorder::find_elsewhere(const void* owner_key, ThreadState** thread) {
  const std::lock_guard lock(cold_);
  OpenFrame* latest = nullptr;
  for (ThreadState* state : threads_) {
    const std::uint32_t end =
        state->slot != nullptr ? state->slot->frames_high_water.load(relaxed) : state->frame_capacity;
    for (std::uint32_t index = 1; index < end; ++index) {
      OpenFrame& frame = state->frames[index];
      if (frame.id.load(std::memory_order_acquire) == 0 || state->locals[index].opened_by() != owner_key) continue;
      if ((frame.flags.load(relaxed) & kFrameClosedAway) != 0) continue;
      if (latest != nullptr && frame.begin_ticks.load(relaxed) < latest->begin_ticks.load(relaxed)) continue;
      latest = &frame;
      *thread = state;
    }
  }
  return latest;
}

bool Recorder::take_away_locked(ThreadState& owner, OpenFrame& frame, void** note) noexcept {
  // The owner may have left, or another thread may have ended the span, since the caller found it.
  if (std::find(threads_.begin(), threads_.end(), &owner) == threads_.end() || frame.id.load(relaxed) == 0 ||
      (frame.flags.fetch_or(kFrameClosedAway, relaxed) & kFrameClosedAway) != 0)
    return false;
  if (note != nullptr) *note = std::exchange(owner.locals[owner.index_of(frame)].note, nullptr);
  return true;
}

bool Recorder::close_away(ThreadState& owner, OpenFrame& frame, std::uint16_t flags, FinishedSpan* span, void** note) {
  const std::uint64_t end_ticks = now_ticks();
  FinishedSpan ended;
  {
    const std::lock_guard lock(cold_);
    if (!take_away_locked(owner, frame, note)) {
      lose(kLostUnmatched);
      return false;
    }
    ended = finished(owner, frame, end_ticks, flags);
    // Its events are the owner's, which may be dropping them at this moment.
    if ((ended.flags & kFrameDevice) != 0) lose(kLostDeviceElsewhere);
    ended.flags &= static_cast<std::uint16_t>(~kFrameDevice);
    owner.attention.fetch_or(kAttentionClosedAway, std::memory_order_release);
  }
  commit_span(this_thread(), ended);
  if (span != nullptr) *span = ended;
  return true;
}

bool Recorder::drop_away(ThreadState& owner, OpenFrame& frame, void** note) {
  const std::lock_guard lock(cold_);
  if (!take_away_locked(owner, frame, note)) return false;
  owner.attention.fetch_or(kAttentionClosedAway, std::memory_order_release);
  return true;
}

bool Recorder::record(std::uint32_t stage, std::int64_t begin_ns, std::int64_t end_ns, std::uint16_t flags) {
  if (!arena_) return false;
  const ClockFit fit = clock_fit();
  const std::uint64_t begin = fit.ticks(begin_ns);
  const std::uint64_t end = fit.ticks(end_ns);
  if (end_ns < begin_ns || end < begin || static_cast<std::int64_t>(begin) < 0 || static_cast<std::int64_t>(end) < 0) {
    lose(kLostRecords);
    return false;
  }
  ThreadState& thread = this_thread();
  if (thread.attention.load(relaxed) != 0) attend(thread);
  const OpenFrame& below = thread.frames[thread.scope->top];
  commit_span(thread, {begin, end, ++thread.next_id, below.as_parent_id.load(relaxed), thread.scope->request, 0, 0,
                       stage, below.as_parent_stage.load(relaxed), below.as_parent_depth.load(relaxed),
                       static_cast<std::uint16_t>(flags | kFlagRecorded)});
  return true;
}

// --- the whole -------------------------------------------------------------------------------------------

ClockFit Recorder::clock_fit() {
  if (!arena_) return ClockFit({take_stamp(), take_stamp()});
  const std::lock_guard lock(cold_);
  return refresh_clock(arena_.header());
}

void Recorder::reset() {
  if (!arena_) return;
  const std::lock_guard lock(cold_);
  ArenaHeader& header = arena_.header();
  // Threads go on writing meanwhile, so nothing that one of them owns is touched: rings get a new floor, and
  // blocks are set aside until their thread comes to ask for others.
  const FiguresMove move(header);
  header.resets.fetch_add(1, relaxed);
  for (std::atomic<std::uint64_t>& lost : header.lost) lost.store(0, relaxed);
  for (std::uint32_t i = 0; i < header.slot_high_water.load(relaxed); ++i)
    arena_.slot(i).floor.store(arena_.slot(i).head.load(std::memory_order_acquire), std::memory_order_release);
  const std::uint32_t stages = header.name_count.load(relaxed);
  for (ThreadState* thread : threads_) {
    if (thread->slot == nullptr) continue;
    for (std::uint32_t stage = 0; stage < stages; ++stage) {
      const std::uint32_t block = thread->stats[stage].exchange(0, relaxed);
      if (block != 0 && (block & kSharedBlock) == 0) thread->retired_blocks.push_back(block);
    }
  }
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    const std::uint32_t block = arena_.slot(kSharedSlot).stats[stage].load(relaxed);
    if (block == 0) continue;
    StatsBlock& shared = arena_.blocks()[(block & ~kSharedBlock) - 1];
    clear(shared);
    prepare(shared);
  }
  // The resolver holds the lock while it writes these.
  header.device_floor.store(header.device_head.load(relaxed), std::memory_order_release);
  for (std::uint32_t i = 0; i < header.device_stage_count.load(relaxed); ++i) {
    for (std::uint32_t figure = 0; figure < kDeviceFigures; ++figure) {
      clear(arena_.device_block(i, figure));
      prepare(arena_.device_block(i, figure));
    }
  }
  for (std::uint32_t i = 0; i < kMaxWork; ++i) {
    WorkEntry& entry = arena_.work()[i];
    entry.key.store(0, relaxed);
    entry.whole.store(0, relaxed);
    entry.fraction.store(0, relaxed);
  }
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
  leave_at_exit(nullptr);
}

}  // namespace stagespan
