// figures_move.h: shows readers of statistics that figures move from block to block.
#pragma once

#include <atomic>
#include <cstdint>

#include "layout.h"

namespace stagespan {

/// While this object exists, figures move from block to block and the version is odd. Readers that may have seen some
/// figures twice or not at all try again.
class FiguresMove {
 public:
  explicit FiguresMove(ArenaHeader& header) noexcept : version_(header.fold_version) {
    version_.fetch_add(1, std::memory_order_relaxed);
    store_fence();
  }
  ~FiguresMove() { version_.fetch_add(1, std::memory_order_release); }
  FiguresMove(const FiguresMove&) = delete;
  FiguresMove& operator=(const FiguresMove&) = delete;

 private:
  std::atomic<std::uint32_t>& version_;
};

}  // namespace stagespan
