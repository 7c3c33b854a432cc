// covers.cpp: the union in one pass, and a search that begins where the previous one ended.
#include "trace/covers.h"

#include <algorithm>

namespace stagespan::trace {

namespace {

// Joins an interval to the last of the union, or appends it.
void add(const IntervalTable& intervals, std::size_t at, std::int64_t* begin, std::int64_t* end,
         std::size_t* merged) noexcept {
  if (*merged > 0 && intervals.begin[at] <= end[*merged - 1]) {
    end[*merged - 1] = std::max(end[*merged - 1], intervals.end[at]);
  } else {
    begin[*merged] = intervals.begin[at];
    end[(*merged)++] = intervals.end[at];
  }
}

}  // namespace

bool ascends(const IntervalTable& intervals) noexcept {
  return std::is_sorted(intervals.begin, intervals.begin + intervals.count);
}

std::size_t merge(const IntervalTable& intervals, std::int64_t* begin, std::int64_t* end) noexcept {
  std::size_t merged = 0;
  for (std::size_t at = 0; at < intervals.count; ++at) add(intervals, at, begin, end, &merged);
  return merged;
}

std::size_t unite(const IntervalTable& first, const IntervalTable& second, std::int64_t* begin,
                  std::int64_t* end) noexcept {
  std::size_t merged = 0, one = 0, other = 0;
  while (one < first.count && other < second.count) {
    if (first.begin[one] <= second.begin[other])
      add(first, one++, begin, end, &merged);
    else
      add(second, other++, begin, end, &merged);
  }
  while (one < first.count) add(first, one++, begin, end, &merged);
  while (other < second.count) add(second, other++, begin, end, &merged);
  return merged;
}

void covered_until(const IntervalTable& intervals, const std::int64_t* before, const std::int64_t* place,
                   std::size_t count, std::int64_t* covered) noexcept {
  const std::int64_t* const first = intervals.begin;
  const std::int64_t* const last = first + intervals.count;
  // The first interval that begins after the place. Most places ascend, so that it is the same or one of the next.
  const std::int64_t* after = first;
  for (std::size_t at = 0; at < count; ++at) {
    const std::int64_t here = place[at];
    if (after > first && after[-1] > here) {
      after = std::upper_bound(first, after, here);
    } else {
      std::ptrdiff_t stride = 1;
      while (last - after > stride && after[stride] <= here) {
        after += stride;
        stride *= 2;
      }
      after = std::upper_bound(after, std::min(after + stride, last), here);
    }
    if (after == first) {
      covered[at] = 0;
      continue;
    }
    const std::ptrdiff_t around = after - first - 1;
    covered[at] = before[around] + std::min(here, intervals.end[around]) - first[around];
  }
}

}  // namespace stagespan::trace
