// segment_row.cpp: makes the rows of segments from a copy of a recording.
#include "segment_row.h"

#include <unordered_map>
#include <unordered_set>

namespace stagespan {

std::int64_t key_of(const SegmentCopy& copy) noexcept {
  if (copy.origin != kOriginReturn || copy.parent_hop == 0) return static_cast<std::int64_t>(copy.number);
  return -static_cast<std::int64_t>(copy.parent_hop >> 1) - 1;
}

namespace {

#define STAGESPAN_LEAVE_FIELD(type, name, initial)
#define STAGESPAN_COPY_FIELD(type, name, initial) row.name = copy.name;

SegmentRow row_of(const SegmentCopy& copy, const ClockFit& fit, bool has_ended) {
  const auto time = [&fit](std::uint64_t ticks) { return ticks != 0 ? fit.unix_ns(ticks) : kUnknownNs; };
  SegmentRow row;
  STAGESPAN_SEGMENT_ROW_LIST(STAGESPAN_LEAVE_FIELD, STAGESPAN_COPY_FIELD)
  row.key = key_of(copy);
  row.begin_ns = time(copy.begin_ticks);
  row.end_ns = time(copy.end_ticks);
  row.first_chunk_ns = time(copy.first_chunk_ticks);
  row.last_chunk_ns = time(copy.last_chunk_ticks);
  row.request_ns = time(copy.request_ticks);
  row.received_ns = time(copy.received_ticks);
  row.sent_ns = time(copy.sent_ticks);
  row.work_ns = time(copy.work_ticks);
  if (copy.sent_clock != 0) {
    row.sent_monotonic_ns = copy.sent_monotonic_ns;
    row.sent_unix_ns = copy.sent_unix_ns;
  }
  if (copy.received_ticks != 0) row.queue = copy.queue_stage;
  row.status = has_ended && copy.end_ticks == 0 ? std::uint8_t{kStatusAbandoned} : copy.status;
  return row;
}

}  // namespace

std::vector<SegmentRow> segment_rows(const RecordingCopy& copy, const std::vector<std::int64_t>* keys, bool has_ended) {
  std::vector<SegmentRow> rows;
  if (keys != nullptr && keys->empty()) return rows;
  std::vector<std::uint64_t> linked;
  std::unordered_set<std::int64_t> wanted;
  if (keys != nullptr) wanted.insert(keys->begin(), keys->end());
  rows.reserve(keys != nullptr ? keys->size() : copy.segments.size());
  bool has_links = false;
  for (const SegmentCopy& segment : copy.segments) {
    if (keys != nullptr && !wanted.contains(key_of(segment))) continue;
    rows.push_back(row_of(segment, copy.fit, has_ended));
    linked.push_back(segment.linked);
    has_links = has_links || segment.linked != 0;
  }
  if (!has_links) return rows;
  std::unordered_map<std::uint64_t, const SegmentCopy*> by_number;
  for (const SegmentCopy& segment : copy.segments)
    if (key_of(segment) >= 0) by_number[segment.number] = &segment;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto linked_row = linked[i] != 0 ? by_number.find(linked[i]) : by_number.end();
    if (linked_row == by_number.end() || linked_row->second->segment == 0) continue;
    rows[i].link_trace_high = linked_row->second->trace_high;
    rows[i].link_trace_low = linked_row->second->trace_low;
    rows[i].link_segment = linked_row->second->segment;
  }
  return rows;
}

}  // namespace stagespan
