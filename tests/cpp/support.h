// support.h: common code for the tests of the core.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "stagespan/reader.h"
#include "stagespan/recorder.h"
#include "stagespan/scoped_timer.h"
#include "stagespan/snapshot.h"

#if defined(__SANITIZE_THREAD__)
#define STAGESPAN_TEST_TSAN 1
#else
#define STAGESPAN_TEST_TSAN 0
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STAGESPAN_TEST_SANITIZED 1
#else
#define STAGESPAN_TEST_SANITIZED 0
#endif

namespace stagespan::test {

/// How often a test repeats something that finds a fault only sometimes: the full number in plain builds, and fewer
/// under sanitizers, which are slower and detect more.
constexpr std::uint64_t scaled(std::uint64_t plain, std::uint64_t sanitized_share = 4) {
  return STAGESPAN_TEST_SANITIZED ? (plain + sanitized_share - 1) / sanitized_share : plain;
}

/// Random numbers of a property test. The seed is fixed; STAGESPAN_TEST_SEED tries another.
class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(chosen(seed)), engine_(seed_) {}

  /// What to print when a property fails.
  std::string trace() const { return "STAGESPAN_TEST_SEED=" + std::to_string(seed_); }

  std::uint64_t below(std::uint64_t limit) { return engine_() % limit; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  double unit() { return std::uniform_real_distribution<double>(0, 1)(engine_); }
  double normal() { return std::normal_distribution<double>(0, 1)(engine_); }
  std::mt19937_64& engine() { return engine_; }

 private:
  static std::uint64_t chosen(std::uint64_t seed) {
    const char* const text = std::getenv("STAGESPAN_TEST_SEED");
    return text == nullptr ? seed : std::strtoull(text, nullptr, 10);
  }

  std::uint64_t seed_;
  std::mt19937_64 engine_;
};

/// Starts `count` threads on `body(index)`. They are joined when the result goes out of scope, so that a failed
/// assertion ends the test and not the program.
template <class Body>
std::vector<std::jthread> start_threads(unsigned count, Body body) {
  std::vector<std::jthread> threads;
  threads.reserve(count);
  for (unsigned i = 0; i < count; ++i) threads.emplace_back(body, i);
  return threads;
}

inline void join(std::vector<std::jthread>& threads) { threads.clear(); }

/// Runs `body` in a separate thread, to its end.
template <class Body>
void in_thread(Body body) {
  std::thread(body).join();
}

/// A snapshot as the library takes it: no thread leaves during it.
inline Snapshot snapshot() {
  Recorder& recorder = Recorder::get();
  const ClockFit fit = recorder.clock_fit();
  const std::lock_guard lock(recorder.cold_mutex());
  return take_snapshot(recorder.arena(), fit);
}

/// Figures of one stage, all zero if it has not run.
inline StageFigures figures_of(const Snapshot& snapshot, std::uint32_t stage) {
  const auto found = snapshot.stages.find(stage);
  return found == snapshot.stages.end() ? StageFigures{} : found->second;
}

inline StageFigures figures_of(std::uint32_t stage) { return figures_of(snapshot(), stage); }

inline std::uint64_t count_of(std::uint32_t stage) { return figures_of(stage).host.count; }

inline std::uint64_t in_buckets(const Distribution& distribution) {
  std::uint64_t total = 0;
  for (const auto& [bucket, count] : distribution.buckets) total += count;
  return total;
}

inline std::uint64_t lost(Cause cause) {
  return Recorder::get().arena().header().lost[cause].load(std::memory_order_relaxed);
}

/// Finished spans of one stage, ordered by begin.
inline std::vector<SpanCopy> spans_of(std::uint32_t stage) {
  std::vector<SpanCopy> spans = read_spans(Recorder::get().arena());
  std::erase_if(spans, [&](const SpanCopy& span) { return span.stage != stage; });
  return spans;
}

/// All fields of a span, for comparison.
/// Records a span of the calling thread that has just begun, with its CPU time.
inline void commit_with_cpu_time(std::uint32_t stage, std::int64_t cpu_ns) {
  ThreadState& thread = Recorder::get().this_thread();
  const std::uint64_t now = now_ticks(), id = ++thread.next_id;
  begin_cpu_time(thread, {id, 0, 0, false});
  (void)take_cpu_begin(thread, id);
  FinishedSpan span{};
  span.begin_ticks = span.end_ticks = now;
  span.id = id;
  span.stage = stage;
  span.parent_stage = kNoStage;
  commit_span_with_cpu_time(thread, span, cpu_ns);
}

inline auto fields(const SpanCopy& span) {
  return std::tuple(span.begin_ticks, span.end_ticks, span.id, span.parent, span.request, span.suspended_ticks,
                    span.stage, span.thread, span.depth, span.flags);
}

/// A finished span of a known duration, for the calling thread to commit.
inline FinishedSpan made_span(std::uint32_t stage, std::uint64_t begin, std::uint64_t duration) {
  FinishedSpan span{};
  span.begin_ticks = begin;
  span.end_ticks = begin + duration;
  span.id = ++Recorder::get().this_thread().next_id;
  span.stage = stage;
  span.parent_stage = kNoStage;
  return span;
}

/// Starts every test with nothing recorded. Names are kept, so tests use their own names.
class RecorderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Recorder::get().arena());
    g_mode.store(kModeEnabled);
    Recorder::get().reset();
  }

  Recorder& recorder() { return Recorder::get(); }
  ArenaView arena() { return Recorder::get().arena(); }
};

/// Opens and closes spans of the calling thread one by one.
class OpenSpansTest : public RecorderTest {
 protected:
  ThreadState& thread() { return recorder().this_thread(); }
  OpenFrame& open(std::uint32_t stage, const void* owner = nullptr) { return *open_frame(thread(), stage, owner); }
  void close(OpenFrame& frame) { close_frame(thread(), frame, 0); }

  /// The open spans of the calling thread, outermost first.
  std::vector<OpenCopy> own_open() {
    std::vector<OpenCopy> result = read_open(arena());
    std::erase_if(result, [&](const OpenCopy& open) { return open.thread != thread().thread || open.detached; });
    return result;
  }
};

}  // namespace stagespan::test
