// recorder_threads.cpp: registers threads and removes them, and manages the statistics blocks that they use.
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <new>
#include <utility>

#include "recorder.h"
#include "version_change.h"

namespace stagespan {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::uint32_t kFramesWithoutArena = 256;
constexpr std::uint32_t kSlotlessIds = 30000;
constexpr std::uint32_t kIdSlotShift = 48;
constexpr std::uint32_t kIdGenerationShift = 40;

// Runs when a thread ends. The destructor of a key runs after those of all thread_local objects, and runs again if the
// destructor of another key has opened a span since. Spans in late destructors are therefore not lost, and do not keep
// their thread's slot.
pthread_key_t g_leave_key;
bool g_has_leave_key = false;

void leave(void* thread) {
  if (thread != t_state) return;
  t_state = nullptr;
  Recorder::get().detach(static_cast<ThreadState*>(thread));
}

// False if there was not enough memory for it.
bool leave_at_exit(ThreadState* thread) noexcept {
  return !g_has_leave_key || pthread_setspecific(g_leave_key, thread) == 0;
}

}  // namespace

void Recorder::watch_for_leaving_threads() noexcept { g_has_leave_key = pthread_key_create(&g_leave_key, leave) == 0; }

void Recorder::forget_to_leave() noexcept { leave_at_exit(nullptr); }

std::uint64_t Recorder::first_id(std::uint32_t slot_index) const noexcept {
  // A forked child reuses the parent's slots. It uses other ids, so that a span that was open at the fork is not
  // mistaken for one of the child's.
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
    thread.locals = arena_.locals(slot_index);
    thread.frame_capacity = arena_.header().frames_per_thread;
    thread.ring = arena_.ring(slot_index);
    thread.ring_mask = arena_.header().ring_spans - 1;
    thread.head = slot.head.load(relaxed);
    thread.next_id = slot.next_id.load(relaxed);
    if (thread.next_id == 0) thread.next_id = first_id(slot_index);
    // The previous thread of the slot has dropped its frames: a reader that sees a field of this thread sees that.
    store_fence();
    slot.thread.store(thread.thread, relaxed);
    slot.ident.store(thread.ident, relaxed);
    // Not pthread_getname_np, which musl lacks before 1.2.3.
    if (thread.name[0] == '\0') prctl(PR_GET_NAME, thread.name);
    std::uint64_t words[kThreadNameBytes / 8];
    static_assert(sizeof(words) == sizeof(thread.name));
    std::memcpy(words, thread.name, sizeof(words));
    for (std::size_t i = 0; i < std::size(words); ++i) slot.name[i].store(words[i], relaxed);
    slot.state.store(kSlotLive, std::memory_order_release);
  } else {
    // No slot is left: all of its open spans are in hidden frames, and records are counted as lost.
    thread.next_id = first_id(kMaxThreads + (slotless_threads_++ % kSlotlessIds));
    thread.base.top = thread.base.root = take_frame(thread);
  }
  if (slot_index != kSharedSlot) {
    // Removes what an earlier thread has left. The asker writes the number first, and then the words of the threads
    // that it sees. In the one order of exchange() and load(), either the number is seen here, or the asker sees this
    // thread and writes its word after the exchange.
    thread.attention().exchange(0);
    const CommandBlock& commands = arena_.header().commands;
    if (commands.number.load() != commands.noticed.load(relaxed)) thread.attention().fetch_or(kAttentionAsked, relaxed);
  }
  if (!detail::g_counter_is_usable) thread.attention().fetch_or(kAttentionNoCounter, relaxed);
  thread.nowhere.top = thread.nowhere.root = thread.base.root;
  make_root(thread, thread.base.root, {});
  // By this, readers tell the frames of the thread's own code from those of its tasks.
  thread.locals[thread.base.root].open_in(&thread.base);
}

std::uint32_t Recorder::hidden_chunks() const noexcept {
  // The last one has no space for the shift of the locals.
  return frames_per_slot(arena_sizes_.frames_per_thread) * kHiddenSlots / kHiddenChunkFrames - 1;
}

std::uint32_t Recorder::index_of_chunk(const ThreadState& thread, std::uint32_t chunk) const noexcept {
  return static_cast<std::uint32_t>(arena_.frames(kMaxThreads) - thread.frames) + chunk * kHiddenChunkFrames;
}

bool Recorder::take_hidden_chunk(ThreadState& thread) noexcept {
  const std::lock_guard lock(cold_);
  return take_hidden_chunk_locked(thread);
}

bool Recorder::take_hidden_chunk_locked(ThreadState& thread) noexcept {
  if (!arena_ || thread.is_stand_in()) return false;
  std::uint32_t chunk = free_chunk_;
  if (chunk != 0) {
    free_chunk_ = next_chunk_[chunk];
  } else {
    // There is no chunk with the number 0: the indices of its frames would be those of a thread's own.
    if (last_chunk_ + 1 >= hidden_chunks()) return false;
    chunk = ++last_chunk_;
  }
  next_chunk_[chunk] = thread.hidden_chunk;
  thread.hidden_chunk = chunk;
  const std::uint32_t first = index_of_chunk(thread, chunk);
  for (std::uint32_t index = first + kHiddenChunkFrames; index-- > first;) {
    thread.frames[index].below.store(thread.hidden_free, relaxed);
    thread.hidden_free = index;
  }
  return true;
}

void Recorder::give_back_chunks_locked(ThreadState& thread) noexcept {
  while (thread.hidden_chunk != 0) {
    const std::uint32_t chunk = std::exchange(thread.hidden_chunk, next_chunk_[thread.hidden_chunk]);
    next_chunk_[chunk] = std::exchange(free_chunk_, chunk);
  }
}

void Recorder::prepare_stand_in() noexcept {
  // One frame, the root: it opens no spans. Detached spans are recorded as those of a thread without a slot.
  stand_in_.frames = &stand_in_frame_;
  stand_in_.attention().store(kAttentionNoMemory, relaxed);
  stand_in_.frame_capacity = 1;
  stand_in_.locals = &stand_in_local_;
  stand_in_.scope = &stand_in_.base;
  if (arena_) {
    stand_in_.blocks = arena_.blocks();
    stand_in_.stats = arena_.slot(kSharedSlot).stats;
  }
  stand_in_.next_id = first_id(kMaxThreads + kSlotlessIds);
  make_root(stand_in_, 0, {});
}

bool Recorder::give_own_frames(ThreadState& thread) noexcept {
  // One more, because the end of the list of free ones is the index after the last.
  thread.frames_storage.reset(new (std::nothrow) OpenFrame[kFramesWithoutArena + 1]{});
  thread.frames = thread.frames_storage.get();
  thread.locals_storage.reset(static_cast<FrameLocal*>(std::calloc(kFramesWithoutArena + 1, sizeof(FrameLocal))));
  thread.locals = thread.locals_storage.get();
  thread.frame_capacity = kFramesWithoutArena;
  return thread.frames != nullptr && thread.locals != nullptr;
}

std::unique_ptr<ThreadState> Recorder::new_thread() noexcept {
  std::unique_ptr<ThreadState> thread(new (std::nothrow) ThreadState);
  if (!thread) return nullptr;
  thread->thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
  thread->ident = static_cast<std::uint64_t>(pthread_self());
  thread->scope = &thread->base;
  return thread;
}

std::uint32_t Recorder::choose_slot_locked() const noexcept {
  const std::uint32_t used = arena_.header().slot_high_water.load(relaxed);
  std::uint32_t exited = 0;
  std::uint32_t first_to_exit = kSharedSlot;
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (std::uint32_t i = 0; i < used; ++i) {
    const ThreadSlot& slot = arena_.slot(i);
    if (slot.state.load(relaxed) != kSlotExited) continue;
    ++exited;
    if (slot.exited_ticks.load(relaxed) >= oldest) continue;
    oldest = slot.exited_ticks.load(relaxed);
    first_to_exit = i;
  }
  // Each new slot takes memory for a ring. A reused slot keeps the spans of its previous threads until the new thread
  // overwrites them.
  return used == kMaxThreads || exited >= kExitedSlotsKept ? first_to_exit : used;
}

ThreadState& Recorder::attach() noexcept {
  bool begins = false;
  ThreadState& thread = attach_to_slot(begins);
  if (begins) after_start();
  return thread;
}

ThreadState& Recorder::attach_to_slot(bool& begins) noexcept {
  std::unique_ptr<ThreadState> thread = new_thread();
  if (!thread) return stand_in_;
  if (auto* const hook = on_new_thread.load(relaxed); hook != nullptr) hook(thread->name);
  const std::lock_guard lock(cold_);
  if (!arena_) {
    // Nothing is recorded, but code that opens and closes spans still finds frames to pair them.
    if (!give_own_frames(*thread)) return stand_in_;
    if (!detail::g_counter_is_usable) thread->attention().store(kAttentionNoCounter, relaxed);
    make_root(*thread, 0, {});
    return *(t_state = thread.release());
  }
  const std::uint32_t chosen = choose_slot_locked();
  // Everything that can fail is done before anything that others see.
  if (chosen == kSharedSlot) {
    thread->frames = arena_.frames(kMaxThreads);
    thread->locals = arena_.locals(kMaxThreads);
    thread->free_head = 0;
  }
  try {
    threads_.reserve(threads_.size() + 1);
  } catch (const std::bad_alloc&) {
    return stand_in_;
  }
  if (chosen == kSharedSlot && !take_hidden_chunk_locked(*thread)) return stand_in_;
  if (!leave_at_exit(thread.get())) {
    give_back_chunks_locked(*thread);
    return stand_in_;
  }
  begins = start_recording_locked();
  if (chosen != kSharedSlot) reserve_slot_locked(chosen);
  std::atomic<std::uint32_t>& high_water = arena_.header().slot_high_water;
  if (chosen != kSharedSlot && chosen == high_water.load(relaxed))
    high_water.store(chosen + 1, std::memory_order_release);
  settle(*thread, chosen);
  threads_.push_back(thread.get());
  return *(t_state = thread.release());
}

void Recorder::detach(ThreadState* thread) noexcept {
  if (const DeviceHooks* const hooks = g_device_hooks.load(std::memory_order_acquire); hooks != nullptr) {
    for_each_frame(*thread, [&](std::uint32_t index) {
      if (thread->locals[index].device != nullptr) hooks->abandon(thread->locals[index].device);
    });
    if (thread->device != nullptr) hooks->leave(*thread);
  }
  const std::lock_guard lock(cold_);
  std::uint64_t open = 0;
  for_each_frame(*thread, [&](std::uint32_t index) {
    OpenFrame& frame = thread->frames[index];
    const std::uint64_t id = frame.id.load(relaxed);
    if (id != 0 && (frame.flags.load(relaxed) & kFrameClosedAway) == 0) ++open;
    g_span_work.take(id, [](std::uint32_t, double) {});
    frame.id.store(0, relaxed);
    frame.below.store(0, relaxed);
    thread->locals[index].clear();  // the next thread of the slot finds them initialised
  });
  give_back_chunks_locked(*thread);
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
  const VersionChange move(header.fold_version);
  const std::uint32_t stages = header.name_count.load(relaxed);
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    const std::uint32_t block = slot.stats[stage].load(relaxed);
    slot.stats[stage].store(0, relaxed);
    if (block == 0 || (block & kSharedBlock) != 0) continue;
    StatsBlock& from = arena_.blocks()[block - 1];
    // The first thread to leave hands over its block unchanged; later ones are added to it.
    std::atomic<std::uint32_t>& shared = arena_.slot(kSharedSlot).stats[stage];
    if (shared.load(relaxed) == 0) {
      shared.store(block | kSharedBlock, std::memory_order_release);
      continue;
    }
    fold(from, arena_.blocks()[(shared.load(relaxed) & ~kSharedBlock) - 1]);
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
    claim_piece_locked(header.block_pieces, kRegionBlocks, used, kBlocksAtOnce);
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

// Blocks that a reset took from a thread, which may have been writing to one of them. Call this only if the thread is
// known not to be writing.
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
  // A quarter of the blocks is reserved for shared ones, so that stages have their own figures for longer.
  if (thread.slot != nullptr &&
      (!free_blocks_.empty() || arena_.header().block_count.load(relaxed) < kMaxBlocks - kMaxBlocks / 4)) {
    const std::uint32_t block = take_block_locked();
    if (block != 0) {
      // Release: a reader that finds the block finds it initialised.
      thread.stats[stage].store(block, std::memory_order_release);
      return block;
    }
  }
  const std::uint32_t block = shared_block_locked(stage);
  if (thread.slot != nullptr) lose(kLostBlocks);  // without a slot, the loss is counted for the thread
  thread.stats[stage].store(block, std::memory_order_release);
  return block;
}

}  // namespace stagespan
