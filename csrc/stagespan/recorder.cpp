// recorder.cpp: start, names, gauges, resets and forks.
#include "recorder.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "cut_off.h"
#include "process_info.h"
#include "process_life.h"
#include "text.h"
#include "variables.h"
#include "version_change.h"

namespace stagespan {

std::atomic<std::uint32_t> g_mode{0};

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

std::uint32_t ring_spans_wanted() {
  const std::optional<std::int64_t> wanted = whole_number(variable("STAGESPAN_RING_SPANS"));
  if (!wanted || *wanted < kLeastRingSpans || *wanted > kMostRingSpans) return kDefaultRingSpans;
  return std::bit_ceil(static_cast<std::uint32_t>(*wanted));
}

std::uint32_t segment_entries_wanted() {
  const std::optional<std::int64_t> wanted = whole_number(variable("STAGESPAN_REQUESTS"));
  if (!wanted || *wanted < kFewestRequests || *wanted > kMostRequests) return kDefaultRequests;
  return (static_cast<std::uint32_t>(*wanted) + kSegmentsAtOnce - 1) / kSegmentsAtOnce * kSegmentsAtOnce;
}

RecordingWish recording_wish() {
  RecordingWish wish;
  const std::string mode = choice(variable("STAGESPAN_RECORDING"));
  wish.is_on = mode != "off";
  wish.keep = mode == "keep";
  wish.may_be_file = mode != "memfd";
  wish.folder = std::string(variable("STAGESPAN_RECORDING_DIR"));
  while (wish.folder.size() > 1 && wish.folder.back() == '/') wish.folder.pop_back();
  if (!wish.folder.empty() && wish.folder.front() != '/')  // the program may change its working directory
    if (char* const here = getcwd(nullptr, 0); here != nullptr) {
      wish.folder = std::string(here) + "/" + wish.folder;
      std::free(here);
    }
  return wish;
}

// Cuts a long name, and ends it with a hash of the whole name.
std::string shortened(std::string_view name) {
  if (name.size() <= kMaxNameBytes) return std::string(name);
  std::string result(cut(name, kMaxNameBytes - 17));
  result += '~';
  char digits[16];
  return result.append(digits, put_hexadecimal(digits, fnv1a(name)));
}

}  // namespace

Recorder& Recorder::get() {
  static Recorder* const recorder = new Recorder;
  return *recorder;
}

Recorder::Recorder() : clock_source_(choose_clock(choice(variable("STAGESPAN_CLOCK")).c_str())) {
  arena_ = create_arena({ring_spans_wanted(), kMaxFrames, segment_entries_wanted()});
  if (arena_) {
    arena_bytes_ = arena_.header().size_bytes;
    arena_sizes_ = {arena_.header().ring_spans, arena_.header().frames_per_thread, arena_.header().segment_entries};
    free_segments_ = std::make_unique<std::uint32_t[]>(arena_sizes_.segment_entries);
    is_free_segment_ = std::make_unique<bool[]>(arena_sizes_.segment_entries);
    next_chunk_ = std::make_unique<std::uint32_t[]>(hidden_chunks());
  }
  if (!arena_) {  // the switch stays off: nothing is recorded, and nothing else changes
    prepare_stand_in();
    return;
  }
  recording_wish_ = recording_wish();
  process_info_ = process_info_from_environment();
  std::atexit([] { get().end_recording(); });
  free_blocks_.reserve(kMaxBlocks);
  watch_for_leaving_threads();
  prepare_arena();
  intern("(overflow)");
  intern("(invalid name)");
  pthread_atfork([] { get().cold_.lock(); }, [] { get().cold_.unlock(); },
                 [] {
                   get().after_fork();
                   get().cold_.unlock();
                 });
  g_mode.store(kModeEnabled | kModePlainCalls, relaxed);
}

void Recorder::prepare_arena() {
  ArenaHeader& header = arena_.header();
  header.clock_source = static_cast<std::uint32_t>(clock_source_);
  header.stamps[0] = take_stamp();
  header.stamp_count.store(1, std::memory_order_release);
  free_blocks_.clear();
  free_chunk_ = last_chunk_ = 0;
  for (std::uint32_t i = 0; i < header.segment_entries; ++i) {
    free_segments_[i] = i;
    is_free_segment_[i] = true;
  }
  sent_counts_.reset();
  work_blocks_.clear();
  g_span_work.clear();
  request_work_.clear();
  segments_taken_ = 0;
  segments_freed_ = header.segment_entries;
  arena_.slot(kSharedSlot).state.store(kSlotLive, relaxed);
  shared_block_locked(kStageOverflow);
  show_field_names(0);
  prepare_stand_in();
}

std::uint32_t Recorder::intern(std::string_view name, StageKind kind) noexcept {
  if (!arena_) return kStageOverflow;
  const std::lock_guard lock(cold_);
  try {
    return intern_locked(name, kind);
  } catch (const std::bad_alloc&) {
    lose(kLostMemory);
    return kStageOverflow;
  }
}

std::uint32_t Recorder::intern_locked(std::string_view name, StageKind kind) {
  std::string key = static_cast<char>(kind) + shortened(name);
  if (const auto found = stages_.find(key); found != stages_.end()) return found->second;
  if (is_cut_off()) return kStageOverflow;
  ArenaHeader& header = arena_.header();
  const std::uint32_t stage = header.name_count.load(relaxed);
  const std::uint32_t used = header.name_pool_used.load(relaxed);
  if (stage >= kMaxStages || used + key.size() - 1 > kNamePoolBytes) {
    lose(kLostNames);
    return kStageOverflow;
  }
  // Before the name is counted: if this runs out of memory, nothing must have changed.
  const std::string_view text = std::string_view(stages_.emplace(std::move(key), stage).first->first).substr(1);
  std::memcpy(arena_.name_pool() + used, text.data(), text.size());
  arena_.name(stage) = {used, static_cast<std::uint16_t>(text.size()), kind};
  header.name_pool_used.store(used + static_cast<std::uint32_t>(text.size()), relaxed);
  // Release: a reader that sees the count sees the names.
  header.name_count.store(stage + 1, std::memory_order_release);
  return stage;
}

std::uint32_t Recorder::intern_foreign(std::string_view name, StageKind kind) noexcept {
  // One place for each kind is left for the common name.
  return intern_bounded(name, kind, kind, foreign_names_, kMostForeignNames - kStageKinds);
}

std::uint32_t Recorder::intern_pipeline(std::string_view name, StageKind kind) noexcept {
  return intern_bounded(name, kind, kRequestOk, pipelines_, kMostPipelines);
}

std::uint32_t Recorder::intern_exception(std::string_view name) noexcept {
  return intern_bounded(name, kException, kException, exception_types_, kMostExceptionTypes);
}

std::uint32_t Recorder::intern_bounded(std::string_view name, StageKind kind, StageKind counted_kind,
                                       std::uint32_t& taken, std::uint32_t most) noexcept {
  if (!arena_) return kStageOverflow;
  const std::lock_guard lock(cold_);
  try {
    const bool is_known = stages_.contains(static_cast<char>(counted_kind) + shortened(name));
    const bool has_place = is_known || taken < most;
    // Requests of further pipelines are counted together, so nothing is lost.
    if (!has_place && counted_kind < kPartFirstChunk) lose(kLostNames);
    const std::uint32_t stage = intern_locked(has_place ? name : kForeignName, kind);
    if (has_place && !is_known && kind == counted_kind && stage != kStageOverflow) ++taken;
    return stage;
  } catch (const std::bad_alloc&) {
    lose(kLostMemory);
    return kStageOverflow;
  }
}

std::string_view Recorder::name_of(std::uint32_t stage) const noexcept {
  if (!arena_ || stage >= arena_.header().name_count.load(std::memory_order_acquire)) return "(overflow)";
  const NameEntry& entry = arena_.name(stage);
  return {arena_.name_pool() + entry.offset, entry.length_bytes};
}

StageKind Recorder::kind_of(std::uint32_t stage) const noexcept {
  if (!arena_ || stage >= arena_.header().name_count.load(std::memory_order_acquire)) return kExecution;
  return static_cast<StageKind>(arena_.name(stage).kind);
}

std::vector<std::string> Recorder::names() const {
  std::vector<std::string> result;
  if (!arena_) return result;
  const std::uint32_t count = arena_.header().name_count.load(std::memory_order_acquire);
  result.reserve(count);
  for (std::uint32_t stage = 0; stage < count; ++stage) result.emplace_back(name_of(stage));
  return result;
}

ClockFit Recorder::clock_fit() noexcept {
  if (!arena_) return ClockFit({take_stamp(), take_stamp()});
  const std::lock_guard lock(cold_);
  return refresh_clock(arena_.header());
}

double Recorder::ns_per_tick() noexcept {
  // A fit from the start of the process: its rate changes by a few parts in a million.
  const std::uint64_t now = now_ticks();
  const std::lock_guard lock(cold_);
  if (ns_per_tick_ == 0 || ticks_apart(now, rate_ticks_) > 4'000'000'000) {
    ns_per_tick_ = (arena_ ? refresh_clock(arena_.header()) : ClockFit({take_stamp(), take_stamp()})).ns_per_tick();
    rate_ticks_ = now;
  }
  return ns_per_tick_;
}

void Recorder::follow_clock_locked() {
  if (published_clock_.is_due(now_ticks())) {
    const ClockFit fit = arena_ ? refresh_clock(arena_.header()) : ClockFit({take_stamp(), take_stamp()});
    published_clock_.follow(fit, now_ticks());
  }
  published_clock_.settle(now_ticks());
}

PublishedClock Recorder::published_clock() {
  const std::lock_guard lock(cold_);
  follow_clock_locked();
  return published_clock_;
}

void Recorder::set_gauge(std::string_view name, double value) noexcept {
  if (!arena_) return;
  if (!std::isfinite(value)) return lose(kLostWork);
  this_thread();  // the recording begins before the first gauge is written
  const std::lock_guard lock(cold_);
  ArenaHeader& header = arena_.header();
  const std::uint32_t count = header.gauge_count.load(relaxed);
  const std::string_view stored = cut(name, kGaugeNameBytes);
  std::uint32_t i = 0;
  while (i < count && text_in(header.gauges[i].name, kGaugeNameBytes) != stored) ++i;
  if (i == kMostGauges) return lose(kLostWork);
  if (i == count) set_text(header.gauges[i].name, kGaugeNameBytes, stored);
  header.gauges[i].value.store(value, relaxed);
  // Release: a reader that sees the count sees the name and a value.
  if (i == count) header.gauge_count.store(count + 1, std::memory_order_release);
  SingleWriter::add(header.changes, std::uint64_t{1});
}

std::int64_t Recorder::published_ns(std::uint64_t ticks) {
  const std::lock_guard lock(cold_);
  follow_clock_locked();
  return published_clock_.unix_ns(ticks);
}

void Recorder::reset() {
  if (!arena_) return;
  const std::lock_guard lock(cold_);
  ArenaHeader& header = arena_.header();
  const std::uint32_t stages = header.name_count.load(relaxed);
  // All memory is allocated first, so that a failure changes nothing.
  for (ThreadState* thread : threads_) {
    if (thread->slot == nullptr) continue;
    std::size_t own_blocks = 0;
    for (std::uint32_t stage = 0; stage < stages; ++stage) {
      const std::uint32_t block = thread->stats[stage].load(relaxed);
      if (block != 0 && (block & kSharedBlock) == 0) ++own_blocks;
    }
    thread->retired_blocks.reserve(thread->retired_blocks.size() + own_blocks);
  }
  // Threads continue to write during a reset, so nothing that a thread owns is changed: rings get a new floor, and
  // blocks are set aside until their thread requests new ones.
  const VersionChange move(header.fold_version);
  header.resets.fetch_add(1, relaxed);
  for (std::atomic<std::uint64_t>& lost : header.lost) lost.store(0, relaxed);
  for (std::uint32_t i = 0; i < header.slot_high_water.load(relaxed); ++i)
    arena_.slot(i).floor.store(arena_.slot(i).head.load(std::memory_order_acquire), std::memory_order_release);
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
  // Messages count anew: the records before this number are no longer those of the numbers that they were written with.
  sent_counts_.reset();
  const RingView<SentRecord> sent = arena_.ring_of<SentRecord>();
  sent.head.fetch_add(sent.capacity, std::memory_order_release);
  // The resolver holds the lock while it writes these.
  header.device_floor.store(header.device_head.load(relaxed), std::memory_order_release);
  for (std::uint32_t i = 0; i < header.device_stage_count.load(relaxed); ++i) {
    for (std::uint32_t figure = 0; figure < kDeviceFigures; ++figure) {
      clear(arena_.device_block(i, figure));
      prepare(arena_.device_block(i, figure));
    }
  }
  clear_work();
}

// --- the recording ----------------------------------------------------------------------------------------

// True if the recording starts now.
bool Recorder::start_recording_locked() noexcept {
  if (is_recording_started_) return false;
  is_recording_started_ = true;
  ArenaHeader& header = arena_.header();
  const ProcessIdentity identity = identity_of_this_process();
  header.process_start_ticks = identity.start_ticks;
  header.pid_namespace = identity.pid_namespace;
  header.boot = identity.boot;
  header.clock = identity.clock;
  header.begin_unix_ns = take_stamp().unix_ns;
  header.info = process_info_;
  refresh_clock(header);
  // Regions that are in use or small. All of them are moved to the file before any thread has a span.
  const auto piece = [&](Region region, std::uint64_t first, std::uint64_t count) {
    const RegionInfo& info = header.regions[region];
    const std::uint64_t end = info.offset + (first + count) * info.stride;
    const std::uint64_t begin = info.offset + first * info.stride;
    return RecordingFile::Piece{begin, (end - begin + kPageBytes - 1) / kPageBytes * kPageBytes};
  };
  const std::uint32_t used_blocks =
      (header.block_count.load(relaxed) + kBlocksAtOnce - 1) / kBlocksAtOnce * kBlocksAtOnce;
  const RecordingFile::Piece pieces[] = {
      {0, header.regions[kRegionSlots].offset},
      piece(kRegionSlots, kSharedSlot, 1),
      piece(kRegionBlocks, 0, used_blocks),
  };
  // Before the header is copied. Nobody reads these fields while there is no file.
  header.slot_pieces[kSharedSlot].store(kPieceRecorded, relaxed);
  for (std::uint32_t i = 0; i < used_blocks / kBlocksAtOnce; ++i) header.block_pieces[i].store(kPieceRecorded, relaxed);
  recording_.start(arena_, recording_wish_, pieces, std::size(pieces));
  if (recording_.place().kind == RecordingKind::kFile) watch_for_cut_off(arena_);
  return true;
}

void Recorder::begin_recording() noexcept {
  if (!arena_) return;
  bool begins = false;
  {
    const std::lock_guard lock(cold_);
    begins = start_recording_locked();
  }
  if (begins) after_start();
}

void Recorder::after_start() noexcept {
  recording_.tidy();
  if (void (*const hook)() = on_recording.load(relaxed); hook != nullptr) hook();
}

bool Recorder::reserve_locked(Region region, std::uint64_t first, std::uint64_t count) noexcept {
  const RegionInfo& info = arena_.header().regions[region];
  const std::uint64_t bytes = (count * info.stride + kPageBytes - 1) / kPageBytes * kPageBytes;
  return recording_.reserve(arena_, {info.offset + first * info.stride, bytes}, false);
}

void Recorder::claim_piece_locked(std::atomic<std::uint8_t>* pieces, Region region, std::uint64_t index,
                                  std::uint64_t at_once) noexcept {
  std::atomic<std::uint8_t>& piece = pieces[index / at_once];
  if (!recording_.is_active() || piece.load(relaxed) != kPieceUnclaimed) return;
  const bool has_room = reserve_locked(region, index / at_once * at_once, at_once);
  piece.store(has_room ? kPieceRecorded : kPieceRefused, std::memory_order_release);
}

bool Recorder::reserve_frames_locked(std::uint32_t slot_index, std::uint32_t first, std::uint32_t count) noexcept {
  const ArenaHeader& header = arena_.header();
  const std::uint64_t first_of_all = std::uint64_t{slot_index} * frames_per_slot(header.frames_per_thread) + first;
  // The first ones also contain the page that the shift adds.
  const std::uint64_t begin =
      header.regions[kRegionLocals].offset + first_of_all * sizeof(FrameLocal) + (first == 0 ? 0 : kPageBytes);
  const std::uint64_t bytes = count * sizeof(FrameLocal) + (first == 0 ? kPageBytes : 0);
  return reserve_locked(kRegionFrames, first_of_all, count) && recording_.reserve(arena_, {begin, bytes}, false);
}

void Recorder::reserve_slot_locked(std::uint32_t slot_index) noexcept {
  ArenaHeader& header = arena_.header();
  if (!recording_.is_active() || header.slot_pieces[slot_index].load(relaxed) != kPieceUnclaimed) return;
  const std::uint32_t frames = std::min(kFramesAtOnce, header.frames_per_thread);
  const bool has_slot = reserve_locked(kRegionSlots, slot_index, 1);
  const bool has_frames = has_slot && reserve_frames_locked(slot_index, 0, frames);
  const bool has_ring =
      has_slot && reserve_locked(kRegionRings, std::uint64_t{slot_index} * header.ring_spans, header.ring_spans);
  header.frames_recorded[slot_index].store(has_frames ? frames : 0, relaxed);
  header.frame_pieces[slot_index].store(has_frames ? kPieceUnclaimed : kPieceRefused, relaxed);
  header.ring_pieces[slot_index].store(has_ring ? kPieceRecorded : kPieceRefused, relaxed);
  // Release: a reader that sees the slot in the file sees which of its parts are in the file.
  header.slot_pieces[slot_index].store(has_slot ? kPieceRecorded : kPieceRefused, std::memory_order_release);
}

void Recorder::reserve_frames(std::uint32_t slot_index, std::uint32_t first) noexcept {
  const std::lock_guard lock(cold_);
  ArenaHeader& header = arena_.header();
  if (!recording_.is_active() || header.frame_pieces[slot_index].load(relaxed) == kPieceRefused) return;
  if (header.frames_recorded[slot_index].load(relaxed) > first) return;  // by the previous thread of the slot
  if (reserve_frames_locked(slot_index, first, kFramesAtOnce))
    header.frames_recorded[slot_index].store(first + kFramesAtOnce, std::memory_order_release);
  else
    header.frame_pieces[slot_index].store(kPieceRefused, relaxed);
}

void Recorder::reserve_device_ring_locked() noexcept {
  claim_piece_locked(&arena_.header().device_ring_piece, kRegionDevice, 0, kDeviceSpans);
}

void Recorder::claim_cpu_times(ThreadState& thread) noexcept {
  if (thread.ring == nullptr) return;
  const std::lock_guard lock(cold_);
  std::atomic<std::uint8_t>& piece = arena_.header().cpu_time_pieces[thread.slot_index];
  if (piece.load(relaxed) == kPieceUnclaimed) {
    const std::uint64_t count = cpu_times_per_slot(arena_.header().ring_spans);
    const bool has_room =
        !recording_.is_active() || reserve_locked(kRegionCpuTimes, std::uint64_t{thread.slot_index} * count, count);
    piece.store(has_room ? kPieceRecorded : kPieceRefused, std::memory_order_release);
  }
  thread.cpu_times = arena_.cpu_times(thread.slot_index);
}

void Recorder::reserve_device_stages_locked(std::uint32_t first) noexcept {
  claim_piece_locked(arena_.header().device_block_pieces, kRegionDeviceBlocks, std::uint64_t{first} * kDeviceFigures,
                     std::uint64_t{kDeviceStagesAtOnce} * kDeviceFigures);
}

RecordingPlace Recorder::recording_place() {
  const std::lock_guard lock(cold_);
  RecordingPlace place = recording_.place();
  if (is_cut_off()) {
    place.kind = RecordingKind::kMemory;
    place.why = "another program truncated " + std::exchange(place.path, {}) +
                " and stagespan has stopped recording: set STAGESPAN_RECORDING=memfd, which protects the recording";
  }
  if (!is_recording_started_) place.kind = recording_wish_.is_on ? RecordingKind::kNotYet : RecordingKind::kOff;
  return place;
}

void Recorder::hide_recording() noexcept {
  const std::lock_guard lock(cold_);
  recording_wish_.is_hidden = true;
}

void Recorder::describe_process(const ProcessInfo& info) noexcept {
  const std::lock_guard lock(cold_);
  process_info_ = info;
  if (!arena_ || !is_recording_started_) return;
  const VersionChange change(arena_.header().info_version);
  arena_.header().info = info;
}

void Recorder::end_recording() noexcept {
  if (arena_) recording_.end(arena_.header());
}

void Recorder::mark_stop(int signal, bool is_final) noexcept {
  if (!arena_) return;
  ArenaHeader& header = arena_.header();
  header.stop_unix_ns.store(realtime_ns(), relaxed);
  // Release: a reader that sees the signal sees its time.
  header.stop_signal.store(static_cast<std::uint32_t>(signal) | (is_final ? kStopIsFinal : 0),
                           std::memory_order_release);
}

ProcessInfo Recorder::process_info() noexcept {
  const std::lock_guard lock(cold_);
  return process_info_;
}

// --- forks ------------------------------------------------------------------------------------------------

void Recorder::restore_names() noexcept {
  ArenaHeader& header = arena_.header();
  const auto names = static_cast<std::uint32_t>(stages_.size());
  for (const auto& [key, stage] : stages_)
    arena_.name(stage) = {0, static_cast<std::uint16_t>(key.size() - 1), static_cast<std::uint16_t>(key[0])};
  std::uint32_t used = 0;
  for (std::uint32_t stage = 0; stage < names; ++stage) {
    arena_.name(stage).offset = used;
    used += arena_.name(stage).length_bytes;
  }
  for (const auto& [key, stage] : stages_)
    std::memcpy(arena_.name_pool() + arena_.name(stage).offset, key.data() + 1, key.size() - 1);
  for (const auto& [text, key] : work_keys_) std::memcpy(arena_.work_keys()[key].text, text.data(), text.size());
  header.name_pool_used.store(used, relaxed);
  header.work_key_count.store(static_cast<std::uint32_t>(work_keys_.size()), relaxed);
  header.name_count.store(names, std::memory_order_release);
}

// The parent's arena is not mapped here. Memory of this process is mapped at its address, because objects of the
// program contain addresses in it, and will find that the span at the address is not theirs. If something is already
// mapped there, for example by another library in the child, the child's arena is at another address. False if the
// system refuses memory.
bool Recorder::renew_arena_in_child() noexcept {
  void* const at = arena_.base();
  const std::uint64_t size = arena_bytes_;
#ifdef MAP_FIXED_NOREPLACE
  constexpr int kAtThisPlace = MAP_FIXED_NOREPLACE;
#else
  constexpr int kAtThisPlace = MAP_FIXED;
#endif
  constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(at, size, PROT_READ | PROT_WRITE, kPrivate | kAtThisPlace, -1, 0);
  if (memory != at) {
    if (memory != MAP_FAILED) munmap(memory, size);
    // The addresses must at least be readable.
    constexpr std::uint64_t kStep = 1 << 20;
    for (std::uint64_t done = 0; done < size; done += kStep)
      mmap(static_cast<std::byte*>(at) + done, std::min(kStep, size - done), PROT_READ, kPrivate | kAtThisPlace, -1, 0);
    memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, kPrivate, -1, 0);
    if (memory == MAP_FAILED) {
      g_mode.store(0, relaxed);
      arena_ = {};
      return false;
    }
    arena_ = ArenaView(static_cast<std::byte*>(memory));
  }
  madvise(memory, size, MADV_NOHUGEPAGE);
  lay_out_arena(arena_, arena_sizes_);
  restore_names();
  return true;
}

void Recorder::after_fork() noexcept {
  // The child starts its own recording in its own memory. The states of threads that do not exist here are left
  // unchanged: a span that was open in the parent finds that its frame's id has changed, and does nothing.
  generation_.fetch_add(1, relaxed);
  threads_.clear();
  t_state = nullptr;
  forget_to_leave();
  published_clock_ = PublishedClock{};
  ns_per_tick_ = 0;
  const bool was_mapped = recording_.is_active();
  recording_.forget_after_fork();
  forget_cut_off();
  is_recording_started_ = false;
  if (!arena_) return;
  if (!was_mapped)
    clear_arena(arena_);
  else if (!renew_arena_in_child())
    return prepare_stand_in();
  prepare_arena();
}

}  // namespace stagespan
