// nesting.cpp: one pass over the begins; what is open is a chain through `longer`.
#include "trace/nesting.h"

namespace stagespan::trace {

namespace {

/// Times of a damaged file may be too far apart for 64 bits: the result is then as wrong as they are.
std::int64_t between(std::int64_t from, std::int64_t to) noexcept {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from));
}

}  // namespace

void nest(const Intervals& intervals, std::int64_t* parent, std::int64_t* longer, std::int64_t* own) noexcept {
  const auto [begin, end, thread, count] = intervals;
  std::int64_t top = -1;
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
    std::int64_t above = top;
    while (above >= 0 && end[above] <= end[at]) above = longer[above];
    longer[at] = above;
    top = static_cast<std::int64_t>(at);
  }
  finish();
}

}  // namespace stagespan::trace
