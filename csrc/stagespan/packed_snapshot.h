// packed_snapshot.h: a snapshot in little memory, to be kept for time windows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "snapshot.h"

namespace stagespan {

/// A snapshot of this process in about 2 bytes for each bucket in use and 50 for each stage, a tenth of the original.
class PackedSnapshot {
 public:
  explicit PackedSnapshot(const Snapshot& snapshot);

  /// The snapshot as it was.
  Snapshot unpack() const;

  std::int64_t unix_ns() const noexcept { return without_stages_.unix_ns; }
  std::size_t size_bytes() const noexcept { return sizeof(*this) + packed_.capacity(); }

 private:
  Snapshot without_stages_;
  std::string packed_;
};

}  // namespace stagespan
