// recording_reader.cpp: copies a recording that may be written, truncated or forged, and checks the copy.
#include "recording_reader.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <thread>

#include "process_life.h"
#include "recorder.h"
#include "stage_stats.h"

namespace stagespan {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr int kMostTries = 200;
constexpr std::chrono::microseconds kPause{50};
constexpr std::uint64_t kMostCopied = 4ULL << 30;
constexpr std::int64_t kMost_ns = 4'000'000'000'000'000'000;  // sums of three such numbers are not used
constexpr std::uint64_t kMostTicks = 1ULL << 63;
constexpr std::uint64_t kMostSpare = 8ULL << 20;

// The memory of the latest copy that was released, all of it zero but the first word, which is its size.
std::atomic<std::byte*> g_spare{nullptr};

std::uint64_t& size_of_spare(std::byte* spare) { return *reinterpret_cast<std::uint64_t*>(spare); }

// Returns zeroed memory, of which only what is written takes space.
std::byte* zeroed_memory(std::uint64_t bytes) {
  if (std::byte* const spare = g_spare.exchange(nullptr)) {
    if (size_of_spare(spare) == bytes) {
      size_of_spare(spare) = 0;
      return spare;
    }
    munmap(spare, size_of_spare(spare));
  }
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, bytes, MADV_NOHUGEPAGE);
  return static_cast<std::byte*>(memory);
}

template <class T>
T plain(const std::atomic<T>& value) noexcept {
  return value.load(relaxed);
}

template <class Record>
std::uint32_t commit_of(const Record& record) noexcept {
  return plain(record.commit);
}

constexpr std::uint64_t kScratchBytes = 32 << 10;

class Copier {
 public:
  Copier(int fd, RecordingCopy& copy) : fd_(fd), copy_(copy) {}

  std::string open(const std::string& what);
  std::string marks();
  std::vector<std::uint64_t> heads();
  std::string copy_all(RecordingParts parts, const std::string& what);

 private:
  ArenaHeader& header() const { return copy_.arena.header(); }
  std::byte* at(std::uint64_t offset) const { return copy_.arena.base() + offset; }
  std::uint64_t offset_of(const void* where) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(where) - copy_.arena.base());
  }

  std::string read_header(const std::string& what, ArenaHeader& found);
  void read_to(void* to, std::uint64_t offset, std::uint64_t bytes);
  /// Copies bytes of the file to the same place of the copy.
  void take(const void* first, std::uint64_t bytes);
  void note_written(std::uint64_t begin, std::uint64_t end);
  template <class Item, class Number>
  void take_whole(Item* first, std::uint64_t count, Number number);
  /// Copies items from their place in the file; those that changed meanwhile are zero.
  template <class Item, class Number>
  void copy_whole(std::uint64_t offset, Item* to, std::uint64_t count, Number number);

  /// Takes the items of those pieces that are in the file.
  template <class Item, class Number>
  void take_pieces(const std::atomic<std::uint8_t>* pieces, Item* items, std::uint64_t used, std::uint64_t at_once,
                   Number number);

  void take_header();
  void take_figures();
  void take_slots();
  void take_blocks(std::uint32_t first, std::uint32_t count);
  void take_threads(RecordingParts parts);
  void take_segments();
  template <class Record>
  void take_ring();
  void take_rings(RecordingParts parts);
  void take_fields();
  void take_work_blocks();
  void take_work_keys();
  void take_device();
  void check_figures();
  void check_block(StatsBlock& block);
  void check_stats(ThreadSlot& slot);
  void check_threads(RecordingParts parts);
  void find_open(RecordingParts parts);
  void check_work();
  void check_amounts();
  void check_work_blocks();
  void check_names();
  void check_clock();
  bool is_stage(std::uint32_t stage) const { return stage < copy_.names.size(); }

  int fd_;
  RecordingCopy& copy_;
  std::uint64_t file_bytes_ = 0;
  std::uint64_t copied_ = 0;
  std::uint32_t slots_ = 0;
  std::uint32_t blocks_ = 0;
  std::vector<std::uint8_t> block_is_missing_;
  alignas(64) std::byte scratch_[kScratchBytes];
};

// Bytes that the file does not contain stay zero.
void Copier::read_to(void* to, std::uint64_t offset, std::uint64_t bytes) {
  copied_ += bytes;
  if (copied_ > kMostCopied) throw std::bad_alloc();
  std::uint64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd_, static_cast<std::byte*>(to) + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::uint64_t>(got);
  }
  if (done < bytes) {
    std::memset(static_cast<std::byte*>(to) + done, 0, bytes - done);
    copy_.missing_bytes = std::max(copy_.missing_bytes, offset + bytes - std::min(offset + bytes, file_bytes_));
    if (copy_.missing_bytes == 0) copy_.missing_bytes = bytes - done;
  }
}

// Returns what is wrong with the file. If nothing is, the sizes in its header belong together.
std::string Copier::read_header(const std::string& what, ArenaHeader& found) {
  struct stat status{};
  if (fstat(fd_, &status) != 0) return what + " cannot be examined: " + std::strerror(errno);
  if (!S_ISREG(status.st_mode)) return what + " is not a file, so it is not a recording";
  file_bytes_ = static_cast<std::uint64_t>(status.st_size);
  if (file_bytes_ == 0) return what + " is empty: it was cut off, or its process is just starting";
  struct {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t byte_order;
  } start{};
  read_to(&start, 0, sizeof(start));
  if (start.magic == __builtin_bswap64(kMagic))
    return what + " was written on a machine with the other byte order: read it on a machine of that kind";
  if (start.magic != kMagic) return what + " is not a recording of stagespan";
  if (start.byte_order != kByteOrderMark)
    return what + " was written on a machine with another byte order: read it on a machine of that kind";
  if (start.version != kLayoutVersion)
    return what + " was written by a version of stagespan with the layout " + std::to_string(start.version) +
           ", and this one reads the layout " + std::to_string(kLayoutVersion) + ": use the version that wrote it";
  if (file_bytes_ < sizeof(ArenaHeader))
    return what + " is cut off: of " + std::to_string(sizeof(ArenaHeader)) + " bytes of its header it has " +
           std::to_string(file_bytes_);
  read_to(&found, 0, sizeof(ArenaHeader));
  const ArenaOptions sizes{found.ring_spans, found.frames_per_thread, found.segment_entries};
  const bool may_be = found.header_bytes == sizeof(ArenaHeader) && std::has_single_bit(sizes.ring_spans) &&
                      sizes.ring_spans >= kLeastRingSpans && sizes.ring_spans <= kMostRingSpans &&
                      std::has_single_bit(sizes.frames_per_thread) && sizes.frames_per_thread >= kFewestFrames &&
                      sizes.frames_per_thread <= kMaxFrames && sizes.segment_entries % kSegmentsAtOnce == 0 &&
                      sizes.segment_entries >= kFewestRequests && sizes.segment_entries <= kMostRequests;
  RegionInfo regions[kRegionCount];
  if (!may_be || found.size_bytes != plan_arena(regions, sizes) ||
      std::memcmp(regions, found.regions, sizeof(regions)) != 0)
    return what + " is damaged: the sizes in its header do not belong together";
  return {};
}

std::string Copier::open(const std::string& what) {
  const auto found = std::make_unique<ArenaHeader>();
  if (std::string wrong = read_header(what, *found); !wrong.empty()) return wrong;
  const ArenaOptions sizes{found->ring_spans, found->frames_per_thread, found->segment_entries};
  copy_.memory = {zeroed_memory(found->size_bytes), ReleaseArena{found->size_bytes, {}}};
  copy_.arena = ArenaView(copy_.memory.get());
  lay_out_arena(copy_.arena, sizes);
  return {};
}

// Reads the header, with a consistent copy of its stamps and texts.
void Copier::take_header() {
  const ArenaOptions sizes{header().ring_spans, header().frames_per_thread, header().segment_entries};
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    if (attempt != 0) std::this_thread::sleep_for(kPause);
    take(&header(), sizeof(ArenaHeader));
    const auto again = std::make_unique<ArenaHeader>();
    read_to(again.get(), 0, sizeof(ArenaHeader));
    const std::uint32_t stamps = plain(header().stamp_version), info = plain(header().info_version);
    if (((stamps | info) & 1) == 0 && stamps == plain(again->stamp_version) && info == plain(again->info_version))
      break;
  }
  // These values were checked when the file was opened.
  lay_out_arena(copy_.arena, sizes);
  std::uint32_t pid = 0;
  read_to(&pid, offsetof(ArenaHeader, pid), sizeof(pid));
  header().pid = pid;
  copy_.info = header().info;
  slots_ = std::min(plain(header().slot_high_water), kMaxThreads);
  header().slot_high_water.store(slots_, relaxed);
}

void Copier::note_written(std::uint64_t begin, std::uint64_t end) {
  auto& written = copy_.memory.get_deleter().written;
  if (!written.empty() && written.back().first <= begin && begin <= written.back().second)
    written.back().second = std::max(written.back().second, end);
  else
    written.emplace_back(begin, end);
}

void Copier::take(const void* first, std::uint64_t bytes) {
  note_written(offset_of(first), offset_of(first) + bytes);
  read_to(at(offset_of(first)), offset_of(first), bytes);
}

template <class Item, class Number>
void Copier::copy_whole(std::uint64_t offset, Item* to, std::uint64_t count, Number number) {
  const std::uint64_t bytes = count * sizeof(Item);
  decltype(number(*to)) before[kScratchBytes / sizeof(Item)];
  read_to(static_cast<void*>(to), offset, bytes);
  for (std::uint64_t i = 0; i < count; ++i) before[i] = number(to[i]);
  load_fence();  // the data read next is not older than these numbers
  read_to(static_cast<void*>(to), offset, bytes);
  load_fence();
  read_to(scratch_, offset, bytes);
  for (std::uint64_t i = 0; i < count; ++i) {
    Item after;
    std::memcpy(static_cast<void*>(&after), scratch_ + i * sizeof(Item), sizeof(Item));
    if (before[i] != number(to[i]) || before[i] != number(after))
      std::memset(static_cast<void*>(to + i), 0, sizeof(Item));
  }
}

template <class Item, class Number>
void Copier::take_whole(Item* first, std::uint64_t count, Number number) {
  note_written(offset_of(first), offset_of(first + count));
  // So few at once that all three copies stay in the processor's cache.
  constexpr std::uint64_t kAtOnce = kScratchBytes / sizeof(Item);
  for (std::uint64_t i = 0; i < count; i += kAtOnce)
    copy_whole(offset_of(first + i), first + i, std::min(kAtOnce, count - i), number);
}

void Copier::take_slots() {
  for (std::uint32_t i = 0; i <= kMaxThreads; ++i) {
    if (i >= slots_ && i != kSharedSlot) continue;
    const auto state = plain(header().slot_pieces[i]);
    if (state == kPieceRecorded) take(&copy_.arena.slot(i), sizeof(ThreadSlot));
  }
}

void Copier::take_blocks(std::uint32_t first, std::uint32_t count) {
  StatsBlock* const blocks = copy_.arena.blocks() + first;
  take(blocks, std::uint64_t{count} * sizeof(StatsBlock));
  load_fence();
  std::byte again[offsetof(StatsBlock, suspended_ticks)];
  for (StatsBlock* block = blocks; block < blocks + count; ++block) {
    if (plain(block->latest) == 0) continue;
    read_to(again, offset_of(block), sizeof(again));
    // If another span has ended meanwhile, the latest one may also be in its bucket by now. It is left out, so that no
    // span is counted twice.
    if (std::memcmp(again, static_cast<const void*>(block), sizeof(again)) != 0) block->latest.store(0, relaxed);
  }
}

void Copier::take_figures() {
  const ArenaView arena = copy_.arena;
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    std::uint32_t before = 0, after = 0;
    read_to(&before, offsetof(ArenaHeader, fold_version), sizeof(before));
    copy_.is_moving = (before & 1) != 0;
    if (copy_.is_moving && attempt + 1 < kMostTries) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    load_fence();
    take(header().slot_pieces, sizeof(header().slot_pieces));
    take_slots();
    load_fence();  // blocks that are named by a slot are already counted
    take(&header().block_count, sizeof(header().block_count));
    take(header().block_pieces, sizeof(header().block_pieces));
    blocks_ = std::min(plain(header().block_count), kMaxBlocks);
    block_is_missing_.assign(kMaxBlocks, 1);
    for (std::uint32_t first = 0; first < blocks_; first += kBlocksAtOnce) {
      const std::uint32_t count = std::min(kBlocksAtOnce, blocks_ - first);
      if (plain(header().block_pieces[first / kBlocksAtOnce]) != kPieceRecorded) continue;
      take_blocks(first, count);
      std::fill_n(block_is_missing_.begin() + first, count, std::uint8_t{0});
    }
    take(arena.work(), kMaxWork * sizeof(WorkEntry));
    take_work_blocks();
    load_fence();
    read_to(&after, offsetof(ArenaHeader, fold_version), sizeof(after));
    copy_.is_moving = (before & 1) != 0 || before != after;
    if (!copy_.is_moving) return;
  }
}

void Copier::take_threads(RecordingParts parts) {
  const ArenaView arena = copy_.arena;
  const auto id_of = [](const OpenFrame& frame) { return plain(frame.id); };
  for (std::uint32_t i = 0; i < slots_; ++i) {
    ThreadSlot& slot = arena.slot(i);
    const auto state = plain(header().slot_pieces[i]);
    const bool is_in_file = state == kPieceRecorded;
    if (state == kPieceRefused || (is_in_file && (plain(header().ring_pieces[i]) == kPieceRefused ||
                                                  plain(header().frame_pieces[i]) == kPieceRefused)))
      ++copy_.threads_not_in_file;
    if (!is_in_file) {
      slot.state.store(kSlotFree, relaxed);
      slot.head.store(0, relaxed);
      slot.frames_high_water.store(0, relaxed);
      continue;
    }
    const std::uint64_t capacity = header().ring_spans;
    const std::uint64_t head = plain(slot.head);
    if (plain(slot.floor) > head || head > kMostTicks) {
      ++copy_.damaged;
      slot.head.store(0, relaxed);
      slot.floor.store(0, relaxed);
    } else if (parts == RecordingParts::kAll && plain(header().ring_pieces[i]) == kPieceRecorded) {
      take_whole(arena.ring(i), std::min(head, capacity), commit_of<SpanRecord>);
      // After the records, which are written after their CPU times.
      load_fence();
      take(&header().cpu_time_pieces[i], 1);
      if (plain(header().cpu_time_pieces[i]) == kPieceRecorded)
        take_whole(arena.cpu_times(i), std::min(head, capacity), [](const CpuTime& time) { return plain(time.span); });
    }
    const std::uint32_t frames =
        std::min({plain(slot.frames_high_water), plain(header().frames_recorded[i]), header().frames_per_thread});
    slot.frames_high_water.store(frames, relaxed);
    if (plain(slot.state) != kSlotLive) continue;
    // The owners of the frames are read while the frames are known to be unchanged.
    take_whole(arena.frames(i), frames, id_of);
    if (frames != 0) take(arena.locals(i), std::uint64_t{frames} * sizeof(FrameLocal));
    ThreadSlot again;
    read_to(static_cast<void*>(&again), offset_of(&slot), offsetof(ThreadSlot, head));
    if (plain(again.thread) == plain(slot.thread) && plain(again.state) == kSlotLive) continue;
    for (std::uint32_t k = 0; k < frames; ++k) arena.frames(i)[k].id.store(0, relaxed);
  }
  take_whole(arena.detached(), std::min(plain(header().detached_high_water), kMaxDetached), id_of);
}

void Copier::check_threads(RecordingParts parts) {
  const ArenaView arena = copy_.arena;
  const auto check_frames = [&](OpenFrame* frames, std::uint32_t count) {
    for (std::uint32_t k = 0; k < count; ++k) {
      if (plain(frames[k].id) == 0 || is_stage(plain(frames[k].stage))) continue;
      ++copy_.damaged;
      frames[k].id.store(0, relaxed);
    }
  };
  for (std::uint32_t i = 0; i < slots_; ++i) {
    const ThreadSlot& slot = arena.slot(i);
    check_frames(arena.frames(i), plain(slot.frames_high_water));
    if (parts != RecordingParts::kAll) continue;
    const std::uint64_t held = std::min<std::uint64_t>(plain(slot.head), header().ring_spans);
    for (std::uint64_t k = 0; k < held; ++k) {
      SpanRecord& record = arena.ring(i)[k];
      if (plain(record.commit) == 0 || is_stage(plain(record.stage))) continue;
      ++copy_.damaged;
      record.commit.store(0, relaxed);
    }
    if (plain(header().cpu_time_pieces[i]) != kPieceRecorded) continue;
    for (std::uint64_t k = 0; k < held; ++k) {
      CpuTime& time = arena.cpu_times(i)[k];
      if (plain(time.cpu_ns) <= static_cast<std::uint64_t>(kMost_ns)) continue;
      ++copy_.damaged;
      time.span.store(0, relaxed);
    }
  }
  check_frames(arena.detached(), std::min(plain(header().detached_high_water), kMaxDetached));
}

void Copier::find_open(RecordingParts parts) {
  const ArenaView arena = copy_.arena;
  copy_.open = read_open(arena);
  if (parts == RecordingParts::kAll) return find_activity(arena, copy_.open);
  find_activity(arena, copy_.open, [&](std::uint32_t slot, std::uint64_t first, std::uint64_t count) {
    if (plain(header().slot_pieces[slot]) != kPieceRecorded || plain(header().ring_pieces[slot]) != kPieceRecorded)
      return;
    take_whole(arena.ring(slot) + first % header().ring_spans, count, commit_of<SpanRecord>);
  });
}

template <class Item, class Number>
void Copier::take_pieces(const std::atomic<std::uint8_t>* pieces, Item* items, std::uint64_t used,
                         std::uint64_t at_once, Number number) {
  for (std::uint64_t first = 0; first < used; first += at_once)
    if (plain(pieces[first / at_once]) == kPieceRecorded)
      take_whole(items + first, std::min(at_once, used - first), number);
}

void Copier::take_segments() {
  const std::uint32_t used = std::min(plain(header().segment_high_water), header().segment_entries);
  const auto number_of = [](const SegmentEntry& entry) { return plain(entry.number); };
  copy_.segments.reserve(used);
  SegmentEntry entries[kSegmentsAtOnce / 2];
  constexpr std::uint32_t kAtOnce = sizeof(entries) / sizeof(entries[0]);
  for (std::uint32_t first = 0; first < used; first += kAtOnce) {
    if (plain(header().segment_pieces[first / kSegmentsAtOnce]) != kPieceRecorded) continue;
    const std::uint32_t count = std::min(kAtOnce, used - first);
    copy_whole(offset_of(copy_.arena.segments() + first), entries, count, number_of);
    for (std::uint32_t i = 0; i < count; ++i) {
      const SegmentCopy copy{entries[i].load(), plain(entries[i].number)};
      if (copy.number == 0) continue;
      if (copy.status >= kStatusCount || copy.origin > kOriginNested)
        ++copy_.damaged;
      else
        copy_.segments.push_back(copy);
    }
  }
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  order.reserve(copy_.segments.size());
  for (const SegmentCopy& copy : copy_.segments) order.emplace_back(copy.number, order.size());
  if (std::is_sorted(order.begin(), order.end())) return;
  std::sort(order.begin(), order.end());
  std::vector<SegmentCopy> sorted;
  sorted.reserve(order.size());
  for (const auto& [number, i] : order) sorted.push_back(copy_.segments[i]);
  copy_.segments = std::move(sorted);
}

template <class Record>
void Copier::take_ring() {
  const RingView<Record> ring = copy_.arena.ring_of<Record>();
  if (plain(ring.head) > kMostTicks) {
    ++copy_.damaged;
    ring.head.store(0, relaxed);
  }
  take_pieces(ring.pieces, ring.records, std::min(plain(ring.head), ring.capacity),
              kSharedRingSizes[Record::kRing].at_once(), commit_of<Record>);
}

void Copier::take_rings(RecordingParts parts) {
  if (parts != RecordingParts::kAll) return take_ring<SentRecord>();  // figures of queues count messages
  // The amounts of all spans that were copied.
  const RingView<AmountRecord> amounts = copy_.arena.ring_of<AmountRecord>();
  take(&amounts.head, sizeof(amounts.head));
  take(amounts.pieces, kMostRingPieces);
#define STAGESPAN_TAKE_RING(Name, LIST, per_request, further) take_ring<Name##Record>();
  STAGESPAN_SHARED_RINGS(STAGESPAN_TAKE_RING)
  // Amounts that were overwritten during the copy are missing in it.
  load_fence();
  take(&header().amounts_since_ticks, sizeof(header().amounts_since_ticks));
}

void Copier::take_work_blocks() {
  take(&header().work_block_count, sizeof(header().work_block_count));
  take(header().work_block_pieces, sizeof(header().work_block_pieces));
  const std::uint32_t used = std::min(plain(header().work_block_count), kMaxWorkBlocks);
  header().work_block_count.store(used, relaxed);
  for (std::uint32_t first = 0; first < used; first += kWorkBlocksAtOnce)
    if (plain(header().work_block_pieces[first / kWorkBlocksAtOnce]) == kPieceRecorded)
      take(copy_.arena.work_blocks() + first,
           std::uint64_t{std::min(kWorkBlocksAtOnce, used - first)} * sizeof(WorkBlock));
}

void Copier::take_fields() {
  const std::uint32_t count = std::min(plain(header().field_count), kMostFields);
  header().field_count.store(count, relaxed);
  if (count == 0) return;
  FieldsEntry* const entries = copy_.arena.fields();
  const std::uint32_t used = std::min(plain(header().segment_high_water), header().segment_entries);
  take_pieces(header().fields_pieces, entries, used, kSegmentsAtOnce,
              [](const FieldsEntry& entry) { return plain(entry.number); });
  for (std::uint32_t i = 0; i < used; ++i) {
    const std::uint64_t number = plain(entries[i].number);
    if (number == 0) continue;
    RequestFields fields = entries[i].load();
    for (std::uint32_t k = 0; k < kMostFields; ++k) {
      const bool is_possible =
          fields.kinds[k] <= kFieldText && (fields.kinds[k] == kFieldMissing || k < count) &&
          (fields.kinds[k] != kFieldFraction || std::isfinite(std::bit_cast<double>(fields.numbers[k])));
      if (is_possible) continue;
      ++copy_.damaged;
      fields.kinds[k] = kFieldMissing;
    }
    copy_.fields.insert_or_assign(number, fields);
  }
}

// After all amounts, so that each that was seen has a key.
void Copier::take_work_keys() {
  load_fence();
  take(&header().work_key_count, sizeof(header().work_key_count));
  load_fence();
  const std::uint32_t keys = std::min(plain(header().work_key_count), kMaxWorkKeys);
  header().work_key_count.store(keys, relaxed);
  take(copy_.arena.work_keys(), keys * sizeof(WorkKey));
  for (std::uint32_t i = 0; i < keys; ++i) copy_.arena.work_keys()[i].text[kWorkKeyBytes] = '\0';
}

void Copier::take_device() {
  const ArenaView arena = copy_.arena;
  const std::uint32_t known = std::min(plain(header().device_stage_count), kMaxDeviceStages);
  header().device_stage_count.store(known, relaxed);
  take(arena.device_stages(), kMaxStages * sizeof(std::uint32_t));
  for (std::uint32_t first = 0; first < known; first += kDeviceStagesAtOnce) {
    const std::uint32_t count = std::min(kDeviceStagesAtOnce, known - first);
    if (plain(header().device_block_pieces[first / kDeviceStagesAtOnce]) == kPieceRecorded)
      take(&arena.device_block(first, 0), std::uint64_t{count} * kDeviceFigures * sizeof(StatsBlock));
  }
  for (std::uint32_t i = 0; i < known * kDeviceFigures; ++i) check_block(arena.device_block(0, 0 + i));
  for (std::uint32_t stage = 0; stage < kMaxStages; ++stage) {
    std::atomic<std::uint32_t>& entry = arena.device_stages()[stage];
    if (plain(entry) <= known) continue;
    if (plain(entry) != kMaxDeviceStages) ++copy_.damaged;
    entry.store(0, relaxed);
  }
  const std::uint64_t head = plain(header().device_head), floor = plain(header().device_floor);
  if (floor > head || head > kMostTicks || plain(header().device_ring_piece) != kPieceRecorded) {
    header().device_head.store(0, relaxed);
    header().device_floor.store(0, relaxed);
    return;
  }
  take_whole(arena.device_ring(), std::min<std::uint64_t>(head, kDeviceSpans), commit_of<DeviceRecord>);
}

void Copier::check_names() {
  const ArenaView arena = copy_.arena;
  take(&header().name_count, sizeof(header().name_count));
  load_fence();
  const std::uint32_t count = std::min(plain(header().name_count), kMaxStages);
  if (plain(header().name_count) > kMaxStages) ++copy_.damaged;
  take(&arena.name(0), count * sizeof(NameEntry));
  const auto is_possible = [](const NameEntry& entry) {
    return entry.length_bytes <= kMaxNameBytes && entry.offset <= kNamePoolBytes - entry.length_bytes;
  };
  std::uint32_t pool_bytes = 0;
  for (std::uint32_t stage = 0; stage < count; ++stage)
    if (const NameEntry& entry = arena.name(stage); is_possible(entry))
      pool_bytes = std::max(pool_bytes, entry.offset + entry.length_bytes);
  take(arena.name_pool(), pool_bytes);
  for (std::uint32_t stage = 0; stage < count; ++stage) {
    NameEntry& entry = arena.name(stage);
    if (is_possible(entry)) {
      copy_.names.emplace_back(arena.name_pool() + entry.offset, entry.length_bytes);
    } else {
      ++copy_.damaged;
      copy_.names.push_back("(damaged name " + std::to_string(stage) + ")");
    }
    if (entry.kind < kStageKinds) continue;
    ++copy_.damaged;
    entry.kind = kExecution;
  }
  header().name_count.store(count, relaxed);
}

void Copier::check_block(StatsBlock& block) {
  for (Wrap& wrap : block.wraps) {
    if (plain(wrap.bucket_plus_one) <= kBuckets) continue;
    ++copy_.damaged;
    wrap.bucket_plus_one.store(0, relaxed);
  }
}

void Copier::check_stats(ThreadSlot& slot) {
  for (std::uint32_t stage = 0; stage < kMaxStages; ++stage) {
    std::atomic<std::uint32_t>& entry = slot.stats[stage];
    const std::uint32_t block = plain(entry) & ~kSharedBlock;
    if (block == 0 && plain(entry) == 0) continue;
    if (block != 0 && block <= blocks_ && block_is_missing_[block - 1] == 0) continue;
    if (block == 0 || block > blocks_ || plain(header().block_pieces[(block - 1) / kBlocksAtOnce]) != kPieceRefused)
      ++copy_.damaged;
    else if ((plain(entry) & kSharedBlock) == 0 || &slot == &copy_.arena.slot(kSharedSlot))
      ++copy_.blocks_not_in_file;
    entry.store(0, relaxed);
  }
}

void Copier::check_work() {
  const ArenaView arena = copy_.arena;
  const std::uint32_t keys = plain(header().work_key_count);
  for (std::uint32_t i = 0; i < kMaxWork; ++i) {
    WorkEntry& entry = arena.work()[i];
    const std::uint64_t key = plain(entry.key);
    if (key == 0) continue;
    const std::uint64_t stage = key >> 32;
    const bool is_known = stage != 0 && is_stage(static_cast<std::uint32_t>(stage - 1)) && (key & 0xffffffff) < keys;
    if (is_known && std::isfinite(plain(entry.fraction))) continue;
    ++copy_.damaged;
    entry.key.store(0, relaxed);
  }
}

void Copier::check_work_blocks() {
  const std::uint32_t keys = plain(header().work_key_count);
  for (std::uint32_t i = 0; i < plain(header().work_block_count); ++i) {
    WorkBlock& block = copy_.arena.work_blocks()[i];
    const std::uint64_t key = plain(block.key), stage = key >> 32, unit = key & 0xffffffff;
    if (plain(block.count) == 0) continue;
    const bool is_known =
        stage != 0 && is_stage(static_cast<std::uint32_t>(stage - 1)) && (unit < keys || unit == kBatchSizeKey);
    const auto is_amount = [](double amount) { return amount >= 0 && std::isfinite(amount); };
    if (is_known && is_amount(plain(block.sum)) && is_amount(plain(block.least)) && is_amount(plain(block.most)))
      continue;
    ++copy_.damaged;
    block.count.store(0, relaxed);
  }
}

void Copier::check_amounts() {
  const std::uint32_t keys = plain(header().work_key_count);
  const RingView<AmountRecord> ring = copy_.arena.ring_of<AmountRecord>();
  for (std::uint64_t i = 0; i < std::min(plain(ring.head), ring.capacity); ++i) {
    AmountRecord& record = ring[i];
    if (plain(record.commit) == 0) continue;
    const std::uint32_t key = plain(record.key);
    const bool is_number = (key & kAmountIsFraction) == 0 || std::isfinite(std::bit_cast<double>(plain(record.value)));
    if (is_number && (key & ~kAmountIsFraction) < keys) continue;
    ++copy_.damaged;
    record.commit.store(0, relaxed);
  }
}

void Copier::check_figures() {
  for (std::uint32_t block = 0; block < blocks_; ++block)
    if (block_is_missing_[block] == 0) check_block(copy_.arena.blocks()[block]);
  for (std::uint32_t i = 0; i < slots_; ++i) check_stats(copy_.arena.slot(i));
  check_stats(copy_.arena.slot(kSharedSlot));
  check_work();
  check_work_blocks();
  header().fold_version.store(0, relaxed);  // a copy does not change
}

// The fit of the stamps. On the machine that wrote them, and in the same boot, a reading of the current time extends
// them.
void Copier::check_clock() {
  std::vector<ClockStamp> stamps;
  const std::uint32_t count = std::min(plain(header().stamp_count), kMaxStamps);
  for (std::uint32_t i = 0; i < count; ++i) {
    const ClockStamp& stamp = header().stamps[i];
    const bool is_in_order =
        stamps.empty() || (stamp.ticks > stamps.back().ticks && stamp.monotonic_ns >= stamps.back().monotonic_ns);
    if (stamp.ticks < kMostTicks && stamp.monotonic_ns >= 0 && stamp.monotonic_ns < kMost_ns && stamp.unix_ns >= 0 &&
        stamp.unix_ns < kMost_ns && is_in_order)
      stamps.push_back(stamp);
    else
      ++copy_.damaged;
  }
  const ProcessIdentity here = identity_of_this_process();
  const auto source = static_cast<std::uint32_t>(Recorder::get().clock_source());
  if (here.boot != 0 && header().boot == here.boot && header().clock_source == source) {
    const ClockStamp fresh = take_stamp();
    const bool goes_on =
        stamps.empty() || (fresh.ticks > stamps.back().ticks && fresh.monotonic_ns >= stamps.back().monotonic_ns);
    if (goes_on && fresh.monotonic_ns >= 0 && fresh.unix_ns >= 0) {
      stamps.push_back(fresh);
      copy_.now_ticks = fresh.ticks;
    }
  }
  copy_.fit = ClockFit(stamps);
}

// Each span that ends changes the head of a ring, and each one that opens is among the open frames. What is recorded
// without a span changes a number in the header or in its thread's slot.
std::string Copier::marks() {
  const auto found = std::make_unique<ArenaHeader>();
  if (!read_header({}, *found).empty()) return {};
  std::string marks;
  const auto add = [&](const auto&... numbers) {
    (marks.append(reinterpret_cast<const char*>(&numbers), sizeof(numbers)), ...);
  };
  add(found->name_count, found->block_count, found->slot_high_water, found->fold_version, found->lost, found->resets,
      found->device_head, found->end_unix_ns, found->stop_unix_ns, found->stop_signal, found->is_deferred,
      found->info_version, found->shared_heads, found->changes, found->refusals);
  const auto add_open = [&](Region region, std::uint64_t first, std::uint32_t count) {
    const auto frames = std::make_unique<OpenFrame[]>(count);
    read_to(static_cast<void*>(frames.get()), found->regions[region].offset + first * sizeof(OpenFrame),
            count * sizeof(OpenFrame));
    for (std::uint32_t i = 0; i < count; ++i)
      if (const std::uint64_t id = plain(frames[i].id); id != 0) add(id);
  };
  for (std::uint32_t i = 0; i <= kMaxThreads; ++i) {
    if ((i >= plain(found->slot_high_water) && i != kSharedSlot) || plain(found->slot_pieces[i]) != kPieceRecorded)
      continue;
    constexpr std::size_t kChanging = offsetof(ThreadSlot, stats);
    alignas(ThreadSlot) std::byte bytes[sizeof(ThreadSlot)];
    read_to(bytes, found->regions[kRegionSlots].offset + std::uint64_t{i} * sizeof(ThreadSlot), kChanging);
    marks.append(reinterpret_cast<const char*>(bytes), kChanging);
    const auto& slot = *reinterpret_cast<const ThreadSlot*>(bytes);
    if (i == kSharedSlot || plain(slot.state) != kSlotLive) continue;
    add_open(kRegionFrames, std::uint64_t{i} * frames_per_slot(found->frames_per_thread),
             std::min({plain(slot.frames_high_water), plain(found->frames_recorded[i]), found->frames_per_thread}));
  }
  add_open(kRegionDetached, 0, std::min(plain(found->detached_high_water), kMaxDetached));
  return marks;
}

std::vector<std::uint64_t> Copier::heads() {
  const auto found = std::make_unique<ArenaHeader>();
  if (!read_header({}, *found).empty()) return {};
  std::vector<std::uint64_t> heads(std::min(plain(found->slot_high_water), kMaxThreads));
  for (std::uint32_t i = 0; i < heads.size(); ++i)
    if (plain(found->slot_pieces[i]) == kPieceRecorded)
      read_to(&heads[i],
              found->regions[kRegionSlots].offset + std::uint64_t{i} * sizeof(ThreadSlot) + offsetof(ThreadSlot, head),
              sizeof(heads[i]));
  return heads;
}

std::string Copier::copy_all(RecordingParts parts, const std::string& what) {
  if (std::string wrong = open(what); !wrong.empty()) return wrong;
  take_header();
  if (parts == RecordingParts::kOpen) {
    take_slots();
    take_threads(parts);
    return {};
  }
  check_clock();
  take_figures();
  take_threads(parts);
  take_segments();
  take_fields();
  take_rings(parts);
  take_work_keys();
  take_device();
  // Names are read last, so that all stages that were seen have one.
  check_names();
  check_figures();
  check_threads(parts);
  find_open(parts);
  if (parts == RecordingParts::kAll) check_amounts();
  return {};
}

}  // namespace

std::vector<std::uint64_t> recording_heads(int fd) {
  RecordingCopy unused;
  return Copier(fd, unused).heads();
}

std::string recording_marks(int fd) {
  RecordingCopy unused;
  return Copier(fd, unused).marks();
}

void RecordingCopy::drop_spans() noexcept {
  const auto drop = [](auto* first, std::uint64_t count) {
    const auto begin = (reinterpret_cast<std::uintptr_t>(first) + kPageBytes - 1) & ~std::uintptr_t{kPageBytes - 1};
    const auto end = reinterpret_cast<std::uintptr_t>(first + count) & ~std::uintptr_t{kPageBytes - 1};
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  };
  for (std::uint32_t i = 0; i < plain(arena.header().slot_high_water); ++i) {
    drop(arena.ring(i), arena.header().ring_spans);
    drop(arena.cpu_times(i), arena.header().ring_spans);
  }
}

void ReleaseArena::operator()(std::byte* base) const noexcept {
  std::uint64_t total = 0;
  for (const auto& [begin, end] : written) total += end - begin;
  if (total > kMostSpare) {
    munmap(base, size_bytes);
    return;
  }
  for (const auto& [begin, end] : written) std::memset(base + begin, 0, end - begin);
  size_of_spare(base) = size_bytes;
  if (std::byte* const before = g_spare.exchange(base)) munmap(before, size_of_spare(before));
}

std::string copy_recording(int fd, const std::string& what, RecordingParts parts, RecordingCopy& copy) {
  return Copier(fd, copy).copy_all(parts, what);
}

}  // namespace stagespan
