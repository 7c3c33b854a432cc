// places.cpp: one pass over all events.
#include "trace/places.h"

#include <algorithm>

namespace stagespan::trace {

std::size_t place_events(const TimedEvents& events, const ThreadAxis& axis, const PlacedEvents& placed) noexcept {
  std::size_t count = 0;
  for (std::size_t at = 0; at < events.count; ++at) {
    const std::int64_t begin = events.begin[at], end = begin + events.duration[at];
    if (events.thread[at] < 0 || end < axis.begin || begin > axis.end) continue;
    const std::int64_t part = events.thread[at] * axis.stride - axis.begin;
    placed.row[count] = static_cast<std::int32_t>(at);
    placed.begin[count] = part + std::max(begin, axis.begin);
    placed.end[count] = part + std::min(end, axis.end);
    ++count;
  }
  return count;
}

}  // namespace stagespan::trace
