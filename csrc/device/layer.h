// layer.h: the device on which spans are timed: attaching it, the queues of its threads, and its failures.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "device_queue.h"
#include "resolver.h"
#include "stagespan/thread_state.h"

namespace stagespan::device {

/// An attached device. Never destroyed, because spans may be open in it, and static destructors must not call a driver.
class Layer {
 public:
  Layer(std::string kind, std::unique_ptr<EventBackend> backend, Results& results);

  const std::string& kind() const noexcept { return kind_; }
  EventBackend& backend() const noexcept { return *backend_; }
  Resolver& resolver() noexcept { return resolver_; }

  /// The calling thread's queue in this layer; null if there are too many threads.
  DeviceQueue* queue_of(ThreadState& thread) noexcept;
  /// Returns two events for a span, from the thread's pool, from those without an owner, or new; null if there are
  /// none.
  EventPair* take(DeviceQueue& queue, const StreamRef& where) noexcept;
  /// Returns a pair with finished events to its queue, or to the shared ones if there are many pairs, so that idle
  /// threads do not keep them. Called by the resolver.
  void give_back(EventPair& pair) noexcept;
  /// Removes a pair that must not be used again from the count, so that another can be created. Its events are not
  /// destroyed, because their context may no longer exist. Called by the resolver.
  void forget(EventPair& pair) noexcept;
  /// Passes a pair to the resolver, which returns it to its queue. Called on any thread.
  void abandon(EventPair& pair) noexcept;

  std::vector<DeviceQueue*> queues();
  /// A list of abandoned pairs.
  EventPair* take_abandoned() noexcept;
  std::uint32_t pending();
  std::uint32_t pairs() const noexcept { return pairs_.load(std::memory_order_relaxed); }
  std::uint32_t threads();

  /// After many consecutive failures, or if the driver has shut down, nothing more is timed on this device.
  void note_failure() noexcept;
  void note_success() noexcept;
  bool has_failed() const noexcept { return failed_.load(std::memory_order_relaxed); }

  void note_capture() noexcept { captured_at_ticks_.store(now_ticks(), std::memory_order_relaxed); }
  bool captured_lately(const ClockFit& fit) const noexcept;

  double timeout_s() const noexcept;

 private:
  void adopt_spare(DeviceQueue& queue, void* context) noexcept;
  bool make_room(DeviceQueue& queue) noexcept;
  void add_spare_locked(EventPair& pair) noexcept;

  std::string kind_;
  std::unique_ptr<EventBackend> backend_;
  Resolver resolver_;
  std::mutex registry_;
  std::vector<DeviceQueue*> queues_;  // with memory for the maximum number
  EventPair* abandoned_ = nullptr;
  std::map<void*, EventPair*> spare_;  // without an owner, by context
  EventPair* forgotten_ = nullptr;     // used by the resolver
  std::atomic<bool> has_spare_{false};
  std::atomic<std::uint32_t> pairs_{0};
  std::atomic<std::uint32_t> failures_{0};
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> captured_at_ticks_{0};
};

/// Times all spans on this device from now on, instead of the previous one.
void attach(std::string kind, std::unique_ptr<EventBackend> backend);
/// Spans that are pending are still resolved.
void detach();
/// The attached device, or null.
Layer* attached() noexcept;
/// The device that was attached last, even if it is detached now.
Layer* latest() noexcept;
/// Whether this is a forked child of a process with a device. Drivers do not work after a fork.
bool is_forked() noexcept;

/// The number of spans that wait for a device.
std::uint32_t pending() noexcept;
/// Checks all of them once. Returns the number of spans that were settled.
std::uint32_t resolve_pass();
/// Checks repeatedly, with longer and longer pauses, until nothing is pending or the time is over. Returns the number
/// of pending spans.
std::uint32_t resolve(double timeout_s);
/// Returns the result of a span whose result was requested, once.
std::optional<DeviceResult> take_result(std::uint64_t id);
/// Whether take_result() would return a result.
bool has_result(std::uint64_t id);

/// Every n-th span of a stage in a thread is timed on the device; 0 means no spans.
void set_every(std::uint32_t every) noexcept;
std::uint32_t every() noexcept;

/// The maximum wait for the device work of a span, in seconds.
void set_timeout(double seconds) noexcept;

/// Wakes the resolver if spans were queued while it sleeps.
struct Waker {
  std::atomic<bool> sleeps{false};  // set, sequentially consistent with the queues, before their last check
  std::atomic<void (*)(bool urgent)> wake{nullptr};
};
extern Waker g_waker;

}  // namespace stagespan::device
