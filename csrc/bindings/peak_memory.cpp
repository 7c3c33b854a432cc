// peak_memory.cpp: getrusage(), and /proc/self/status where it tells of the parent.
//
// A process that was started by vfork() or posix_spawn() shares the memory of its parent until exec(). Linux then adds
// the parent's peak to its ru_maxrss, which exec() does not reset. subprocess and multiprocessing's "spawn" start
// processes so: a worker of 10 MB that a trainer of 10 GB started has a ru_maxrss of 10 GB. VmHWM in /proc/self/status
// is right, and takes about 13 us to read instead of 1 us.
#include "peak_memory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "stagespan/process_life.h"

namespace stagespan::python {

namespace {

constexpr long kNotKnown = -1;

// VmHWM, in KiB.
long own_peak_kib() noexcept {
  char status[4096];  // the line is the eighteenth, within the first 400 bytes or so
  const Open file(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  const ssize_t length = file ? read(file.get(), status, sizeof(status) - 1) : 0;
  if (length <= 0) return kNotKnown;
  status[length] = '\0';
  const char* const line = std::strstr(status, "\nVmHWM:");
  return line != nullptr ? std::strtol(line + std::strlen("\nVmHWM:"), nullptr, 10) : kNotKnown;
}

// The ru_maxrss of this process is its own if it is not this value; -1 until the peaks were compared. A forked child
// has a ru_maxrss of its own, so its parent's value does no harm. Relaxed, because nothing else depends on it.
std::atomic<long> g_inherited_kib{kNotKnown};

}  // namespace

std::int64_t peak_resident_bytes() noexcept {
  rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return -1;
  long peak_kib = usage.ru_maxrss;
  long inherited_kib = g_inherited_kib.load(std::memory_order_relaxed);
  if (inherited_kib == kNotKnown) {
    // The kernel reads its counters of pages inexactly, so two equal peaks can differ a little.
    const long own_kib = own_peak_kib();
    inherited_kib = own_kib != kNotKnown && peak_kib > own_kib + own_kib / 16 ? peak_kib : 0;
    g_inherited_kib.store(inherited_kib, std::memory_order_relaxed);
  }
  if (peak_kib == inherited_kib) peak_kib = own_peak_kib();
  return peak_kib != kNotKnown ? std::int64_t{peak_kib} * 1024 : -1;
}

}  // namespace stagespan::python
