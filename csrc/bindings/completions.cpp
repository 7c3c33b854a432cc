// completions.cpp: a bounded queue, and waking its reader at most once in an interval.
#include "completions.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <new>
#include <unordered_set>

#include "device/layer.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostQueued = 8192;
constexpr auto kShortestInterval = std::chrono::milliseconds(20);
// Between two looks at pending device spans: the first soon, those after a fruitless one more and more rarely.
constexpr auto kFirstLook = std::chrono::milliseconds(1);
constexpr auto kNextLook = std::chrono::milliseconds(10);
constexpr auto kRarestLook = std::chrono::milliseconds(50);

struct Waiter {
  std::mutex mutex;
  std::condition_variable condition;
  bool woken = false;
  std::atomic<bool> has_work{false};
  std::atomic<bool> sleeps{false};         // a producer that finds it set clears it and wakes the waiter
  std::atomic<bool> urgent{false};         // a thread's device spans pile up
  std::atomic<std::uint32_t> awaiting{0};  // completions that wait for their device
  Clock::time_point last_return{};
};

// Never destroyed: the service thread may still wait when the process ends.
template <class T>
struct Immortal {
  alignas(T) std::byte storage[sizeof(T)];
  Immortal() { renew(); }
  void renew() { new (storage) T; }
  T& get() { return *std::launder(reinterpret_cast<T*>(storage)); }
};

Immortal<Waiter> g_waiter;
Immortal<std::deque<Completion>> g_queue;   // guarded by the interpreter's lock
std::int64_t g_peak_rss_bytes[kMaxStages];  // by stage, 0 where it is not known; guarded as the queue

Waiter& waiter() { return g_waiter.get(); }

void notify(bool woken) {
  Waiter& w = waiter();
  {
    const std::lock_guard lock(w.mutex);
    w.woken = w.woken || woken;
  }
  w.condition.notify_all();
}

// One order with the flag: the waiter either sees the work, or is seen to sleep.
void announce_work() {
  Waiter& w = waiter();
  w.has_work.store(true);
  if (w.sleeps.load() && w.sleeps.exchange(false)) notify(false);
}

void wake_for_device(bool urgent) {
  if (!urgent || !waiter().urgent.exchange(true)) notify(false);
}

// Looks at device spans until one of the waiter's own reasons to return comes up.
void wait_for_devices(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  Waiter& w = waiter();
  const auto has_reason = [&w] { return w.woken || w.has_work.load(); };
  Clock::duration pause = kFirstLook;
  while (!has_reason() && Clock::now() < deadline) {
    w.urgent.store(false);
    lock.unlock();
    const std::uint32_t settled = device::resolve_pass();
    const std::uint32_t left = device::pending();
    lock.lock();
    if (settled != 0 && w.awaiting.load() != 0) w.has_work.store(true);
    if (left == 0) return;
    w.condition.wait_until(lock, std::min(deadline, Clock::now() + pause),
                           [&] { return has_reason() || w.urgent.load(); });
    pause = settled != 0 ? Clock::duration(kNextLook) : std::min<Clock::duration>(pause * 2, kRarestLook);
  }
}

}  // namespace

void push_completion(const Completion& completion) {
  // Noted here and not by whoever writes the lines: a report need not wait for him then.
  if ((completion.flags & kCompletionDeviceMemory) == 0) {
    std::int64_t& peak_bytes = g_peak_rss_bytes[completion.stage];
    peak_bytes = std::max(peak_bytes, completion.peak_bytes);
  }
  std::deque<Completion>& queue = g_queue.get();
  if (queue.size() >= kMostQueued) {
    Recorder::get().lose(kLostCompletions);
    return;
  }
  queue.push_back(completion);
  if (completion.device_span != 0) waiter().awaiting.fetch_add(1);
  // Hooks may have run since the span ended. Asked after counting: whoever settles it from now on sees that it is
  // awaited.
  if (completion.device_span == 0 || device::has_result(completion.device_span) || device::pending() == 0)
    announce_work();
}

std::vector<Completion> take_completions(bool everything) {
  Waiter& w = waiter();
  w.has_work.store(false);
  std::deque<Completion>& queue = g_queue.get();
  std::vector<Completion> taken;
  if (w.awaiting.load() == 0) {
    taken.assign(queue.begin(), queue.end());
    queue.clear();
    return taken;
  }
  // Asked before looking: what is settled from now on will be found the next time.
  const bool none_comes = device::pending() == 0;
  std::deque<Completion> left;
  std::unordered_set<std::uint32_t> held_back;
  for (Completion& completion : queue) {
    if (completion.device_span != 0 && !held_back.contains(completion.thread)) {
      const auto result = device::take_result(completion.device_span);
      if (result || everything || none_comes) {
        if (result) completion.device = *result;
        completion.device_span = 0;
        w.awaiting.fetch_sub(1);
      } else {
        held_back.insert(completion.thread);
      }
    }
    if (everything || !held_back.contains(completion.thread))
      taken.push_back(completion);
    else
      left.push_back(completion);
  }
  queue.swap(left);
  return taken;
}

const std::int64_t* peak_rss_bytes_by_stage() { return g_peak_rss_bytes; }

void forget_peak_rss() { std::fill(std::begin(g_peak_rss_bytes), std::end(g_peak_rss_bytes), std::int64_t{0}); }

bool wait_for_completions(double timeout_s) {
  Waiter& w = waiter();
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                           timeout_s > 1e9 ? 1e9 : (timeout_s < 0 ? 0 : timeout_s)));
  std::unique_lock lock(w.mutex);
  w.condition.wait_until(lock, std::min(deadline, w.last_return + kShortestInterval),
                         [&] { return w.woken || w.urgent.load(); });
  do {
    wait_for_devices(lock, deadline);
    if (w.woken || w.has_work.load()) break;
    while (Clock::now() < deadline) {
      // Set before each look: a producer either sees them, or its work is seen here. Whoever wakes clears them.
      w.sleeps.store(true);
      device::g_waker.sleeps.store(true);
      if (w.woken || w.has_work.load() || device::pending() != 0) break;
      w.condition.wait_until(lock, deadline);
    }
    w.sleeps.store(false);
    device::g_waker.sleeps.store(false);
  } while (!w.woken && !w.has_work.load() && Clock::now() < deadline);
  w.woken = false;
  w.last_return = Clock::now();
  return w.has_work.load();
}

void wake_waiter() { notify(true); }

void wake_for_results() {
  if (waiter().awaiting.load() != 0) announce_work();
}

void wait_for_devices_too() { device::g_waker.wake.store(wake_for_device); }

void completions_after_fork() {
  // Made anew and not cleared: a thread of the parent may have been at work on either when some library, which
  // need not hold the interpreter's lock for that, forked.
  g_queue.renew();
  forget_peak_rss();
  g_waiter.renew();
  device::g_waker.sleeps.store(false);
}

}  // namespace stagespan::python
