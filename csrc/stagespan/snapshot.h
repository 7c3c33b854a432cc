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

/// The numbers of a histogram: (bucket, count), ascending, without empty buckets.
using BucketCounts = std::vector<std::pair<std::uint32_t, std::uint64_t>>;

/// The distribution of a duration, in ticks.
struct Distribution {
  std::uint64_t count = 0;
  std::uint64_t sum_ticks = 0;
  std::uint64_t min_ticks = 0;
  std::uint64_t max_ticks = 0;
  BucketCounts buckets;

  /// The duration that a share `q` in [0, 1] of the spans does not exceed, within 2.1 % of the exact one. Empty if
  /// `count` is 0.
  std::optional<double> quantile_ticks(double q) const;
};

/// The distribution of the amounts that runs or requests have had in one unit, in that unit.
struct AmountDistribution {
  std::uint64_t count = 0;
  double sum = 0;
  double least = 0;
  double most = 0;
  std::uint64_t fractions = 0;  // how many are not whole numbers
  BucketCounts buckets;

  /// The amount that a share `q` in [0, 1] of them does not exceed, within 3.1 % of the exact one, and exact for whole
  /// numbers up to 32. Empty if `count` is 0.
  std::optional<double> quantile(double q) const;
  /// What stands for the amounts in a bucket: a whole number if all are.
  double amount_in(std::uint32_t bucket) const;
};

struct EdgeFigures {
  std::uint64_t count = 0;
  std::uint64_t sum_ticks = 0;
};

struct StageFigures {
  StageKind kind = kExecution;
  Distribution host;
  std::uint64_t errors = 0;
  std::uint64_t suspended_ticks = 0;
  std::uint64_t children_ticks = 0;
  std::uint64_t cpu_ns = 0;                      // of the spans whose CPU time is known
  std::uint64_t cpu_count = 0;                   // the number of these
  std::map<std::uint32_t, EdgeFigures> parents;  // by parent stage; kNoStage is top level
  std::map<std::string, double> work;
  std::map<std::string, AmountDistribution> amounts;  // by unit
  AmountDistribution batch_size;                      // of a batch
  std::array<Distribution, kDeviceFigures> device;    // in ns, not in ticks; count 0 if unknown
};

/// Cumulative figures. Each figure is consistent, but a span that ends while its stage is read may be in some of them
/// and not yet in others: at most one span per thread.
struct Snapshot {
  std::uint64_t number = 0;  // the order in which this process took them; the clock may not show it
  std::uint64_t ticks = 0;
  std::int64_t unix_ns = 0;
  double ns_per_tick = 1;
  std::map<std::uint32_t, StageFigures> stages;  // only those that have run
  std::uint32_t resets = 0;                      // how often the arena had been reset
  bool is_exact = true;                          // false: figures of a leaving thread may be missing or double
  /// The stage names of another process's recording; null for this process's own recording.
  std::shared_ptr<const std::vector<std::string>> names;
};

/// If a thread is leaving, waits until it has handed over its figures. If threads leave faster than all figures can be
/// read, this gives up after a second and says so in `is_exact`. A caller that holds Recorder::cold_mutex() never has
/// to wait.
Snapshot take_snapshot(ArenaView arena, const ClockFit& fit);

/// The difference of two snapshots of one arena; all of `later` if there was a reset in between. The minimum and
/// maximum of an interval are not recorded, so the bounds of the lowest and highest bucket are used.
Snapshot difference(const Snapshot& later, const Snapshot& earlier);

}  // namespace stagespan
