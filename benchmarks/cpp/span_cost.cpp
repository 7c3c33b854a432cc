// span_cost.cpp: a C++ span, on and off, against two readings of its clock. Prints one line of JSON.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "stagespan/scoped_timer.h"
#include "stagespan/snapshot.h"

namespace {

using namespace stagespan;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Body>
double ticks_each(int count, Body body) {
  const std::uint64_t begin = now_ticks();
  for (int i = 0; i < count; ++i) body();
  return static_cast<double>(now_ticks() - begin) / count;
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 1'000'000;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 11;
  Recorder& recorder = Recorder::get();
  const std::uint32_t stage = recorder.intern("span_cost");
  std::vector<double> floor, on, off, nested;
  std::uint64_t timed = 0;
  for (int round = 0; round < rounds; ++round) {
    floor.push_back(ticks_each(count, [] {
      std::uint64_t sum = now_ticks();
      sum += now_ticks();
      asm volatile("" ::"r"(sum));
    }));
    on.push_back(ticks_each(count, [stage] { const ScopedTimer timer(stage); }));
    nested.push_back(ticks_each(count / 3, [stage] {
      const ScopedTimer outer(stage);
      const ScopedTimer middle(stage);
      const ScopedTimer inner(stage);
    }) / 3);
    timed += static_cast<std::uint64_t>(count) + 3 * static_cast<std::uint64_t>(count / 3);
    g_mode.fetch_and(~std::uint32_t{kModeEnabled});
    off.push_back(ticks_each(count, [stage] {
      const ScopedTimer timer(stage);
      asm volatile("" ::: "memory");
    }));
    g_mode.fetch_or(kModeEnabled);
  }
  const ClockFit fit = recorder.clock_fit();
  const Snapshot snapshot = take_snapshot(recorder.arena(), fit);
  const std::uint64_t counted = snapshot.stages.at(stage).host.count;
  const double ns = fit.ns_per_tick();
  std::printf(
      "{\"floor_ns\": %.3f, \"on_ns\": %.3f, \"depth3_ns\": %.3f, \"off_ns\": %.3f, \"timed\": %llu, \"counted\": %llu}\n",
      median(floor) * ns, median(on) * ns, median(nested) * ns, median(off) * ns,
      static_cast<unsigned long long>(timed), static_cast<unsigned long long>(counted));
  return counted == timed ? 0 : 1;
}
