// resolver.cpp: polls events, reads their times, and writes results.
#include "resolver.h"

#include <algorithm>
#include <cmath>

#include "layer.h"
#include "stagespan/recorder.h"

namespace stagespan::device {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::size_t kMostResults = 1U << 15;
constexpr std::size_t kLateInAPass = 32;

bool is_too_late(const Layer& layer, const Pending& span, const ClockFit& fit) noexcept {
  return fit.duration_ns(static_cast<double>(ticks_between(span.end_ticks, now_ticks()))) >= layer.timeout_s() * 1e9;
}

std::uint32_t figures_of(Recorder& recorder, std::uint32_t stage) noexcept {
  const ArenaView arena = recorder.arena();
  ArenaHeader& header = arena.header();
  std::atomic<std::uint32_t>& entry = arena.device_stages()[stage];
  std::uint32_t number = entry.load(relaxed);
  if (number == 0) {
    const std::uint32_t used = header.device_stage_count.load(relaxed);
    number = std::min(used + 1, kMaxDeviceStages);
    if (used < kMaxDeviceStages) {
      if (used % kDeviceStagesAtOnce == 0) recorder.reserve_device_stages_locked(used);
      for (std::uint32_t figure = 0; figure < kDeviceFigures; ++figure) prepare(arena.device_block(used, figure));
      header.device_stage_count.store(used + 1, relaxed);
    }
    // Release: a reader that sees the figures sees them initialised.
    entry.store(number, std::memory_order_release);
  }
  return number - 1;
}

void add_figure(ArenaView arena, std::uint32_t index, DeviceFigure figure, std::int64_t ns) noexcept {
  if (ns == kUnknownNs) return;
  const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0));
  add_span<SingleWriter>(arena.device_block(index, figure), {value, 0, 0, kNoStage, false});
}

}  // namespace

void Results::put(std::uint64_t id, const DeviceResult& result) {
  const std::lock_guard lock(mutex_);
  // These were never fetched, because their log lines were lost.
  if (kept_.size() >= kMostResults) kept_.clear();
  kept_.insert_or_assign(id, result);
}

std::optional<DeviceResult> Results::take(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto entry = kept_.find(id);
  if (entry == kept_.end()) return std::nullopt;
  const DeviceResult result = entry->second;
  kept_.erase(entry);
  return result;
}

bool Results::has(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  return kept_.contains(id);
}

void Resolver::collect(const std::vector<DeviceQueue*>& queues) {
  for (DeviceQueue* const queue : queues) {
    // Spans that are queued during this pass wait for the next one.
    const std::uint32_t count = queue->size();
    // Counted here before it leaves the queue, so that a concurrent count sees it twice instead of not at all.
    held_.fetch_add(count, std::memory_order_seq_cst);
    Pending span;
    for (std::uint32_t n = 0; n < count && queue->pop(span); ++n) streams_[span.pair->stream].push_back(span);
  }
}

std::uint32_t Resolver::pass(Layer& layer) {
  // Not a mutex, because a backend may run Python code, and so a finalizer that flushes. It would wait for its own
  // thread.
  if (is_passing_.test_and_set(std::memory_order_acquire)) return 0;
  const struct Leave {
    std::atomic_flag& flag;
    ~Leave() { flag.clear(std::memory_order_release); }
  } leave{is_passing_};
  for (EventPair* pair = layer.take_abandoned(); pair != nullptr;) {
    EventPair* const next = pair->next;
    layer.give_back(*pair);
    pair = next;
  }
  collect(layer.queues());
  if (held_.load(relaxed) == 0 && late_.empty()) return 0;
  const ClockFit fit = Recorder::get().clock_fit();
  const bool may_ask = backend_.asks_in_captures() || !layer.captured_lately(fit);
  if (may_ask && backend_.begin_resolving()) {
    refresh_bases(layer, fit);
    std::uint32_t left = backend_.batch();
    for (auto& [where, spans] : streams_) {
      if (left == 0) break;
      settle_stream(layer, spans, fit, left);
    }
    look_after_late(layer);
    backend_.end_resolving();
  } else {
    settle_without_asking(layer, fit);
  }
  std::erase_if(streams_, [](const auto& entry) { return entry.second.empty(); });
  const auto done = static_cast<std::uint32_t>(settled_.size());
  write();
  return done;
}

void Resolver::settle_stream(Layer& layer, std::deque<Pending>& spans, const ClockFit& fit, std::uint32_t& left) {
  while (!spans.empty() && left != 0) {
    const Pending& span = spans.front();
    --left;
    const EventState state = backend_.query(span.pair->end, span.pair->stream);
    if (state == EventState::kNotReady || state == EventState::kLater) {
      if (!is_too_late(layer, span, fit)) return;
      Recorder::get().lose(kLostDeviceTimeout);
      settle_unknown(span);
      late_.push_back(span.pair);
    } else if (state == EventState::kCaptured) {
      // By a capture that began between the check and the record. The event is not queried again, because that could
      // end the capture.
      layer.note_capture();
      Recorder::get().lose(kLostDeviceCaptured);
      settle_unknown(span);
      layer.give_back(*span.pair);
    } else if (state == EventState::kFailed) {
      Recorder::get().lose(kLostDeviceFailed);
      layer.note_failure();
      settle_unknown(span);
      late_.push_back(span.pair);
    } else {
      settle(layer, span, fit);
      layer.give_back(*span.pair);
    }
    spans.pop_front();
  }
}

void Resolver::settle_without_asking(Layer& layer, const ClockFit& fit) {
  const bool is_gone = backend_.is_gone();
  for (auto& [where, spans] : streams_) {
    while (!spans.empty() && (is_gone || is_too_late(layer, spans.front(), fit))) {
      Recorder::get().lose(is_gone ? kLostDeviceFailed : kLostDeviceTimeout);
      settle_unknown(spans.front());
      late_.push_back(spans.front().pair);
      spans.pop_front();
    }
  }
}

void Resolver::look_after_late(Layer& layer) {
  for (std::size_t n = std::min(late_.size(), kLateInAPass); n != 0; --n) {
    EventPair* const pair = late_.front();
    late_.pop_front();
    const EventState state = backend_.query(pair->end, pair->stream);
    if (state == EventState::kDone || state == EventState::kCaptured)
      layer.give_back(*pair);
    else if (state == EventState::kFailed)
      layer.forget(*pair);
    else
      late_.push_back(pair);
  }
}

void Resolver::settle_unknown(const Pending& span) {
  settled_.push_back(
      {{kUnknownNs, kUnknownNs, kUnknownNs}, span.id, span.stage, span.pair->stream.device, span.wanted});
}

void Resolver::settle(Layer& layer, const Pending& span, const ClockFit& fit) {
  const StreamRef& where = span.pair->stream;
  double elapsed = 0;
  if (!backend_.elapsed_ns(span.pair->begin, span.pair->end, where, elapsed)) {
    Recorder::get().lose(kLostDeviceFailed);
    layer.note_failure();
    settle_unknown(span);
    return;
  }
  layer.note_success();
  if (elapsed < 0) {
    Recorder::get().lose(kLostDeviceClamped);
    elapsed = 0;
  }
  DeviceResult result{std::llround(elapsed), kUnknownNs, kUnknownNs};
  TimeBase& base = bases_[where.context];
  std::int64_t origin_ns = 0;
  if (const auto after = base.after_ns(backend_, span.pair->begin, where, span.begin_ticks, fit, origin_ns)) {
    const std::int64_t begin_ns = fit.unix_ns(span.begin_ticks);
    const std::int64_t host_ns =
        std::llround(fit.duration_ns(static_cast<double>(ticks_between(span.begin_ticks, span.end_ticks))));
    result.queue_ns = origin_ns - begin_ns + std::llround(*after);
    // Queue and device time together cover the same interval as host time and tail.
    result.tail_ns = result.queue_ns + result.elapsed_ns - host_ns;
    const double error = 2 * base.error_ns().value_or(0) + 20'000;
    if (static_cast<double>(result.queue_ns) < -error || static_cast<double>(result.tail_ns) < -error)
      Recorder::get().lose(kLostDeviceClamped);
  } else {
    Recorder::get().lose(kLostDevicePlace);
  }
  settled_.push_back({result, span.id, span.stage, where.device, span.wanted});
}

void Resolver::refresh_bases(Layer& layer, const ClockFit& fit) {
  if (layer.captured_lately(fit)) return;
  void* last = nullptr;
  for (const auto& [where, spans] : streams_) {
    if (spans.empty() || where.context == last) continue;
    last = where.context;
    bases_[where.context].refresh(backend_, where, fit);
  }
  double worst_ns = 0;
  std::uint64_t newest_ticks = 0;
  for (const auto& [context, base] : bases_) {
    worst_ns = std::max(worst_ns, base.error_ns().value_or(0));
    newest_ticks = std::max(newest_ticks, base.made_at_ticks());
  }
  base_error_ns_.store(worst_ns, relaxed);
  // Release: a reader that sees a base sees its error.
  newest_base_ticks_.store(newest_ticks, std::memory_order_release);
}

void Resolver::write() {
  if (settled_.empty()) return;
  Recorder& recorder = Recorder::get();
  {
    // A reset takes the lock too, because it must not clear figures while they are written.
    const std::lock_guard lock(recorder.cold_mutex());
    const ArenaView arena = recorder.arena();
    ArenaHeader& header = arena.header();
    recorder.reserve_device_ring_locked();
    for (const Settled& settled : settled_) {
      if (settled.result.elapsed_ns == kUnknownNs) continue;
      const std::uint32_t index = figures_of(recorder, settled.stage);
      if (index == kMaxDeviceStages - 1) count_lost(header, kLostDeviceStages, 1);
      add_figure(arena, index, kDeviceElapsed, settled.result.elapsed_ns);
      add_figure(arena, index, kDeviceQueue, settled.result.queue_ns);
      add_figure(arena, index, kDeviceTail, settled.result.tail_ns);

      const std::uint64_t number = header.device_head.load(relaxed);
      const DeviceResult& times = settled.result;
      write_record(arena.device_ring()[number & (kDeviceSpans - 1)], number,
                   DeviceFields{settled.id, times.elapsed_ns, times.queue_ns, times.tail_ns, settled.stage,
                                static_cast<std::uint32_t>(settled.device)});
      header.device_head.store(number + 1, std::memory_order_release);
    }
  }
  for (const Settled& settled : settled_)
    if (settled.wanted) results_.put(settled.id, settled.result);
  resolved_.fetch_add(settled_.size(), relaxed);
  // After the results, so that a reader that sees nothing pending sees the results.
  held_.fetch_sub(static_cast<std::uint32_t>(settled_.size()), std::memory_order_seq_cst);
  settled_.clear();
}

std::optional<double> Resolver::base_error_ns() const {
  if (newest_base_ticks_.load(std::memory_order_acquire) == 0) return std::nullopt;
  return base_error_ns_.load(relaxed);
}

std::optional<double> Resolver::base_age_s() const {
  const std::uint64_t newest = newest_base_ticks_.load(relaxed);
  if (newest == 0) return std::nullopt;
  return Recorder::get().clock_fit().duration_ns(static_cast<double>(ticks_between(newest, now_ticks()))) / 1e9;
}

}  // namespace stagespan::device
