// test_memory.cpp: a process that runs out of memory continues, and losses are counted.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <new>

#include "support.h"

namespace {

/// The number of further allocations of the calling thread that succeed; if negative, all of them do.
thread_local int t_allowed = -1;

void* allocate(std::size_t size) noexcept {
  if (t_allowed == 0) return nullptr;
  if (t_allowed > 0) --t_allowed;
  return std::malloc(size);
}

}  // namespace

// Replaces operator new, and can be made to fail.
void* operator new(std::size_t size) {
  void* const memory = allocate(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t& tag) noexcept { return operator new(size, tag); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace stagespan {
namespace {

using test::count_of;
using test::figures_of;
using test::lost;

/// While it exists, `times` allocations of the calling thread succeed, and none after that.
class MemoryFor {
 public:
  explicit MemoryFor(int times) { t_allowed = times; }
  ~MemoryFor() { t_allowed = -1; }
  MemoryFor(const MemoryFor&) = delete;
  MemoryFor& operator=(const MemoryFor&) = delete;
};

class Memory : public test::RecorderTest {};

TEST_F(Memory, ASpanOfAThreadWithoutMemoryIsLostAndCounted) {
  const std::uint32_t stage = recorder().intern("memory.span");
  test::in_thread([&] {
    // GIVEN a thread without its own state, and no memory
    {
      const MemoryFor none(0);
      const ScopedTimer outer(stage);
      const ScopedTimer inner(stage);
    }
    // THEN they are counted as lost because of memory
    EXPECT_EQ(lost(kLostMemory), 2U);
    EXPECT_EQ(count_of(stage), 0U);
    {
      const ScopedTimer timer(stage);
    }
    // THEN the thread is timed like any other
    EXPECT_EQ(count_of(stage), 1U);
    EXPECT_EQ(test::spans_of(stage).size(), 1U);
  });
  EXPECT_EQ(lost(kLostMemory), 2U);
  EXPECT_EQ(lost(kLostAbandoned), 0U);
}

TEST_F(Memory, IfItEndsWhileAThreadStartsNothingIsLeaked) {
  const std::uint32_t stage = recorder().intern("memory.each");
  const std::uint32_t slots = arena().header().slot_high_water.load();
  std::uint64_t timed = 0;
  for (int allowed = 0; allowed < 8; ++allowed) {
    SCOPED_TRACE(allowed);
    std::uint32_t used = 0;
    test::in_thread([&] {
      // GIVEN a thread for which this number of allocations succeeds
      {
        const MemoryFor some(allowed);
        const ScopedTimer timer(stage);
      }
      used = arena().header().slot_high_water.load();
    });
    const std::uint64_t now = count_of(stage);
    ASSERT_EQ(now + lost(kLostMemory), static_cast<std::uint64_t>(allowed) + 1);
    EXPECT_TRUE(now != 0 || used == slots);
    timed = now;
  }
  EXPECT_GT(timed, 0U);
  EXPECT_GT(lost(kLostMemory), 0U);
}

TEST_F(Memory, DetachedSpansAreRecordedWithoutAStateOfTheThread) {
  const std::uint32_t stage = recorder().intern("memory.detached");
  test::in_thread([&] {
    const MemoryFor none(0);
    DetachedSpan token = recorder().open_detached(stage, 0);
    recorder().close_detached(token, 0);
  });
  // THEN the figures include it, without a record
  EXPECT_EQ(count_of(stage), 1U);
  EXPECT_EQ(lost(kLostThreads), 1U);
  EXPECT_TRUE(read_open(arena()).empty());
}

TEST_F(Memory, ANewNameIsCountedAndAKnownOneIsFound) {
  const std::string known = "memory.name.known.and.long.enough.to.be.allocated";
  const std::string fresh = "memory.name.fresh.and.long.enough.to.be.allocated";
  const std::uint32_t stage = recorder().intern(known);
  const std::uint32_t names = arena().header().name_count.load();
  for (int allowed = 0; allowed < 6; ++allowed) {
    SCOPED_TRACE(allowed);
    const std::uint64_t before = lost(kLostMemory);
    std::uint32_t given = 0;
    {
      const MemoryFor some(allowed);
      given = recorder().intern(fresh);
    }
    if (given != kStageOverflow) {
      EXPECT_EQ(recorder().name_of(given), fresh);
      break;
    }
    EXPECT_EQ(lost(kLostMemory), before + 1);
    EXPECT_EQ(arena().header().name_count.load(), names);
  }
  EXPECT_GT(lost(kLostMemory), 0U);
  EXPECT_EQ(recorder().intern(known), stage);
  EXPECT_EQ(recorder().name_of(recorder().intern(fresh)), fresh);
  EXPECT_EQ(arena().header().name_count.load(), names + 1);
}

TEST_F(Memory, AWorkCounterIsCountedAsLostOrComplete) {
  const std::uint32_t stage = recorder().intern("memory.work");
  const std::string key = "a counter whose name takes memory";
  std::uint64_t kept = 0;
  for (int allowed = 0; allowed < 6; ++allowed) {
    const MemoryFor some(allowed);
    recorder().add_work(stage, key, 1, 0);
    ++kept;
  }
  // THEN each amount is in the sum or counted as lost
  const auto work = figures_of(stage).work;
  EXPECT_EQ(static_cast<std::uint64_t>(work.at(key)) + lost(kLostMemory), kept);
  EXPECT_GT(lost(kLostMemory), 0U);
}

TEST_F(Memory, AResetWithoutMemoryChangesNothing) {
  const std::uint32_t stage = recorder().intern("memory.reset");
  {
    const ScopedTimer timer(stage);
  }
  recorder().add_work(stage, "tokens", 5, 0);
  ASSERT_EQ(count_of(stage), 1U);
  bool is_refused = false;
  {
    const MemoryFor none(0);
    try {
      recorder().reset();
    } catch (const std::bad_alloc&) {
      is_refused = true;
    }
  }
  // THEN either everything is removed, or nothing
  EXPECT_EQ(count_of(stage), is_refused ? 1U : 0U);
  EXPECT_EQ(figures_of(stage).work.size(), is_refused ? 1U : 0U);
  recorder().reset();
  EXPECT_EQ(count_of(stage), 0U);
}

TEST_F(Memory, TheClockIsFittedWithoutAny) {
  const MemoryFor none(0);
  const std::int64_t now = recorder().clock_fit().unix_ns(now_ticks());
  EXPECT_GT(now, 1'000'000'000'000'000'000);
}

TEST_F(Memory, IfTheSystemRefusesAddressesSpansAreLostAndCounted) {
#if STAGESPAN_TEST_SANITIZED
  GTEST_SKIP() << "sanitizers reserve more addresses than the limit of this test";
#else
  const std::uint32_t stage = recorder().intern("memory.addresses");
  const auto without_addresses = [&] {
    // GIVEN a process that gets no more address space, and has used all it has
    rlimit before{};
    getrlimit(RLIMIT_AS, &before);
    const rlimit limit{1, before.rlim_max};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    void* volatile taken = nullptr;
    for (std::size_t size = 1U << 20; size != 0;) {
      taken = std::malloc(size);
      if (taken == nullptr) size /= 2;
    }
    t_state = nullptr;
    {
      const ScopedTimer timer(stage);
    }
    setrlimit(RLIMIT_AS, &before);
    if (lost(kLostMemory) != 1) return 2;
    return count_of(stage) == 0 ? 0 : 3;
  };
  EXPECT_EXIT(_exit(without_addresses()), ::testing::ExitedWithCode(0), "");
#endif
}

}  // namespace
}  // namespace stagespan
