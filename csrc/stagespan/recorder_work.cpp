// recorder_work.cpp: what the runs of stages have done: counters, the amounts of single spans, and distributions.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "histogram.h"
#include "recorder.h"
#include "text.h"
#include "version_change.h"

namespace stagespan {

constinit OpenWork g_span_work;

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

// The sum of two finite numbers, or the largest double.
double saturated_sum(double a, double b) {
  constexpr double largest = std::numeric_limits<double>::max();
  return std::clamp(a + b, -largest, largest);
}

// Adds to a counter. If the integer part would overflow, it is moved to the other part, which has the range of a
// double.
void add_amount(ArenaHeader& header, WorkEntry& entry, std::int64_t whole, double fraction) {
  const std::int64_t before = entry.whole.load(relaxed);
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(before, whole, &sum)) {
    entry.whole.store(sum, relaxed);
    if (fraction != 0) entry.fraction.store(saturated_sum(entry.fraction.load(relaxed), fraction), relaxed);
    return;
  }
  const double carried = static_cast<double>(before) + static_cast<double>(whole) + fraction;
  const VersionChange move(header.fold_version);
  entry.whole.store(0, relaxed);
  entry.fraction.store(saturated_sum(entry.fraction.load(relaxed), carried), relaxed);
}

// Adds to the value of an AmountRecord. Returns false and changes nothing if the sum of integers would overflow.
bool add_value(std::uint64_t& sum, std::uint64_t value, bool is_fraction) {
  if (is_fraction) {
    sum = std::bit_cast<std::uint64_t>(saturated_sum(std::bit_cast<double>(sum), std::bit_cast<double>(value)));
    return true;
  }
  std::int64_t whole = 0;
  if (__builtin_add_overflow(std::bit_cast<std::int64_t>(sum), std::bit_cast<std::int64_t>(value), &whole))
    return false;
  sum = std::bit_cast<std::uint64_t>(whole);
  return true;
}

std::uint64_t entry_key(std::uint32_t stage, std::uint32_t key) { return (std::uint64_t{stage} + 1) << 32 | key; }

}  // namespace

void count_work(const FinishedSpan& span) noexcept { Recorder::get().count_span_work(span); }

void Recorder::add_work(std::uint32_t stage, std::string_view key, std::int64_t whole, double fraction,
                        WorkingSpan span) noexcept {
  if (!arena_) return;
  // One NaN would make the whole counter NaN.
  if (!std::isfinite(fraction)) {
    lose(kLostWork);
    return;
  }
  const std::lock_guard lock(cold_);
  try {
    add_work_locked(stage, key, whole, fraction, span);
  } catch (const std::bad_alloc&) {
    lose(kLostMemory);
  }
}

void Recorder::add_work_locked(std::uint32_t stage, std::string_view key, std::int64_t whole, double fraction,
                               WorkingSpan span) {
  ArenaHeader& header = arena_.header();
  SingleWriter::add(header.changes, std::uint64_t{1});
  const std::uint32_t index = work_key_locked(key);
  if (span.id != 0 && (whole != 0 || fraction == 0))
    add_amount_locked(span, index, std::bit_cast<std::uint64_t>(whole));
  if (span.id != 0 && fraction != 0)
    add_amount_locked(span, index | kAmountIsFraction, std::bit_cast<std::uint64_t>(fraction));
  const double amount = static_cast<double>(whole) + fraction;
  if (span.id != 0)
    add_open_locked(span, index, amount);
  else if (span.request != 0)
    add_to_request_locked(span.request, index, amount);
  add_counter_locked(stage, index, whole, fraction);
}

void Recorder::add_system_counts(const FinishedSpan& span, const SystemCounts& counts) noexcept {
  if (!arena_) return;
  const std::pair<const char*, std::int64_t> named[] = {{"page_faults", counts.page_faults},
                                                        {"voluntary_switches", counts.voluntary_switches},
                                                        {"involuntary_switches", counts.involuntary_switches},
                                                        {"system_us", counts.system_us},
                                                        {"run_delay_us", counts.run_delay_us}};
  const std::lock_guard lock(cold_);
  SingleWriter::add(arena_.header().changes, std::uint64_t{1});
  try {
    for (const auto& [name, count] : named) {
      if (count < 0) continue;
      const std::uint32_t key = work_key_locked(name);
      add_amount_locked({span.id, span.begin_ticks}, key, std::bit_cast<std::uint64_t>(count));
      add_counter_locked(span.stage, key, count, 0);
    }
  } catch (const std::bad_alloc&) {
    lose(kLostMemory);
  }
}

void Recorder::add_counter_locked(std::uint32_t stage, std::uint32_t key, std::int64_t whole,
                                  double fraction) noexcept {
  ArenaHeader& header = arena_.header();
  const std::uint64_t wanted = entry_key(stage, key);
  const std::uint32_t start = (stage * 31 + key * 7) % kMaxWork;
  for (std::uint32_t probe = 0; probe < kMaxWork; ++probe) {
    WorkEntry& entry = arena_.work()[(start + probe) % kMaxWork];
    const std::uint64_t seen = entry.key.load(relaxed);
    if (seen != 0 && seen != wanted) continue;
    add_amount(header, entry, whole, fraction);
    // Release: a reader that sees the key sees its text and amount.
    if (seen == 0) entry.key.store(wanted, std::memory_order_release);
    return;
  }
  lose(kLostWork);
}

// Adds to one of the latest records if it is of the same span and key, so that a loop that adds a few at a time needs
// one record.
void Recorder::add_amount_locked(WorkingSpan span, std::uint32_t key, std::uint64_t value) noexcept {
  constexpr std::uint64_t kLatest = 4;
  const RingView<AmountRecord> ring = arena_.ring_of<AmountRecord>();
  const std::uint64_t number = ring.head.load(relaxed);
  for (std::uint64_t before = 1; before <= std::min(number, kLatest); ++before) {
    AmountRecord& record = ring[number - before];
    if (record.span.load(relaxed) != span.id || record.key.load(relaxed) != key) continue;
    std::uint64_t sum = record.value.load(relaxed);
    if (!add_value(sum, value, (key & kAmountIsFraction) != 0)) break;
    record.value.store(sum, relaxed);
    return;
  }
  if (number >= ring.capacity)
    SingleWriter::raise(arena_.header().amounts_since_ticks, ring[number].span_begin_ticks.load(relaxed));
  store_fence();  // a reader that sees that the previous record is gone sees from when on all amounts are there
  append_locked<AmountRecord>({span.id, span.begin_ticks, value, key});
}

// The number of a key. The last one is that of all further keys.
std::uint32_t Recorder::work_key_locked(std::string_view key) {
  std::string text(cut(key, kWorkKeyBytes));
  auto entry = work_keys_.find(text);
  if (entry != work_keys_.end()) return entry->second;
  const std::uint32_t count = arena_.header().work_key_count.load(relaxed);
  if (count + 1 >= kMaxWorkKeys && text != kForeignName) {
    lose(kLostWork);
    text = kForeignName;
    entry = work_keys_.find(text);
    if (entry != work_keys_.end()) return entry->second;
  }
  if (count == kMaxWorkKeys) return kMaxWorkKeys - 1;
  entry = work_keys_.emplace(std::move(text), count).first;
  std::memcpy(arena_.work_keys()[count].text, entry->first.data(), entry->first.size());
  // Release: a reader that sees the count sees the texts.
  arena_.header().work_key_count.store(count + 1, std::memory_order_release);
  return count;
}

// --- distributions -----------------------------------------------------------------------------------------

void Recorder::add_open_locked(WorkingSpan span, std::uint32_t key, double amount) noexcept {
  const OpenWork::Added added = g_span_work.add(span.id, key, amount);
  if (added == OpenWork::Added::kAgain) return;
  if (added == OpenWork::Added::kNoMemory) return lose(kLostMemory);
  if (added == OpenWork::Added::kReplacing) lose(kLostWork);
  OpenFrame* frame = span.frame;
  for (std::size_t i = 0; frame == nullptr && i < threads_.size(); ++i) {
    for_each_frame(*threads_[i], [&](std::uint32_t index) {
      OpenFrame& other = threads_[i]->frames[index];
      if (other.id.load(relaxed) == span.id) frame = &other;
    });
  }
  // So that the span does not end on the fast path. One that is outside the stacks never does.
  if (frame != nullptr) frame->flags.fetch_or(kFrameWork, relaxed);
}

void Recorder::add_to_request_locked(std::uint64_t request, std::uint32_t key, double amount) noexcept {
  const OpenWork::Added added = request_work_.add(request, key, amount);
  if (added == OpenWork::Added::kNoMemory) lose(kLostMemory);
  if (added == OpenWork::Added::kReplacing) lose(kLostWork);
}

void Recorder::count_span_work(const FinishedSpan& span) noexcept {
  const std::lock_guard lock(cold_);
  g_span_work.take(span.id, [&](std::uint32_t key, double amount) {
    count_amount_locked(span.stage, key, amount);
    if (span.request != 0) add_to_request_locked(span.request, key, amount);
  });
}

void Recorder::count_request_work(std::uint64_t request, std::uint32_t pipeline, std::uint64_t tokens) noexcept {
  if (!arena_) return;
  const std::lock_guard lock(cold_);
  std::uint32_t tokens_key = kMaxWorkKeys;
  try {
    if (tokens != 0) tokens_key = work_key_locked("tokens");
  } catch (const std::bad_alloc&) {
    lose(kLostMemory);
  }
  request_work_.take(request, [&](std::uint32_t key, double amount) {
    if (key == tokens_key) tokens_key = kMaxWorkKeys;
    count_amount_locked(pipeline, key, amount);
  });
  if (tokens_key != kMaxWorkKeys) count_amount_locked(pipeline, tokens_key, static_cast<double>(tokens));
}

void Recorder::pass_request_work(std::uint64_t request, std::uint64_t outer) noexcept {
  if (!request_work_.may_have(request)) return;
  const std::lock_guard lock(cold_);
  request_work_.take(request, [&](std::uint32_t key, double amount) { add_to_request_locked(outer, key, amount); });
}

// The block of a key of a stage. The last block is that of all further ones, whose units differ.
WorkBlock* Recorder::work_block_locked(std::uint32_t stage, std::uint32_t key) {
  ArenaHeader& header = arena_.header();
  std::uint64_t wanted = entry_key(stage, key);
  auto entry = work_blocks_.find(wanted);
  const std::uint32_t count = header.work_block_count.load(relaxed);
  if (entry == work_blocks_.end() && count + 1 >= kMaxWorkBlocks) {
    lose(kLostWork);
    wanted = entry_key(kStageOverflow, work_key_locked(kForeignName));
    entry = work_blocks_.find(wanted);
    if (entry == work_blocks_.end() && count == kMaxWorkBlocks) return nullptr;
  }
  if (entry != work_blocks_.end()) return &arena_.work_blocks()[entry->second];
  work_blocks_.emplace(wanted, count);
  claim_piece_locked(header.work_block_pieces, kRegionWorkBlocks, count, kWorkBlocksAtOnce);
  WorkBlock& block = arena_.work_blocks()[count];
  block.least.store(std::numeric_limits<double>::infinity(), relaxed);
  block.key.store(wanted, relaxed);
  // Release: a reader that sees the count sees the key.
  header.work_block_count.store(count + 1, std::memory_order_release);
  return &block;
}

void Recorder::count_amount_locked(std::uint32_t stage, std::uint32_t key, double amount) noexcept {
  if (!(amount >= 0) || std::isinf(amount)) return lose(kLostWork);
  WorkBlock* block = nullptr;
  try {
    block = work_block_locked(stage, key);
  } catch (const std::bad_alloc&) {
    lose(kLostMemory);
  }
  if (block == nullptr) return;
  std::atomic<std::uint32_t>& bucket = block->buckets[amount_bucket_of(amount)];
  if (bucket.load(relaxed) != 0xffffffffU) SingleWriter::add(bucket, 1U);
  block->least.store(std::min(block->least.load(relaxed), amount), relaxed);
  block->most.store(std::max(block->most.load(relaxed), amount), relaxed);
  block->sum.store(saturated_sum(block->sum.load(relaxed), amount), relaxed);
  if (amount != std::floor(amount)) SingleWriter::add(block->fractions, std::uint64_t{1});
  SingleWriter::add(block->count, std::uint64_t{1});
  // Last, so that a reader that sees this change sees the figures.
  SingleWriter::add(arena_.header().changes, std::uint64_t{1});
}

void Recorder::clear_work() noexcept {
  for (std::uint32_t i = 0; i < kMaxWork; ++i) {
    WorkEntry& entry = arena_.work()[i];
    entry.key.store(0, relaxed);
    entry.whole.store(0, relaxed);
    entry.fraction.store(0, relaxed);
  }
  for (std::uint32_t i = 0; i < arena_.header().work_block_count.load(relaxed); ++i) {
    WorkBlock& block = arena_.work_blocks()[i];
    block.count.store(0, relaxed);
    block.sum.store(0, relaxed);
    block.least.store(std::numeric_limits<double>::infinity(), relaxed);
    block.most.store(0, relaxed);
    block.fractions.store(0, relaxed);
    for (std::atomic<std::uint32_t>& bucket : block.buckets) bucket.store(0, relaxed);
  }
}

}  // namespace stagespan
