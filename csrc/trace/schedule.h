// schedule.h: the times of points that come at least some time after others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stagespan::trace {

/// Edges between points. Each point is below `points`.
struct EdgeTable {
  const std::int64_t* source;
  const std::int64_t* target;
  std::size_t count;
  std::size_t points;
};

/// Whether all edges lead from a point to a point.
bool in_range(const EdgeTable& edges) noexcept;

/// Computes when each point comes at the earliest: `times` has one row for each point and one column for each case, and
/// contains the times that no point can be before. `lags` has a row for each edge. All edges into a point precede those
/// out of it.
void earliest(const EdgeTable& edges, const std::int64_t* lags, std::size_t cases, std::int64_t* times) noexcept;

/// Computes when each point must come at the latest, from the times after which none may come.
void latest(const EdgeTable& edges, const std::int64_t* lags, std::int64_t* times) noexcept;

/// Computes the position of each point in a topological order: points that depend on nothing in their own order, others
/// when their last source has its position. Points of a cycle have the position 0.
void topological_ranks(const EdgeTable& edges, std::int64_t* ranks);

}  // namespace stagespan::trace
