// places.cpp: one pass. Most events are of the same thread as the event before them.
#include "trace/places.h"

#include <algorithm>

namespace stagespan::trace {

namespace {

std::int32_t number_of(const ThreadAxis& axis, std::int64_t process, std::int64_t tid) noexcept {
  std::size_t low = 0, high = axis.threads;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    const std::int64_t* const owner = axis.owner + 2 * middle;
    if (owner[0] < process || (owner[0] == process && owner[1] < tid))
      low = middle + 1;
    else
      high = middle;
  }
  const std::int64_t* const owner = axis.owner + 2 * low;
  const bool same = low < axis.threads && owner[0] == process && owner[1] == tid;
  return same ? static_cast<std::int32_t>(low) : -1;
}

}  // namespace

std::size_t place_events(const TimedEvents& events, const ThreadAxis& axis, std::int32_t* thread,
                         const PlacedEvents& placed) noexcept {
  std::size_t count = 0;
  std::int32_t number = -1;
  for (std::size_t at = 0; at < events.count; ++at) {
    const bool same = at > 0 && events.process[at] == events.process[at - 1] && events.tid[at] == events.tid[at - 1];
    if (!same) number = number_of(axis, events.process[at], events.tid[at]);
    thread[at] = number;
    if (number < 0 || events.end[at] < axis.begin || events.begin[at] > axis.end) continue;
    const std::int64_t part = number * axis.stride - axis.begin;
    placed.row[count] = static_cast<std::int64_t>(at);
    placed.begin[count] = part + std::max(events.begin[at], axis.begin);
    placed.end[count] = part + std::min(events.end[at], axis.end);
    ++count;
  }
  return count;
}

}  // namespace stagespan::trace
