// span_cost.cpp: measures the cost of a C++ span, compared with two readings of its clock. Prints JSON, times in ns.
//
//   span_cost COUNT TURNS      COUNT spans at a time, all ways in turn, TURNS times
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "stagespan/scoped_timer.h"
#include "stagespan/snapshot.h"
#include "ways.h"

namespace {

using namespace stagespan;
using namespace stagespan::benchmark;

constexpr std::uint32_t kStages = 200;

/// Two readings of the clock and as little else as possible.
void read_twice(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t sum = now_ticks();
    sum += now_ticks();
    asm volatile("" ::"r"(sum));
  }
}

void flat(std::uint64_t count, std::uint32_t stage) {
  for (std::uint64_t i = 0; i < count; ++i) {
    ScopedTimer timer(stage);
    asm volatile("" ::: "memory");
  }
}

void in_threes(std::uint64_t count, const std::array<std::uint32_t, 3>& stages) {
  for (std::uint64_t i = 0; i < count / 3; ++i) {
    ScopedTimer outer(stages[0]);
    ScopedTimer middle(stages[1]);
    ScopedTimer inner(stages[2]);
  }
}

void over_many(std::uint64_t count, const std::vector<std::uint32_t>& stages) {
  for (std::uint64_t i = 0; i < count / kStages; ++i)
    for (const std::uint32_t stage : stages) ScopedTimer timer(stage);
}

}  // namespace

int main(int argc, char** argv) {
  // A whole number of threes and of rounds over the stages.
  const std::uint64_t count = std::max(1L, (argc > 1 ? std::atol(argv[1]) : 12'000L) / (3 * kStages)) * 3 * kStages;
  const int turns = argc > 2 ? std::atoi(argv[2]) : 101;
  pin_to_last_core();

  Recorder& recorder = Recorder::get();
  const std::uint32_t stage = recorder.intern("bench");
  const std::uint32_t off_stage = recorder.intern("bench off");
  const std::array<std::uint32_t, 3> nested = {recorder.intern("bench 0"), recorder.intern("bench 1"),
                                               recorder.intern("bench 2")};
  std::vector<std::uint32_t> many;
  for (std::uint32_t i = 0; i < kStages; ++i) many.push_back(recorder.intern("bench many " + std::to_string(i)));

  Way floor{"cpp floor", {}}, on{"cpp on", {}}, depth{"cpp at depth 3", {}}, stages{"cpp over 200 stages", {}},
      worker{"cpp on a worker thread", {}}, off{"cpp off", {}};
  std::uint64_t timed = 0;
  // One worker for all turns: what a thread's first spans cost is not what its spans cost.
  std::binary_semaphore go{0}, done{0};
  std::thread thread([&] {
    for (int turn = 0; turn < turns; ++turn) {
      go.acquire();
      take(worker, count, [&] { flat(count, stage); });
      done.release();
    }
  });
  for (int turn = 0; turn < turns; ++turn) {
    take(floor, count, [&] { read_twice(count); });
    take(on, count, [&] { flat(count, stage); });
    take(depth, count, [&] { in_threes(count, nested); });
    take(stages, count, [&] { over_many(count, many); });
    go.release();
    done.acquire();
    timed += 4 * count;
    g_mode.fetch_and(~std::uint32_t{kModeEnabled});
    take(off, count, [&] { flat(count, off_stage); });
    g_mode.fetch_or(kModeEnabled);
  }
  thread.join();

  const ClockFit fit = recorder.clock_fit();
  const Snapshot snapshot = take_snapshot(recorder.arena(), fit);
  std::uint64_t counted = 0;
  for (const auto& [id, figures] : snapshot.stages) counted += figures.host.count;
  std::printf("{\"timed\": %llu, \"counted\": %llu, ", static_cast<unsigned long long>(timed),
              static_cast<unsigned long long>(counted));
  print_ns({&floor, &on, &depth, &stages, &worker, &off}, fit.ns_per_tick());
  std::printf("}\n");
  return counted == timed ? 0 : 1;
}
