// open_work.h: what open spans or requests have done so far, by unit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

namespace stagespan {

/// Sums by owner and key until the owner ends. A sum of an owner that never ends is replaced when no place is free.
/// Changed with the recorder's lock.
class OpenWork {
 public:
  /// Whether an owner may have sums. Without the lock, and exact for an owner of the calling thread that has none.
  bool may_have(std::uint64_t owner) const noexcept {
    return chains_[chain_of(owner)].load(std::memory_order_relaxed) != 0;
  }

  /// What became of an amount.
  enum class Added : std::uint8_t { kAgain, kFirst, kReplacing, kNoMemory };

  /// Adds to a sum, which is the first one of its owner or not.
  Added add(std::uint64_t owner, std::uint32_t key, double amount) noexcept {
    std::atomic<std::uint32_t>& chain = chains_[chain_of(owner)];
    bool is_first = true;
    for (std::uint32_t at = chain.load(std::memory_order_relaxed); at != 0; at = sums_[at].next) {
      if (sums_[at].owner != owner) continue;
      if (sums_[at].key == key) {
        sums_[at].amount += amount;
        return Added::kAgain;
      }
      is_first = false;
    }
    if (!sums_) sums_.reset(new (std::nothrow) Sum[kPlaces]);
    if (!sums_) return Added::kNoMemory;
    const bool is_full = free_ == 0 && used_ + 1 == kPlaces;
    if (is_full) {
      next_replaced_ = next_replaced_ % (kPlaces - 1) + 1;
      remove(next_replaced_);
    }
    std::uint32_t at = free_;
    if (at != 0)
      free_ = sums_[at].next;
    else
      at = ++used_;
    sums_[at] = {owner, amount, key, chain.load(std::memory_order_relaxed)};
    chain.store(at, std::memory_order_relaxed);
    return is_full ? Added::kReplacing : is_first ? Added::kFirst : Added::kAgain;
  }

  /// Removes the sums of an owner, and calls `function` with the key and the amount of each.
  template <class Function>
  void take(std::uint64_t owner, Function function) noexcept {
    std::uint32_t at = chains_[chain_of(owner)].load(std::memory_order_relaxed);
    while (at != 0) {
      const Sum sum = sums_[at];
      if (sum.owner == owner) {
        remove(at);
        function(sum.key, sum.amount);
      }
      at = sum.next;
    }
  }

  void clear() noexcept {
    for (std::atomic<std::uint32_t>& chain : chains_) chain.store(0, std::memory_order_relaxed);
    used_ = free_ = 0;
  }

 private:
  static constexpr std::uint32_t kChains = 1024;
  static constexpr std::uint32_t kPlaces = 1U << 14;  // the first one is not used: 0 ends a chain

  struct Sum {
    std::uint64_t owner;
    double amount;
    std::uint32_t key;
    std::uint32_t next;
  };

  static std::uint32_t chain_of(std::uint64_t owner) noexcept {
    return static_cast<std::uint32_t>(owner * 0x9e3779b97f4a7c15 >> 54);
  }

  void remove(std::uint32_t place) noexcept {
    std::atomic<std::uint32_t>& chain = chains_[chain_of(sums_[place].owner)];
    const std::uint32_t next = sums_[place].next;
    if (chain.load(std::memory_order_relaxed) == place) {
      chain.store(next, std::memory_order_relaxed);
    } else {
      std::uint32_t at = chain.load(std::memory_order_relaxed);
      while (sums_[at].next != place) at = sums_[at].next;
      sums_[at].next = next;
    }
    sums_[place].next = free_;
    free_ = place;
  }

  std::atomic<std::uint32_t> chains_[kChains]{};  // the first place of each, or 0
  std::unique_ptr<Sum[]> sums_;
  std::uint32_t free_ = 0;
  std::uint32_t used_ = 0;
  std::uint32_t next_replaced_ = 0;
};

/// The work of open spans, by their ids.
extern constinit OpenWork g_span_work;

}  // namespace stagespan
