// ways.h: what the benchmarks share: one core, ways of doing a thing that take turns, and their times as JSON.
#pragma once

#include <sched.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <vector>

#include "stagespan/clock.h"

namespace stagespan::benchmark {

inline void pin_to_last_core() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return;
  int last = -1;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) last = core;
  if (last < 0) return;
  CPU_ZERO(&set);
  CPU_SET(last, &set);
  static_cast<void>(sched_setaffinity(0, sizeof(set), &set));
}

struct Way {
  const char* name;
  std::vector<double> ticks;  // each, by turn
};

/// Times `body`, which does the thing `count` times.
template <class Body>
void take(Way& way, std::uint64_t count, Body body) {
  const std::uint64_t begin = now_ticks();
  body();
  way.ticks.push_back(static_cast<double>(now_ticks() - begin) / static_cast<double>(count));
}

/// Prints the member "ns" of a JSON object: what each took, by way and turn.
inline void print_ns(std::initializer_list<const Way*> ways, double ns_per_tick) {
  std::printf("\"ns\": {");
  const char* comma = "";
  for (const Way* way : ways) {
    std::printf("%s\"%s\": [", comma, way->name);
    comma = ", ";
    for (std::size_t i = 0; i < way->ticks.size(); ++i)
      std::printf("%s%.3f", i == 0 ? "" : ", ", way->ticks[i] * ns_per_tick);
    std::printf("]");
  }
  std::printf("}");
}

}  // namespace stagespan::benchmark
