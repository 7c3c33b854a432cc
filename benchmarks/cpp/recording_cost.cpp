// recording_cost.cpp: writes spans on command, so that two of it, with and without a file, can take turns.
//
//   spans COUNT     writes COUNT spans; prints the CPU time of the thread, in ns
//   watch MS        writes spans for MS milliseconds and times each one from outside; prints, as JSON, how many took
//                   [2^i, 2^(i+1)) ns and what the long ones were
//   end             prints how many spans were timed and counted
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "stagespan/scoped_timer.h"
#include "stagespan/snapshot.h"
#include "ways.h"

namespace {

using namespace stagespan;
using namespace stagespan::benchmark;

constexpr std::int64_t kLong_ns = 100'000;
constexpr std::uint32_t kSpansBetweenLooks = 256;

struct Events {
  long switches;
  long faults;
};

Events events_of_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return {usage.ru_nvcsw + usage.ru_nivcsw, usage.ru_minflt + usage.ru_majflt};
}

void write(std::uint64_t count, std::uint32_t stage) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const ScopedTimer timer(stage);
    asm volatile("" ::: "memory");
  }
}

/// A span that took long belongs to the scheduler if the thread was switched out in the few spans around it, and to the
/// file if it touched a page for the first time there. What is left is the machine's: interrupts, and other virtual
/// machines.
std::uint64_t watch(std::int64_t for_ms, std::uint32_t stage, const ClockFit& fit) {
  std::array<std::uint64_t, 48> spans{};
  std::uint64_t written = 0, switched = 0, faulted = 0, unexplained = 0;
  std::int64_t longest_ns = 0, longest_not_switched_ns = 0;
  const std::int64_t from_ns = fit.unix_ns(now_ticks());
  for (bool is_over = false; !is_over;) {
    const Events before = events_of_thread();
    std::array<std::int64_t, kSpansBetweenLooks> took_ns{};
    for (std::int64_t& each : took_ns) {
      const std::uint64_t begin = now_ticks();
      write(1, stage);
      each = static_cast<std::int64_t>(now_ticks() - begin);
    }
    const Events after = events_of_thread();
    for (const std::int64_t ticks : took_ns) {
      const auto ns = static_cast<std::int64_t>(fit.duration_ns(static_cast<double>(ticks)));
      ++spans[std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 1))) - 1];
      longest_ns = std::max(longest_ns, ns);
      if (after.switches == before.switches) longest_not_switched_ns = std::max(longest_not_switched_ns, ns);
      if (ns < kLong_ns) continue;
      if (after.switches != before.switches)
        ++switched;
      else if (after.faults != before.faults)
        ++faulted;
      else
        ++unexplained;
    }
    written += kSpansBetweenLooks;
    is_over = fit.unix_ns(now_ticks()) - from_ns >= for_ms * 1'000'000;
  }
  std::printf("{\"switched\": %llu, \"faulted\": %llu, \"unexplained\": %llu, \"longest_ns\": %lld, ",
              static_cast<unsigned long long>(switched), static_cast<unsigned long long>(faulted),
              static_cast<unsigned long long>(unexplained), static_cast<long long>(longest_ns));
  std::printf("\"longest_not_switched_ns\": %lld, \"spans\": [", static_cast<long long>(longest_not_switched_ns));
  for (std::size_t i = 0; i < spans.size(); ++i)
    std::printf("%s%llu", i == 0 ? "" : ", ", static_cast<unsigned long long>(spans[i]));
  std::printf("]}\n");
  return written;
}

}  // namespace

int main() {
  pin_to_last_core();
  Recorder& recorder = Recorder::get();
  const std::uint32_t stage = recorder.intern("written");
  std::uint64_t timed = 20'000;
  write(timed, stage);  // fills the ring, whose pages are touched for the first time
  const ClockFit fit = recorder.clock_fit();
  char command[32];
  long long amount = 0;
  std::printf("%s\n", recorder.recording_place().path.c_str());
  std::fflush(stdout);
  while (std::scanf("%31s %lld", command, &amount) >= 1) {
    if (std::strcmp(command, "spans") == 0) {
      const std::int64_t begin_ns = thread_cpu_ns();
      write(static_cast<std::uint64_t>(amount), stage);
      std::printf("%lld\n", static_cast<long long>(thread_cpu_ns() - begin_ns));
      timed += static_cast<std::uint64_t>(amount);
    } else if (std::strcmp(command, "watch") == 0) {
      timed += watch(amount, stage, fit);
    } else {
      const Snapshot snapshot = take_snapshot(recorder.arena(), fit);
      std::printf("%llu %llu\n", static_cast<unsigned long long>(timed),
                  static_cast<unsigned long long>(snapshot.stages.at(stage).host.count));
      std::fflush(stdout);
      break;
    }
    std::fflush(stdout);
  }
  recorder.end_recording();
  return 0;
}
