// standin.h: common code of the stand-in's two libraries: the device for torch, and its vendor's runtime.
#pragma once

#include <atomic>
#include <cstdint>

namespace standin {

/// An event of the device's runtime. Times are nanoseconds on the device's own clock.
struct Event {
  std::atomic<std::uint64_t> recorded{0};  // how often its recording was requested
  std::atomic<std::uint64_t> reached{0};   // the latest of these that the stream has reached
  std::atomic<std::int64_t> time_ns{0};
};

}  // namespace standin
