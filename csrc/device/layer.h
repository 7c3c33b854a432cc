// layer.h: the device that spans are timed on: attaching it, its threads' queues, its failures.
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

/// A device as it was attached. Never destroyed: spans may be open in it, and no static destructor may touch a
/// driver.
class Layer {
 public:
  Layer(std::string kind, std::unique_ptr<EventBackend> backend, Results& results);

  const std::string& kind() const noexcept { return kind_; }
  EventBackend& backend() const noexcept { return *backend_; }
  Resolver& resolver() noexcept { return resolver_; }

  /// The calling thread's queue in this layer; null when there are too many threads.
  DeviceQueue* queue_of(ThreadState& thread) noexcept;
  /// Returns two events for a span, from the thread's pool, from those without an owner, or new; null if there are
  /// none.
  EventPair* take(DeviceQueue& queue, const StreamRef& where) noexcept;
  /// Sends a pair home whose events are done; to those that all threads may have where many have been made, so that
  /// threads which stand still do not keep them. By the resolver.
  void give_back(EventPair& pair) noexcept;
  /// Takes a pair that must not be used again off those that are counted, so that another may be made in its place. Its
  /// events are left to the driver, which may have lost their context. By the resolver.
  void forget(EventPair& pair) noexcept;
  /// Hands a pair to the resolver, which sends it home. From any thread.
  void abandon(EventPair& pair) noexcept;

  std::vector<DeviceQueue*> queues();
  /// Those that were abandoned, behind one another.
  EventPair* take_abandoned() noexcept;
  std::uint32_t pending();
  std::uint32_t pairs() const noexcept { return pairs_.load(std::memory_order_relaxed); }
  std::uint32_t threads();

  /// Many failures in a row, or a driver that is gone: nothing is timed on this device any more.
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
  std::vector<DeviceQueue*> queues_;  // with memory for all that there may be
  EventPair* abandoned_ = nullptr;
  std::map<void*, EventPair*> spare_;  // without an owner, by context
  EventPair* forgotten_ = nullptr;     // the resolver's
  std::atomic<bool> has_spare_{false};
  std::atomic<std::uint32_t> pairs_{0};
  std::atomic<std::uint32_t> failures_{0};
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> captured_at_ticks_{0};
};

/// Times all spans on this device from now on, in place of the one that was attached before.
void attach(std::string kind, std::unique_ptr<EventBackend> backend);
/// Spans that are pending are still resolved.
void detach();
/// The device that is attached; null without one.
Layer* attached() noexcept;
/// The one that was attached last, attached or not.
Layer* latest() noexcept;
/// In the child of a process that had a device attached: drivers do not survive that.
bool is_forked() noexcept;

/// Spans that wait for a device.
std::uint32_t pending() noexcept;
/// One look at all of them; gives the number that is settled now.
std::uint32_t resolve_pass();
/// Looks again and again, more and more rarely, until nothing is pending or the time is over; gives what is left.
std::uint32_t resolve(double timeout_s);
/// The result of a span that was ended as wanted, once.
std::optional<DeviceResult> take_result(std::uint64_t id);
/// Whether take_result() would give one.
bool has_result(std::uint64_t id);

/// Every n-th span of a stage in a thread is timed on the device; 0 means no spans.
void set_every(std::uint32_t every) noexcept;
std::uint32_t every() noexcept;

/// How long a span's device work is waited for, in seconds.
void set_timeout(double seconds) noexcept;

/// Wakes the resolver if spans have come while it sleeps.
struct Waker {
  std::atomic<bool> sleeps{false};  // set, in one order with the queues, before it looks at them a last time
  std::atomic<void (*)(bool urgent)> wake{nullptr};
};
extern Waker g_waker;

}  // namespace stagespan::device
