// recording_reader.h: copies a recording of this or another process, and checks every number in the copy.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arena.h"
#include "clock.h"
#include "layout.h"
#include "reader.h"

namespace stagespan {

/// A segment in the file.
struct SegmentCopy : SegmentFields {
  std::uint64_t number = 0;
};

/// Leaves the memory of a copy to the next one, because new pages cost more than what is copied to them.
struct ReleaseArena {
  std::uint64_t size_bytes = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> written;  // the begin and end of what is not zero
  void operator()(std::byte* base) const noexcept;
};

// A recording is read with pread() into the reader's own memory. The process that writes it, or anyone who owns the
// file, may truncate it at any time, and a mapping would then end the reader by SIGBUS. In the copy, every offset,
// count and index is checked once, and either corrected or left out. All functions that read arenas can then read it.
//
// Data that is written during the copy is copied three times: a record or frame is kept if its number is the same in
// all copies. The first copy shows that the number was there before the copy that is kept was taken, and the last one
// that it was still there afterwards. With only two copies, a record whose number was stored during the copy could be
// half an older one.
struct RecordingCopy {
  std::unique_ptr<std::byte, ReleaseArena> memory;
  ArenaView arena;
  ProcessInfo info{};
  std::vector<std::string> names;                           // by stage
  std::vector<SegmentCopy> segments;                        // by number
  std::unordered_map<std::uint64_t, RequestFields> fields;  // by the number of the request
  std::vector<OpenCopy> open;                               // as find_activity() returns them
  ClockFit fit{{}};
  std::uint64_t now_ticks = 0;            // on the recording's clock, when the copy was taken; 0 if unknown
  std::uint32_t threads_not_in_file = 0;  // the tmpfs was full: some or all of their records are missing
  std::uint32_t blocks_not_in_file = 0;   // the number of threads and stages whose statistics are missing
  std::uint64_t damaged = 0;              // impossible numbers, which were left out
  std::uint64_t missing_bytes = 0;        // bytes that are missing at the end of a truncated file
  bool is_moving = false;  // figures moved from block to block during the copy: some may be missing or counted twice

  /// Gives the memory of the finished spans back, for a reader that has read them.
  void drop_spans() noexcept;
};

/// The parts of a recording to copy. With kOpen, the copy has neither names, figures, requests nor finished spans.
enum class RecordingParts { kOpen, kFiguresAndOpen, kAll };

/// Copies the recording in an open file. Returns one sentence about what was wrong that begins with `what`, or an empty
/// text. May throw std::bad_alloc.
std::string copy_recording(int fd, const std::string& what, RecordingParts parts, RecordingCopy& copy);

/// How many spans each thread has recorded so far, which is read without the rest of the file. Empty as the next one.
std::vector<std::uint64_t> recording_heads(int fd);

/// Bytes that are different whenever something has been recorded since they were last read, or something is open that
/// was not. Empty if the file is not a recording of this layout, or is damaged.
std::string recording_marks(int fd);

}  // namespace stagespan
