// recording_file.h: the file of a recording in a tmpfs: where it lies, and reserving pieces of it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "arena.h"
#include "layout.h"

namespace stagespan {

// An arena begins as anonymous memory. A piece of it goes over to the recording's file in three steps: space is
// reserved there (fallocate), what the piece holds is copied, and the file's pages are mapped over it, at the same
// address. So no page of the file is ever written that the tmpfs has no room for, which would end the process by
// SIGBUS; a piece for which there is no room stays as it is, and what is recorded in it is read in this process only.
//
//   arena   |header names ..|slot 0|      |slot 256|frames of slot 0|      |ring of slot 0|      |blocks 0-15|  ...
//           |    file       | file | mem. |  file  |      file      | mem. |     file     | mem. |   file    |
//
// All of the arena is left out of forked children (MADV_DONTFORK), which map memory of their own at its place before
// they can open a span.

enum class RecordingKind {
  kNotYet,  // no span was opened yet
  kOff,     // STAGESPAN_RECORDING=off
  kFile,
  kMemfd,   // no file system: others find it through /proc/PID/fd
  kMemory,  // of this process only
};

/// What the environment asks for.
struct RecordingWish {
  bool is_on = true;
  bool keep = false;   // after a clean exit
  std::string folder;  // empty for the default one
};

struct RecordingPlace {
  RecordingKind kind = RecordingKind::kNotYet;
  std::string path;  // of a file
  std::string why;   // it is not a file, or empty
  std::uint64_t reserved_bytes = 0;
  std::uint64_t refused_bytes = 0;  // of pieces that stayed in memory of the process
};

/// What is read once of a process, for its header.
struct ProcessIdentity {
  std::uint64_t start_ticks = 0;
  std::uint64_t pid_namespace = 0;
  std::uint64_t boot = 0;
};
ProcessIdentity identity_of_this_process() noexcept;

/// Field 22 of /proc/PID/stat; 0 if there is no such process.
std::uint64_t start_ticks_of(pid_t pid) noexcept;

/// The folder of this user's recordings, as it is when nobody names another one.
std::string default_recording_folder();

/// Why recordings cannot lie in a folder: one sentence, empty if they can. Makes the folder if it is not there.
std::string why_not_in(const std::string& folder);

/// Bytes of the leftovers that are kept of one user, and how many of them.
inline constexpr std::uint64_t kLeftoverBytes = 256ULL << 20;
inline constexpr std::uint32_t kLeftoverFiles = 16;

class RecordingFile {
 public:
  /// Makes the file, or a memfd where that cannot be, and moves to it what `pieces` asks for. The header must be
  /// filled in. Never fails: if there is neither, the arena stays in memory.
  struct Piece {
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  void start(ArenaView arena, const RecordingWish& wish, const Piece* pieces, std::size_t count) noexcept;

  /// Moves a piece of whole pages to the file. False, with nothing changed, if there is no file or no room.
  /// `has_content` says if something was written to it already; nobody may be writing it meanwhile.
  bool reserve(ArenaView arena, const Piece& piece, bool has_content) noexcept;

  bool is_active() const noexcept { return fd_ >= 0; }
  const RecordingPlace& place() const noexcept { return place_; }

  /// Called when the process ends by its own exit: removes the file unless it is to be kept.
  void end(ArenaHeader& header) noexcept;

  /// In a forked child: lets go of the parent's file, which is not mapped here.
  void forget_after_fork() noexcept;

  /// Removes the leftovers of dead processes beyond the newest ones. Never those of a live one.
  void tidy() noexcept;

 private:
  bool open_file(const RecordingWish& wish, std::uint64_t size) noexcept;
  bool open_memfd(std::uint64_t size) noexcept;
  bool publish(const ArenaHeader& header) noexcept;
  bool is_ours() const noexcept;
  void close_file() noexcept;

  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  pid_t owner_ = 0;
  bool keep_ = false;
  std::string folder_;
  std::string hidden_;  // the file's name until it is whole
  RecordingPlace place_;
};

}  // namespace stagespan
