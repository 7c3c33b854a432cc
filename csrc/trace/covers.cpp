// covers.cpp: the union in one pass over each part that ascends, and a search that begins where the previous one ended.
#include "trace/covers.h"

#include <algorithm>
#include <numeric>
#include <vector>

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

/// A disjoint, ascending set that takes intervals which come near its end.
struct Union {
  std::vector<std::int64_t> begin, end;

  IntervalTable table() const noexcept { return {begin.data(), end.data(), begin.size()}; }

  /// Adds an interval; false if it ends before the last of the set begins.
  bool add(std::int64_t from, std::int64_t until) {
    if (!begin.empty() && begin.back() > from && begin.back() > until) return false;
    while (!begin.empty() && begin.back() > from) {
      until = std::max(until, end.back());
      begin.pop_back();
      end.pop_back();
    }
    if (!begin.empty() && from <= end.back()) {
      end.back() = std::max(end.back(), until);
    } else {
      begin.push_back(from);
      end.push_back(until);
    }
    return true;
  }
};

Union united(const Union& first, const Union& second) {
  Union result;
  result.begin.resize(first.begin.size() + second.begin.size());
  result.end.resize(result.begin.size());
  const std::size_t count = unite(first.table(), second.table(), result.begin.data(), result.end.data());
  result.begin.resize(count);
  result.end.resize(count);
  return result;
}

// Adds an interval to the first set that takes it, beginning with the one that took the previous one.
void add_to_one(std::vector<Union>* sets, std::size_t* latest, std::int64_t from, std::int64_t until) {
  for (std::size_t turn = 0; turn < sets->size(); ++turn) {
    const std::size_t at = (*latest + turn) % sets->size();
    if ((*sets)[at].add(from, until)) {
      *latest = at;
      return;
    }
  }
  *latest = sets->size();
  sets->emplace_back().add(from, until);
}

// Events of many threads, which are sorted.
Union of_sorted(const IntervalTable& intervals, std::size_t first) {
  std::vector<std::size_t> order(intervals.count - first);
  std::iota(order.begin(), order.end(), first);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return intervals.begin[a] < intervals.begin[b]; });
  Union result;
  for (const std::size_t at : order) result.add(intervals.begin[at], intervals.end[at]);
  return result;
}

}  // namespace

std::size_t merge(const IntervalTable& intervals, std::int64_t* begin, std::int64_t* end) {
  constexpr std::size_t most_sets = 32;
  std::size_t merged = 0;
  if (std::is_sorted(intervals.begin, intervals.begin + intervals.count)) {
    for (std::size_t at = 0; at < intervals.count; ++at) add(intervals, at, begin, end, &merged);
    return merged;
  }
  std::vector<Union> sets;
  std::size_t latest = 0, at = 0;
  for (; at < intervals.count && sets.size() < most_sets; ++at)
    add_to_one(&sets, &latest, intervals.begin[at], intervals.end[at]);
  if (at < intervals.count) sets.push_back(of_sorted(intervals, at));
  while (sets.size() > 1) {
    const std::size_t half = (sets.size() + 1) / 2;
    for (std::size_t one = 0; one + half < sets.size(); ++one) sets[one] = united(sets[one], sets[one + half]);
    sets.resize(half);
  }
  std::copy(sets[0].begin.begin(), sets[0].begin.end(), begin);
  std::copy(sets[0].end.begin(), sets[0].end.end(), end);
  return sets[0].begin.size();
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
