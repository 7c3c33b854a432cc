// completions.cpp: a bounded queue, and waking its reader at most once in an interval.
#include "completions.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>

#include "device/layer.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostQueued = 8192;
constexpr auto kShortestInterval = std::chrono::milliseconds(20);
constexpr int kMostSleepsInVain = 8;
constexpr auto kPauseOfWrongClock = std::chrono::milliseconds(20);
// Pauses between two checks of pending device spans: short at first, and longer after each check without a result.
constexpr auto kFirstLook = std::chrono::milliseconds(1);
constexpr auto kNextLook = std::chrono::milliseconds(10);
constexpr auto kRarestLook = std::chrono::milliseconds(50);

struct Waiter {
  std::mutex mutex;
  std::condition_variable condition;
  bool woken = false;
  std::atomic<bool> has_work{false};
  std::atomic<bool> sleeps{false};         // a producer that finds it set clears it and wakes the waiter
  std::atomic<bool> urgent{false};         // a thread has many pending device spans
  std::atomic<std::uint32_t> awaiting{0};  // completions that wait for their device
  Clock::time_point last_return{};
};

// Never destroyed: the service thread may still wait when the process ends.
Waiter& g_waiter = *new Waiter;

// Completions in their order, at most kMostQueued. The memory is reserved at the start, so that a context that ends
// does not allocate. Unused pages take no memory.
class Queue {
 public:
  bool push(const Completion& completion) noexcept {
    if (size_ == kMostQueued) return false;
    new (&storage_[size_++ * sizeof(Completion)]) Completion(completion);
    return true;
  }
  std::size_t size() const noexcept { return size_; }
  Completion& operator[](std::size_t at) noexcept {
    return *std::launder(reinterpret_cast<Completion*>(&storage_[at * sizeof(Completion)]));
  }
  void shrink(std::size_t size) noexcept { size_ = size; }

 private:
  static_assert(std::is_trivially_destructible_v<Completion>);
  std::size_t size_ = 0;
  alignas(Completion) std::byte storage_[kMostQueued * sizeof(Completion)];
};

Queue g_queue;                              // guarded by the interpreter's lock
std::uint64_t g_unqueued = 0;               // since the queue was last read; guarded like it
std::int64_t g_peak_rss_bytes[kMaxStages];  // by stage, 0 if not known; guarded like the queue

void notify(bool woken) {
  {
    const std::lock_guard lock(g_waiter.mutex);
    g_waiter.woken = g_waiter.woken || woken;
  }
  g_waiter.condition.notify_all();
}

// Sequentially consistent with the flag: either the waiter sees the work, or the producer sees that it sleeps.
void announce_work() {
  g_waiter.has_work.store(true);
  if (g_waiter.sleeps.load() && g_waiter.sleeps.exchange(false)) notify(false);
}

void wake_for_device(bool urgent) {
  if (!urgent || !g_waiter.urgent.exchange(true)) notify(false);
}

enum class Slept { kReason, kTimeOver, kWrongClock };

// Sleeps until there is work or the time is over. If the clock has stopped or was set back, the wait can return at once
// repeatedly. Then this sleeps for one pause.
template <class Predicate>
Slept sleep_until(std::unique_lock<std::mutex>& lock, Clock::time_point time, Predicate has_reason) {
  for (int in_vain = 0; !has_reason(); ++in_vain) {
    if (Clock::now() >= time) return Slept::kTimeOver;
    if (in_vain == kMostSleepsInVain) {
      lock.unlock();
      std::this_thread::sleep_for(kPauseOfWrongClock);
      lock.lock();
      return has_reason() ? Slept::kReason : Slept::kWrongClock;
    }
    g_waiter.condition.wait_until(lock, time);
  }
  return Slept::kReason;
}

// Checks device spans until the waiter has another reason to return. False if the clock is wrong.
bool wait_for_devices(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  const auto has_reason = [] { return g_waiter.woken || g_waiter.has_work.load(); };
  Clock::duration pause = kFirstLook;
  while (!has_reason() && Clock::now() < deadline) {
    g_waiter.urgent.store(false);
    lock.unlock();
    const std::uint32_t settled = device::resolve_pass();
    const std::uint32_t left = device::pending();
    lock.lock();
    if (settled != 0 && g_waiter.awaiting.load() != 0) g_waiter.has_work.store(true);
    if (left == 0) return true;
    const auto is_urgent = [&] { return has_reason() || g_waiter.urgent.load(); };
    if (sleep_until(lock, std::min(deadline, Clock::now() + pause), is_urgent) == Slept::kWrongClock) return false;
    pause = settled != 0 ? Clock::duration(kNextLook) : std::min<Clock::duration>(pause * 2, kRarestLook);
  }
  return true;
}

}  // namespace

void push_completion(const Completion& completion) noexcept {
  // Recorded here and not when the lines are written, so that reports do not have to wait for the lines.
  if ((completion.flags & kCompletionDeviceMemory) == 0) {
    std::int64_t& peak_bytes = g_peak_rss_bytes[completion.stage];
    peak_bytes = std::max(peak_bytes, completion.peak_bytes);
  }
  if (!g_queue.push(completion)) {
    ++g_unqueued;
    return;
  }
  if (completion.device_span != 0) g_waiter.awaiting.fetch_add(1);
  // Hooks may have run since the span ended. Checked after counting, so that a thread that resolves it later sees that
  // it is awaited.
  if (completion.device_span == 0 || device::has_result(completion.device_span) || device::pending() == 0)
    announce_work();
}

void count_unqueued_completions(bool were_wanted) noexcept {
  const std::uint64_t unqueued = std::exchange(g_unqueued, 0);
  if (were_wanted && unqueued != 0) Recorder::get().lose(kLostCompletions, unqueued);
}

std::vector<Completion> take_completions(bool everything) {
  // Before any change, because this may run out of memory.
  std::vector<Completion> taken;
  std::vector<std::uint32_t> held_back;  // threads, of which there are few
  taken.reserve(g_queue.size());
  held_back.reserve(g_waiter.awaiting.load() != 0 ? g_queue.size() : 0);
  g_waiter.has_work.store(false);
  // Read before the check, so that later results are found the next time.
  const bool none_comes = g_waiter.awaiting.load() == 0 || device::pending() == 0;
  std::size_t left = 0;
  for (std::size_t i = 0; i < g_queue.size(); ++i) {
    Completion& completion = g_queue[i];
    const auto is_held_back = [&] {
      return std::find(held_back.begin(), held_back.end(), completion.thread) != held_back.end();
    };
    if (completion.device_span != 0 && !is_held_back()) {
      const auto result = device::take_result(completion.device_span);
      if (result || everything || none_comes) {
        if (result) completion.device = *result;
        completion.device_span = 0;
        g_waiter.awaiting.fetch_sub(1);
      } else {
        held_back.push_back(completion.thread);
      }
    }
    if (everything || !is_held_back())
      taken.push_back(completion);
    else
      g_queue[left++] = completion;
  }
  g_queue.shrink(left);
  return taken;
}

const std::int64_t* peak_rss_bytes_by_stage() { return g_peak_rss_bytes; }

void forget_peak_rss() { std::fill(std::begin(g_peak_rss_bytes), std::end(g_peak_rss_bytes), std::int64_t{0}); }

bool wait_for_completions(double timeout_s) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                           timeout_s > 1e9 ? 1e9 : (timeout_s < 0 ? 0 : timeout_s)));
  std::unique_lock lock(g_waiter.mutex);
  // The clock may have been set back since the last return.
  const auto earliest = std::min(g_waiter.last_return, Clock::now()) + kShortestInterval;
  sleep_until(lock, std::min(deadline, earliest), [&] { return g_waiter.woken || g_waiter.urgent.load(); });
  for (bool is_over = false; !is_over;) {
    is_over = !wait_for_devices(lock, deadline);
    if (is_over || g_waiter.woken || g_waiter.has_work.load()) break;
    is_over = sleep_until(lock, deadline, [&] {
                // Set before each check: either the producer sees them, or this thread sees its work. The thread that
                // wakes this one clears them.
                g_waiter.sleeps.store(true);
                device::g_waker.sleeps.store(true);
                return g_waiter.woken || g_waiter.has_work.load() || device::pending() != 0;
              }) != Slept::kReason;
    g_waiter.sleeps.store(false);
    device::g_waker.sleeps.store(false);
    is_over = is_over || g_waiter.woken || g_waiter.has_work.load() || Clock::now() >= deadline;
  }
  g_waiter.woken = false;
  g_waiter.last_return = Clock::now();
  return g_waiter.has_work.load();
}

void wake_waiter() { notify(true); }

void wake_for_results() {
  if (g_waiter.awaiting.load() != 0) announce_work();
}

void wait_for_devices_too() { device::g_waker.wake.store(wake_for_device); }

void completions_after_fork() {
  // Created again instead of cleared, because another thread of the parent may have been using them at the fork: a
  // library can fork without the interpreter's lock.
  g_queue.shrink(0);
  g_unqueued = 0;
  forget_peak_rss();
  new (&g_waiter) Waiter;
  device::g_waker.sleeps.store(false);
}

}  // namespace stagespan::python
