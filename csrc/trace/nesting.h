// nesting.h: which interval of a thread is in which, and the time of each without those in it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stagespan::trace {

/// Intervals sorted by thread, then by begin, and outer before inner if they begin together.
struct Intervals {
  const std::int64_t* begin;
  const std::int64_t* end;  // after the begin
  const std::int64_t* thread;
  std::size_t count;
};

/// For each interval, in one pass:
/// `parent`, the one that was open last when it begins, or -1;
/// `longer`, the next one around it that ends later (all in between have ended by then), or -1;
/// `own`, its time while no later one of the thread is open: each moment belongs to the one that began last.
void nest(const Intervals& intervals, std::int32_t* parent, std::int32_t* longer, std::int64_t* own) noexcept;

/// For each place, the interval that is open there and began last, or -1. All intervals are of one thread, and `longer`
/// is that of `nest`.
void open_at(const Intervals& intervals, const std::int32_t* longer, const std::int64_t* place, std::size_t number,
             std::int64_t* owner);

/// Adds to the figure of each element of a forest those of all elements below it. `parent` is an index or -1; elements
/// of a cycle keep what is not around it.
void add_those_below(const std::int64_t* parent, std::size_t count, std::int64_t* figure);

/// For some begins of calls that nest, among all their begins and ends in the order of time: the begin of the call
/// around each, or -1. `asked` ascends.
void begun_around(const bool* is_begin, std::size_t count, const std::int64_t* asked, std::size_t number,
                  std::int64_t* around);

/// For each element of a forest, the first chosen one from itself up to its root, or -1. `parent` is an index or -1; in
/// a cycle without a chosen element there is none.
void first_around(const std::int32_t* parent, const bool* chosen, std::size_t count, std::int32_t* around) noexcept;

}  // namespace stagespan::trace
