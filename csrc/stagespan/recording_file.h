// recording_file.h: the file of a recording in a tmpfs: where it is, and how pieces of it are reserved.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "arena.h"
#include "layout.h"

namespace stagespan {

// An arena begins as anonymous memory. A piece of it is moved to the recording's file in three steps: space is reserved
// in the file (fallocate), the content of the piece is copied, and the file's pages are mapped over it at the same
// address. A page without space in the tmpfs is therefore never written, which would end the process by SIGBUS. If
// there is no space for a piece, it stays in memory, and only this process can read what is recorded in it.
//
//   arena   |header names ..|slot 0|      |slot 256|frames of slot 0|      |ring of slot 0|      |blocks 0-15|  ...
//           |    file       | file | mem. |  file  |      file      | mem. |     file     | mem. |   file    |
//
// Forked children do not inherit the arena (MADV_DONTFORK). They map their own memory at the same address before they
// can open a span.

enum class RecordingKind {
  kNotYet,  // no span was opened yet
  kOff,     // STAGESPAN_RECORDING=off
  kFile,
  kMemfd,   // without a name in the file system: others find it through /proc/PID/fd
  kMemory,  // of this process only
};

/// The settings of the environment.
struct RecordingWish {
  bool is_on = true;
  bool keep = false;        // after a normal exit
  bool may_be_file = true;  // false: a memfd, which other programs cannot truncate
  bool is_hidden = false;   // readers do not find it, neither as a file nor as a memfd
  std::string folder;       // empty for the default one
};

struct RecordingPlace {
  RecordingKind kind = RecordingKind::kNotYet;
  std::string path;       // of a file
  std::string why;        // empty if it is a file
  bool is_fault = false;  // it should have been a file, or it is where the exporter of the folder does not look
  std::uint64_t reserved_bytes = 0;
  std::uint64_t refused_bytes = 0;  // of pieces that stayed in the process's memory
};

/// The default folder for this user's recordings.
std::string default_recording_folder();

/// Why recordings cannot be created in a folder, as one sentence; empty if they can. Creates the folder if it does not
/// exist.
std::string why_not_in(const std::string& folder);

/// The limits for leftovers of dead processes that are kept for a user: their bytes and their number.
inline constexpr std::uint64_t kLeftoverBytes = 256ULL << 20;
inline constexpr std::uint32_t kLeftoverFiles = 16;

/// Reserves space behind the end of an exporter's file, so that processes can write to it while the tmpfs is full.
bool reserve_for_marks(int fd) noexcept;

class RecordingFile {
 public:
  /// A part of the arena.
  struct Piece {
    std::uint64_t offset;
    std::uint64_t bytes;
  };

  /// Creates the file, or a memfd if that is not possible, and moves `pieces` to it. The header must be filled in. If
  /// neither can be created, the arena stays in memory; this is not an error.
  void start(ArenaView arena, const RecordingWish& wish, const Piece* pieces, std::size_t count) noexcept;

  /// Moves a piece, in whole pages, to the file. Returns false and changes nothing if there is no file or no space.
  /// `has_content`: the piece has been written to. It must not be written to during the call.
  bool reserve(ArenaView arena, const Piece& piece, bool has_content) noexcept;

  bool is_active() const noexcept { return fd_ >= 0; }
  const RecordingPlace& place() const noexcept { return place_; }

  /// Called when the process exits: removes the file unless it is to be kept. While another process of the same job
  /// lives, the file stays, because requests may have parts in both; the last one removes those that have stayed. While
  /// an exporter holds its lock on the folder, the file stays too, and the exporter removes it.
  void end(ArenaHeader& header) noexcept;

  /// In a forked child: closes the parent's file, which is not mapped here.
  void forget_after_fork() noexcept;

  /// Removes the leftovers of dead processes except the newest ones, crashes before normal stops. Never removes the
  /// file of a process that is alive, or of which it cannot find out whether it is. While an exporter holds its lock on
  /// the folder, only their bytes are limited.
  void tidy() noexcept;

 private:
  void make(ArenaView arena, const RecordingWish& wish, const Piece* pieces, std::size_t count) noexcept;
  void tell_unread();
  int open_hidden(int folder);
  bool open_file(const RecordingWish& wish, std::uint64_t size) noexcept;
  bool open_memfd(std::uint64_t size) noexcept;
  bool publish(const ArenaHeader& header) noexcept;
  bool is_ours() const noexcept;
  bool job_goes_on(const ArenaHeader& header) noexcept;
  void close_file() noexcept;

  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  pid_t owner_ = 0;
  bool keep_ = false;
  bool is_normal_ = false;  // that no file was made
  bool is_unread_ = false;  // no exporter finds the recording
  bool is_told_ = false;    // and an exporter knows that
  bool is_hidden_ = false;
  std::string folder_;
  std::string hidden_;  // the file's name until it is complete; later too if readers shall not find it
  RecordingPlace place_;
};

}  // namespace stagespan
