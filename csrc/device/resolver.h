// resolver.h: finds the device times of pending spans, and writes them to the arena.
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

/// The device times of a span; kUnknownNs for unknown ones.
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

/// Resolves the spans of one layer. The spans of a stream end in order, so only the first of each is queried.
class Resolver {
 public:
  Resolver(EventBackend& backend, Results& results) : backend_(backend), results_(results) {}

  /// Checks all pending spans once. Returns the number of settled spans. Does not wait for the device. Returns 0 if
  /// another thread is doing the same.
  std::uint32_t pass(Layer& layer);

  /// The number of spans that were taken from their queues and are not settled.
  std::uint32_t held() const noexcept { return held_.load(std::memory_order_seq_cst); }
  std::uint64_t resolved() const noexcept { return resolved_.load(std::memory_order_relaxed); }
  /// The error of positions, and the age of the newest base; nothing without a base.
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
  std::deque<EventPair*> late_;  // of abandoned spans, whose events may still complete
  std::atomic<std::uint32_t> held_{0};
  std::atomic<std::uint64_t> resolved_{0};
  // The largest error of the contexts' latest bases, and the ticks of the newest base (0: there is none), for readers
  // in other threads.
  std::atomic<double> base_error_ns_{0};
  std::atomic<std::uint64_t> newest_base_ticks_{0};
};

}  // namespace stagespan::device
