// layer.cpp: the hooks of spans that open and close, and attaching a device.
#include "layer.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "stagespan/recorder.h"

namespace stagespan::device {

Waker g_waker;

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::uint32_t kMostFailures = 32;
constexpr double kCaptureIsLate_ns = 1e9;

std::atomic<Layer*> g_attached{nullptr};
std::atomic<bool> g_forked{false};
std::atomic<std::uint32_t> g_every{1};
std::atomic<double> g_timeout_s{60};

/// All layers that were ever attached. Never destroyed.
struct Layers {
  std::mutex mutex;
  std::vector<Layer*> all;
  Results results;
};
Layers& layers() {
  static Layers* const made = new Layers;
  return *made;
}

std::vector<Layer*> all_layers() {
  const std::lock_guard lock(layers().mutex);
  return layers().all;
}

DeviceQueue* queue_in(Layer& layer, ThreadState& thread) noexcept {
  auto* const queue = static_cast<DeviceQueue*>(thread.device);
  return queue != nullptr && &queue->layer() == &layer ? queue : layer.queue_of(thread);
}

void wake(bool urgent) noexcept {
  if (const auto call = g_waker.wake.load(relaxed)) call(urgent);
}

// --- what spans do -----------------------------------------------------------------------------------------

void* begin(ThreadState& thread, std::uint32_t stage, std::uint16_t& flags) noexcept {
  Layer* const layer = g_attached.load(std::memory_order_acquire);
  if (layer == nullptr || g_forked.load(relaxed)) return nullptr;
  DeviceQueue* const queue = queue_in(*layer, thread);
  if (queue == nullptr) {
    Recorder::get().lose(kLostDevicePool);
    return nullptr;
  }
  if (!queue->is_due(stage, g_every.load(relaxed))) return nullptr;
  EventBackend& backend = layer->backend();
  StreamRef where;
  switch (backend.current_stream(where)) {
    case StreamState::kOk:
      break;
    case StreamState::kNone:
      return nullptr;
    case StreamState::kCapturing:
      layer->note_capture();
      flags |= kFlagCaptured;
      Recorder::get().lose(kLostDeviceCaptured);
      return nullptr;
    case StreamState::kFailed:
      layer->note_failure();
      Recorder::get().lose(kLostDeviceFailed);
      return nullptr;
  }
  EventPair* const pair = layer->take(*queue, where);
  if (pair == nullptr) [[unlikely]] {
    if (queue->is_refused()) layer->note_failure();
    Recorder::get().lose(kLostDevicePool);
    wake(true);
    return nullptr;
  }
  if (!backend.record(pair->begin, where)) [[unlikely]] {
    layer->note_failure();
    Recorder::get().lose(kLostDeviceFailed);
    queue->put_back(*pair);
    return nullptr;
  }
  return pair;
}

void give_up(ThreadState& thread, EventPair& pair) noexcept {
  if (pair.home == thread.device)
    pair.home->put_back(pair);
  else
    pair.home->layer().abandon(pair);
}

void end(ThreadState& thread, void* device, FinishedSpan& span, bool wanted) noexcept {
  span.flags &= static_cast<std::uint16_t>(~kFrameDevice);
  if (g_forked.load(relaxed)) return;
  auto& pair = *static_cast<EventPair*>(device);
  Layer& layer = pair.home->layer();
  const StreamState state = layer.backend().state_of(pair.stream);
  if (state == StreamState::kCapturing) [[unlikely]] {
    layer.note_capture();
    span.flags |= kFlagCaptured;
    Recorder::get().lose(kLostDeviceCaptured);
    give_up(thread, pair);
    return;
  }
  if (state == StreamState::kNone) [[unlikely]] {
    Recorder::get().lose(kLostDeviceElsewhere);
    give_up(thread, pair);
    return;
  }
  if (state != StreamState::kOk || !layer.backend().record(pair.end, pair.stream)) [[unlikely]] {
    layer.note_failure();
    Recorder::get().lose(kLostDeviceFailed);
    give_up(thread, pair);
    return;
  }
  DeviceQueue* const queue = queue_in(layer, thread);
  if (queue == nullptr || !queue->push({&pair, span.id, span.begin_ticks, span.end_ticks, span.stage, wanted}))
      [[unlikely]] {
    Recorder::get().lose(kLostDevicePool);
    layer.abandon(pair);
    return;
  }
  span.flags |= kFrameDevice;
  if (g_waker.sleeps.load(std::memory_order_seq_cst)) [[unlikely]] {
    if (g_waker.sleeps.exchange(false)) wake(false);
  } else if (queue->size() == kUrgentSpans) [[unlikely]] {
    wake(true);
  }
}

void abandon(void* device) noexcept {
  if (g_forked.load(relaxed)) return;
  auto& pair = *static_cast<EventPair*>(device);
  pair.home->layer().abandon(pair);
}

void leave(ThreadState& thread) noexcept {
  auto* const queue = static_cast<DeviceQueue*>(std::exchange(thread.device, nullptr));
  if (queue != nullptr && !g_forked.load(relaxed)) queue->is_left.store(true, std::memory_order_release);
}

constexpr DeviceHooks kHooks{begin, end, abandon, leave};

void after_fork_in_child() noexcept {
  if (g_attached.load(relaxed) == nullptr && g_device_hooks.load(relaxed) == nullptr) return;
  g_forked.store(true, relaxed);
  g_attached.store(nullptr, relaxed);
  g_mode.fetch_and(~static_cast<std::uint32_t>(kModeDevice), relaxed);
}

}  // namespace

// --- the layer ---------------------------------------------------------------------------------------------

Layer::Layer(std::string kind, std::unique_ptr<EventBackend> backend, Results& results)
    : kind_(std::move(kind)), backend_(std::move(backend)), resolver_(*backend_, results) {
  queues_.reserve(kMaxThreads);
}

DeviceQueue* Layer::queue_of(ThreadState& thread) noexcept {
  leave(thread);
  const std::lock_guard lock(registry_);
  for (DeviceQueue* const queue : queues_) {
    // The next thread uses its events.
    if (!queue->is_left.load(std::memory_order_acquire)) continue;
    queue->is_left.store(false, relaxed);
    // This thread may now use another device, while other threads use this one.
    for (EventPair* pair = queue->release_free(); pair != nullptr;) {
      EventPair* const next = pair->next;
      add_spare_locked(*pair);
      pair = next;
    }
    thread.device = queue;
    return queue;
  }
  if (queues_.size() >= kMaxThreads) return nullptr;
  auto* const queue = new (std::nothrow) DeviceQueue(*this);
  if (queue == nullptr) return nullptr;
  queues_.push_back(queue);
  thread.device = queue;
  return queue;
}

EventPair* Layer::take(DeviceQueue& queue, const StreamRef& where) noexcept {
  if (EventPair* const pair = queue.take(where)) [[likely]]
    return pair;
  if (has_spare_.load(relaxed)) {
    adopt_spare(queue, where.context);
    if (EventPair* const pair = queue.take(where)) return pair;
  }
  if (EventPair* const pair = queue.make(where, *backend_, pairs_)) return pair;
  // If a thread changes to another context, its events belong to the previous one.
  const bool is_at_a_limit = !queue.is_refused() && queue.knows(where.context);
  if (!is_at_a_limit) return nullptr;
  // A pair that has returned in the meantime can be reused.
  if (EventPair* const pair = queue.take(where)) return pair;
  return make_room(queue) ? queue.make(where, *backend_, pairs_) : nullptr;
}

void Layer::add_spare_locked(EventPair& pair) noexcept {
  pair.next = std::exchange(spare_[pair.stream.context], &pair);
  has_spare_.store(true, relaxed);
}

void Layer::give_back(EventPair& pair) noexcept {
  if (pairs() <= kPairsPerProcess / 2 || !pair.home->spares_one()) {
    pair.home->give_back(pair);
    return;
  }
  const std::lock_guard lock(registry_);
  add_spare_locked(pair);
}

void Layer::forget(EventPair& pair) noexcept {
  pair.home->lose_one();
  pairs_.fetch_sub(1, relaxed);
  pair.next = std::exchange(forgotten_, &pair);
}

void Layer::adopt_spare(DeviceQueue& queue, void* context) noexcept {
  constexpr int kBatch = 64;
  const std::lock_guard lock(registry_);
  EventPair*& spare = spare_[context];
  for (int i = 0; i < kBatch && spare != nullptr && queue.has_room(); ++i)
    queue.adopt(*std::exchange(spare, spare->next));
  has_spare_.store(std::any_of(spare_.begin(), spare_.end(), [](const auto& entry) { return entry.second != nullptr; }),
                   relaxed);
}

bool Layer::make_room(DeviceQueue& queue) noexcept {
  EventPair* pair = queue.give_up_one();
  if (pair == nullptr && queue.has_room()) {  // the process has too many
    const std::lock_guard lock(registry_);
    for (auto& [context, spare] : spare_) {
      if (spare == nullptr) continue;
      pair = std::exchange(spare, spare->next);
      break;
    }
  }
  if (pair == nullptr) return false;
  backend_->destroy_event(pair->begin);
  backend_->destroy_event(pair->end);
  delete pair;
  pairs_.fetch_sub(1, relaxed);
  return true;
}

void Layer::abandon(EventPair& pair) noexcept {
  const std::lock_guard lock(registry_);
  pair.next = std::exchange(abandoned_, &pair);
}

std::vector<DeviceQueue*> Layer::queues() {
  const std::lock_guard lock(registry_);
  return queues_;
}

EventPair* Layer::take_abandoned() noexcept {
  const std::lock_guard lock(registry_);
  return std::exchange(abandoned_, nullptr);
}

std::uint32_t Layer::pending() {
  std::uint32_t count = 0;
  {
    const std::lock_guard lock(registry_);
    for (const DeviceQueue* const queue : queues_) count += queue->size();
  }
  return count + resolver_.held();
}

std::uint32_t Layer::threads() {
  const std::lock_guard lock(registry_);
  return static_cast<std::uint32_t>(std::count_if(
      queues_.begin(), queues_.end(), [](const DeviceQueue* queue) { return !queue->is_left.load(relaxed); }));
}

void Layer::note_failure() noexcept {
  if (failures_.fetch_add(1, relaxed) + 1 < kMostFailures && !backend_->is_gone()) return;
  if (failed_.exchange(true, relaxed)) return;
  if (g_attached.load(relaxed) == this) g_mode.fetch_and(~static_cast<std::uint32_t>(kModeDevice), relaxed);
}

void Layer::note_success() noexcept {
  if (failures_.load(relaxed) != 0) failures_.store(0, relaxed);
}

bool Layer::captured_lately(const ClockFit& fit) const noexcept {
  const std::uint64_t at = captured_at_ticks_.load(relaxed);
  // Compared in both directions, because another core may be a few ticks ahead, and a clock may have been set back.
  return at != 0 && fit.duration_ns(static_cast<double>(ticks_apart(at, now_ticks()))) < kCaptureIsLate_ns;
}

double Layer::timeout_s() const noexcept { return g_timeout_s.load(relaxed); }

// --- the process -------------------------------------------------------------------------------------------

void attach(std::string kind, std::unique_ptr<EventBackend> backend) {
  static const bool watches_forks = pthread_atfork(nullptr, nullptr, after_fork_in_child) == 0;
  if (!watches_forks || g_forked.load(relaxed)) return;
  auto* const layer = new Layer(std::move(kind), std::move(backend), layers().results);
  {
    const std::lock_guard lock(layers().mutex);
    layers().all.push_back(layer);
  }
  g_device_hooks.store(&kHooks, std::memory_order_release);
  g_attached.store(layer, std::memory_order_release);
  if (Recorder::get().arena()) g_mode.fetch_or(kModeDevice, relaxed);
}

void detach() {
  g_mode.fetch_and(~static_cast<std::uint32_t>(kModeDevice), relaxed);
  g_attached.store(nullptr, std::memory_order_release);
}

Layer* attached() noexcept { return g_attached.load(std::memory_order_acquire); }

Layer* latest() noexcept {
  const std::lock_guard lock(layers().mutex);
  return layers().all.empty() ? nullptr : layers().all.back();
}

bool is_forked() noexcept { return g_forked.load(relaxed); }

std::uint32_t pending() noexcept {
  if (g_forked.load(relaxed) || g_device_hooks.load(std::memory_order_acquire) == nullptr) return 0;
  std::uint32_t count = 0;
  for (Layer* const layer : all_layers()) count += layer->pending();
  return count;
}

std::uint32_t resolve_pass() {
  if (g_forked.load(relaxed) || g_device_hooks.load(std::memory_order_acquire) == nullptr) return 0;
  std::uint32_t settled = 0;
  for (Layer* const layer : all_layers()) settled += layer->resolver().pass(*layer);
  return settled;
}

std::uint32_t resolve(double timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(std::clamp(timeout_s, 0.0, 1e9)));
  // Pauses are counted too, because the clock can stop or be set back.
  Clock::duration to_sleep = deadline - Clock::now();
  auto pause = std::chrono::microseconds(50);
  for (;;) {
    const std::uint32_t settled = resolve_pass();
    const std::uint32_t left = pending();
    const auto now = Clock::now();
    if (left == 0 || now >= deadline || to_sleep <= Clock::duration::zero()) return left;
    if (settled != 0) {
      pause = std::chrono::microseconds(50);
      continue;
    }
    const auto rest = std::min<Clock::duration>({pause, deadline - now, to_sleep});
    std::this_thread::sleep_for(rest);
    to_sleep -= rest;
    pause = std::min(pause * 2, std::chrono::microseconds(50'000));
  }
}

std::optional<DeviceResult> take_result(std::uint64_t id) {
  // After a fork, a lock that another thread of the parent held is never released.
  return g_forked.load(relaxed) ? std::nullopt : layers().results.take(id);
}

bool has_result(std::uint64_t id) { return !g_forked.load(relaxed) && layers().results.has(id); }

void set_every(std::uint32_t every) noexcept { g_every.store(every, relaxed); }
std::uint32_t every() noexcept { return g_every.load(relaxed); }
void set_timeout(double seconds) noexcept { g_timeout_s.store(seconds, relaxed); }

}  // namespace stagespan::device
