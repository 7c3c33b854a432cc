// ring_watch.h: waits until the rings of some recordings have to be read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stagespan {

/// What is left until a ring is full, for a reader that is late.
inline constexpr double kEnough_s = 0.3;

/// A recording that was read.
struct ReadRings {
  int fd = -1;
  std::vector<std::uint64_t> heads;  // of its rings at that time, as recording_heads() returns them
  std::uint64_t ring_spans = 0;
};

/// Waits for so many seconds, but no longer than until a ring has to be read: once half of it is new, or up to three
/// quarters if the rest lasts for long enough. Returns whether there is one. Returns false at once if there is
/// something to read in `signal_fd`, and soon if there are other files in a folder.
bool wait_for_rings(int signal_fd, double seconds, const std::vector<ReadRings>& recordings,
                    const std::vector<std::string>& folders);

}  // namespace stagespan
