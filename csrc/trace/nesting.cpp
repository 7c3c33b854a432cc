// nesting.cpp: one pass over the begins; what is open is a chain through `longer`.
#include "trace/nesting.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "trace/wrapping.h"

namespace stagespan::trace {

namespace {

// The number of elements below one that has been added to its parent.
constexpr std::uint32_t done = std::numeric_limits<std::uint32_t>::max();

}  // namespace

void nest(const Intervals& intervals, std::int32_t* parent, std::int32_t* longer, std::int64_t* own) noexcept {
  // Not a structured binding: Clang before 16 does not capture those in the functions below.
  const std::int64_t *const begin = intervals.begin, *const end = intervals.end, *const thread = intervals.thread;
  const std::size_t count = intervals.count;
  std::int32_t top = -1;
  std::int64_t reached = 0;
  // Gives the time until `until` to the intervals that are open, and leaves those that have ended by then.
  const auto advance = [&](std::int64_t until) {
    while (top >= 0 && end[top] <= until) {
      own[top] += between(reached, end[top]);
      reached = end[top];
      top = longer[top];
    }
    if (top >= 0) own[top] += between(reached, until);
    reached = until;
  };
  const auto finish = [&] {
    while (top >= 0) advance(end[top]);
  };
  for (std::size_t at = 0; at < count; ++at) {
    own[at] = 0;
    if (at > 0 && thread[at] != thread[at - 1]) finish();
    advance(begin[at]);
    parent[at] = top;
    // Each interval leaves the chain at most once, so that this takes linear time.
    std::int32_t above = top;
    while (above >= 0 && end[above] <= end[at]) above = longer[above];
    longer[at] = above;
    top = static_cast<std::int32_t>(at);
  }
  finish();
}

void open_at(const Intervals& intervals, const std::int32_t* longer, const std::int64_t* place, std::size_t number,
             std::int64_t* owner) {
  // In the order of the places, an interval that has ended is never open again, so that this takes linear time.
  std::vector<std::size_t> order;
  if (!std::is_sorted(place, place + number)) {
    order.resize(number);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [place](std::size_t a, std::size_t b) { return place[a] < place[b]; });
  }
  std::int64_t top = -1;
  const std::int64_t* next = intervals.begin;
  const std::int64_t* const last = intervals.begin + intervals.count;
  for (std::size_t i = 0; i < number; ++i) {
    const std::size_t at = order.empty() ? i : order[i];
    const std::int64_t* const after = std::find_if(next, last, [&](std::int64_t begin) { return begin > place[at]; });
    if (after != next) top = after - intervals.begin - 1;
    next = after;
    while (top >= 0 && intervals.end[top] <= place[at]) top = longer[top];
    owner[at] = top;
  }
}

void add_those_below(const std::int64_t* parent, std::size_t count, std::int64_t* figure) {
  std::vector<std::uint32_t> below(count);
  for (std::size_t at = 0; at < count; ++at)
    if (parent[at] >= 0) ++below[static_cast<std::size_t>(parent[at])];
  // Each element is added to its parent when all below it have been added to it.
  for (std::size_t at = count; at-- > 0;) {
    auto here = static_cast<std::int64_t>(at);
    while (here >= 0 && below[static_cast<std::size_t>(here)] == 0) {
      below[static_cast<std::size_t>(here)] = done;
      const std::int64_t above = parent[here];
      if (above < 0) break;
      figure[above] = sum(figure[above], figure[here]);
      // Those that come later in this loop are added there.
      if (--below[static_cast<std::size_t>(above)] > 0 || above < static_cast<std::int64_t>(at)) break;
      here = above;
    }
  }
}

void begun_around(const bool* is_begin, std::size_t count, const std::int64_t* asked, std::size_t number,
                  std::int64_t* around) {
  std::vector<std::int64_t> open;
  std::size_t next = 0;
  for (std::size_t at = 0; at < count && next < number; ++at) {
    for (; next < number && asked[next] == static_cast<std::int64_t>(at); ++next)
      around[next] = open.empty() ? -1 : open.back();
    if (is_begin[at])
      open.push_back(static_cast<std::int64_t>(at));
    else if (!open.empty())
      open.pop_back();
  }
}

void first_around(const std::int32_t* parent, const bool* chosen, std::size_t count, std::int32_t* around) noexcept {
  constexpr std::int32_t unknown = -2, on_the_way = -3;
  std::fill_n(around, count, unknown);
  for (std::size_t at = 0; at < count; ++at) {
    auto top = static_cast<std::int32_t>(at);
    while (top >= 0 && around[top] == unknown && !chosen[top]) {
      around[top] = on_the_way;
      top = parent[top];
    }
    std::int32_t found = -1;
    if (top >= 0 && around[top] != on_the_way) found = around[top] = around[top] == unknown ? top : around[top];
    for (auto low = static_cast<std::int32_t>(at); low >= 0 && around[low] == on_the_way; low = parent[low])
      around[low] = found;
  }
}

}  // namespace stagespan::trace
