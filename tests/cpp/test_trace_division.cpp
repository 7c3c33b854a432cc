// test_trace_division.cpp: the time of requests, divided among what was open in them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "support.h"
#include "trace/division.h"

namespace stagespan::trace {
namespace {

struct Part {
  std::int64_t request, kind, depth, level, since, owner, begin, end;
};

using Interval = std::pair<std::int64_t, std::int64_t>;

struct Divided {
  std::vector<std::int64_t> owned, unattributed, before_first, after_last;
  bool operator==(const Divided&) const = default;
};

Divided divided(const std::vector<Part>& parts, const std::vector<Interval>& requests, std::size_t owners) {
  std::vector<std::vector<std::int64_t>> columns(8);
  for (const Part& one : parts) {
    const std::int64_t row[] = {one.request, one.kind, one.depth, one.level, one.since, one.owner, one.begin, one.end};
    for (std::size_t i = 0; i < columns.size(); ++i) columns[i].push_back(row[i]);
  }
  std::vector<std::int64_t> begins, ends;
  for (const auto& [begin, end] : requests) {
    begins.push_back(begin);
    ends.push_back(end);
  }
  const std::vector<std::int64_t> none(requests.size());
  Divided found{std::vector<std::int64_t>(owners), none, none, none};
  const PartTable table{columns[0].data(), columns[1].data(), columns[2].data(), columns[3].data(), columns[4].data(),
                        columns[5].data(), columns[6].data(), columns[7].data(), parts.size()};
  divide(table, {begins.data(), ends.data(), requests.size()},
         {found.owned.data(), found.unattributed.data(), found.before_first.data(), found.after_last.data()});
  return found;
}

/// Asks for each ns of each request which part has it.
Divided by_each_ns(const std::vector<Part>& parts, const std::vector<Interval>& requests, std::size_t owners) {
  const std::vector<std::int64_t> none(requests.size());
  Divided found{std::vector<std::int64_t>(owners), none, none, none};
  for (std::size_t request = 0; request < requests.size(); ++request) {
    const auto [begin, end] = requests[request];
    bool is_first = true;
    std::int64_t after = 0;
    for (std::int64_t now = begin; now < end; ++now) {
      const Part* has = nullptr;
      const auto rank = [begin = begin](const Part& one) {
        return std::tuple(one.kind, -one.depth, -one.level, -one.since, std::max(one.begin, begin));
      };
      for (const Part& one : parts)
        if (one.request == static_cast<std::int64_t>(request) && one.begin <= now && now < one.end &&
            (has == nullptr || rank(one) < rank(*has)))
          has = &one;
      if (has != nullptr) {
        ++found.owned[static_cast<std::size_t>(has->owner)];
        is_first = false;
        after = 0;
        continue;
      }
      ++found.unattributed[request];
      ++(is_first ? found.before_first[request] : after);
    }
    found.after_last[request] = after;
  }
  return found;
}

TEST(Division, IsThatOfEachNanosecond) {
  test::Random random(5);
  SCOPED_TRACE(random.trace());
  constexpr std::size_t kOwners = 5;
  for (std::uint64_t round = 0; round < test::scaled(2'000); ++round) {
    // GIVEN requests, also empty ones, with parts that begin before them, end after them, and never ran
    std::vector<Interval> requests;
    std::vector<Part> parts;
    for (std::int64_t request = 0; request < static_cast<std::int64_t>(random.below(5)); ++request) {
      const auto begin = static_cast<std::int64_t>(random.between(10, 20));
      requests.emplace_back(begin, begin + static_cast<std::int64_t>(random.below(30)));
      const std::uint64_t count = random.below(9);
      for (std::uint64_t i = 0; i < count; ++i) {
        const auto below = [&random](std::uint64_t limit) { return static_cast<std::int64_t>(random.below(limit)); };
        const std::int64_t from = below(60);
        parts.push_back({request, below(3), below(3), below(3), below(3), below(kOwners), from, from + below(30)});
      }
    }
    // WHEN / THEN each ns has the owner that it should have, and nothing else is counted
    const Divided found = divided(parts, requests, kOwners);
    ASSERT_EQ(found, by_each_ns(parts, requests, kOwners)) << round;
    std::int64_t total = 0;
    for (const auto& [begin, end] : requests) total += end - begin;
    ASSERT_EQ(std::accumulate(found.owned.begin(), found.owned.end(), std::int64_t{0}) +
                  std::accumulate(found.unattributed.begin(), found.unattributed.end(), std::int64_t{0}),
              total);
  }
}

TEST(Division, ThePartThatBeganFirstInTheRequestHasItsTime) {
  // GIVEN equal parts, of which two began before the request
  const std::vector<Part> parts{{0, 0, 0, 0, 0, 0, 12, 20}, {0, 0, 0, 0, 0, 1, 5, 14}, {0, 0, 0, 0, 0, 2, 3, 16}};
  // WHEN / THEN of those, the first row counts, until it ends
  EXPECT_EQ(divided(parts, {{10, 20}}, 3).owned, (std::vector<std::int64_t>{4, 4, 2}));
}

TEST(Division, TimeIsBeforeBetweenAndAfterParts) {
  const std::vector<Part> parts{{0, 0, 0, 0, 0, 0, 3, 5}, {0, 0, 0, 0, 0, 0, 6, 7}};
  EXPECT_EQ(divided(parts, {{0, 11}, {20, 24}}, 1), (Divided{{3}, {8, 4}, {3, 4}, {4, 0}}));
}

TEST(Division, NumbersOfDamagedRecordingsEndIt) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  // GIVEN times that are as far apart as they can be, a request that ends before it begins, and parts without one
  const std::vector<Part> parts{{0, 0, kLeast + 1, kMost, kLeast, 0, kLeast, kMost},
                                {0, 2, kMost, kLeast, kMost, 1, 0, 1},
                                {7, 0, 0, 0, 0, 1, 0, 9}};
  // WHEN / THEN the first part has all of the first request, and there is nothing else
  const Divided found = divided(parts, {{kLeast, kMost}, {5, 3}}, 2);
  EXPECT_EQ(found, (Divided{{-1, 0}, {0, 0}, {0, 0}, {0, 0}}));  // 2^64 - 1, as 64 bits with a sign
}

}  // namespace
}  // namespace stagespan::trace
