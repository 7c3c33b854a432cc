// segment_row.h: a segment, or a hop that has come back to one, as readers get it: a row of a structured array.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "stagespan/layout.h"
#include "stagespan/recording_reader.h"
#include "stagespan/text.h"

namespace stagespan {

/// The number of a name that does not exist.
inline constexpr std::uint32_t kNoName = ~std::uint32_t{0};

// A COPIED field has the value of the same field in a SegmentCopy.
#define STAGESPAN_SEGMENT_ROW_LIST(FIELD, COPIED)                                                                   \
  FIELD(std::int64_t, key, 0) /* its number, or a negative number of a hop, whose own number is its segment's */    \
  COPIED(std::uint64_t, number, 0)                                                                                  \
  FIELD(std::int64_t, begin_ns, kUnknownNs)                                                                         \
  FIELD(std::int64_t, end_ns, kUnknownNs)                                                                           \
  FIELD(std::int64_t, first_chunk_ns, kUnknownNs)                                                                   \
  FIELD(std::int64_t, last_chunk_ns, kUnknownNs)                                                                    \
  FIELD(std::int64_t, request_ns, kUnknownNs)                                                                       \
  FIELD(std::int64_t, received_ns, kUnknownNs)                                                                      \
  FIELD(std::int64_t, sent_ns, kUnknownNs)                                                                          \
  FIELD(std::int64_t, work_ns, kUnknownNs)                                                                          \
  FIELD(std::int64_t, sent_monotonic_ns, kUnknownNs)                                                                \
  FIELD(std::int64_t, sent_unix_ns, kUnknownNs)                                                                     \
  COPIED(std::uint64_t, sent_clock, 0)                                                                              \
  COPIED(std::uint64_t, chunks, 0)                                                                                  \
  COPIED(std::uint64_t, chunk_amount, 0)                                                                            \
  COPIED(std::uint64_t, trace_high, 0)                                                                              \
  COPIED(std::uint64_t, trace_low, 0)                                                                               \
  COPIED(std::uint64_t, segment, 0)                                                                                 \
  COPIED(std::uint64_t, parent_hop, 0)                                                                              \
  COPIED(std::uint64_t, parent_segment, 0)                                                                          \
  FIELD(std::uint64_t, link_trace_high, 0) /* of the request here that it began in; 0 if there is none */           \
  FIELD(std::uint64_t, link_trace_low, 0)                                                                           \
  FIELD(std::uint64_t, link_segment, 0)                                                                             \
  COPIED(std::uint32_t, hops_sent, 0)                                                                               \
  COPIED(std::uint32_t, trace_flags, 0)                                                                             \
  FIELD(std::uint32_t, queue, kNoName) /* a name of a stage, like the next one; `kNoName` if it was not received */ \
  COPIED(std::uint32_t, pipeline, 0)                                                                                \
  COPIED(std::uint32_t, traits, 0)                                                                                  \
  COPIED(std::uint16_t, attempt, 1)                                                                                 \
  FIELD(std::uint8_t, status, kStatusOpen)                                                                          \
  COPIED(std::uint8_t, origin, kOriginRoot)                                                                         \
  COPIED(TextWords<kBranchBytes>, branch, {})                                                                       \
  COPIED(TextWords<kRequestIdBytes>, id, {})

#define STAGESPAN_SEGMENT_ROW_FIELDS(FIELD) STAGESPAN_SEGMENT_ROW_LIST(FIELD, FIELD)

/// Times are Unix times, `kUnknownNs` if there is none. The other fields are those of SegmentFields.
struct SegmentRow {
  STAGESPAN_SEGMENT_ROW_FIELDS(STAGESPAN_PLAIN_FIELD)
};

#define STAGESPAN_SEGMENT_END_FIELDS(FIELD)                                                   \
  FIELD(std::int64_t, key, 0)    /* as in a SegmentRow */                                     \
  FIELD(std::int64_t, end_ns, 0) /* 0 if it is open; that of a hop is when it was received */ \
  FIELD(std::uint64_t, trace_high, 0)                                                         \
  FIELD(std::uint64_t, trace_low, 0)

/// When a segment has ended, for readers that look at all of them again and again.
struct SegmentEnd {
  STAGESPAN_SEGMENT_END_FIELDS(STAGESPAN_PLAIN_FIELD)
};

/// What identifies an entry: the number of a segment, or a negative number of a hop that has come back to one.
std::int64_t key_of(const SegmentCopy& copy) noexcept;

/// The rows of the entries with these keys, in the order of their numbers; of all entries without keys. If the process
/// has ended, what was open was abandoned.
std::vector<SegmentRow> segment_rows(const RecordingCopy& copy, const std::vector<std::int64_t>* keys, bool has_ended);

/// Hands each field of a row to a function of `sink`, by the name that it has in dicts and in files. `sink.name(field,
/// number)` gets numbers of names, and `sink.details(row)` writes what is in no row: the fields, and the exception.
template <class Sink>
void visit(const SegmentRow& row, Sink& sink) {
  sink.number("number", row.number);
  sink.text("id", text_in(row.id));
  sink.trace("trace_id", row.trace_high, row.trace_low);
  sink.time("begin_ns", row.begin_ns);
  sink.time("end_ns", row.end_ns);
  sink.time("first_chunk_ns", row.first_chunk_ns);
  sink.time("last_chunk_ns", row.last_chunk_ns);
  sink.time("request_ns", row.request_ns);
  sink.number("chunks", row.chunks);
  sink.number("chunk_amount", row.chunk_amount);
  sink.number("hops_sent", std::uint64_t{row.hops_sent});
  sink.word("status", row.status < std::size(kStatusNames) ? kStatusNames[row.status] : kStatusNames[0]);
  sink.word("origin", row.origin < std::size(kOriginNames) ? kOriginNames[row.origin] : kOriginNames[0]);
  sink.number("attempt", std::uint64_t{row.attempt});
  sink.id("segment", row.segment);
  sink.id("parent_hop", row.parent_hop);
  sink.id("parent_segment", row.parent_segment);
  sink.time("received_ns", row.received_ns);
  sink.time("sent_ns", row.sent_ns);
  sink.time("work_ns", row.work_ns);
  sink.time("sent_monotonic_ns", row.sent_monotonic_ns);
  sink.time("sent_unix_ns", row.sent_unix_ns);
  sink.number("sent_clock", row.sent_clock);
  sink.name("queue", row.queue);
  sink.name("pipeline", row.pipeline);
  sink.flag("is_http", (row.traits & kTraitHttp) != 0);
  sink.name("route", (row.traits & kTraitRoute) != 0 ? row.pipeline : kNoName);
  sink.number("trace_flags", std::uint64_t{row.trace_flags});
  sink.text_or_none("branch", text_in(row.branch));
  sink.link("link", row);
  sink.details(row);
}

}  // namespace stagespan
