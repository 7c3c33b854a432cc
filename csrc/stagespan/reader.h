// reader.h: finished and open spans of an arena, copied while its threads write.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "arena.h"
#include "layout.h"

namespace stagespan {

/// A finished span from a ring, in ticks. Its flags contain its kind, see kKindShift.
struct SpanCopy : SpanFields {
  std::int64_t cpu_ns = kUnknownNs;
};

/// The number of spans that the rings have overwritten.
std::uint64_t overwritten(ArenaView arena);

/// All complete records of all rings, ordered by begin.
std::vector<SpanCopy> read_spans(ArenaView arena);

/// The position of a reader in each ring.
struct ReadPositions {
  std::vector<std::uint64_t> next;  // by slot: the number of the next record to read
  std::uint64_t overwritten = 0;    // records that a ring lost before they were read
};

/// The records that were added to all rings since `positions`, ordered by begin. Moves the positions past them. Each
/// record is either read once or counted as overwritten.
std::vector<SpanCopy> read_new_spans(ArenaView arena, ReadPositions& positions);

/// The positions after all records written so far.
ReadPositions positions_of_newest(ArenaView arena);

/// The records of requests, whose sorted numbers are given, from the newest record of each ring back to the first one
/// that ended before `since_ticks`. Those of requests that began at `complete_from` or later are complete: no ring has
/// wrapped since.
std::vector<SpanCopy> read_requests(ArenaView arena, const std::vector<std::uint64_t>& requests,
                                    std::uint64_t since_ticks, std::uint64_t* complete_from);

/// The records of a shared ring, oldest first.
template <class Record>
std::vector<typename Record::Fields> read_ring(ArenaView arena);

/// The work of a span in one unit; the sum of both numbers.
struct Amount {
  std::int64_t whole = 0;
  double fraction = 0;
};

/// The work of spans by span id and work key: of the spans with these ids, or of all spans.
std::unordered_map<std::uint64_t, std::map<std::uint32_t, Amount>> read_amounts(
    ArenaView arena, const std::unordered_set<std::uint64_t>* spans = nullptr);

/// The device times of spans, by span id.
std::unordered_map<std::uint64_t, DeviceFields> read_device_spans(ArenaView arena);

/// Returns the spans, or with positions those that read_new_spans() returns, and their device times, without
/// exceptions. False if there was not enough memory.
bool try_read_spans(ArenaView arena, ReadPositions* positions, std::vector<SpanCopy>& spans,
                    std::unordered_map<std::uint64_t, DeviceFields>& devices) noexcept;

struct OpenCopy {
  std::uint64_t id;
  std::uint64_t parent;
  std::uint64_t begin_ticks;
  std::uint64_t active_ticks;  // when it, or something below it, last began or ended; see find_activity()
  std::uint64_t ident;         // 0 when it is not known
  std::uint64_t request;
  std::uint32_t stage;
  std::uint32_t thread;
  std::uint32_t frame;  // its index among the spans of its thread, or among the detached ones
  std::uint32_t slot;   // of its thread; kSharedSlot if it is detached
  std::uint16_t depth;
  std::uint16_t flags;
  StageKind kind;
  bool detached;
  bool suspended;     // it is known that no thread runs its code; see find_activity()
  const void* scope;  // an address in the process; null if it is detached or in the thread's own code
  ThreadName thread_name;
};

/// The name of the thread that uses this slot.
void copy_name(const ThreadSlot& slot, ThreadName& name) noexcept;

/// The open spans of every thread, by thread, outermost first. `active_ticks` is their start, and `suspended` is false.
std::vector<OpenCopy> read_open(ArenaView arena);

/// Makes the records of a ring that have `count` numbers from `first` on available in the arena.
using FetchRecords = std::function<void(std::uint32_t slot, std::uint64_t first, std::uint64_t count)>;

/// Finds when something last began or ended at or below each of the spans, and which of them are suspended: coroutines
/// and generators between two turns, and the spans in tasks after which other code of their thread began or ended one.
/// Reads each ring from its newest record back, as far as a record can matter. With `fetch`, calls it before a part of
/// a ring is read.
void find_activity(ArenaView arena, std::vector<OpenCopy>& open, const FetchRecords& fetch = {});

}  // namespace stagespan
