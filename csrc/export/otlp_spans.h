// otlp_spans.h: spans as the protobuf messages of OTLP (opentelemetry/proto/trace/v1/trace.proto).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagespan/segment_row.h"
#include "stagespan/span_row.h"

namespace stagespan::otlp {

/// The content of an AnyValue.
class Value {
 public:
  std::string_view bytes() const noexcept { return bytes_; }
  void clear() noexcept { bytes_.clear(); }
  void set(std::string_view text);
  void set(bool value);
  void set(std::int64_t value);
  void set(double value);
  /// Appends an element; a value with elements is an array.
  void append(const Value& element);
  /// Makes an array of what was appended, also if that is nothing.
  void close_array();

 private:
  std::string bytes_;
};

/// Appends an attribute to a message that has its attributes in a field.
void put_attribute(std::string& message, unsigned field, std::string_view key, const Value& value);

/// The number of the status of a span.
enum class Status : unsigned { kUnset = 0, kOk = 1, kError = 2 };

/// What a span has besides its attributes and links.
struct SpanHead {
  std::string_view trace_id;  // 16 bytes
  std::uint64_t id = 0;
  std::uint64_t parent = 0;
  bool has_parent = false;
  bool has_remote_parent = false;
  std::string_view name;
  unsigned kind = 1;  // internal
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  Status status = Status::kUnset;
  std::string_view status_message;
};

/// Some spans: a part of a message of the type ScopeSpans.
struct SomeSpans {
  std::string bytes;
  std::size_t count = 0;
};

/// Writes one span after another. No part has more than `kMostSpans`, or more than one beyond `kMostBytes`.
class SpanWriter {
 public:
  void attribute(std::string_view key, std::string_view text);
  void attribute(std::string_view key, std::int64_t number);
  void attribute(std::string_view key, double number);
  void attribute(std::string_view key, const Value& value);
  void link(std::string_view trace_id, std::uint64_t id);
  /// Ends the span that the attributes and links since the last call belong to. It is left out if it cannot be one,
  /// because the id of its trace has another length, or a time is before 1970.
  void finish(const SpanHead& head);
  /// What was written.
  const std::vector<SomeSpans>& parts() const noexcept { return parts_; }
  /// Counts a span that cannot be one.
  void leave_out() noexcept { ++left_out_; }
  /// How many spans could not be one.
  std::size_t left_out() const noexcept { return left_out_; }

  static constexpr std::size_t kMostSpans = 512, kMostBytes = 256 << 10;

 private:
  std::vector<SomeSpans> parts_;
  std::size_t left_out_ = 0;
  std::string attributes_, links_;
};

/// What is known of rows besides their columns.
class RowTexts {
 public:
  /// The name of a stage; false if it has none.
  virtual bool stage(std::uint32_t number, std::string_view& name) = 0;
  /// The name of a kind; false if there is no such kind.
  virtual bool kind(std::uint32_t number, std::string_view& name) = 0;
  /// Adds what a row has done as attributes.
  virtual void add_work(const SpanRow& row, SpanWriter& writer) = 0;
  /// The type and the message of the exception that a row has ended with, which are empty if unknown.
  virtual void failure(const SpanRow& row, std::string_view& type, std::string_view& message) = 0;

 protected:
  ~RowTexts() = default;
};

/// The id of a span for OpenTelemetry: that of its segment, xor its own one. A recording numbers the spans of its
/// process; the id of a segment is random.
constexpr std::uint64_t id_in(std::uint64_t segment, std::uint64_t span) noexcept {
  return (segment ^ span) != 0 ? segment ^ span : 1;
}

/// Writes the spans of a segment, as children of it or of each other; waits in queues get the route. Those that cannot
/// be spans are left out.
void write_rows(SpanWriter& writer, std::span<const SpanRow> rows, std::string_view trace_id, std::uint64_t segment,
                std::string_view route, RowTexts& texts);

/// What is known of a part of a request besides its rows. Texts are empty if there is none.
struct PartTexts {
  std::string_view id, pipeline, queue, branch, exception;
  bool has_queue = false;
};

/// A segment with the times of its part, which are known.
struct PartHead {
  const SegmentRow& row;
  std::int64_t begin_ns;
  std::int64_t end_ns;
  bool is_complete;  // whether all of its spans and their work are known
};

/// The bytes of the id of a trace.
std::array<char, 16> trace_bytes(std::uint64_t high, std::uint64_t low) noexcept;

/// The name of a segment as a span.
std::string_view name_of(const SegmentRow& row, const PartTexts& texts) noexcept;

/// Whether it is a part after the end of a request, or a request inside of another one.
bool follows(const SegmentRow& row) noexcept;

/// Writes the hop that brought a segment, or that has come back to one.
void write_hop(SpanWriter& writer, const SegmentRow& row, std::string_view trace_id, std::string_view queue);

/// Writes a segment, which also gets the attributes that were added before.
void write_segment(SpanWriter& writer, const PartHead& part, std::string_view trace_id, const PartTexts& texts);

/// Writes a ResourceSpans, a part of an ExportTraceServiceRequest, to the place that a function returns for so many
/// bytes. The attributes of the resource were appended to `resource` with the field 1.
void put_resource_spans(std::string_view resource, std::string_view schema_url, std::string_view scope,
                        std::string_view scope_version, std::span<const std::string_view> spans,
                        const std::function<char*(std::size_t)>& place);

}  // namespace stagespan::otlp
