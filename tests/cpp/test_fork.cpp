// test_fork.cpp: a forked child records on its own, regardless of the parent's activity at the fork.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "support.h"

namespace stagespan {
namespace {

using test::count_of;
using test::figures_of;
using test::lost;
using test::spans_of;

class Fork : public test::RecorderTest {
 protected:
  /// Runs `body` in a child and returns its result; 0 means success. A child that hangs is ended by an alarm, and gives
  /// -SIGALRM.
  template <class Body>
  int in_child(Body body) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      _exit(body());
    }
    return wait_for(child);
  }

  static int wait_for(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
};

TEST_F(Fork, AChildStartsWithNothingButTheNames) {
  const std::uint32_t stage = recorder().intern("fork.names");
  for (int i = 0; i < 10; ++i) const ScopedTimer timer(stage);
  recorder().lose(kLostHookErrors);
  recorder().add_work(stage, "tokens", 5, 0);
  const std::uint32_t generation = recorder().generation();
  const int result = in_child([&] {
    if (recorder().name_of(stage) != "fork.names" || recorder().intern("fork.names") != stage) return 1;
    if (!test::snapshot().stages.empty() || !read_spans(arena()).empty() || !read_open(arena()).empty()) return 2;
    if (lost(kLostHookErrors) != 0 || overwritten(arena()) != 0) return 3;
    if (arena().header().pid != static_cast<std::uint32_t>(getpid())) return 4;
    if (recorder().generation() != generation + 1) return 5;
    {
      const ScopedTimer timer(stage);
    }
    recorder().add_work(stage, "tokens", 2, 0);
    if (count_of(stage) != 1 || figures_of(stage).work.at("tokens") != 2) return 6;
    if (spans_of(stage).size() != 1 || spans_of(stage)[0].thread != static_cast<std::uint32_t>(gettid())) return 7;
    return recorder().intern("fork.new in the child") == recorder().names().size() - 1 ? 0 : 8;
  });
  EXPECT_EQ(result, 0);
  // THEN the parent's record is unchanged
  EXPECT_EQ(count_of(stage), 10U);
  EXPECT_EQ(lost(kLostHookErrors), 1U);
  EXPECT_EQ(recorder().generation(), generation);
}

TEST_F(Fork, EndsOfSpansThatTheParentBeganAreIgnoredInTheChild) {
  const std::uint32_t stage = recorder().intern("fork.open");
  const std::uint32_t own = recorder().intern("fork.own");
  int result = -1;
  bool is_child = false;
  std::set<std::uint64_t> parents_ids;
  {
    const ScopedTimer a(stage);
    const ScopedTimer b(stage);
    const ScopedTimer c(stage);
    for (const OpenCopy& open : read_open(arena())) parents_ids.insert(open.id);
    const pid_t child = fork();
    is_child = child == 0;
    if (is_child) {
      alarm(60);
      // THEN in the child no span is open, and its own spans are at top level
      result = read_open(arena()).empty() ? 0 : 1;
      const ScopedTimer timer(own);
      const std::vector<OpenCopy> open = read_open(arena());
      if (open.size() != 1 || open[0].parent != 0 || open[0].depth != 0) {
        result = 2;
      } else if (parents_ids.contains(open[0].id)) {
        // THEN its ids differ from the parent's
        result = 3;
      }
    } else {
      result = wait_for(child);
    }
  }
  if (is_child) {
    // THEN the ends of the parent's spans were ignored
    if (result == 0 && (count_of(stage) != 0 || count_of(own) != 1 || lost(kLostUnmatched) != 0)) result = 4;
    if (result == 0 && !read_open(arena()).empty()) result = 5;
    _exit(result);
  }
  // THEN the parent is not affected by the fork
  EXPECT_EQ(result, 0);
  EXPECT_EQ(parents_ids.size(), 3U);
  EXPECT_EQ(count_of(stage), 3U);
  EXPECT_EQ(count_of(own), 0U);
  EXPECT_TRUE(read_open(arena()).empty());
}

TEST_F(Fork, ATokenOfTheParentDoesNotHideOneOfTheChilds) {
  const std::uint32_t stage = recorder().intern("fork.token");
  std::vector<DetachedSpan> tokens;
  for (int i = 0; i < 10; ++i) tokens.push_back(recorder().open_detached(stage, 0));
  const int result = in_child([&] {
    std::vector<DetachedSpan> own;
    for (std::uint32_t i = 0; i < kMaxDetached; ++i) own.push_back(recorder().open_detached(stage, 0));
    for (DetachedSpan& token : tokens) recorder().close_detached(token, 0);
    return read_open(arena()).size() == kMaxDetached ? 0 : 1;
  });
  EXPECT_EQ(result, 0);
  EXPECT_EQ(read_open(arena()).size(), 10U);
  for (DetachedSpan& token : tokens) recorder().close_detached(token, 0);
  EXPECT_EQ(count_of(stage), 10U);
}

TEST_F(Fork, AChildOfAChildRecordsOnItsOwn) {
  const std::uint32_t stage = recorder().intern("fork.grandchild");
  {
    const ScopedTimer timer(stage);
  }
  std::uint64_t id = spans_of(stage)[0].id;
  const int result = in_child([&] {
    {
      const ScopedTimer timer(stage);
    }
    const std::uint64_t child_id = spans_of(stage)[0].id;
    if (child_id == id) return 1;
    return in_child([&] {
      {
        const ScopedTimer timer(stage);
      }
      const std::uint64_t grandchild_id = spans_of(stage)[0].id;
      return count_of(stage) == 1 && grandchild_id != id && grandchild_id != child_id ? 0 : 2;
    });
  });
  EXPECT_EQ(result, 0);
  EXPECT_EQ(count_of(stage), 1U);
}

TEST_F(Fork, AChildForkedWhileThreadsRunCanRecord) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer's own allocator may be locked in the child of a fork amid threads";
#endif
  constexpr unsigned kThreads = 4;
  const int forks = static_cast<int>(test::scaled(60));
  const std::uint32_t stage = recorder().intern("fork.threads");
  // GIVEN threads that all use the recorder's lock: they start, end, intern, add work, read and reset
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> spans{0};
  auto threads = test::start_threads(kThreads, [&](unsigned i) {
    for (std::uint64_t n = 0; !done; ++n) {
      {
        const ScopedTimer timer(stage);
      }
      spans.fetch_add(1);
      switch ((n + i) % 4) {
        case 0:
          test::in_thread([&] { const ScopedTimer timer(stage); });
          spans.fetch_add(1);
          break;
        case 1:
          recorder().intern("fork.threads." + std::to_string(n % 100));
          break;
        case 2:
          recorder().add_work(stage, "units", 1, 0);
          break;
        default:
          test::snapshot();
      }
    }
  });
  for (int i = 0; i < forks; ++i) {
    const ScopedTimer open(stage);
    spans.fetch_add(1);
    const int result = in_child([&] {
      // THEN the child does not hang, and its own threads record in it
      if (count_of(stage) != 0) return 1;
      const auto run = [&](unsigned) {
        for (int n = 0; n < 100; ++n) const ScopedTimer timer(stage);
      };
#if STAGESPAN_TEST_TSAN
      for (unsigned n = 0; n < 3; ++n) run(n);  // ThreadSanitizer starts no threads after such a fork
#else
      auto own = test::start_threads(3, run);
      test::join(own);
#endif
      if (count_of(stage) != 300) return 2;
      if (lost(kLostAbandoned) != 0 || lost(kLostBlocks) != 0) return 3;
      recorder().reset();
      {
        const ScopedTimer timer(stage);
      }
      return count_of(stage) == 1 ? 0 : 4;
    });
    EXPECT_EQ(result, 0) << i;
    if (result != 0) break;
  }
  done = true;
  test::join(threads);
  // THEN the parent has lost nothing
  EXPECT_EQ(count_of(stage), spans.load());
  EXPECT_TRUE(read_open(arena()).empty());
}

}  // namespace
}  // namespace stagespan
