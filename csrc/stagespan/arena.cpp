// arena.cpp: reserves, initialises and clears the memory.
#include "arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace stagespan {

namespace {

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

// Offsets of all regions. Each starts on a separate page, so that clearing can return whole pages.
std::uint64_t plan_arena(RegionInfo (&regions)[kRegionCount], const ArenaOptions& sizes) noexcept {
  const std::uint64_t slot_frames =
      std::uint64_t{frames_per_slot(sizes.frames_per_thread)} * (kMaxThreads + kHiddenSlots);
#define STAGESPAN_RING_REGION(Name, LIST, per_request, further) \
  {region_of(k##Name##Ring), sizeof(Name##Record), kSharedRingSizes[k##Name##Ring].capacity(sizes.segment_entries)},
  const struct {
    Region region;
    std::uint64_t stride;
    std::uint64_t count;
  } wanted[] = {
      {kRegionNames, sizeof(NameEntry), kMaxStages},
      {kRegionNamePool, 1, kNamePoolBytes},
      {kRegionWorkKeys, sizeof(WorkKey), kMaxWorkKeys},
      {kRegionWork, sizeof(WorkEntry), kMaxWork},
      {kRegionDetached, sizeof(OpenFrame), kMaxDetached},
      {kRegionDeviceStages, sizeof(std::uint32_t), kMaxStages},
      {kRegionSlots, sizeof(ThreadSlot), kMaxThreads + 1},
      {kRegionFrames, sizeof(OpenFrame), slot_frames},
      {kRegionLocals, sizeof(FrameLocal), slot_frames},  // the last frames are never used: there is space for the shift
      {kRegionRings, sizeof(SpanRecord), std::uint64_t{sizes.ring_spans} * kMaxThreads},
      {kRegionCpuTimes, sizeof(CpuTime), std::uint64_t{cpu_times_per_slot(sizes.ring_spans)} * kMaxThreads},
      {kRegionBlocks, sizeof(StatsBlock), kMaxBlocks},
      {kRegionDevice, sizeof(DeviceRecord), kDeviceSpans},
      {kRegionDeviceBlocks, sizeof(StatsBlock), std::uint64_t{kMaxDeviceStages} * kDeviceFigures},
      {kRegionSegments, sizeof(SegmentEntry), sizes.segment_entries},
      {kRegionFields, sizeof(FieldsEntry), sizes.segment_entries},
      STAGESPAN_SHARED_RINGS(STAGESPAN_RING_REGION){kRegionWorkBlocks, sizeof(WorkBlock), kMaxWorkBlocks},
  };
  std::uint64_t offset = round_up(sizeof(ArenaHeader), kPageBytes);
  for (const auto& want : wanted) {
    regions[want.region] = {offset, static_cast<std::uint32_t>(want.stride), static_cast<std::uint32_t>(want.count)};
    offset = round_up(offset + want.stride * want.count, kPageBytes);
  }
  return offset;
}

void lay_out_arena(ArenaView arena, const ArenaOptions& sizes) noexcept {
  ArenaHeader& header = arena.header();
  header.magic = kMagic;
  header.layout_version = kLayoutVersion;
  header.byte_order = kByteOrderMark;
  header.size_bytes = plan_arena(header.regions, sizes);
  header.header_bytes = sizeof(ArenaHeader);
  header.pid = static_cast<std::uint32_t>(getpid());
  header.ring_spans = sizes.ring_spans;
  header.frames_per_thread = sizes.frames_per_thread;
  header.segment_entries = sizes.segment_entries;
}

ArenaView create_arena(ArenaOptions options) noexcept {
  RegionInfo regions[kRegionCount];
  for (;;) {
    const std::uint64_t size = plan_arena(regions, options);
    // If address space is limited, some must be left for the program.
    const std::uint64_t with_rest = size + kLeftToTheProgramBytes;
    void* memory = mmap(nullptr, with_rest, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) {
      munmap(static_cast<std::byte*>(memory) + size, kLeftToTheProgramBytes);
      // Huge pages would make a small recording large.
      madvise(memory, size, MADV_NOHUGEPAGE);
      ArenaView arena(static_cast<std::byte*>(memory));
      lay_out_arena(arena, options);
      return arena;
    }
    // Records and frames have the same size, so reduce the larger number first.
    if (options.frames_per_thread > std::max(options.ring_spans, kFewestFrames))
      options.frames_per_thread = std::max(options.frames_per_thread / 4, kFewestFrames);
    else if (options.ring_spans > kLeastRingSpans)
      options.ring_spans = std::max(options.ring_spans / 4, kLeastRingSpans);
    else if (options.segment_entries > kFewestRequests)
      options.segment_entries = kFewestRequests;
    else
      return {};
  }
}

std::uint64_t smallest_arena_bytes() noexcept {
  RegionInfo regions[kRegionCount];
  return plan_arena(regions, {kLeastRingSpans, kFewestFrames, kFewestRequests});
}

void destroy_arena(ArenaView arena) noexcept {
  if (arena) munmap(arena.base(), arena.header().size_bytes);
}

void clear_arena(ArenaView arena) noexcept {
  ArenaHeader& header = arena.header();
  const std::uint64_t size = header.size_bytes;
  const ArenaOptions sizes{header.ring_spans, header.frames_per_thread, header.segment_entries};
  const std::uint32_t names = header.name_count.load(std::memory_order_relaxed);
  const std::uint32_t pool = header.name_pool_used.load(std::memory_order_relaxed);
  const std::uint32_t keys = header.work_key_count.load(std::memory_order_relaxed);
  const std::uint32_t source = header.clock_source;
  const std::uint64_t from = header.regions[kRegionWork].offset;
  madvise(arena.base() + from, size - from, MADV_DONTNEED);
  std::memset(static_cast<void*>(&header), 0, sizeof(header));
  lay_out_arena(arena, sizes);
  header.clock_source = source;
  header.name_count.store(names, std::memory_order_relaxed);
  header.name_pool_used.store(pool, std::memory_order_relaxed);
  header.work_key_count.store(keys, std::memory_order_relaxed);
}

}  // namespace stagespan
