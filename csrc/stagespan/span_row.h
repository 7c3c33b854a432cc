// span_row.h: a finished span as readers get it: a row of the structured array that `spans()` returns.
#pragma once

#include <cstdint>

#include "stagespan/layout.h"

namespace stagespan {

#define STAGESPAN_SPAN_ROW_FIELDS(FIELD)                                        \
  FIELD(std::uint32_t, stage, 0)                                                \
  FIELD(std::uint32_t, thread, 0)                                               \
  FIELD(std::int64_t, begin_ns, 0)                                              \
  FIELD(std::int64_t, end_ns, 0)                                                \
  FIELD(std::uint64_t, id, 0)                                                   \
  FIELD(std::uint64_t, parent, 0)                                               \
  FIELD(std::uint64_t, request, 0)                                              \
  FIELD(std::int64_t, suspended_ns, 0)                                          \
  FIELD(std::uint16_t, depth, 0)                                                \
  FIELD(std::uint16_t, flags, 0)                                                \
  FIELD(double, device_elapsed_ns, 0) /* NaN if not known, like the next two */ \
  FIELD(double, device_queue_ns, 0)                                             \
  FIELD(double, device_tail_ns, 0)                                              \
  FIELD(double, cpu_ns, 0) /* NaN if not known */

/// Times are Unix times.
struct SpanRow {
  STAGESPAN_SPAN_ROW_FIELDS(STAGESPAN_PLAIN_FIELD)
};

}  // namespace stagespan
