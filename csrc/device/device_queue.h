// device_queue.h: the events of one thread and its pending device spans, shared with the resolver without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "backend.h"
#include "stagespan/layout.h"

namespace stagespan::device {

class Layer;
class DeviceQueue;

/// The two events of a span. Belongs to the queue of the thread that made it, to which it always returns.
struct EventPair {
  Event begin = nullptr;
  Event end = nullptr;
  DeviceQueue* home = nullptr;
  EventPair* next = nullptr;  // while it is free
  StreamRef stream;
};

/// A span that has ended on the host.
struct Pending {
  EventPair* pair;
  std::uint64_t id;
  std::uint64_t begin_ticks;
  std::uint64_t end_ticks;
  std::uint32_t stage;
  bool wanted;  // its result will be requested by id
};

/// A ring with one writing and one reading thread.
template <class T, std::uint32_t capacity>
class Ring {
  static_assert((capacity & (capacity - 1)) == 0);

 public:
  bool push(const T& item) noexcept {
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) >= capacity) return false;
    items_[tail & (capacity - 1)] = item;
    // Sequentially consistent with the flag of a sleeping reader: see Waker.
    tail_.store(tail + 1, std::memory_order_seq_cst);
    return true;
  }
  bool pop(T& item) noexcept {
    const std::uint32_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    item = items_[head & (capacity - 1)];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }
  /// From any thread: items that are pushed and popped at the same time may count, items that are in the ring all the
  /// time always do.
  std::uint32_t size() const noexcept {
    // The head is read first, in its own statement. If it were read after the tail, it could be ahead of it.
    const std::uint32_t head = head_.load(std::memory_order_seq_cst);
    return tail_.load(std::memory_order_seq_cst) - head;
  }

 private:
  alignas(64) std::atomic<std::uint32_t> tail_{0};
  alignas(64) std::atomic<std::uint32_t> head_{0};
  alignas(64) std::array<T, capacity> items_;
};

inline constexpr std::uint32_t kPairsPerThread = 4096;
inline constexpr std::uint32_t kPairsPerProcess = 16384;  // an NPU has 65,535 events
/// The number of events that a thread may keep after more than half of the process's events have been created. If all
/// threads keep this many, the other half is left for threads that need more.
inline constexpr std::uint32_t kPairsToKeep = kPairsPerProcess / 2 / kMaxThreads;
inline constexpr std::uint32_t kQueueSpans = 8192;
inline constexpr std::uint32_t kUrgentSpans = 1024;

class DeviceQueue {
 public:
  explicit DeviceQueue(Layer& layer) noexcept : layer_(layer) {}

  Layer& layer() const noexcept { return layer_; }

  // Called by the owning thread. Whether the stage's next span is one of every `every`.
  bool is_due(std::uint32_t stage, std::uint32_t every) noexcept;
  /// Returns a free pair for a stream, or null.
  EventPair* take(const StreamRef& where) noexcept;
  /// Creates a pair; null if no more are allowed.
  EventPair* make(const StreamRef& where, EventBackend& backend, std::atomic<std::uint32_t>& in_process) noexcept;
  /// Whether the last make() failed because of the driver, and not because of a limit.
  bool is_refused() const noexcept { return is_refused_; }
  void put_back(EventPair& pair) noexcept;
  /// Adds a pair of another queue.
  void adopt(EventPair& pair) noexcept;
  /// Whether it has space for events of another context.
  bool knows(void* context) noexcept { return events_of(context) != nullptr; }
  /// Whether it may create another pair.
  bool has_room() const noexcept { return owned_.load(std::memory_order_relaxed) < kPairsPerThread; }
  /// Removes and returns a free pair of any context, or null.
  EventPair* give_up_one() noexcept;
  /// Removes and returns all free pairs.
  EventPair* release_free() noexcept;
  bool push(const Pending& pending) noexcept { return pending_.push(pending); }

  // Called by the resolver.
  bool pop(Pending& pending) noexcept { return pending_.pop(pending); }
  void give_back(EventPair& pair) noexcept { returned_.push(&pair); }
  /// Whether a pair that returns to this queue loses its owner instead.
  bool spares_one() noexcept;
  /// Notes that one of its pairs will not return.
  void lose_one() noexcept { owned_.fetch_sub(1, std::memory_order_relaxed); }

  std::uint32_t size() const noexcept { return pending_.size(); }

  /// Its thread has ended, so another thread may use it.
  std::atomic<bool> is_left{false};

 private:
  /// The free events of a context.
  struct ContextEvents {
    void* context;
    EventPair* free;
  };
  static constexpr std::uint32_t kContexts = 32;

  ContextEvents* events_of(void* context) noexcept;
  void collect() noexcept;

  Layer& layer_;
  std::array<ContextEvents, kContexts> contexts_{};
  std::uint32_t context_count_ = 0;
  EventPair* strays_ = nullptr;  // free pairs of contexts that are no longer in contexts_
  bool is_refused_ = false;
  std::atomic<std::uint32_t> owned_{0};           // pairs that return to this queue
  std::array<std::uint32_t, kMaxStages> seen_{};  // spans of a stage since the last one that was timed
  Ring<Pending, kQueueSpans> pending_;
  Ring<EventPair*, kQueueSpans> returned_;
};

}  // namespace stagespan::device
