// process_life.h: what identifies a process, and whether the process of a recording lives.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace stagespan {

/// A file that is open while this object exists.
class Open {
 public:
  explicit Open(int fd) noexcept : fd_(fd) {}
  ~Open() {
    if (fd_ >= 0) close(fd_);
  }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// Whether an error says that this process or the system lacks descriptors or memory. Such an error says nothing about
/// the file that was to be opened.
bool is_shortage(int error) noexcept;

/// Facts about this process for the header of its recording.
struct ProcessIdentity {
  std::uint64_t start_ticks = 0;
  std::uint64_t pid_namespace = 0;
  std::uint64_t boot = 0;
  std::uint64_t clock = 0;  // of the boot and the time namespace
};
ProcessIdentity identity_of_this_process() noexcept;

/// Field 22 of /proc/PID/stat of this process; 0 if it cannot be read.
std::uint64_t own_start_ticks() noexcept;

enum class Life { kAlive, kDead, kUnknown };

/// Whether a process of this pid namespace lives, by its id and its start time (0 if unknown).
Life life_of(pid_t pid, std::uint64_t start_ticks) noexcept;

/// Takes a lock on a file, which the system releases when the last process closes it that has it open from this call.
bool lock_whole(int fd) noexcept;

/// Whether a process has a lock on a file; empty if the system does not say.
std::optional<bool> is_locked(int fd) noexcept;

}  // namespace stagespan
