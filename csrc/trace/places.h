// places.h: the events of some threads as intervals on one axis, on which each thread has a part of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stagespan::trace {

struct TimedEvents {
  const std::int32_t* thread;  // of those on the axis, or -1
  const std::int64_t* begin;
  const std::int64_t* duration;
  std::size_t count;
};

/// A window of time, which each thread has `stride` ns of the axis for.
struct ThreadAxis {
  std::int64_t begin, end, stride;
};

/// Events on the axis: what begins before the window, or ends after it, is cut there.
struct PlacedEvents {
  std::int32_t* row;
  std::int64_t* begin;
  std::int64_t* end;
};

/// Writes the events that touch the window. Returns how many they are. There is room for all events.
std::size_t place_events(const TimedEvents& events, const ThreadAxis& axis, const PlacedEvents& placed) noexcept;

}  // namespace stagespan::trace
