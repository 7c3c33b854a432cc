// arena.h: the block of memory that holds a recording, and typed access to its regions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout.h"

namespace stagespan {

/// Sizes that a process may choose; all others are fixed by the layout.
struct ArenaOptions {
  std::uint32_t ring_spans = kDefaultRingSpans;  // a power of two
  std::uint32_t frames_per_thread = kMaxFrames;
  std::uint32_t segment_entries = kDefaultRequests;  // a multiple of kSegmentsAtOnce
};

/// A ring that all threads of the process write.
template <class Record>
struct RingView {
  Record* records;
  std::uint64_t capacity;
  std::atomic<std::uint64_t>& head;   // records ever written
  std::atomic<std::uint8_t>* pieces;  // their PieceState

  Record& operator[](std::uint64_t number) const noexcept { return records[number % capacity]; }
};

/// Typed access to an arena at any address. Does not own the memory.
class ArenaView {
 public:
  ArenaView() = default;
  explicit ArenaView(std::byte* base) noexcept : base_(base) {}

  std::byte* base() const noexcept { return base_; }
  explicit operator bool() const noexcept { return base_ != nullptr; }
  ArenaHeader& header() const noexcept { return *reinterpret_cast<ArenaHeader*>(base_); }

  NameEntry& name(std::uint32_t i) const noexcept { return region<NameEntry>(kRegionNames)[i]; }
  char* name_pool() const noexcept { return region<char>(kRegionNamePool); }
  WorkKey* work_keys() const noexcept { return region<WorkKey>(kRegionWorkKeys); }
  WorkEntry* work() const noexcept { return region<WorkEntry>(kRegionWork); }
  ThreadSlot& slot(std::uint32_t i) const noexcept { return region<ThreadSlot>(kRegionSlots)[i]; }
  /// Those of slot kMaxThreads begin the hidden frames.
  OpenFrame* frames(std::uint32_t slot) const noexcept {
    return region<OpenFrame>(kRegionFrames) + std::size_t{slot} * frames_per_slot(header().frames_per_thread);
  }
  FrameLocal* locals(std::uint32_t slot) const noexcept {
    return reinterpret_cast<FrameLocal*>(region<std::byte>(kRegionLocals) + kLocalsShiftBytes) +
           std::size_t{slot} * frames_per_slot(header().frames_per_thread);
  }
  SegmentEntry* segments() const noexcept { return region<SegmentEntry>(kRegionSegments); }
  FieldsEntry* fields() const noexcept { return region<FieldsEntry>(kRegionFields); }
  template <class Record>
  RingView<Record> ring_of() const noexcept {
    return {region<Record>(region_of(Record::kRing)),
            kSharedRingSizes[Record::kRing].capacity(header().segment_entries), header().shared_heads[Record::kRing],
            header().shared_pieces[Record::kRing]};
  }
  WorkBlock* work_blocks() const noexcept { return region<WorkBlock>(kRegionWorkBlocks); }
  OpenFrame* detached() const noexcept { return region<OpenFrame>(kRegionDetached); }
  SpanRecord* ring(std::uint32_t slot) const noexcept {
    return region<SpanRecord>(kRegionRings) + std::size_t{slot} * header().ring_spans;
  }
  CpuTime* cpu_times(std::uint32_t slot) const noexcept {
    return region<CpuTime>(kRegionCpuTimes) + std::size_t{slot} * cpu_times_per_slot(header().ring_spans);
  }
  StatsBlock* blocks() const noexcept { return region<StatsBlock>(kRegionBlocks); }
  DeviceRecord* device_ring() const noexcept { return region<DeviceRecord>(kRegionDevice); }
  /// By stage: 0, or 1 + index of its device figures.
  std::atomic<std::uint32_t>* device_stages() const noexcept {
    return region<std::atomic<std::uint32_t>>(kRegionDeviceStages);
  }
  StatsBlock& device_block(std::uint32_t index, std::uint32_t figure) const noexcept {
    return region<StatsBlock>(kRegionDeviceBlocks)[std::size_t{index} * kDeviceFigures + figure];
  }

 private:
  template <class T>
  T* region(Region which) const noexcept {
    return reinterpret_cast<T*>(base_ + header().regions[which].offset);
  }

  std::byte* base_ = nullptr;
};

/// Address space that must still be free for the program once the arena is reserved.
inline constexpr std::uint64_t kLeftToTheProgramBytes = 32ULL << 20;

/// Reserves an arena in anonymous memory and lays it out. Pages that are never touched take no memory. If the system
/// refuses the size, it tries again with fewer frames and smaller rings. The view is empty if all sizes were refused.
ArenaView create_arena(ArenaOptions options) noexcept;

/// Computes the offsets of the regions of an arena of these sizes. Returns its size.
std::uint64_t plan_arena(RegionInfo (&regions)[kRegionCount], const ArenaOptions& sizes) noexcept;

/// Initialises an arena of these sizes in zeroed memory.
void lay_out_arena(ArenaView arena, const ArenaOptions& sizes) noexcept;

/// The size of the smallest arena.
std::uint64_t smallest_arena_bytes() noexcept;

void destroy_arena(ArenaView arena) noexcept;

/// Returns an arena's pages to the system and initialises it again, but keeps the names. Used in a forked child, which
/// does not have other threads yet.
void clear_arena(ArenaView arena) noexcept;

/// Counts a loss.
inline void count_lost(ArenaHeader& header, Cause cause, std::uint64_t n = 1) noexcept {
  header.lost[cause].fetch_add(n, std::memory_order_relaxed);
}

}  // namespace stagespan
