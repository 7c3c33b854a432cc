// division.h: divides the time of many requests among what was open in them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stagespan::trace {

/// What was open in requests. Rows are sorted by request; of several that are open at once, the one with the lowest
/// kind gets the time, then the one with the largest depth, level and since, then the one that begins first, then the
/// first.
struct PartTable {
  const std::int64_t* request;  // an index into the intervals
  const std::int64_t* kind;
  const std::int64_t* depth;
  const std::int64_t* level;
  const std::int64_t* since;
  const std::int64_t* owner;  // an index into `Division::owned`
  const std::int64_t* begin;
  const std::int64_t* end;
  std::size_t count;
};

/// The time of each request.
struct RequestTable {
  const std::int64_t* begin;
  const std::int64_t* end;
  std::size_t count;
};

/// What `divide` fills; the arrays but `owned` have an element for each request.
struct Division {
  std::int64_t* owned;         // the time of each owner in all requests, which is added to
  std::int64_t* unattributed;  // the time in which nothing was open
  std::int64_t* before_first;  // the part of it before anything was open
  std::int64_t* after_last;    // the part of it at the end, unless it is all of the request
};

/// Divides each request. The sum of what its owners get and `unattributed` is its time.
void divide(const PartTable& parts, const RequestTable& requests, const Division& division);

}  // namespace stagespan::trace
