// division.cpp: one pass over the times at which something begins or ends in a request.
#include "division.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "trace/wrapping.h"

namespace stagespan::trace {

namespace {

/// Divides requests one after another, and keeps its memory from one to the next.
class Divider {
 public:
  Divider(const PartTable& parts, const Division& division) : parts_(parts), division_(division) {}

  /// Divides the time of a request, of which the parts from `first` to `last` are.
  void divide(std::size_t request, std::int64_t begin, std::int64_t end, std::size_t first, std::size_t last) {
    clip(begin, end, first, last);
    // Of equal parts, the front of the heap is the one that begins first in the request, then the first.
    const auto yields = [this, begin](std::size_t part, std::size_t other) {
      const auto rank = [this](std::size_t row) {
        return std::tuple(-parts_.kind[row], parts_.depth[row], parts_.level[row], parts_.since[row]);
      };
      const auto order = [this, begin](std::size_t row) { return std::pair(std::max(parts_.begin[row], begin), row); };
      const auto of_part = rank(part), of_other = rank(other);
      return of_part == of_other ? order(other) < order(part) : of_part < of_other;
    };
    std::size_t next = 0;
    std::int64_t before = 0, unattributed = 0, after = 0;
    bool is_first = true;
    open_.clear();
    for (std::size_t i = 0; i + 1 < times_.size(); ++i) {
      const std::int64_t now = times_[i], length = between(now, times_[i + 1]);
      for (; next < rows_.size() && rows_[next].begin <= now; ++next) {
        open_.push_back(rows_[next].row);
        std::push_heap(open_.begin(), open_.end(), yields);
      }
      while (!open_.empty() && parts_.end[open_.front()] <= now) {
        std::pop_heap(open_.begin(), open_.end(), yields);
        open_.pop_back();
      }
      if (!open_.empty()) {
        division_.owned[parts_.owner[open_.front()]] += length;
        is_first = false;
        after = 0;
        continue;
      }
      unattributed += length;
      (is_first ? before : after) += length;
    }
    division_.unattributed[request] = unattributed;
    division_.before_first[request] = before;
    division_.after_last[request] = after;
  }

 private:
  struct Clipped {
    std::int64_t begin;
    std::size_t row;
  };

  /// Takes the parts that are in a request at all, ordered by begin, and all moments at which something changes.
  void clip(std::int64_t begin, std::int64_t end, std::size_t first, std::size_t last) {
    rows_.clear();
    times_.assign({begin, end});
    for (std::size_t row = first; row < last; ++row) {
      const std::int64_t from = std::max(parts_.begin[row], begin), to = std::min(parts_.end[row], end);
      if (parts_.begin[row] >= parts_.end[row] || from >= to) continue;
      rows_.push_back({from, row});
      times_.push_back(from);
      times_.push_back(to);
    }
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const Clipped& one, const Clipped& other) { return one.begin < other.begin; });
    std::sort(times_.begin(), times_.end());
    times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
    if (begin > end) times_.clear();
  }

  const PartTable& parts_;
  const Division& division_;
  std::vector<Clipped> rows_;
  std::vector<std::int64_t> times_;
  std::vector<std::size_t> open_;
};

}  // namespace

void divide(const PartTable& parts, const RequestTable& requests, const Division& division) {
  Divider divider(parts, division);
  std::size_t first = 0;
  for (std::size_t request = 0; request < requests.count; ++request) {
    std::size_t last = first;
    while (last < parts.count && parts.request[last] == static_cast<std::int64_t>(request)) ++last;
    divider.divide(request, requests.begin[request], requests.end[request], first, last);
    first = last;
  }
}

}  // namespace stagespan::trace
