// recording_file.cpp: creates the file, moves pieces of the arena to it, and removes leftovers of other processes.
#include "recording_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "clock.h"
#include "cut_off.h"
#include "process_life.h"
#include "reader.h"
#include "recording_reader.h"
#include "text.h"
#include "variables.h"
#include "without_signals.h"

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1U
#define MFD_ALLOW_SEALING 2U
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SHRINK 2
#endif

namespace stagespan {

namespace {

constexpr long kTmpfs = 0x01021994;
constexpr std::uint64_t kLeastFreeBytes = 256ULL << 20;  // a container's small /dev/shm is needed by its data loader
constexpr int kMostTries = 16;
constexpr int kMostNames = 10;
constexpr off_t kBytesForMarks = 64 << 10;
constexpr std::string_view kSuffix = ".stagespan";
// An exporter holds a lock on this file of the folder. Processes add the names of recordings that they remove then.
constexpr const char* kExporterFile = ".exporter";
// The folder of the `stagespan run` that this process works for: process/command.py.
constexpr const char* kCommandFolder = "_STAGESPAN_COMMAND_DIR";

std::string why(int error) { return std::strerror(error); }

std::string file_name(pid_t pid, std::uint64_t start_ticks, int number) {
  std::string name = std::to_string(pid) + "-" + std::to_string(start_ticks);
  if (number != 0) name.append("-").append(std::to_string(number));
  return name.append(kSuffix);
}

/// Why a folder is not used.
struct FolderRefusal {
  std::string why;
  bool is_normal = false;  // in a container with a small /dev/shm
};

/// Opens the folder for our files, or says why it cannot be used.
int open_folder(const std::string& folder, bool is_default, FolderRefusal& refusal) {
  std::string& reason = refusal.why;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    reason =
        "the folder " + folder + " cannot be made (" + why(errno) + "): set STAGESPAN_RECORDING_DIR to another one";
    return -1;
  }
  Open dir(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir) {
    const int error = errno;
    reason = is_shortage(error) ? "the folder " + folder + " cannot be opened (" + why(error) + ")"
                                : folder + " is not a folder that can be opened (" + why(error) +
                                      "; links are not followed): set STAGESPAN_RECORDING_DIR to another one";
    return -1;
  }
  struct stat status{};
  struct statfs system{};
  if (fstat(dir.get(), &status) != 0 || fstatfs(dir.get(), &system) != 0) {
    reason = folder + " cannot be examined (" + why(errno) + "): set STAGESPAN_RECORDING_DIR to another folder";
    return -1;
  }
  if (static_cast<long>(system.f_type) != kTmpfs) {
    reason = folder + " is not on a tmpfs, and files on disks stall the program: set STAGESPAN_RECORDING_DIR to a " +
             "folder in /dev/shm";
    return -1;
  }
  if (status.st_uid != geteuid()) {
    reason = "the folder " + folder + " belongs to the user with the id " + std::to_string(status.st_uid) +
             ": set STAGESPAN_RECORDING_DIR to a folder of your own";
    return -1;
  }
  if ((status.st_mode & 0077) != 0 && (!is_default || fchmod(dir.get(), 0700) != 0) && (status.st_mode & 0022) != 0) {
    reason = "other users may write to the folder " + folder + ": set its mode to 0700";
    return -1;
  }
  if (is_default &&
      static_cast<std::uint64_t>(system.f_bavail) * static_cast<std::uint64_t>(system.f_bsize) < kLeastFreeBytes) {
    reason = "the tmpfs of " + folder + " has less than 256 MiB free: set STAGESPAN_RECORDING_DIR to use it anyway";
    refusal.is_normal = true;
    return -1;
  }
  return dir.release();
}

/// A folder that is open for reading.
class Folder {
 public:
  explicit Folder(const std::string& path) : folder_(opendir(path.c_str())) {}
  ~Folder() {
    if (folder_ != nullptr) closedir(folder_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  explicit operator bool() const { return folder_ != nullptr; }
  DIR* get() const { return folder_; }
  int fd() const { return dirfd(folder_); }

 private:
  DIR* folder_;
};

/// What the exporter is told of a recording that was removed: with the number of its inode, because a later recording
/// of the process can have its name.
std::string line_of(std::string name, ino_t inode) { return name.append(" ").append(std::to_string(inode)); }

/// The exporter of a folder's recordings, if there is one.
class Exporter {
 public:
  explicit Exporter(int folder) noexcept
      : file_(openat(folder, kExporterFile, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) {
    const int error = errno;
    // An exporter neither follows links nor opens anything but a regular file.
    if (!file_ && (error == ENOENT || error == ELOOP || error == EISDIR || error == ENXIO)) is_there_ = false;
    if (file_) is_there_ = is_locked(file_.get());
  }
  /// Empty if that is unknown.
  std::optional<bool> is_there() const noexcept { return is_there_; }
  /// Tells it that it cannot read a recording any more, or never could. Returns whether it will learn of it.
  bool tell(std::string name) const noexcept {
    if (!is_there_.value_or(false)) return false;
    name.push_back('\n');
    return write(file_.get(), name.data(), name.size()) == static_cast<ssize_t>(name.size());
  }

 private:
  Open file_;
  std::optional<bool> is_there_;
};

}  // namespace

std::string default_recording_folder() { return "/dev/shm/stagespan-" + std::to_string(geteuid()); }

std::string why_not_in(const std::string& folder) {
  FolderRefusal refusal;
  const Open found(open_folder(folder, folder == default_recording_folder(), refusal));
  return refusal.why;
}

// Creates the file under a name that only this process has, and stores the name.
int RecordingFile::open_hidden(int folder) {
  for (int number = 0; number < kMostNames; ++number) {
    hidden_ = std::string(1, '.').append(file_name(owner_, own_start_ticks(), number));
    for (int attempt = 0; attempt < 2; ++attempt) {
      const int fd = openat(folder, hidden_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
      if (fd >= 0 || errno != EEXIST) return fd;
      // Left over from the program that this process ran before it called exec, unless it is being made by a process
      // of another container with the same pid and start time.
      const Open other(openat(folder, hidden_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
      if (!other && errno != ENOENT) return -1;
      if (other && is_locked(other.get()).value_or(false)) break;
      unlinkat(folder, hidden_.c_str(), 0);
    }
  }
  errno = EEXIST;
  return -1;
}

bool RecordingFile::open_file(const RecordingWish& wish, std::uint64_t size) noexcept {
  try {
    FolderRefusal refusal;
    const Open folder(open_folder(folder_, wish.folder.empty(), refusal));
    if (!folder) {
      place_.why = refusal.why;
      is_normal_ = refusal.is_normal;
      return false;
    }
    Open file(open_hidden(folder.get()));
    if (!file || ftruncate(file.get(), static_cast<off_t>(size)) != 0) {
      place_.why = "no file can be made in " + folder_ + " (" + why(errno) + ")";
      if (file) unlinkat(folder.get(), hidden_.c_str(), 0);
      return false;
    }
    fd_ = file.release();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool RecordingFile::open_memfd(std::uint64_t size) noexcept {
  Open file(memfd_create(is_hidden_ ? "stagespan-hidden" : "stagespan", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ftruncate(file.get(), static_cast<off_t>(size)) != 0) return false;
  fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK);
  fd_ = file.release();
  return true;
}

namespace {

/// Gives a recording a second name in the folder of the command that reads it, so that it stays there until then: after
/// a clean exit, after a call of exec, and when leftovers are removed.
void link_for_command(int folder, pid_t pid, std::uint64_t start_ticks, const std::string& name) {
  const Open command(open(std::string(variable(kCommandFolder)).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!command) return;
  for (int number = 0; number < kMostNames; ++number)
    if (linkat(folder, name.c_str(), command.get(), file_name(pid, start_ticks, number).c_str(), 0) == 0 ||
        errno != EEXIST)
      return;
}

}  // namespace

// Gives the complete file its name.
bool RecordingFile::publish(const ArenaHeader& header) noexcept {
  try {
    const Open folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder) return false;
    if (is_hidden_) {
      place_.path = folder_ + "/" + hidden_;
      return true;
    }
    for (int number = 0; number < kMostNames; ++number) {
      const std::string name = file_name(owner_, header.process_start_ticks, number);
      for (int attempt = 0; attempt < 2; ++attempt) {
        if (linkat(folder.get(), hidden_.c_str(), folder.get(), name.c_str(), 0) == 0) {
          unlinkat(folder.get(), hidden_.c_str(), 0);
          place_.path = folder_ + "/" + name;
          link_for_command(folder.get(), owner_, header.process_start_ticks, name);
          return true;
        }
        if (errno != EEXIST) return false;
        // A file of the same process from before it called exec is replaced. A container with the same pid and start
        // time has its own pids.
        ArenaHeader before{};
        const Open file(openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
        if (!file && errno != ENOENT) break;
        const bool is_whole = file && pread(file.get(), &before, sizeof(before), 0) == ssize_t{sizeof(before)};
        if (is_whole && before.layout_version == kLayoutVersion && before.pid_namespace != header.pid_namespace) break;
        if (file && is_locked(file.get()).value_or(false)) break;  // a second recorder in this process
        if (file && keep_) break;                                  // it stays, as at any other end
        struct stat status{};
        const bool is_known = file && fstat(file.get(), &status) == 0;
        if (unlinkat(folder.get(), name.c_str(), 0) == 0 && is_known)
          Exporter(folder.get()).tell(line_of(name, status.st_ino));
      }
    }
  } catch (const std::exception&) {
  }
  return false;
}

bool RecordingFile::is_ours() const noexcept {
  // A program that becomes a daemon closes all files, and their numbers may be reused.
  struct stat status{};
  return fd_ >= 0 && fstat(fd_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

void RecordingFile::close_file() noexcept {
  if (is_ours()) close(fd_);
  fd_ = -1;
}

void RecordingFile::start(ArenaView arena, const RecordingWish& wish, const Piece* pieces, std::size_t count) noexcept {
  place_ = {};
  owner_ = getpid();
  keep_ = wish.keep && !wish.is_hidden;
  is_hidden_ = wish.is_hidden;
  is_told_ = is_normal_ = false;
  if (!wish.is_on) {
    place_.kind = RecordingKind::kOff;
    return;
  }
  place_.kind = RecordingKind::kMemory;
  try {
    folder_ = wish.folder.empty() ? default_recording_folder() : wish.folder;
    make(arena, wish, pieces, count);
    // An exporter that reads a folder of its own does not look for others.
    is_unread_ = !is_hidden_ && (place_.kind == RecordingKind::kMemory ||
                                 (place_.kind == RecordingKind::kMemfd && !wish.folder.empty()));
    place_.is_fault = is_unread_ || (place_.kind == RecordingKind::kMemfd && wish.may_be_file && !is_normal_);
    if (is_unread_) tell_unread();
  } catch (const std::exception&) {  // too little memory
  }
}

// Tells the exporter of the folder that it cannot read this process, by the name that the file would have.
void RecordingFile::tell_unread() {
  const Folder folder(folder_);
  if (folder) is_told_ = Exporter(folder.fd()).tell(file_name(owner_, own_start_ticks(), 0));
}

void RecordingFile::make(ArenaView arena, const RecordingWish& wish, const Piece* pieces, std::size_t count) noexcept {
  ArenaHeader& header = arena.header();
  const std::uint64_t size = header.size_bytes;
  rlimit limit{};
  // Beyond this limit, the system ends a process with SIGXFSZ.
  const bool may_be_large =
      getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= size;
  try {
    if (!may_be_large) place_.why = "files may not be that large here (ulimit -f)";
  } catch (const std::exception&) {
  }
  if (!may_be_large) return;
  for (const bool is_file : {true, false}) {
    if (is_file && !wish.may_be_file) continue;
    if (!(is_file ? open_file(wish, size) : open_memfd(size))) continue;
    struct stat status{};
    if (fstat(fd_, &status) != 0) {
      close(fd_);
      fd_ = -1;
      continue;
    }
    device_ = status.st_dev;
    inode_ = status.st_ino;
    header.is_locked = lock_whole(fd_) ? 1 : 0;
    // Space is reserved for all pieces before any is moved, because a mapping cannot be undone without readers
    // noticing.
    bool has_space = true;
    int error = 0;
    {
      // A signal would interrupt the reservation of space, which would then start again.
      const WithoutSignals none;
      for (std::size_t i = 0; has_space && i < count; ++i)
        has_space = fallocate(fd_, 0, static_cast<off_t>(pieces[i].offset), static_cast<off_t>(pieces[i].bytes)) == 0;
      if (!has_space) error = errno;
    }
    // If the system cannot exclude the arena from children, they would write to it. In that case it is not shared.
    const bool is_kept_from_children = has_space && madvise(arena.base(), size, MADV_DONTFORK) == 0;
    if (is_kept_from_children) {
      // The header is in the first piece. Without it, the file would never show what happens later.
      if (!reserve(arena, pieces[0], true)) {
        try {
          place_.why = "the system refuses to map the file of a recording";
        } catch (const std::exception&) {
        }
        if (is_file) unlink((folder_ + "/" + hidden_).c_str());
        close_file();
        return;
      }
      bool is_moved = true;
      for (std::size_t i = 1; i < count; ++i) is_moved = reserve(arena, pieces[i], true) && is_moved;
      place_.kind = is_file ? RecordingKind::kFile : RecordingKind::kMemfd;
      if (!is_file || (is_moved && publish(header))) return;
      // It is mapped by now, so others can find it through /proc/PID/fd, like a memfd.
      unlink((folder_ + "/" + hidden_).c_str());
      place_.kind = RecordingKind::kMemfd;
      try {
        place_.why = "its file in " + folder_ + " cannot be completed";
      } catch (const std::exception&) {
      }
      return;
    }
    try {
      if (is_file) {
        place_.why = has_space ? "the system cannot leave memory out of forked children (MADV_DONTFORK)"
                               : "the tmpfs of " + folder_ + " has no space for it (" + why(error) +
                                     "): it takes 1.6 MiB, and 0.6 MiB for each further thread";
        unlink((folder_ + "/" + hidden_).c_str());
      }
    } catch (const std::exception&) {
    }
    close_file();
  }
}

namespace {

/// Maps a part of a file over memory that is in use.
void* map_over(std::byte* at, std::uint64_t bytes, int fd, off_t offset) noexcept {
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer treats mmap as a write to the whole range, and so as a race with every reader.
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset));
#else
  return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset);
#endif
}

}  // namespace

bool RecordingFile::reserve(ArenaView arena, const Piece& piece, bool has_content) noexcept {
  if (!is_active() || is_cut_off()) return false;
  bool has_space = is_ours();
  std::uint8_t refusal = has_space ? kRefusedNoSpace : kRefusedClosed;
  std::byte* const at = arena.base() + piece.offset;
  const auto offset = static_cast<off_t>(piece.offset);
  if (has_space) {
    const WithoutSignals none;
    int tries = 0;
    do {
      has_space = fallocate(fd_, 0, offset, static_cast<off_t>(piece.bytes)) == 0;
    } while (!has_space && errno == EINTR && ++tries < kMostTries);
  }
  for (std::uint64_t done = 0; has_space && has_content && done < piece.bytes;) {
    const ssize_t written = pwrite(fd_, at + done, piece.bytes - done, offset + static_cast<off_t>(done));
    if (written <= 0 && errno != EINTR) has_space = false;
    if (written > 0) done += static_cast<std::uint64_t>(written);
  }
  if (has_space) {
    void* const mapped = map_over(at, piece.bytes, fd_, offset);
    if (mapped != MAP_FAILED) {
      madvise(at, piece.bytes, MADV_NOHUGEPAGE);
      madvise(at, piece.bytes, MADV_DONTFORK);
      place_.reserved_bytes += piece.bytes;
      return true;
    }
    refusal = kRefusedMapping;
    // Some failures occur after the kernel has unmapped the previous pages.
    unsigned char page = 0;
    if (mincore(at, 1, &page) != 0 && errno == ENOMEM)
      mmap(at, piece.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  }
  place_.refused_bytes += piece.bytes;
  arena.header().refusals.fetch_or(refusal, std::memory_order_relaxed);
  return false;
}

void RecordingFile::forget_after_fork() noexcept {
  close_file();
  is_unread_ = false;
  // The strings can be in the middle of a change only while the lock is held, and the fork waited for the lock.
  place_.kind = RecordingKind::kNotYet;
  place_.reserved_bytes = place_.refused_bytes = 0;
}

// --- leftovers --------------------------------------------------------------------------------------------

namespace {

struct Leftover {
  std::string name;
  std::int64_t modified_ns;
  std::uint64_t bytes;
  ino_t inode;
  bool is_crash = true;
};

// At most this many leftovers are examined for open spans, which takes about 0.1 ms each.
constexpr std::size_t kMostExamined = 128;

// Whether a process ended without a crash, as far as its recording tells: by its own exit, by a signal that asks a
// process to end, or while no span was open. False if the file cannot be read.
bool has_stopped_normally(int folder, const std::string& name) noexcept {
  try {
    const Open file(openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    RecordingCopy copy;
    if (!file || !copy_recording(file.get(), name, RecordingParts::kOpen, copy).empty()) return false;
    const ArenaHeader& header = copy.arena.header();
    if (header.end_unix_ns.load() != 0 || header.stop_signal.load() != 0) return true;
    const bool is_whole = copy.missing_bytes == 0 && copy.damaged == 0 && copy.threads_not_in_file == 0;
    return is_whole && read_open(copy.arena).empty();
  } catch (const std::exception&) {  // too little memory
    return false;
  }
}

// The pid and the start time in a file's name; empty if it is not the name of a recording.
std::optional<std::pair<pid_t, std::uint64_t>> process_in(std::string_view name) {
  if (!name.empty() && name.front() == '.') name.remove_prefix(1);
  if (name.size() <= kSuffix.size() || !name.ends_with(kSuffix)) return std::nullopt;
  pid_t pid = 0;
  std::uint64_t start = 0;
  const char* const end = name.data() + name.size();
  const auto first = std::from_chars(name.data(), end, pid);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, start);
  if (second.ec != std::errc()) return std::nullopt;
  return std::pair(pid, start);
}

/// Whether the process lives whose recording a file is. A process is only taken for dead if it has no lock on the file.
Life life_of_owner(int folder, const std::string& name, std::uint64_t own_namespace) {
  const auto process = process_in(name);
  if (!process) return Life::kUnknown;
  const Open file(openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return Life::kUnknown;
  const std::optional<bool> lock = is_locked(file.get());
  if (lock.value_or(false)) return Life::kAlive;
  alignas(ArenaHeader) std::byte bytes[offsetof(ArenaHeader, is_locked) + sizeof(ArenaHeader::is_locked)];
  const auto field = [&]<class T>(T, std::size_t offset) {
    T value;
    std::memcpy(&value, bytes + offset, sizeof(value));
    return value;
  };
  const ssize_t got = pread(file.get(), bytes, sizeof(bytes), 0);
  if (got < 0) return Life::kUnknown;
  // Without it, the process has not completed the file.
  const bool has_header = got == ssize_t{sizeof(bytes)} &&
                          field(std::uint64_t{}, offsetof(ArenaHeader, magic)) == kMagic &&
                          field(std::uint32_t{}, offsetof(ArenaHeader, layout_version)) == kLayoutVersion;
  const bool can_lock = !has_header || field(std::uint32_t{}, offsetof(ArenaHeader, is_locked)) != 0;
  if (can_lock && !lock) return Life::kUnknown;
  const std::uint64_t space = has_header ? field(std::uint64_t{}, offsetof(ArenaHeader, pid_namespace)) : own_namespace;
  // The process may be in another container, where its id means another process than here.
  if (space != own_namespace || own_namespace == 0) return has_header && can_lock ? Life::kDead : Life::kUnknown;
  return life_of(process->first, process->second);
}

/// The recordings of dead processes.
std::vector<Leftover> leftovers_in(const Folder& folder) {
  struct stat pid_namespace{};
  stat("/proc/self/ns/pid", &pid_namespace);
  std::vector<Leftover> files;
  while (const dirent* const entry = readdir(folder.get())) {
    std::string name = entry->d_name;
    struct stat status{};
    if (fstatat(folder.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode) ||
        life_of_owner(folder.fd(), name, pid_namespace.st_ino) != Life::kDead)
      continue;
    files.push_back({std::move(name), std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
                     static_cast<std::uint64_t>(status.st_blocks) * 512, status.st_ino});
  }
  return files;
}

std::uint64_t bytes_of(const std::vector<Leftover>& leftovers) {
  return std::accumulate(leftovers.begin(), leftovers.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Leftover& one) { return sum + one.bytes; });
}

}  // namespace

void RecordingFile::end(ArenaHeader& header) noexcept {
  // Not in a child that shares only the file descriptors with this process.
  if (getpid() != owner_) return;
  try {
    if (is_unread_ && !is_told_) tell_unread();  // an exporter may have begun since
  } catch (const std::exception&) {              // too little memory
  }
  if (!is_active()) return;
  header.end_unix_ns.store(realtime_ns(), std::memory_order_release);
  if (keep_ || place_.kind != RecordingKind::kFile) return;
  if (is_hidden_) {  // no exporter or process of the job waits for it
    unlink(place_.path.c_str());
    return;
  }
  // Set before the others are examined: of two that end at the same time, each may see the other one alive. Both files
  // stay then, and are leftovers.
  header.is_deferred.store(1, std::memory_order_release);
  try {
    const Folder folder(folder_);
    if (!folder) return;
    const Exporter exporter(folder.fd());
    if (!exporter.is_there()) return;
    if (*exporter.is_there()) {  // it removes those of other processes itself, after it has read them
      if (bytes_of(leftovers_in(folder)) + place_.reserved_bytes <= kLeftoverBytes) return;
    } else if (job_goes_on(header)) {
      return;
    }
    struct stat status{};
    if (lstat(place_.path.c_str(), &status) != 0 || status.st_dev != device_ || status.st_ino != inode_) return;
    if (unlink(place_.path.c_str()) == 0) exporter.tell(line_of(place_.path.substr(folder_.size() + 1), inode_));
  } catch (const std::exception&) {  // too little memory
  }
}

// Whether another process of the same job may live. If not, removes the files of those that have ended before.
bool RecordingFile::job_goes_on(const ArenaHeader& header) noexcept {
  const std::string_view job = text_in(header.info.job);
  if (job.empty()) return false;
  try {
    const Folder folder(folder_);
    if (!folder) return true;
    struct stat pid_namespace{};
    stat("/proc/self/ns/pid", &pid_namespace);
    std::vector<std::string> ended;
    while (const dirent* const entry = readdir(folder.get())) {
      const std::string name = entry->d_name;
      if (name.front() == '.' || !process_in(name)) continue;
      const Open file(openat(folder.fd(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
      if (!file && is_shortage(errno)) return true;
      const auto other = std::make_unique<ArenaHeader>();
      struct stat status{};
      if (!file || fstat(file.get(), &status) != 0 || (status.st_dev == device_ && status.st_ino == inode_) ||
          pread(file.get(), static_cast<void*>(other.get()), sizeof(*other), 0) != ssize_t{sizeof(*other)} ||
          other->magic != kMagic || other->layout_version != kLayoutVersion || text_in(other->info.job) != job)
        continue;
      if (other->end_unix_ns.load() != 0) {
        if (other->is_deferred.load() != 0) ended.push_back(name);
      } else if (life_of_owner(folder.fd(), name, pid_namespace.st_ino) != Life::kDead) {
        return true;
      }
    }
    // They have left their files to the last one of the job, which may still exit itself.
    for (const std::string& name : ended) unlinkat(folder.fd(), name.c_str(), 0);
  } catch (const std::exception&) {  // too little memory
    return true;
  }
  return false;
}

void RecordingFile::tidy() noexcept {
  if (place_.kind != RecordingKind::kFile) return;
  try {
    const Folder folder(folder_);
    if (!folder) return;
    const int fd = folder.fd();
    std::vector<Leftover> dead = leftovers_in(folder);
    const auto is_newer = [](const Leftover& a, const Leftover& b) { return a.modified_ns > b.modified_ns; };
    std::sort(dead.begin(), dead.end(), is_newer);
    // An exporter itself removes those that it has read.
    const Exporter exporter(fd);
    if (!exporter.is_there()) return;
    const std::size_t most_files = *exporter.is_there() ? dead.size() : kLeftoverFiles;
    const bool has_many = dead.size() > most_files || bytes_of(dead) > kLeftoverBytes;
    if (has_many) {
      // Normal stops, such as those of each deployment of a service, do not push out crashes.
      std::uint32_t crashes = 0;
      for (std::size_t i = 0; i < std::min(dead.size(), kMostExamined) && crashes < kLeftoverFiles; ++i) {
        dead[i].is_crash = dead[i].name.front() != '.' && !has_stopped_normally(fd, dead[i].name);
        if (dead[i].is_crash) ++crashes;
      }
      std::stable_partition(dead.begin(), dead.end(), [](const Leftover& one) { return one.is_crash; });
    }
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < dead.size(); ++i) {
      bytes += dead[i].bytes;
      // A file without its final name was never completed.
      const bool is_complete = dead[i].name.front() != '.';
      if (i < most_files && bytes <= kLeftoverBytes && is_complete) continue;
      if (unlinkat(fd, dead[i].name.c_str(), 0) == 0 && is_complete)
        exporter.tell(line_of(dead[i].name, dead[i].inode));
    }
  } catch (const std::exception&) {
  }
}

bool reserve_for_marks(int fd) noexcept {
  struct stat status{};
  return fstat(fd, &status) == 0 && fallocate(fd, FALLOC_FL_KEEP_SIZE, status.st_size, kBytesForMarks) == 0;
}

}  // namespace stagespan
