// arena.cpp: reserving, laying out and clearing the block.
#include "arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace stagespan {

namespace {

constexpr std::uint64_t kPage = 4096;

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) { return (n + unit - 1) / unit * unit; }

// Offsets of all regions, each on a page of its own, so that clearing can give whole pages back.
std::uint64_t plan(RegionInfo (&regions)[kRegionCount], std::uint32_t ring_spans) {
  const struct {
    Region region;
    std::uint64_t stride;
    std::uint64_t count;
  } wanted[] = {
      {kRegionNames, sizeof(NameEntry), kMaxStages},
      {kRegionNamePool, 1, kNamePoolBytes},
      {kRegionWorkKeys, sizeof(WorkKey), kMaxWorkKeys},
      {kRegionWork, sizeof(WorkEntry), kMaxWork},
      {kRegionSlots, sizeof(ThreadSlot), kMaxThreads + 1},
      {kRegionFrames, sizeof(OpenFrame), std::uint64_t{kMaxFrames} * kMaxThreads},
      {kRegionDetached, sizeof(OpenFrame), kMaxDetached},
      {kRegionRings, sizeof(SpanRecord), std::uint64_t{ring_spans} * kMaxThreads},
      {kRegionBlocks, sizeof(StatsBlock), kMaxBlocks},
      {kRegionDevice, sizeof(DeviceRecord), kDeviceSpans},
      {kRegionDeviceStages, sizeof(std::uint32_t), kMaxStages},
      {kRegionDeviceBlocks, sizeof(StatsBlock), std::uint64_t{kMaxDeviceStages} * kDeviceFigures},
  };
  std::uint64_t offset = round_up(sizeof(ArenaHeader), kPage);
  for (const auto& want : wanted) {
    regions[want.region] = {offset, static_cast<std::uint32_t>(want.stride), static_cast<std::uint32_t>(want.count)};
    offset = round_up(offset + want.stride * want.count, kPage);
  }
  return offset;
}

void lay_out(ArenaView arena, std::uint64_t size, std::uint32_t ring_spans) {
  ArenaHeader& header = arena.header();
  header.magic = kMagic;
  header.layout_version = kLayoutVersion;
  header.byte_order = kByteOrderMark;
  header.size_bytes = size;
  header.header_bytes = sizeof(ArenaHeader);
  header.pid = static_cast<std::uint32_t>(getpid());
  header.ring_spans = ring_spans;
  plan(header.regions, ring_spans);
}

}  // namespace

ArenaView create_arena(ArenaOptions options) noexcept {
  RegionInfo regions[kRegionCount];
  for (std::uint32_t ring_spans = options.ring_spans; ring_spans >= 64; ring_spans /= 4) {
    const std::uint64_t size = plan(regions, ring_spans);
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) continue;
    // A huge page for every corner that is touched would make a small recording large.
    madvise(memory, size, MADV_NOHUGEPAGE);
    ArenaView arena(static_cast<std::byte*>(memory));
    lay_out(arena, size, ring_spans);
    return arena;
  }
  return {};
}

void destroy_arena(ArenaView arena) noexcept {
  if (arena) munmap(arena.base(), arena.header().size_bytes);
}

void clear_arena(ArenaView arena) noexcept {
  ArenaHeader& header = arena.header();
  const std::uint64_t size = header.size_bytes;
  const std::uint32_t ring_spans = header.ring_spans;
  const std::uint32_t names = header.name_count.load(std::memory_order_relaxed);
  const std::uint32_t pool = header.name_pool_used.load(std::memory_order_relaxed);
  const std::uint32_t keys = header.work_key_count.load(std::memory_order_relaxed);
  const std::uint32_t source = header.clock_source;
  const std::uint64_t from = header.regions[kRegionWork].offset;
  madvise(arena.base() + from, size - from, MADV_DONTNEED);
  std::memset(static_cast<void*>(&header), 0, sizeof(header));
  lay_out(arena, size, ring_spans);
  header.clock_source = source;
  header.name_count.store(names, std::memory_order_relaxed);
  header.name_pool_used.store(pool, std::memory_order_relaxed);
  header.work_key_count.store(keys, std::memory_order_relaxed);
}

}  // namespace stagespan
