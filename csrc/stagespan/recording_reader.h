// recording_reader.h: a copy of a recording, of this or another process, in which every number has been checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena.h"
#include "clock.h"
#include "layout.h"

namespace stagespan {

/// What the file says of a request.
struct RequestCopy {
  std::uint64_t number;
  std::uint64_t begin_ticks;
  std::uint64_t end_ticks;  // 0 while it is open
  TraceId trace;
  std::string id;
};

struct UnmapArena {
  std::uint64_t size_bytes = 0;
  void operator()(std::byte* base) const noexcept;
};

// A recording is read with pread() into memory of the reader's own. The process that writes it, or anybody who owns
// the file, may cut it off at any moment, and a mapping of it would then end the reader by SIGBUS. In the copy every
// offset, count and index is checked once, and set right or left out; all that reads arenas can read it then.
//
// What is written meanwhile is copied three times: a record or frame stays if its number is the same in all of them.
// The first one says that the number was there before the copy that is kept was taken, the last one that it was still
// there afterwards; with only two, a record whose number was stored during the copy could be half an older one.
struct RecordingCopy {
  std::unique_ptr<std::byte, UnmapArena> memory;
  ArenaView arena;
  ProcessInfo info{};
  std::vector<std::string> names;  // by stage
  std::vector<RequestCopy> requests;
  ClockFit fit{{}};
  std::uint64_t now_ticks = 0;            // on the recording's clock, when the copy was taken; 0 if not known
  std::uint32_t threads_not_in_file = 0;  // the tmpfs was full: all or some of what they recorded is missing
  std::uint32_t blocks_not_in_file = 0;   // statistics of as many threads and stages are missing
  std::uint64_t damaged = 0;              // numbers that cannot be right, each of which was left out
  std::uint64_t missing_bytes = 0;        // that the file was cut off
  bool is_moving = false;  // figures moved from block to block while they were copied: some may be missing or double
};

/// How much of a recording to copy.
enum class RecordingParts { kFiguresAndOpen, kAll };

/// Copies the recording in an open file. Gives what was wrong in one sentence that begins with `what`, or an empty
/// text. May throw std::bad_alloc.
std::string copy_recording(int fd, const std::string& what, RecordingParts parts, RecordingCopy& copy);

}  // namespace stagespan
