// resolver.h: finds out what the device spent on pending spans, and writes it to the arena.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "backend.h"
#include "device_queue.h"
#include "time_base.h"

namespace stagespan::device {

/// What is known of a span's device part; kUnknownNs where it is not.
struct DeviceResult {
  std::int64_t elapsed_ns;
  std::int64_t queue_ns;
  std::int64_t tail_ns;
};

/// Results by span id, for spans whose result was requested.
class Results {
 public:
  void put(std::uint64_t id, const DeviceResult& result);
  std::optional<DeviceResult> take(std::uint64_t id);
  bool has(std::uint64_t id);

 private:
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, DeviceResult> kept_;
};

/// Resolves the spans of one layer. The spans of a stream end in order, so only the first of each is asked for.
class Resolver {
 public:
  Resolver(EventBackend& backend, Results& results) : backend_(backend), results_(results) {}

  /// One look at everything that is pending; gives the number of spans that are settled now. Does not wait for
  /// the device, nor for another thread's look: gives 0 where one is going on.
  std::uint32_t pass(Layer& layer);

  /// Spans taken from their queues and not settled.
  std::uint32_t held() const noexcept { return held_.load(std::memory_order_seq_cst); }
  std::uint64_t resolved() const noexcept { return resolved_.load(std::memory_order_relaxed); }
  /// How far a position may be off, and how old the newest base is; nothing without one.
  std::optional<double> base_error_ns() const;
  std::optional<double> base_age_s() const;

 private:
  struct Settled {
    DeviceResult result;
    std::uint64_t id;
    std::uint32_t stage;
    std::int32_t device;
    bool wanted;
  };

  void collect(const std::vector<DeviceQueue*>& queues);
  void settle_stream(Layer& layer, std::deque<Pending>& spans, const ClockFit& fit, std::uint32_t& left);
  void settle(Layer& layer, const Pending& span, const ClockFit& fit);
  void settle_unknown(const Pending& span);
  void settle_without_asking(Layer& layer, const ClockFit& fit);
  void look_after_late(Layer& layer);
  void refresh_bases(Layer& layer, const ClockFit& fit);
  void write();

  EventBackend& backend_;
  Results& results_;
  std::atomic_flag is_passing_;  // set by the thread that resolves. No thread waits for it: see pass()
  std::map<StreamRef, std::deque<Pending>> streams_;
  std::map<void*, TimeBase> bases_;
  std::vector<Settled> settled_;
  std::deque<EventPair*> late_;  // of spans that were given up: whatever they wait for may still come
  std::atomic<std::uint32_t> held_{0};
  std::atomic<std::uint64_t> resolved_{0};
  // Of all bases, for those who must not wait for the lock.
  std::atomic<double> base_error_ns_{0};
  std::atomic<std::uint64_t> newest_base_ticks_{0};
};

}  // namespace stagespan::device
