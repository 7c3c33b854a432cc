// completions.cpp: a bounded queue, and waking its reader at most once in an interval.
#include "completions.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>

#include "stagespan/recorder.h"

namespace stagespan::python {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostQueued = 8192;
constexpr auto kShortestInterval = std::chrono::milliseconds(20);

struct Waiter {
  std::mutex mutex;
  std::condition_variable condition;
  bool woken = false;
  std::atomic<bool> has_work{false};
  std::atomic<bool> sleeps{false};  // a producer that finds it set clears it and wakes the waiter
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
Immortal<std::deque<Completion>> g_queue;  // guarded by the interpreter's lock

Waiter& waiter() { return g_waiter.get(); }

void notify(bool woken) {
  Waiter& w = waiter();
  {
    const std::lock_guard lock(w.mutex);
    w.woken = w.woken || woken;
  }
  w.condition.notify_all();
}

}  // namespace

void push_completion(const Completion& completion) {
  std::deque<Completion>& queue = g_queue.get();
  if (queue.size() >= kMostQueued) {
    Recorder::get().lose(kLostCompletions);
    return;
  }
  queue.push_back(completion);
  Waiter& w = waiter();
  w.has_work.store(true);
  if (w.sleeps.load(std::memory_order_relaxed) && w.sleeps.exchange(false)) notify(false);
}

std::vector<Completion> take_completions() {
  waiter().has_work.store(false);
  std::deque<Completion>& queue = g_queue.get();
  std::vector<Completion> taken(queue.begin(), queue.end());
  queue.clear();
  return taken;
}

bool wait_for_completions(double timeout_s) {
  Waiter& w = waiter();
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                           timeout_s > 1e9 ? 1e9 : (timeout_s < 0 ? 0 : timeout_s)));
  std::unique_lock lock(w.mutex);
  w.condition.wait_until(lock, std::min(deadline, w.last_return + kShortestInterval), [&] { return w.woken; });
  if (!w.woken && !w.has_work.load()) {
    // Set before looking again: a producer either sees it, or its work is seen here.
    w.sleeps.store(true);
    w.condition.wait_until(lock, deadline, [&] { return w.woken || w.has_work.load(); });
    w.sleeps.store(false);
  }
  w.woken = false;
  w.last_return = Clock::now();
  return w.has_work.load();
}

void wake_waiter() { notify(true); }

void completions_after_fork() {
  // Made anew and not cleared: a thread of the parent may have been at work on either when some library, which
  // need not hold the interpreter's lock for that, forked.
  g_queue.renew();
  g_waiter.renew();
}

}  // namespace stagespan::python
