// reader.cpp: copies records and frames, and keeps only those that were complete before and after.
#include "reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <new>
#include <optional>

namespace stagespan {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

// The kind of a stage as bits of a span's flags.
std::uint16_t kind_bits(ArenaView arena, std::uint32_t stage) {
  return stage < kMaxStages ? static_cast<std::uint16_t>(arena.name(stage).kind << kKindShift) : std::uint16_t{0};
}

std::int64_t cpu_ns_of(const CpuTime& time, std::uint64_t span) {
  if (time.span.load(std::memory_order_acquire) != span) return kUnknownNs;
  const auto cpu_ns = static_cast<std::int64_t>(time.cpu_ns.load(relaxed));
  // As for the number of a record: a writer clears the id before it changes the time.
  load_fence();
  return time.span.load(relaxed) == span ? cpu_ns : kUnknownNs;
}

std::optional<SpanCopy> copy_record(ArenaView arena, std::uint32_t slot, std::uint64_t number) {
  const ArenaHeader& header = arena.header();
  const std::uint64_t place = number & (header.ring_spans - 1);
  SpanCopy copy;
  if (!read_record(arena.ring(slot)[place], number, static_cast<SpanFields&>(copy))) return std::nullopt;
  copy.flags |= kind_bits(arena, copy.stage);
  if (header.cpu_time_pieces[slot].load(relaxed) != kPieceUnclaimed)
    copy.cpu_ns = cpu_ns_of(arena.cpu_times(slot)[place], copy.id);
  return copy;
}

/// Calls a function with each complete record of a ring between two numbers that the ring still has, oldest first.
template <class Record, class Take>
void for_each_record(const Record* ring, std::uint64_t capacity, std::uint64_t floor, std::uint64_t head,
                     const Take& take) {
  decltype(ring->load()) fields;
  for (std::uint64_t number = std::max(floor, head > capacity ? head - capacity : 0); number < head; ++number)
    if (read_record(ring[number % capacity], number, fields)) take(fields);
}

std::uint32_t slots_in_use(ArenaView arena) {
  return arena ? std::min(arena.header().slot_high_water.load(std::memory_order_acquire), kMaxThreads) : 0;
}

/// Numbers of the records in a ring: from `oldest` on, before `head`.
struct Held {
  std::uint64_t oldest;
  std::uint64_t head;
  std::uint64_t overwritten;
};

Held held_by(const ThreadSlot& slot, std::uint64_t capacity) {
  const std::uint64_t floor = slot.floor.load(std::memory_order_acquire);
  const std::uint64_t head = slot.head.load(std::memory_order_acquire);
  const std::uint64_t oldest = head > floor + capacity ? head - capacity : floor;
  return {oldest, head, oldest - floor};
}

void sort_by_begin(std::vector<SpanCopy>& spans) {
  const auto is_before = [](const SpanCopy& a, const SpanCopy& b) {
    return a.begin_ticks != b.begin_ticks ? a.begin_ticks < b.begin_ticks : a.id < b.id;
  };
  // Those of a thread without nested spans are.
  if (!std::is_sorted(spans.begin(), spans.end(), is_before)) std::sort(spans.begin(), spans.end(), is_before);
}

bool copy_frame(ArenaView arena, const OpenFrame& frame, OpenCopy& copy) {
  copy.id = frame.id.load(std::memory_order_acquire);
  if (copy.id == 0) return false;
  copy.parent = frame.parent.load(relaxed);
  copy.request = frame.as_parent_id.load(relaxed);  // if this is a detached frame
  copy.begin_ticks = copy.active_ticks = frame.begin_ticks.load(relaxed);
  copy.stage = frame.stage.load(relaxed);
  copy.thread = frame.effective.load(relaxed);
  copy.depth = frame.depth.load(relaxed);
  copy.flags = frame.flags.load(relaxed);
  load_fence();
  copy.kind = static_cast<StageKind>(kind_bits(arena, copy.stage) >> kKindShift);
  return frame.id.load(relaxed) == copy.id && (copy.flags & kFrameClosedAway) == 0;
}

}  // namespace

std::uint64_t overwritten(ArenaView arena) {
  std::uint64_t result = 0;
  for (std::uint32_t i = 0; i < slots_in_use(arena); ++i)
    result += held_by(arena.slot(i), arena.header().ring_spans).overwritten;
  return result;
}

std::vector<SpanCopy> read_spans(ArenaView arena) {
  std::vector<SpanCopy> result;
  const auto held_in = [&](std::uint32_t slot) { return held_by(arena.slot(slot), arena.header().ring_spans); };
  std::uint64_t count = 0;
  for (std::uint32_t i = 0; i < slots_in_use(arena); ++i) count += held_in(i).head - held_in(i).oldest;
  result.reserve(count);
  for (std::uint32_t i = 0; i < slots_in_use(arena); ++i) {
    const Held held = held_in(i);
    for (std::uint64_t number = held.oldest; number < held.head; ++number)
      if (const auto copy = copy_record(arena, i, number)) result.push_back(*copy);
  }
  sort_by_begin(result);
  return result;
}

std::vector<SpanCopy> read_new_spans(ArenaView arena, ReadPositions& positions) {
  std::vector<SpanCopy> result;
  const std::uint32_t slots = slots_in_use(arena);
  if (positions.next.size() < slots) positions.next.resize(slots, 0);
  for (std::uint32_t i = 0; i < slots; ++i) {
    const ThreadSlot& slot = arena.slot(i);
    const std::uint64_t capacity = arena.header().ring_spans;
    const Held held = held_by(slot, capacity);
    // Records that a reset removed are not counted as lost, but those overwritten since the last reading are.
    std::uint64_t& next = positions.next[i];
    next = std::max(next, held.oldest - held.overwritten);
    positions.overwritten += held.oldest - std::min(held.oldest, next);
    for (next = std::max(next, held.oldest); next < held.head; ++next) {
      if (const auto copy = copy_record(arena, i, next))
        result.push_back(*copy);
      else
        ++positions.overwritten;
    }
  }
  sort_by_begin(result);
  return result;
}

ReadPositions positions_of_newest(ArenaView arena) {
  ReadPositions positions;
  for (std::uint32_t i = 0; i < slots_in_use(arena); ++i)
    positions.next.push_back(arena.slot(i).head.load(std::memory_order_acquire));
  return positions;
}

std::vector<SpanCopy> read_requests(ArenaView arena, const std::vector<std::uint64_t>& requests,
                                    std::uint64_t since_ticks, std::uint64_t* complete_from) {
  constexpr std::uint64_t kNever = ~std::uint64_t{0};
  std::vector<SpanCopy> result;
  *complete_from = 0;
  for (std::uint32_t i = 0; i < slots_in_use(arena); ++i) {
    const std::uint64_t capacity = arena.header().ring_spans;
    const Held held = held_by(arena.slot(i), capacity);
    bool is_whole = held.overwritten == 0;
    std::uint64_t earliest_end = kNever;
    for (std::uint64_t number = held.head; number-- > held.oldest;) {
      const auto copy = copy_record(arena, i, number);
      if (!copy) {
        is_whole = false;
        break;
      }
      // The records are in the order of their ends, except those with times of other code.
      if ((copy->flags & kFlagRecorded) == 0) earliest_end = std::min(earliest_end, copy->end_ticks);
      if (earliest_end < since_ticks) {
        is_whole = false;
        break;
      }
      if (std::binary_search(requests.begin(), requests.end(), copy->request)) result.push_back(*copy);
    }
    if (!is_whole) *complete_from = std::max(*complete_from, earliest_end == kNever ? kNever : earliest_end + 1);
  }
  return result;
}

template <class Record>
std::vector<typename Record::Fields> read_ring(ArenaView arena) {
  std::vector<typename Record::Fields> result;
  if (!arena) return result;
  const RingView<Record> ring = arena.ring_of<Record>();
  for_each_record(ring.records, ring.capacity, 0, ring.head.load(std::memory_order_acquire),
                  [&](const auto& fields) { result.push_back(fields); });
  return result;
}

#define STAGESPAN_READ_RING(Name, LIST, per_request, further) \
  template std::vector<Name##Fields> read_ring<Name##Record>(ArenaView);
STAGESPAN_SHARED_RINGS(STAGESPAN_READ_RING)

std::unordered_map<std::uint64_t, std::map<std::uint32_t, Amount>> read_amounts(
    ArenaView arena, const std::unordered_set<std::uint64_t>* spans) {
  std::unordered_map<std::uint64_t, std::map<std::uint32_t, Amount>> result;
  for (const AmountFields& found : read_ring<AmountRecord>(arena)) {
    if (spans != nullptr && !spans->contains(found.span)) continue;
    constexpr double largest = std::numeric_limits<double>::max();
    Amount& amount = result[found.span][found.key & ~kAmountIsFraction];
    const auto whole = std::bit_cast<std::int64_t>(found.value);
    const auto add_fraction = [&](double more) {
      amount.fraction = std::clamp(amount.fraction + more, -largest, largest);
    };
    if ((found.key & kAmountIsFraction) != 0) {
      add_fraction(std::bit_cast<double>(found.value));
    } else if (std::int64_t sum = 0; !__builtin_add_overflow(amount.whole, whole, &sum)) {
      amount.whole = sum;
    } else {
      add_fraction(static_cast<double>(amount.whole) + static_cast<double>(whole));
      amount.whole = 0;
    }
  }
  return result;
}

std::unordered_map<std::uint64_t, DeviceFields> read_device_spans(ArenaView arena) {
  std::unordered_map<std::uint64_t, DeviceFields> result;
  if (!arena) return result;
  const std::uint64_t floor = arena.header().device_floor.load(std::memory_order_acquire);
  const std::uint64_t head = arena.header().device_head.load(std::memory_order_acquire);
  for_each_record(arena.device_ring(), kDeviceSpans, floor, head,
                  [&](const DeviceFields& times) { result.insert_or_assign(times.id, times); });
  return result;
}

bool try_read_spans(ArenaView arena, ReadPositions* positions, std::vector<SpanCopy>& spans,
                    std::unordered_map<std::uint64_t, DeviceFields>& devices) noexcept {
  try {
    spans = positions != nullptr ? read_new_spans(arena, *positions) : read_spans(arena);
    devices = read_device_spans(arena);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void copy_name(const ThreadSlot& slot, ThreadName& name) noexcept {
  std::uint64_t words[kThreadNameBytes / 8];
  for (std::size_t i = 0; i < std::size(words); ++i) words[i] = slot.name[i].load(relaxed);
  static_assert(sizeof(words) == sizeof(name));
  std::memcpy(name, words, sizeof(name));
  name[sizeof(name) - 1] = '\0';
}

std::vector<OpenCopy> read_open(ArenaView arena) {
  std::vector<OpenCopy> result;
  std::unordered_set<std::uint64_t> seen;
  for (std::uint32_t i = 0; i < slots_in_use(arena); ++i) {
    const ThreadSlot& slot = arena.slot(i);
    if (slot.state.load(std::memory_order_acquire) != kSlotLive) continue;
    const std::uint32_t end = std::min(slot.frames_high_water.load(relaxed), arena.header().frames_per_thread);
    for (std::uint32_t index = 1; index < end; ++index) {
      OpenCopy copy{};
      if (!copy_frame(arena, arena.frames(i)[index], copy)) continue;
      copy.request = arena.locals(i)[index].belongs_to();
      copy.frame = index;
      copy.slot = i;
      const void* const scope = arena.locals(i)[index].opened_in();
      copy.scope = scope == arena.locals(i)[0].opened_in() ? nullptr : scope;
      copy.thread = slot.thread.load(relaxed);
      copy.ident = slot.ident.load(relaxed);
      copy_name(slot, copy.thread_name);
      // A thread drops its frames before another thread gets its slot, so an open frame belongs to this thread.
      load_fence();
      if (arena.frames(i)[index].id.load(relaxed) != copy.id) continue;
      // A running coroutine is in its thread's stack and among the detached ones.
      if (seen.insert(copy.id).second) result.push_back(copy);
    }
  }
  const std::uint32_t detached =
      arena ? std::min(arena.header().detached_high_water.load(std::memory_order_acquire), kMaxDetached) : 0;
  for (std::uint32_t index = 0; index < detached; ++index) {
    OpenCopy copy{};
    if (!copy_frame(arena, arena.detached()[index], copy) || !seen.insert(copy.id).second) continue;
    copy.detached = true;
    copy.frame = index;
    copy.slot = kSharedSlot;
    result.push_back(copy);
  }
  std::sort(result.begin(), result.end(), [](const OpenCopy& a, const OpenCopy& b) {
    if (a.thread != b.thread) return a.thread < b.thread;
    return a.begin_ticks != b.begin_ticks ? a.begin_ticks < b.begin_ticks : a.id < b.id;
  });
  return result;
}

void find_activity(ArenaView arena, std::vector<OpenCopy>& open, const FetchRecords& fetch) {
  if (open.empty()) return;
  std::unordered_map<std::uint64_t, OpenCopy*> by_id;
  for (OpenCopy& copy : open) by_id.emplace(copy.id, &copy);
  // Something began or ended below the span with this id, and so below all that it is in.
  const auto note = [&](std::uint64_t id, std::uint64_t ticks) {
    for (auto found = by_id.find(id); found != by_id.end(); found = by_id.find(found->second->parent)) {
      if (found->second->active_ticks >= ticks) return;
      found->second->active_ticks = ticks;
    }
  };
  for (const OpenCopy& copy : open) note(copy.parent, copy.begin_ticks);
  constexpr std::uint64_t kAtOnce = 64;
  static_assert(kLeastRingSpans % kAtOnce == 0, "the records of a part lie next to each other");
  std::uint64_t newest_ends[kMaxThreads] = {};
  for (std::uint32_t i = 0; i < slots_in_use(arena); ++i) {
    const std::uint64_t capacity = arena.header().ring_spans;
    const Held held = held_by(arena.slot(i), capacity);
    bool is_needed = true;
    for (std::uint64_t end = held.head; end > held.oldest && is_needed;) {
      const std::uint64_t first = std::max((end - 1) / kAtOnce * kAtOnce, held.oldest);
      if (fetch) fetch(i, first, end - first);
      // Before the least of these, a record says nothing new.
      std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
      for (const OpenCopy& copy : open) least = std::min(least, copy.active_ticks);
      SpanFields record;
      for (std::uint64_t number = end; number-- > first && is_needed;) {
        if (!read_record(arena.ring(i)[number & (capacity - 1)], number, record)) continue;
        // The records are in the order of their ends, except those with times of other code.
        if ((record.flags & kFlagRecorded) == 0) {
          newest_ends[i] = std::max(newest_ends[i], record.end_ticks);
          is_needed = record.end_ticks > least;
        }
        note(record.parent, record.end_ticks);
      }
      end = first;
    }
  }
  std::map<const void*, std::uint64_t> latest_in_scope;
  std::uint64_t latest[kMaxThreads] = {};
  for (const OpenCopy& copy : open) {
    if (copy.detached) continue;
    latest[copy.slot] = std::max({latest[copy.slot], copy.begin_ticks, newest_ends[copy.slot]});
    std::uint64_t& of_scope = latest_in_scope[copy.scope];
    of_scope = std::max(of_scope, copy.active_ticks);
  }
  for (OpenCopy& copy : open) {
    if (copy.detached)
      copy.suspended = (copy.flags & (kFlagAsync | kFlagGenerator)) != 0;
    else
      copy.suspended = copy.scope != nullptr && latest_in_scope[copy.scope] < latest[copy.slot];
  }
}

}  // namespace stagespan
