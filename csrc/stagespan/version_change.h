// version_change.h: shows readers without a lock that several fields change together.
#pragma once

#include <atomic>
#include <cstdint>

#include "layout.h"

namespace stagespan {

/// While this object exists, fields change and their version is odd. Readers that find it odd, or another one after
/// they have read the fields, may have seen some of them before and some after the change, and try again.
class VersionChange {
 public:
  explicit VersionChange(std::atomic<std::uint32_t>& version) noexcept : version_(version) {
    version_.fetch_add(1, std::memory_order_relaxed);
    store_fence();  // a reader that sees a changed field sees the odd version
  }
  ~VersionChange() { version_.fetch_add(1, std::memory_order_release); }
  VersionChange(const VersionChange&) = delete;
  VersionChange& operator=(const VersionChange&) = delete;

 private:
  std::atomic<std::uint32_t>& version_;
};

}  // namespace stagespan
