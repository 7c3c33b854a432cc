// recorder.cpp: the start, names, work counters, resets and forks.
#include "recorder.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "figures_move.h"
#include "variables.h"

namespace stagespan {

std::atomic<std::uint32_t> g_mode{0};

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

std::string_view variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string_view() : text;
}

std::uint32_t ring_spans_wanted() {
  const std::optional<std::int64_t> wanted = whole_number(variable("STAGESPAN_RING_SPANS"));
  if (!wanted || *wanted < kLeastRingSpans || *wanted > kMostRingSpans) return kDefaultRingSpans;
  return std::bit_ceil(static_cast<std::uint32_t>(*wanted));
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// At most `most` bytes of a text, without splitting a UTF-8 character.
std::string_view cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

// The sum of two finite numbers, or the largest number there is.
double saturated_sum(double a, double b) {
  constexpr double largest = std::numeric_limits<double>::max();
  return std::clamp(a + b, -largest, largest);
}

// Adds to a counter. A whole part that would leave 64 bits goes over to the other part, which is as wide as a double.
void add_amount(ArenaHeader& header, WorkEntry& entry, std::int64_t whole, double fraction) {
  const std::int64_t before = entry.whole.load(relaxed);
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(before, whole, &sum)) {
    entry.whole.store(sum, relaxed);
    if (fraction != 0) entry.fraction.store(saturated_sum(entry.fraction.load(relaxed), fraction), relaxed);
    return;
  }
  const double carried = static_cast<double>(before) + static_cast<double>(whole) + fraction;
  const FiguresMove move(header);
  entry.whole.store(0, relaxed);
  entry.fraction.store(saturated_sum(entry.fraction.load(relaxed), carried), relaxed);
}

// Cuts a long name, and ends it with a hash of the whole.
std::string shortened(std::string_view name) {
  if (name.size() <= kMaxNameBytes) return std::string(name);
  static constexpr char digits[] = "0123456789abcdef";
  std::string result(cut(name, kMaxNameBytes - 17));
  result += '~';
  const std::uint64_t hash = fnv1a(name);
  for (int shift = 60; shift >= 0; shift -= 4) result += digits[(hash >> shift) & 15];
  return result;
}

}  // namespace

Recorder& Recorder::get() {
  static Recorder* const recorder = new Recorder;
  return *recorder;
}

Recorder::Recorder() : clock_source_(choose_clock(choice(variable("STAGESPAN_CLOCK")).c_str())) {
  arena_ = create_arena({ring_spans_wanted(), kMaxFrames});
  if (!arena_) {  // the switch stays off: nothing is recorded, nothing else changes
    prepare_stand_in();
    return;
  }
  free_blocks_.reserve(kMaxBlocks);
  watch_for_leaving_threads();
  prepare_arena();
  intern("(overflow)");
  intern("(invalid name)");
  pthread_atfork([] { get().cold_.lock(); }, [] { get().cold_.unlock(); },
                 [] {
                   get().after_fork();
                   get().cold_.unlock();
                 });
  g_mode.store(kModeEnabled, relaxed);
}

void Recorder::prepare_arena() {
  ArenaHeader& header = arena_.header();
  header.clock_source = static_cast<std::uint32_t>(clock_source_);
  header.stamps[0] = take_stamp();
  header.stamp_count.store(1, std::memory_order_release);
  free_blocks_.clear();
  arena_.slot(kSharedSlot).state.store(kSlotLive, relaxed);
  shared_block_locked(kStageOverflow);
  prepare_stand_in();
}

std::uint32_t Recorder::intern(std::string_view name) noexcept {
  if (!arena_) return kStageOverflow;
  const std::lock_guard lock(cold_);
  try {
    return intern_locked(name);
  } catch (const std::bad_alloc&) {
    lose(kLostMemory);
    return kStageOverflow;
  }
}

std::uint32_t Recorder::intern_locked(std::string_view name) {
  std::string key = shortened(name);
  if (const auto found = stages_.find(key); found != stages_.end()) return found->second;
  ArenaHeader& header = arena_.header();
  const std::uint32_t stage = header.name_count.load(relaxed);
  const std::uint32_t used = header.name_pool_used.load(relaxed);
  if (stage >= kMaxStages || used + key.size() > kNamePoolBytes) {
    lose(kLostNames);
    return kStageOverflow;
  }
  // Before the name is counted: this may run out of memory, and change nothing then.
  const std::string& text = stages_.emplace(std::move(key), stage).first->first;
  std::memcpy(arena_.name_pool() + used, text.data(), text.size());
  arena_.name(stage) = {used, static_cast<std::uint32_t>(text.size())};
  header.name_pool_used.store(used + static_cast<std::uint32_t>(text.size()), relaxed);
  // Release: a reader that sees the count sees the names.
  header.name_count.store(stage + 1, std::memory_order_release);
  return stage;
}

std::string_view Recorder::name_of(std::uint32_t stage) const noexcept {
  if (!arena_ || stage >= arena_.header().name_count.load(std::memory_order_acquire)) return "(overflow)";
  const NameEntry& entry = arena_.name(stage);
  return {arena_.name_pool() + entry.offset, entry.length_bytes};
}

std::vector<std::string> Recorder::names() const {
  std::vector<std::string> result;
  if (!arena_) return result;
  const std::uint32_t count = arena_.header().name_count.load(std::memory_order_acquire);
  result.reserve(count);
  for (std::uint32_t stage = 0; stage < count; ++stage) result.emplace_back(name_of(stage));
  return result;
}

void Recorder::add_work(std::uint32_t stage, std::string_view key, std::int64_t whole, double fraction) noexcept {
  if (!arena_) return;
  // One of these would make the whole counter no number.
  if (!std::isfinite(fraction)) {
    lose(kLostWork);
    return;
  }
  const std::lock_guard lock(cold_);
  try {
    add_work_locked(stage, key, whole, fraction);
  } catch (const std::bad_alloc&) {
    lose(kLostMemory);
  }
}

void Recorder::add_work_locked(std::uint32_t stage, std::string_view key, std::int64_t whole, double fraction) {
  ArenaHeader& header = arena_.header();
  std::string text(cut(key, kWorkKeyBytes));
  auto found = work_keys_.find(text);
  if (found == work_keys_.end()) {
    const std::uint32_t count = header.work_key_count.load(relaxed);
    if (count >= kMaxWorkKeys) {
      lose(kLostWork);
      return;
    }
    found = work_keys_.emplace(std::move(text), count).first;
    std::memcpy(arena_.work_keys()[count].text, found->first.data(), found->first.size());
    header.work_key_count.store(count + 1, std::memory_order_release);
  }
  const std::uint32_t index = found->second;
  const std::uint64_t wanted = (std::uint64_t{stage} + 1) << 32 | index;
  const std::uint32_t start = (stage * 31 + index * 7) % kMaxWork;
  for (std::uint32_t probe = 0; probe < kMaxWork; ++probe) {
    WorkEntry& entry = arena_.work()[(start + probe) % kMaxWork];
    const std::uint64_t seen = entry.key.load(relaxed);
    if (seen != 0 && seen != wanted) continue;
    add_amount(header, entry, whole, fraction);
    // Release: who sees the key sees its text, and an amount.
    if (seen == 0) entry.key.store(wanted, std::memory_order_release);
    return;
  }
  lose(kLostWork);
}

ClockFit Recorder::clock_fit() noexcept {
  if (!arena_) return ClockFit({take_stamp(), take_stamp()});
  const std::lock_guard lock(cold_);
  return refresh_clock(arena_.header());
}

PublishedClock Recorder::published_clock() {
  const std::lock_guard lock(cold_);
  if (published_clock_.is_due(now_ticks())) {
    const ClockFit fit = arena_ ? refresh_clock(arena_.header()) : ClockFit({take_stamp(), take_stamp()});
    published_clock_.follow(fit, now_ticks());
  }
  published_clock_.settle(now_ticks());
  return published_clock_;
}

void Recorder::reset() {
  if (!arena_) return;
  const std::lock_guard lock(cold_);
  ArenaHeader& header = arena_.header();
  const std::uint32_t stages = header.name_count.load(relaxed);
  // All memory first: what runs out of it has changed nothing.
  for (ThreadState* thread : threads_) {
    if (thread->slot == nullptr) continue;
    std::size_t own = 0;
    for (std::uint32_t stage = 0; stage < stages; ++stage) {
      const std::uint32_t block = thread->stats[stage].load(relaxed);
      if (block != 0 && (block & kSharedBlock) == 0) ++own;
    }
    thread->retired_blocks.reserve(thread->retired_blocks.size() + own);
  }
  // Threads go on writing meanwhile, so nothing that one of them owns is touched: rings get a new floor, and
  // blocks are set aside until their thread comes to ask for others.
  const FiguresMove move(header);
  header.resets.fetch_add(1, relaxed);
  for (std::atomic<std::uint64_t>& lost : header.lost) lost.store(0, relaxed);
  for (std::uint32_t i = 0; i < header.slot_high_water.load(relaxed); ++i)
    arena_.slot(i).floor.store(arena_.slot(i).head.load(std::memory_order_acquire), std::memory_order_release);
  for (ThreadState* thread : threads_) {
    if (thread->slot == nullptr) continue;
    for (std::uint32_t stage = 0; stage < stages; ++stage) {
      const std::uint32_t block = thread->stats[stage].exchange(0, relaxed);
      if (block != 0 && (block & kSharedBlock) == 0) thread->retired_blocks.push_back(block);
    }
  }
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    const std::uint32_t block = arena_.slot(kSharedSlot).stats[stage].load(relaxed);
    if (block == 0) continue;
    StatsBlock& shared = arena_.blocks()[(block & ~kSharedBlock) - 1];
    clear(shared);
    prepare(shared);
  }
  // The resolver holds the lock while it writes these.
  header.device_floor.store(header.device_head.load(relaxed), std::memory_order_release);
  for (std::uint32_t i = 0; i < header.device_stage_count.load(relaxed); ++i) {
    for (std::uint32_t figure = 0; figure < kDeviceFigures; ++figure) {
      clear(arena_.device_block(i, figure));
      prepare(arena_.device_block(i, figure));
    }
  }
  for (std::uint32_t i = 0; i < kMaxWork; ++i) {
    WorkEntry& entry = arena_.work()[i];
    entry.key.store(0, relaxed);
    entry.whole.store(0, relaxed);
    entry.fraction.store(0, relaxed);
  }
}

void Recorder::after_fork() noexcept {
  // The child starts its own recording in what is, copy on write, its own memory. States of threads that do
  // not exist here are left as they are: a span that was open in the parent finds that its frame's id has
  // changed, and goes by.
  generation_.fetch_add(1, relaxed);
  clear_arena(arena_);
  prepare_arena();
  published_clock_ = PublishedClock{};
  threads_.clear();
  t_state = nullptr;
  forget_to_leave();
}

}  // namespace stagespan
