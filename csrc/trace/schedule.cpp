// schedule.cpp: passes over the edges of a graph whose edges are in topological order.
#include "trace/schedule.h"

#include <algorithm>
#include <vector>

#include "trace/wrapping.h"

namespace stagespan::trace {

bool in_range(const EdgeTable& edges) noexcept {
  const auto inside = [&](std::int64_t point) { return point >= 0 && static_cast<std::size_t>(point) < edges.points; };
  return std::all_of(edges.source, edges.source + edges.count, inside) &&
         std::all_of(edges.target, edges.target + edges.count, inside);
}

void earliest(const EdgeTable& edges, const std::int64_t* lags, std::size_t cases, std::int64_t* times) noexcept {
  for (std::size_t edge = 0; edge < edges.count; ++edge) {
    const std::int64_t* const from = times + static_cast<std::size_t>(edges.source[edge]) * cases;
    std::int64_t* const to = times + static_cast<std::size_t>(edges.target[edge]) * cases;
    const std::int64_t* const lag = lags + edge * cases;
    for (std::size_t at = 0; at < cases; ++at) to[at] = std::max(to[at], sum(from[at], lag[at]));
  }
}

void latest(const EdgeTable& edges, const std::int64_t* lags, std::int64_t* times) noexcept {
  for (std::size_t edge = edges.count; edge-- > 0;) {
    std::int64_t& from = times[edges.source[edge]];
    from = std::min(from, between(lags[edge], times[edges.target[edge]]));
  }
}

void topological_ranks(const EdgeTable& edges, std::int64_t* ranks) {
  std::vector<std::size_t> incoming(edges.points, 0);
  std::vector<std::size_t> first(edges.points + 1, 0);
  for (std::size_t edge = 0; edge < edges.count; ++edge) {
    ++incoming[static_cast<std::size_t>(edges.target[edge])];
    ++first[static_cast<std::size_t>(edges.source[edge]) + 1];
  }
  for (std::size_t point = 0; point < edges.points; ++point) first[point + 1] += first[point];
  std::vector<std::size_t> following(edges.count);
  std::vector<std::size_t> next(first.begin(), first.end() - 1);
  for (std::size_t edge = 0; edge < edges.count; ++edge)
    following[next[static_cast<std::size_t>(edges.source[edge])]++] = static_cast<std::size_t>(edges.target[edge]);
  std::vector<std::size_t> ready;
  ready.reserve(edges.points);
  for (std::size_t point = 0; point < edges.points; ++point) {
    ranks[point] = 0;
    if (incoming[point] == 0) ready.push_back(point);
  }
  for (std::size_t position = 0; position < ready.size(); ++position) {
    const std::size_t point = ready[position];
    ranks[point] = static_cast<std::int64_t>(position);
    for (std::size_t at = first[point]; at < first[point + 1]; ++at)
      if (--incoming[following[at]] == 0) ready.push_back(following[at]);
  }
}

}  // namespace stagespan::trace
