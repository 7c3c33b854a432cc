// standin.h: what the stand-in's two libraries share, the device that torch sees and its vendor's runtime.
#pragma once

#include <atomic>
#include <cstdint>

namespace standin {

/// An event as the device's runtime has it. Times are nanoseconds on the device's own clock.
struct Event {
  std::atomic<std::uint64_t> recorded{0};  // how often its recording was asked for
  std::atomic<std::uint64_t> reached{0};   // the latest of these that the stream has come to
  std::atomic<std::int64_t> time_ns{0};
};

}  // namespace standin
