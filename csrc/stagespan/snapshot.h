// snapshot.h: statistics of all stages at one time, read while writers run.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arena.h"
#include "clock.h"

namespace stagespan {

/// A duration's distribution in ticks.
struct Distribution {
  std::uint64_t count = 0;
  std::uint64_t sum_ticks = 0;
  std::uint64_t min_ticks = 0;
  std::uint64_t max_ticks = 0;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> buckets;  // (bucket, count), ascending, no empty ones

  /// The duration that a share `q` in [0, 1] of the spans does not exceed; within 2.1 % of the exact one.
  /// Nothing while `count` is 0.
  std::optional<double> quantile_ticks(double q) const;
};

struct EdgeFigures {
  std::uint64_t count = 0;
  std::uint64_t sum_ticks = 0;
};

struct StageFigures {
  Distribution host;
  std::uint64_t errors = 0;
  std::uint64_t suspended_ticks = 0;
  std::uint64_t children_ticks = 0;
  std::map<std::uint32_t, EdgeFigures> parents;  // by parent stage; kNoStage is top level
  std::map<std::string, double> work;
  std::array<Distribution, kDeviceFigures> device;  // in ns, not in ticks; count 0 where nothing is known
};

/// Cumulative figures. Each figure is read whole, but a span that ends while its stage is read may be in some
/// of them and not yet in others: at most one span a thread.
struct Snapshot {
  std::uint64_t number = 0;  // in the order in which they were taken in this process; the clock may not show this order
  std::uint64_t ticks = 0;
  std::int64_t unix_ns = 0;
  double ns_per_tick = 1;
  std::map<std::uint32_t, StageFigures> stages;  // only those that have run
  std::uint32_t resets = 0;                      // how often the arena had been reset
  bool is_exact = true;                          // false: figures of a leaving thread may be missing or double
  /// Names of the stages of another process's recording; null for this process's own.
  std::shared_ptr<const std::vector<std::string>> names;
};

/// Waits for a thread that is leaving to hand its figures over. If threads leave faster than all figures can be read,
/// it gives up after a second and says so in `is_exact`; a caller that holds Recorder::cold_mutex() never has to wait.
Snapshot take_snapshot(ArenaView arena, const ClockFit& fit);

/// What happened between two snapshots of one arena; all of `later` if there was a reset between them. The
/// minimum and maximum of an interval are not recorded: they are taken from the bounds of the lowest and highest
/// bucket.
Snapshot difference(const Snapshot& later, const Snapshot& earlier);

}  // namespace stagespan
