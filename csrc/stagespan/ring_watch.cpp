// ring_watch.cpp: looks at the numbers of spans in rings from time to time.
#include "ring_watch.h"

#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "recording_reader.h"

namespace stagespan {

namespace {

constexpr double kLook_s = 0.05;
constexpr double kNew_s = 0.2;
constexpr double kFast = 1e9;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// When each folder has last changed, in ns; 0 if that is not known.
std::vector<std::int64_t> changes_in(const std::vector<std::string>& folders) {
  std::vector<std::int64_t> changes;
  for (const std::string& folder : folders) {
    struct stat status{};
    const bool is_known = stat(folder.c_str(), &status) == 0;
    changes.push_back(is_known ? std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec : 0);
  }
  return changes;
}

double most_new(const ReadRings& of) {
  const std::vector<std::uint64_t> heads = recording_heads(of.fd);
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const std::uint64_t before = i < of.heads.size() ? of.heads[i] : 0;
    if (heads[i] > before) most = std::max(most, heads[i] - before);
  }
  return static_cast<double>(most);
}

// How long a ring with so many new spans can wait, if it gets `rate` more in a second.
double due_in_s(double ring_spans, double spans, double rate) {
  const double most = std::clamp(ring_spans - rate * kEnough_s, ring_spans / 2, ring_spans * 3 / 4);
  if (spans >= most) return 0;
  return rate > 0 ? (most - spans) / rate : 1;
}

}  // namespace

bool wait_for_rings(int signal_fd, double seconds, const std::vector<ReadRings>& recordings,
                    const std::vector<std::string>& folders) {
  const double begin_s = now_s();
  const std::vector<std::int64_t> changes = changes_in(folders);
  std::vector<double> before;
  double looked_s = begin_s;
  for (;;) {
    const double at_s = now_s();
    if (changes_in(folders) != changes) seconds = std::min(seconds, kNew_s);
    double wait_s = std::min(kLook_s, begin_s + seconds - at_s);
    std::vector<double> spans;
    for (const ReadRings& of : recordings) {
      spans.push_back(most_new(of));
      // Until a second look shows the rate, the ring may fill fast.
      const double rate = before.empty() ? kFast : (spans.back() - before[spans.size() - 1]) / (at_s - looked_s);
      const double due_s = due_in_s(static_cast<double>(of.ring_spans), spans.back(), rate);
      if (due_s <= 0) return true;
      if (!before.empty()) wait_s = std::min(wait_s, due_s);
    }
    before = std::move(spans);
    looked_s = at_s;
    if (wait_s <= 0) return false;
    pollfd signal{signal_fd, POLLIN, 0};
    // At least 1 ms, so that a rate is measured over some time.
    if (poll(&signal, 1, std::max(static_cast<int>(wait_s * 1000), 1)) > 0) return false;
  }
}

}  // namespace stagespan
