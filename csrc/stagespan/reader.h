// reader.h: finished and open spans of an arena, copied while its threads write.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "layout.h"

namespace stagespan {

/// A finished span as it lay in a ring, in ticks.
struct SpanCopy {
  std::uint64_t begin_ticks;
  std::uint64_t end_ticks;
  std::uint64_t id;
  std::uint64_t parent;
  std::uint64_t request;
  std::uint64_t suspended_ticks;
  std::uint32_t stage;
  std::uint32_t thread;
  std::uint16_t depth;
  std::uint16_t flags;
};

/// What the rings have lost by wrapping round.
std::uint64_t overwritten(ArenaView arena);

/// Every whole record of every ring, ordered by begin.
std::vector<SpanCopy> read_spans(ArenaView arena);

/// How far a reader has come in each ring.
struct ReadPositions {
  std::vector<std::uint64_t> next;  // by slot: the number of the record to be read next
  std::uint64_t overwritten = 0;    // records that a ring lost before they were read
};

/// The records that every ring has got since `positions`, ordered by begin; moves the positions past them. Each record
/// is read once, or counted as overwritten.
std::vector<SpanCopy> read_new_spans(ArenaView arena, ReadPositions& positions);

/// Positions from which nothing that has been recorded so far is read.
ReadPositions positions_of_newest(ArenaView arena);

/// The records of one request, from each ring's newest back to the first that ended before `since_ticks`.
/// `complete` turns false when a ring has wrapped within that time.
std::vector<SpanCopy> read_request(ArenaView arena, std::uint64_t request, std::uint64_t since_ticks, bool* complete);

/// What a device spent on a span; kUnknownNs where it is not known.
struct DeviceCopy {
  std::int64_t elapsed_ns;
  std::int64_t queue_ns;
  std::int64_t tail_ns;
  std::uint32_t device;
};

/// The device's part of spans, by their ids.
std::unordered_map<std::uint64_t, DeviceCopy> read_device_spans(ArenaView arena);

/// Both of these, for callers that do without exceptions. False if there was no memory for them.
bool try_read_spans(ArenaView arena, std::vector<SpanCopy>& spans,
                    std::unordered_map<std::uint64_t, DeviceCopy>& devices) noexcept;
/// The same for the spans that read_new_spans() gives.
bool try_read_new_spans(ArenaView arena, ReadPositions& positions, std::vector<SpanCopy>& spans,
                        std::unordered_map<std::uint64_t, DeviceCopy>& devices) noexcept;

struct OpenCopy {
  std::uint64_t id;
  std::uint64_t parent;
  std::uint64_t begin_ticks;
  std::uint64_t ident;  // 0 when it is not known
  std::uint64_t request;
  std::uint32_t stage;
  std::uint32_t thread;
  std::uint32_t frame;  // its index among those of its thread, or among the detached ones
  std::uint16_t depth;
  std::uint16_t flags;
  bool detached;
  ThreadName thread_name;
};

/// The name of the thread that has this slot.
void copy_name(const ThreadSlot& slot, ThreadName& name) noexcept;

/// What every thread is in at this moment, by thread, outermost first.
std::vector<OpenCopy> read_open(ArenaView arena);

}  // namespace stagespan
