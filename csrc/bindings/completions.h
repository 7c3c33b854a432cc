// completions.h: finished contexts on their way to the service thread, which writes their log lines.
#pragma once

#include <cstdint>
#include <vector>

#include "device/resolver.h"

namespace stagespan::python {

struct Completion {
  std::uint64_t begin_ticks;
  std::uint64_t end_ticks;
  std::uint64_t ident;      // Python's ident of the thread
  std::int64_t peak_bytes;  // -1 when unknown
  std::uint32_t stage;
  std::uint32_t thread;  // the system's thread id
  std::uint32_t flags;
  std::uint64_t request = 0;
  std::uint64_t device_span = 0;  // id of the span whose device result is awaited; 0 if there is none
  device::DeviceResult device{kUnknownNs, kUnknownNs, kUnknownNs};
};

/// In Completion::flags, in addition to those of a record: the peak is an accelerator's, not the process's.
inline constexpr std::uint32_t kCompletionDeviceMemory = 1U << 16;

/// Queues a finished context unless the queue is full. The caller holds the interpreter's lock, which orders producers
/// and the consumer.
void push_completion(const Completion& completion) noexcept;

/// Removes and returns complete items, those of each thread in order: an item that awaits its device delays later ones
/// of its thread, unless `everything` is set.
std::vector<Completion> take_completions(bool everything);

/// Counts those for which the queue was full as lost log lines, unless nobody wants lines.
void count_unqueued_completions(bool were_wanted) noexcept;

/// The highest peak RSS of each stage's runs since the last forget_peak_rss(), in bytes; 0 if not known. Has an entry
/// for each of kMaxStages.
const std::int64_t* peak_rss_bytes_by_stage();
void forget_peak_rss();

/// Resolves device spans until something is queued, wake_waiter() is called, or the time is over. Call it without the
/// interpreter's lock. Returns because of queued work have a minimum interval, so that a busy program wakes the waiter
/// rarely.
bool wait_for_completions(double timeout_s);
void wake_waiter();
/// Makes the waiter check items that await their device.
void wake_for_results();
/// Called once when a device is attached, so that its spans wake the waiter.
void wait_for_devices_too();

/// Empties the queue in the child of a fork.
void completions_after_fork();

}  // namespace stagespan::python
