// places.h: the events of some threads as intervals on one axis, on which each thread has a part of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stagespan::trace {

struct TimedEvents {
  const std::int64_t* process;
  const std::int64_t* tid;
  const std::int64_t* begin;
  const std::int64_t* end;
  std::size_t count;
};

/// A window, and the threads whose events have a place. Each has `stride` ns of the axis, in the order of `owner`:
/// process and thread alternate, and the pairs ascend.
struct ThreadAxis {
  const std::int64_t* owner;
  std::size_t threads;
  std::int64_t begin, end, stride;
};

/// Events on the axis: what begins before the window, or ends after it, is cut there.
struct PlacedEvents {
  std::int64_t* row;
  std::int64_t* begin;
  std::int64_t* end;
};

/// Writes the number of each event's thread, or -1, and the events of these threads that touch the window. Returns how
/// many they are. There is room for all events.
std::size_t place_events(const TimedEvents& events, const ThreadAxis& axis, std::int32_t* thread,
                         const PlacedEvents& placed) noexcept;

}  // namespace stagespan::trace
