// covers.h: unions of intervals, and how much of a range they cover.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stagespan::trace {

/// Begins and ends in two arrays.
struct IntervalTable {
  const std::int64_t* begin;
  const std::int64_t* end;
  std::size_t count;
};

/// Writes the union of intervals, disjoint and ascending, and returns how many there are. Intervals that touch are
/// joined. It takes linear time if the intervals ascend, or a few parts of them that alternate.
std::size_t merge(const IntervalTable& intervals, std::int64_t* begin, std::int64_t* end);

/// The same for the union of two such sets, each disjoint and ascending. There is room for all intervals of both.
std::size_t unite(const IntervalTable& first, const IntervalTable& second, std::int64_t* begin,
                  std::int64_t* end) noexcept;

/// Writes how much of the time before each place disjoint, ascending intervals cover. `before` has the covered length
/// before each of them.
void covered_until(const IntervalTable& intervals, const std::int64_t* before, const std::int64_t* place,
                   std::size_t count, std::int64_t* covered) noexcept;

}  // namespace stagespan::trace
