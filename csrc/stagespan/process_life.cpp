// process_life.cpp: reads /proc, and locks of open files.
#include "process_life.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "text.h"

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

namespace stagespan {

namespace {

/// Returns 0 with errno if nothing can be read.
std::size_t read_small(const char* path, char* text, std::size_t most) noexcept {
  const Open file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return 0;
  std::size_t length = 0;
  while (length < most) {
    const ssize_t got = read(file.get(), text + length, most - length);
    if (got <= 0) break;
    length += static_cast<std::size_t>(got);
  }
  return length;
}

/// Returns 0 with errno if there is none.
std::uint64_t start_ticks_in(const char* path) noexcept {
  char text[1024];
  errno = 0;
  const std::size_t length = read_small(path, text, sizeof(text) - 1);
  text[length] = '\0';
  // The second field is the command in parentheses, which may contain spaces and parentheses.
  const char* at = std::strrchr(text, ')');
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at != nullptr ? std::strtoull(at + 1, nullptr, 10) : 0;
}

/// Whether /proc shows the processes of this pid namespace, and not those of another container.
bool shows_this_namespace() noexcept {
  char target[32];
  const ssize_t length = readlink("/proc/self", target, sizeof(target));
  char own[16];
  const auto end = std::to_chars(own, own + sizeof(own), getpid()).ptr;
  return length > 0 && std::string_view(target, static_cast<std::size_t>(length)) == std::string_view(own, end);
}

/// A hash of the boot id; 0 if it cannot be read.
std::uint64_t boot_hash() noexcept {
  // Once it was read, it is known also when no descriptor is free.
  static std::atomic<std::uint64_t> cached{0};
  std::uint64_t hash = cached.load(std::memory_order_relaxed);
  if (hash != 0) return hash;
  char boot[64];
  const std::size_t length = read_small("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
  if (length != 0) cached.store(hash = fnv1a({boot, length}), std::memory_order_relaxed);
  return hash;
}

}  // namespace

bool is_shortage(int error) noexcept { return error == EMFILE || error == ENFILE || error == ENOMEM; }

std::uint64_t own_start_ticks() noexcept {
  // As other processes read it: in /proc/self/stat, qemu-user shows a time of its own.
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/task/%d/stat", static_cast<int>(getpid()));
  const std::uint64_t ticks = start_ticks_in(path);
  // In a container with the /proc of another one, the process has another number there.
  return ticks != 0 ? ticks : start_ticks_in("/proc/self/stat");
}

ProcessIdentity identity_of_this_process() noexcept {
  ProcessIdentity identity;
  identity.start_ticks = own_start_ticks();
  struct stat space{};
  if (stat("/proc/self/ns/pid", &space) == 0) identity.pid_namespace = space.st_ino;
  identity.boot = boot_hash();
  struct stat time_space{};
  const std::uint64_t offset_of_clock = stat("/proc/self/ns/time", &time_space) == 0 ? time_space.st_ino : 0;
  // 0 means unknown: without a boot id, no two processes are known to share a clock.
  if (identity.boot != 0)
    identity.clock = identity.boot ^ fnv1a({reinterpret_cast<const char*>(&offset_of_clock), sizeof(offset_of_clock)});
  return identity;
}

Life life_of(pid_t pid, std::uint64_t start_ticks) noexcept {
  if (!shows_this_namespace()) return Life::kUnknown;
  std::uint64_t now = 0;
  if (pid == getpid()) {
    now = own_start_ticks();
  } else {
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/%d/stat", static_cast<int>(pid));
    now = start_ticks_in(path);
    // The file may also exist and be unreadable, for example because this process has no free descriptor.
    if (now == 0 && (errno == ENOENT || errno == ESRCH)) return Life::kDead;
  }
  if (now == 0 || start_ticks == 0) return Life::kUnknown;
  return now == start_ticks ? Life::kAlive : Life::kDead;
}

bool lock_whole(int fd) noexcept {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

std::optional<bool> is_locked(int fd) noexcept {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(fd, F_OFD_GETLK, &lock) != 0) return std::nullopt;
  return lock.l_type != F_UNLCK;
}

}  // namespace stagespan
