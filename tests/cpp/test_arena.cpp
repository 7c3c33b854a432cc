// test_arena.cpp: the block that holds a recording describes itself, and can be read at any address.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <memory>

#include "stagespan/arena.h"
#include "support.h"

namespace stagespan {
namespace {

using test::figures_of;

// Small rings: the whole arena is copied here.
const bool g_small_rings = setenv("STAGESPAN_RING_SPANS", "64", 1) == 0;

struct DestroyArena {
  void operator()(std::byte* base) const { destroy_arena(ArenaView(base)); }
};
using OwnedArena = std::unique_ptr<std::byte, DestroyArena>;

OwnedArena make_arena(std::uint32_t ring_spans) { return OwnedArena(create_arena({ring_spans, kMaxFrames}).base()); }

TEST(Arena, HeaderDescribesTheRegions) {
  for (const std::uint32_t ring_spans : {64U, 1024U, kDefaultRingSpans}) {
    SCOPED_TRACE(ring_spans);
    const OwnedArena owned = make_arena(ring_spans);
    const ArenaView arena(owned.get());
    ASSERT_TRUE(arena);
    const ArenaHeader& header = arena.header();
    EXPECT_EQ(std::memcmp(&header.magic, "STAGESPN", 8), 0);
    EXPECT_EQ(header.layout_version, kLayoutVersion);
    EXPECT_EQ(header.byte_order, kByteOrderMark);
    EXPECT_EQ(header.header_bytes, sizeof(ArenaHeader));
    EXPECT_EQ(header.pid, static_cast<std::uint32_t>(getpid()));
    EXPECT_EQ(header.ring_spans, ring_spans);
    EXPECT_EQ(header.frames_per_thread, kMaxFrames);
    // THEN its regions are within it, on separate pages, and do not overlap
    std::uint64_t end = sizeof(ArenaHeader);
    for (const RegionInfo& region : header.regions) {
      EXPECT_GE(region.offset, end);
      EXPECT_EQ(region.offset % 4096, 0U);
      EXPECT_GT(region.count, 0U);
      end = region.offset + std::uint64_t{region.stride} * region.count;
    }
    EXPECT_LE(end, header.size_bytes);
  }
}

/// Whether the header says that a region begins at `first` and has `count` elements.
template <class T>
void expect_region(ArenaView arena, Region which, const T* first, std::uint64_t count) {
  SCOPED_TRACE(which);
  const RegionInfo& region = arena.header().regions[which];
  EXPECT_EQ(arena.base() + region.offset, reinterpret_cast<const std::byte*>(first));
  EXPECT_EQ(region.stride, sizeof(T));
  EXPECT_EQ(region.count, count);
}

template <class Record>
void expect_ring(ArenaView arena, std::uint64_t count) {
  const RingView<Record> ring = arena.ring_of<Record>();
  expect_region(arena, region_of(Record::kRing), ring.records, count);
  EXPECT_EQ(ring.capacity, count);
}

TEST(Arena, RegionsHaveTheSizesOfTheLayout) {
  const OwnedArena owned = make_arena(1024);
  const ArenaView arena(owned.get());
  expect_region(arena, kRegionNames, &arena.name(0), kMaxStages);
  expect_region(arena, kRegionNamePool, arena.name_pool(), kNamePoolBytes);
  expect_region(arena, kRegionWorkKeys, arena.work_keys(), kMaxWorkKeys);
  expect_region(arena, kRegionWork, arena.work(), kMaxWork);
  expect_region(arena, kRegionSlots, &arena.slot(0), kMaxThreads + 1);
  expect_region(arena, kRegionFrames, arena.frames(0),
                std::uint64_t{frames_per_slot(kMaxFrames)} * (kMaxThreads + kHiddenSlots));
  expect_region(arena, kRegionSegments, arena.segments(), kDefaultRequests);
  expect_ring<LinkRecord>(arena, 4 * kDefaultRequests);
  expect_ring<SentRecord>(arena, 4 * kDefaultRequests);
  expect_ring<AmountRecord>(arena, 8 * kDefaultRequests);
  expect_region(arena, kRegionFields, arena.fields(), kDefaultRequests);
  expect_ring<FailureRecord>(arena, 4096);
  expect_region(arena, kRegionDetached, arena.detached(), kMaxDetached);
  expect_region(arena, kRegionRings, arena.ring(0), 1024 * kMaxThreads);
  expect_region(arena, kRegionCpuTimes, arena.cpu_times(0), 1024 * kMaxThreads);
  expect_region(arena, kRegionBlocks, arena.blocks(), kMaxBlocks);
  expect_region(arena, kRegionDevice, arena.device_ring(), kDeviceSpans);
  expect_region(arena, kRegionDeviceStages, arena.device_stages(), kMaxStages);
  expect_region(arena, kRegionDeviceBlocks, &arena.device_block(0, 0), kMaxDeviceStages * kDeviceFigures);
}

TEST(Arena, TheEndsOfEveryRegionCanBeWritten) {
  const OwnedArena owned = make_arena(64);
  const ArenaView arena(owned.get());
  arena.name(kMaxStages - 1) = {1, 2, 0};
  arena.name_pool()[kNamePoolBytes - 1] = 'x';
  arena.work_keys()[kMaxWorkKeys - 1].text[0] = 'y';
  arena.work()[kMaxWork - 1].whole.store(3);
  arena.slot(kSharedSlot).stats[kMaxStages - 1].store(4);
  arena.frames(kMaxThreads - 1)[kMaxFrames - 1].id.store(5);
  arena.detached()[kMaxDetached - 1].id.store(6);
  arena.ring(kMaxThreads - 1)[63].commit.store(7);
  arena.blocks()[kMaxBlocks - 1].buckets[kBuckets - 1].store(8);
  EXPECT_EQ(arena.name(kMaxStages - 1).offset, 1U);
  EXPECT_EQ(arena.name_pool()[0], '\0');
  EXPECT_EQ(arena.name_pool()[kNamePoolBytes - 1], 'x');
  EXPECT_EQ(arena.work_keys()[kMaxWorkKeys - 1].text[0], 'y');
  EXPECT_EQ(arena.work()[0].whole.load(), 0);
  EXPECT_EQ(arena.slot(kSharedSlot).stats[kMaxStages - 1].load(), 4U);
  EXPECT_EQ(arena.frames(kMaxThreads - 1)[kMaxFrames - 1].id.load(), 5U);
  EXPECT_EQ(arena.detached()[0].id.load(), 0U);
  EXPECT_EQ(arena.detached()[kMaxDetached - 1].id.load(), 6U);
  EXPECT_EQ(arena.ring(0)[0].commit.load(), 0U);
  EXPECT_EQ(arena.ring(kMaxThreads - 1)[63].commit.load(), 7U);
  EXPECT_EQ(arena.blocks()[0].buckets[0].load(), 0U);
}

TEST(Arena, ClearingKeepsNamesAndNothingElse) {
  const OwnedArena owned = make_arena(64);
  const ArenaView arena(owned.get());
  ArenaHeader& header = arena.header();
  std::memcpy(arena.name_pool(), "decode", 6);
  arena.name(0) = {0, 6, 0};
  header.name_count.store(1);
  header.name_pool_used.store(6);
  std::memcpy(arena.work_keys()[0].text, "tokens", 7);
  header.work_key_count.store(1);
  header.clock_source = static_cast<std::uint32_t>(ClockSource::kTsc);
  header.block_count.store(3);
  header.slot_high_water.store(2);
  header.lost[kLostOpen].store(9);
  header.stamp_count.store(5);
  arena.work()[5].whole.store(230);
  arena.slot(1).head.store(77);
  arena.frames(1)[1].id.store(5);
  arena.detached()[1].id.store(6);
  arena.ring(1)[3].commit.store(7);
  arena.blocks()[2].buckets[9].store(8);
  const std::uint64_t size = header.size_bytes;
  clear_arena(arena);
  EXPECT_EQ(header.name_count.load(), 1U);
  EXPECT_EQ(header.name_pool_used.load(), 6U);
  EXPECT_EQ(std::string(arena.name_pool() + arena.name(0).offset, arena.name(0).length_bytes), "decode");
  EXPECT_EQ(header.work_key_count.load(), 1U);
  EXPECT_STREQ(arena.work_keys()[0].text, "tokens");
  EXPECT_EQ(header.clock_source, static_cast<std::uint32_t>(ClockSource::kTsc));
  EXPECT_EQ(header.size_bytes, size);
  EXPECT_EQ(header.magic, kMagic);
  EXPECT_EQ(header.block_count.load(), 0U);
  EXPECT_EQ(header.slot_high_water.load(), 0U);
  EXPECT_EQ(header.lost[kLostOpen].load(), 0U);
  EXPECT_EQ(header.stamp_count.load(), 0U);
  EXPECT_EQ(arena.work()[5].whole.load(), 0);
  EXPECT_EQ(arena.slot(1).head.load(), 0U);
  EXPECT_EQ(arena.frames(1)[1].id.load(), 0U);
  EXPECT_EQ(arena.detached()[1].id.load(), 0U);
  EXPECT_EQ(arena.ring(1)[3].commit.load(), 0U);
  EXPECT_EQ(arena.blocks()[2].buckets[9].load(), 0U);
}

TEST(Arena, AnArenaThatIsNotTouchedTakesNoMemory) {
  const OwnedArena owned = make_arena(kDefaultRingSpans);
  const std::uint64_t size = ArenaView(owned.get()).header().size_bytes;
  ASSERT_GT(size, 100U << 20);
  std::vector<unsigned char> resident((size + 4095) / 4096);
  ASSERT_EQ(mincore(owned.get(), size, resident.data()), 0);
  std::size_t pages = 0;
  for (const unsigned char page : resident) pages += page & 1;
  EXPECT_LE(pages, 8U);
}

TEST(Arena, FramesAndRingsShrinkIfTheSystemRefusesTheirSize) {
#if STAGESPAN_TEST_SANITIZED
  GTEST_SKIP() << "sanitizers reserve more addresses than the limit of this test";
#else
  // The size of an arena of the default sizes if enough address space is available.
  const auto sizes_within = [](std::uint64_t limit_bytes) {
    int ends[2] = {};
    EXPECT_EQ(pipe(ends), 0);
    // In a child, because the limit cannot be undone.
    const pid_t child = fork();
    if (child == 0) {
      const rlimit limit{limit_bytes, limit_bytes};
      setrlimit(RLIMIT_AS, &limit);
      const ArenaView arena = create_arena({});
      std::uint32_t sizes[2] = {};
      if (arena) {
        sizes[0] = arena.header().ring_spans;
        sizes[1] = arena.header().frames_per_thread;
        // All of it is there.
        arena.frames(kMaxThreads - 1)[sizes[1] - 1].id.store(5);
        arena.ring(kMaxThreads - 1)[sizes[0] - 1].commit.store(7);
      }
      _exit(write(ends[1], sizes, sizeof(sizes)) == sizeof(sizes) ? 0 : 1);
    }
    close(ends[1]);
    std::uint32_t sizes[2] = {};
    EXPECT_EQ(read(ends[0], sizes, sizeof(sizes)), static_cast<ssize_t>(sizeof(sizes)));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return std::pair(sizes[0], sizes[1]);
  };
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::uint64_t in_use = pages * 4096;
  ASSERT_GT(in_use, 0U);
  constexpr std::uint64_t kMiB = 1 << 20;
  const auto size_of = [](std::uint32_t ring_spans, std::uint32_t frames) {
    const OwnedArena owned(create_arena({ring_spans, frames}).base());
    return ArenaView(owned.get()).header().size_bytes;
  };
  // GIVEN a process with enough address space for a smaller arena, down to the smallest
  std::uint64_t before = size_of(kDefaultRingSpans, kMaxFrames);
  for (const auto& [ring_spans, frames] :
       {std::pair(8192U, 4096U), std::pair(2048U, 4096U), std::pair(2048U, 1024U), std::pair(512U, 1024U),
        std::pair(512U, 256U), std::pair(128U, 256U), std::pair(64U, 256U)}) {
    SCOPED_TRACE(ring_spans);
    SCOPED_TRACE(frames);
    const std::uint64_t size = size_of(ring_spans, frames);
    ASSERT_LT(size, before);
    before = size;
    EXPECT_EQ(sizes_within(in_use + size + kLeftToTheProgramBytes + kMiB / 2), std::pair(ring_spans, frames));
  }
  // The smallest one also has fewer requests.
  EXPECT_LT(smallest_arena_bytes(), before);
  const OwnedArena smallest(create_arena({kLeastRingSpans, kFewestFrames, kFewestRequests}).base());
  EXPECT_EQ(ArenaView(smallest.get()).header().size_bytes, smallest_arena_bytes());
  EXPECT_LE(before, 90 * kMiB);
  // GIVEN a process with almost no further address space
  EXPECT_EQ(sizes_within(in_use + 8 * kMiB), std::pair(0U, 0U));
#endif
}

TEST(Arena, NothingIsReadFromNoArena) {
  const ArenaView none;
  std::uint64_t complete_from = 0;
  EXPECT_TRUE(read_spans(none).empty());
  EXPECT_TRUE(read_open(none).empty());
  EXPECT_TRUE(read_requests(none, {1}, 0, &complete_from).empty());
  EXPECT_EQ(overwritten(none), 0U);
  EXPECT_TRUE(take_snapshot(none, ClockFit({})).stages.empty());
}

// --- position independence ------------------------------------------------------------------------------

class MovedArena : public test::RecorderTest {
 protected:
  // All bytes of the recorder's arena, at another address. Zero pages stay untouched, so that the copy stays small.
  ArenaView copy() {
    const std::uint64_t size = arena().header().size_bytes;
    void* const memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    static const std::byte zeros[4096] = {};
    auto* const to = static_cast<std::byte*>(memory);
    for (std::uint64_t at = 0; at < size; at += 4096)
      if (std::memcmp(arena().base() + at, zeros, 4096) != 0) std::memcpy(to + at, arena().base() + at, 4096);
    owned_.reset(to);
    return ArenaView(to);
  }

 private:
  OwnedArena owned_;
};

TEST_F(MovedArena, SpansStatisticsAndOpenSpansAreReadFromACopyElsewhere) {
  ASSERT_EQ(arena().header().ring_spans, 64U);
  const std::uint32_t outer = recorder().intern("moved.outer");
  const std::uint32_t inner = recorder().intern("moved.inner");
  // GIVEN finished spans of two threads, one of which has left, work, a loss, and open spans of
  // both kinds
  test::in_thread([&] {
    for (int i = 0; i < 100; ++i) {
      const ScopedTimer a(outer);
      const ScopedTimer b(inner);
    }
  });
  recorder().add_work(inner, "tokens", 230, 0.5);
  recorder().lose(kLostHookErrors, 3);
  const ScopedTimer open_outer(outer);
  const ScopedTimer open_inner(inner);
  {
    const ScopedTimer done(inner);
  }
  DetachedSpan token = recorder().open_detached(outer, 0);
  // WHEN the arena's bytes are copied to another address, and the arena itself is cleared
  const std::vector<SpanCopy> spans = read_spans(arena());
  const std::vector<OpenCopy> open = read_open(arena());
  const Snapshot snapshot = test::snapshot();
  const ClockFit fit = read_clock(arena().header());
  const std::uint64_t lost_spans = overwritten(arena());
  const ArenaView moved = copy();
  ASSERT_NE(moved.base(), arena().base());
  recorder().reset();
  const std::vector<SpanCopy> moved_spans = read_spans(moved);
  ASSERT_EQ(moved_spans.size(), spans.size());
  EXPECT_EQ(spans.size(), 64U + 1);
  for (std::size_t i = 0; i < spans.size(); ++i) EXPECT_EQ(test::fields(moved_spans[i]), test::fields(spans[i]));
  EXPECT_EQ(overwritten(moved), lost_spans);
  EXPECT_EQ(lost_spans, 200U - 64);
  const std::vector<OpenCopy> moved_open = read_open(moved);
  ASSERT_EQ(moved_open.size(), 3U);
  ASSERT_EQ(open.size(), 3U);
  for (std::size_t i = 0; i < open.size(); ++i) {
    EXPECT_EQ(moved_open[i].id, open[i].id);
    EXPECT_EQ(moved_open[i].parent, open[i].parent);
    EXPECT_EQ(moved_open[i].stage, open[i].stage);
    EXPECT_EQ(moved_open[i].begin_ticks, open[i].begin_ticks);
    EXPECT_STREQ(moved_open[i].thread_name, open[i].thread_name);
  }
  const Snapshot moved_snapshot = take_snapshot(moved, fit);
  for (const std::uint32_t stage : {outer, inner}) {
    const StageFigures was = figures_of(snapshot, stage);
    const StageFigures is = figures_of(moved_snapshot, stage);
    EXPECT_EQ(is.host.count, stage == outer ? 100U : 101U);
    EXPECT_EQ(is.host.count, was.host.count);
    EXPECT_EQ(is.host.sum_ticks, was.host.sum_ticks);
    EXPECT_EQ(is.host.min_ticks, was.host.min_ticks);
    EXPECT_EQ(is.host.max_ticks, was.host.max_ticks);
    EXPECT_EQ(is.host.buckets, was.host.buckets);
    EXPECT_EQ(is.children_ticks, was.children_ticks);
    EXPECT_EQ(is.work, was.work);
    EXPECT_EQ(is.parents.size(), was.parents.size());
  }
  EXPECT_EQ(figures_of(moved_snapshot, inner).work.at("tokens"), 230.5);
  EXPECT_EQ(moved.header().lost[kLostHookErrors].load(), 3U);
  EXPECT_EQ(std::string(moved.name_pool() + moved.name(inner).offset, moved.name(inner).length_bytes), "moved.inner");
  EXPECT_EQ(read_clock(moved.header()).unix_ns(spans[0].begin_ticks), fit.unix_ns(spans[0].begin_ticks));
  EXPECT_TRUE(read_spans(arena()).empty());
  EXPECT_EQ(read_open(arena()).size(), 3U);
  recorder().close_detached(token, 0);
}

}  // namespace
}  // namespace stagespan
