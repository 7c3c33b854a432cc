#include "export/otlp_spans.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace stagespan::otlp {

namespace {

enum Wire : unsigned { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

// Fields of the messages, by their names in the protocol's definition.
constexpr unsigned kTraceId = 1, kSpanId = 2, kParentSpanId = 4, kName = 5, kKind = 6, kStart = 7, kEnd = 8,
                   kAttributes = 9, kLinks = 13, kStatus = 15, kFlags = 16;
constexpr unsigned kLinkTraceId = 1, kLinkSpanId = 2, kLinkFlags = 6;
constexpr unsigned kStatusMessage = 2, kStatusCode = 3;
constexpr unsigned kAttributeKey = 1, kAttributeValue = 2;
constexpr unsigned kString = 1, kBool = 2, kInt = 3, kDouble = 4, kArray = 5, kElement = 1;
constexpr unsigned kResourceSpans = 1, kResource = 1, kScopeSpans = 2, kSchemaUrl = 3;
constexpr unsigned kScope = 1, kSpans = 2, kScopeName = 1, kScopeVersion = 2;

constexpr std::uint32_t kKnowsIsRemote = 0x100, kIsRemote = 0x200;
constexpr std::size_t kTraceIdBytes = 16;

std::size_t varint_bytes(std::uint64_t value) noexcept {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) + 6) / 7;
}

/// The sizes of fields, with keys of one byte: that of `kFlags` has two.
constexpr std::size_t kFixed64Bytes = 9, kFixed32Bytes = 5, kIdBytes = 10;
std::size_t number_bytes(std::uint64_t value) noexcept { return 1 + varint_bytes(value); }
std::size_t field_bytes(std::size_t bytes) noexcept { return 1 + varint_bytes(bytes) + bytes; }

/// Writes fields to the end of a message, which first gets the place for all of them.
class Fields {
 public:
  Fields(std::string& message, std::size_t bytes) {
    message.resize(message.size() + bytes);
    at_ = message.data() + message.size() - bytes;
  }
  explicit Fields(char* at) : at_(at) {}

  void varint(std::uint64_t value) noexcept {
    for (; value >= 0x80; value >>= 7) *at_++ = static_cast<char>(value | 0x80);
    *at_++ = static_cast<char>(value);
  }
  void key(unsigned field, Wire wire) noexcept { varint(field << 3 | wire); }
  void number(unsigned field, std::uint64_t value) noexcept {
    key(field, kVarint);
    varint(value);
  }
  /// Begins a field of so many bytes.
  void length(unsigned field, std::size_t bytes) noexcept {
    key(field, kLength);
    varint(bytes);
  }
  void raw(std::string_view bytes) noexcept { at_ = std::copy(bytes.begin(), bytes.end(), at_); }
  void bytes(unsigned field, std::string_view bytes) noexcept {
    length(field, bytes.size());
    raw(bytes);
  }
  void fixed64(unsigned field, std::uint64_t value) noexcept {
    key(field, kFixed64);
    for (std::size_t i = 0; i < 8; ++i) *at_++ = static_cast<char>(value >> 8 * i);
  }
  void fixed32(unsigned field, std::uint32_t value) noexcept {
    key(field, kFixed32);
    for (std::size_t i = 0; i < 4; ++i) *at_++ = static_cast<char>(value >> 8 * i);
  }
  /// Ids have the most significant byte first.
  void id(unsigned field, std::uint64_t id) noexcept {
    length(field, 8);
    for (std::size_t i = 8; i-- > 0;) *at_++ = static_cast<char>(id >> 8 * i);
  }

 private:
  char* at_;
};

/// Appends an attribute with a value of so many bytes, which `put` writes.
template <class Put>
void put_attribute_of(std::string& message, unsigned field, std::string_view key, std::size_t value_bytes,
                      const Put& put) {
  const std::size_t size = field_bytes(key.size()) + field_bytes(value_bytes);
  Fields fields(message, field_bytes(size));
  fields.length(field, size);
  fields.bytes(kAttributeKey, key);
  fields.length(kAttributeValue, value_bytes);
  put(fields);
}

}  // namespace

void Value::set(std::string_view text) {
  bytes_.clear();
  Fields(bytes_, field_bytes(text.size())).bytes(kString, text);
}

void Value::set(bool value) {
  bytes_.clear();
  Fields(bytes_, 2).number(kBool, value ? 1 : 0);
}

void Value::set(std::int64_t value) {
  bytes_.clear();
  const auto number = static_cast<std::uint64_t>(value);
  Fields(bytes_, number_bytes(number)).number(kInt, number);
}

void Value::set(double value) {
  bytes_.clear();
  Fields(bytes_, kFixed64Bytes).fixed64(kDouble, std::bit_cast<std::uint64_t>(value));
}

void Value::append(const Value& element) {
  Fields(bytes_, field_bytes(element.bytes_.size())).bytes(kElement, element.bytes_);
}

void Value::close_array() {
  std::string array;
  Fields(array, field_bytes(bytes_.size())).bytes(kArray, bytes_);
  bytes_ = std::move(array);
}

void put_attribute(std::string& message, unsigned field, std::string_view key, const Value& value) {
  put_attribute_of(message, field, key, value.bytes().size(), [&](Fields& fields) { fields.raw(value.bytes()); });
}

void SpanWriter::attribute(std::string_view key, std::string_view text) {
  put_attribute_of(attributes_, kAttributes, key, field_bytes(text.size()),
                   [&](Fields& fields) { fields.bytes(kString, text); });
}

void SpanWriter::attribute(std::string_view key, std::int64_t number) {
  const auto value = static_cast<std::uint64_t>(number);
  put_attribute_of(attributes_, kAttributes, key, number_bytes(value),
                   [&](Fields& fields) { fields.number(kInt, value); });
}

void SpanWriter::attribute(std::string_view key, double number) {
  put_attribute_of(attributes_, kAttributes, key, kFixed64Bytes,
                   [&](Fields& fields) { fields.fixed64(kDouble, std::bit_cast<std::uint64_t>(number)); });
}

void SpanWriter::attribute(std::string_view key, const Value& value) {
  put_attribute(attributes_, kAttributes, key, value);
}

void SpanWriter::link(std::string_view trace_id, std::uint64_t id) {
  const std::size_t size = field_bytes(trace_id.size()) + kIdBytes + kFixed32Bytes;
  Fields fields(links_, field_bytes(size));
  fields.length(kLinks, size);
  fields.bytes(kLinkTraceId, trace_id);
  fields.id(kLinkSpanId, id);
  fields.fixed32(kLinkFlags, kKnowsIsRemote);
}

void SpanWriter::finish(const SpanHead& head) {
  if (head.trace_id.size() == kTraceIdBytes && head.begin_ns >= 0 && head.end_ns >= 0) {
    if (parts_.empty() || parts_.back().count >= kMostSpans || parts_.back().bytes.size() >= kMostBytes) {
      parts_.emplace_back();
      parts_.back().bytes.reserve(kMostBytes);
    }
    const std::size_t message = head.status_message.size();
    std::size_t status = head.status == Status::kUnset ? 0 : 2;
    if (message != 0) status += field_bytes(message);
    const std::size_t size = field_bytes(kTraceIdBytes) + (head.has_parent ? 2 : 1) * kIdBytes +
                             field_bytes(head.name.size()) + number_bytes(head.kind) + 2 * kFixed64Bytes +
                             attributes_.size() + links_.size() + field_bytes(status) + 1 + kFixed32Bytes;
    Fields fields(parts_.back().bytes, field_bytes(size));
    fields.length(kSpans, size);
    fields.bytes(kTraceId, head.trace_id);
    fields.id(kSpanId, head.id);
    if (head.has_parent) fields.id(kParentSpanId, head.parent);
    fields.bytes(kName, head.name);
    fields.number(kKind, head.kind);
    fields.fixed64(kStart, static_cast<std::uint64_t>(head.begin_ns));
    fields.fixed64(kEnd, static_cast<std::uint64_t>(head.end_ns));
    fields.raw(attributes_);
    fields.raw(links_);
    fields.length(kStatus, status);
    if (message != 0) fields.bytes(kStatusMessage, head.status_message);
    if (head.status != Status::kUnset) fields.number(kStatusCode, static_cast<unsigned>(head.status));
    fields.fixed32(kFlags, kKnowsIsRemote | (head.has_remote_parent ? kIsRemote : 0));  // its key has two bytes
    ++parts_.back().count;
  } else {
    leave_out();
  }
  attributes_.clear();
  links_.clear();
}

void write_rows(SpanWriter& writer, std::span<const SpanRow> rows, std::string_view trace_id, std::uint64_t segment,
                std::string_view route, RowTexts& texts) {
  std::vector<std::uint64_t> ids;
  ids.reserve(rows.size());
  for (const SpanRow& row : rows) ids.push_back(row.id);
  std::sort(ids.begin(), ids.end());
  for (const SpanRow& row : rows) {
    SpanHead head;
    std::string_view kind;
    const std::uint32_t number = row.flags >> kKindShift;
    if (!texts.stage(row.stage, head.name) || !texts.kind(number, kind)) {
      writer.leave_out();
      continue;
    }
    head.trace_id = trace_id;
    head.id = id_in(segment, row.id);
    const bool is_inside = std::binary_search(ids.begin(), ids.end(), row.parent);
    head.parent = is_inside ? id_in(segment, row.parent) : segment;
    head.has_parent = true;
    head.begin_ns = row.begin_ns;
    head.end_ns = row.end_ns;
    writer.attribute("stagespan.kind", kind);
    if (row.id <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      writer.attribute("stagespan.span.id", static_cast<std::int64_t>(row.id));
    writer.attribute("thread.id", static_cast<std::int64_t>(row.thread));
    if (number == static_cast<std::uint32_t>(kQueue) && !route.empty()) writer.attribute("http.route", route);
    texts.add_work(row, writer);
    std::string_view type, message;
    texts.failure(row, type, message);
    if (!type.empty()) writer.attribute("error.type", type);
    if (row.suspended_ns != 0) writer.attribute("stagespan.suspended_s", static_cast<double>(row.suspended_ns) / 1e9);
    if (!std::isnan(row.device_elapsed_ns)) writer.attribute("stagespan.device_elapsed_s", row.device_elapsed_ns / 1e9);
    if (!std::isnan(row.cpu_ns)) writer.attribute("stagespan.cpu_ms", row.cpu_ns / 1e6);
    if ((row.flags & kFlagError) != 0) {
      head.status = Status::kError;
      head.status_message = message.empty() ? type : message;
    }
    writer.finish(head);
  }
}

// --- segments and hops ------------------------------------------------------------------------------------

namespace {

constexpr unsigned kInternal = 1, kServer = 2, kProducer = 4, kConsumer = 5;
__extension__ using Wide = __int128;  // differences of any two times

double seconds(Wide ns) noexcept { return static_cast<double>(ns) / 1e9; }

bool is_time(std::int64_t ns) noexcept { return ns != kUnknownNs; }

/// How long a message waited because the thread that received it worked for others, until the end of its last such work
/// before it received the message.
Wide behind_others_ns(const SegmentRow& row, Wide since_sent_ns) noexcept {
  if (!is_time(row.received_ns) || !is_time(row.work_ns)) return 0;
  const Wide since_work_ns = Wide{row.received_ns} - row.work_ns;
  return since_work_ns >= 0 && since_work_ns < since_sent_ns ? since_sent_ns - since_work_ns : Wide{0};
}

unsigned kind_of(const PartHead& part) noexcept {
  const SegmentRow& row = part.row;
  if ((row.traits & kTraitHttp) != 0 && !follows(row)) return kServer;
  if (row.parent_hop == 0 || follows(row)) return kInternal;
  return row.parent_segment != 0 ? kConsumer : kServer;
}

}  // namespace

std::array<char, 16> trace_bytes(std::uint64_t high, std::uint64_t low) noexcept {
  std::array<char, 16> bytes;
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(high >> 8 * (7 - i));
    bytes[8 + i] = static_cast<char>(low >> 8 * (7 - i));
  }
  return bytes;
}

bool follows(const SegmentRow& row) noexcept {
  return (row.origin == kOriginRoot || row.origin == kOriginNested) && row.parent_segment != 0;
}

std::string_view name_of(const SegmentRow& row, const PartTexts& texts) noexcept {
  if ((row.traits & kTraitRoute) != 0 && !texts.pipeline.empty()) return texts.pipeline;
  return texts.queue.empty() ? texts.pipeline : texts.queue;
}

void write_hop(SpanWriter& writer, const SegmentRow& row, std::string_view trace_id, std::string_view queue) {
  const std::int64_t received_ns = is_time(row.received_ns) ? row.received_ns : 0;
  const bool is_same_clock = is_time(row.sent_ns);
  const std::int64_t sent_ns = is_same_clock && row.sent_ns != 0 ? row.sent_ns : row.sent_unix_ns;
  writer.attribute("stagespan.kind", "handoff");
  if (is_time(sent_ns)) {
    const Wide since_sent_ns = Wide{received_ns} - sent_ns;
    const Wide behind_ns = behind_others_ns(row, since_sent_ns);
    writer.attribute("stagespan.handoff_s", seconds(since_sent_ns - behind_ns));
    writer.attribute("stagespan.behind_others_s", seconds(behind_ns));
  }
  Value same_clock;
  same_clock.set(is_same_clock);
  writer.attribute("stagespan.same_clock", same_clock);
  std::string name = "handoff ";
  name += queue;
  name.resize(name.find_last_not_of(" \t\n\r\v\f") + 1);
  SpanHead head;
  head.trace_id = trace_id;
  head.id = row.parent_hop;
  head.parent = row.parent_segment;
  head.has_parent = head.has_remote_parent = true;
  head.name = name;
  head.kind = kProducer;
  head.begin_ns = is_time(sent_ns) ? std::min(sent_ns, received_ns) : received_ns;
  head.end_ns = received_ns;
  writer.finish(head);
}

void write_segment(SpanWriter& writer, const PartHead& part, std::string_view trace_id, const PartTexts& texts) {
  const SegmentRow& row = part.row;
  const std::string_view status = kStatusNames[std::min<std::size_t>(row.status, std::size(kStatusNames) - 1)];
  Value complete;
  complete.set(part.is_complete);
  writer.attribute("stagespan.request.id", texts.id);
  writer.attribute("stagespan.status", status);
  writer.attribute("stagespan.origin", kOriginNames[std::min<std::size_t>(row.origin, std::size(kOriginNames) - 1)]);
  writer.attribute("stagespan.complete", complete);
  if ((row.traits & kTraitRoute) != 0) writer.attribute("http.route", texts.pipeline);
  if (!texts.exception.empty()) writer.attribute("error.type", texts.exception);
  if (row.attempt > 1) writer.attribute("stagespan.attempt", std::int64_t{row.attempt});
  if (!texts.branch.empty()) writer.attribute("stagespan.branch", texts.branch);
  if (texts.has_queue) writer.attribute("stagespan.queue", texts.queue);
  if (row.chunks != 0) {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (row.chunks <= kMost) writer.attribute("stagespan.chunks", static_cast<std::int64_t>(row.chunks));
    if (row.chunk_amount <= kMost)
      writer.attribute("stagespan.chunk_amount", static_cast<std::int64_t>(row.chunk_amount));
    const auto add_first = [&](std::string_view key, std::int64_t since_ns) {
      if (is_time(row.first_chunk_ns) && is_time(since_ns))
        writer.attribute(key, seconds(Wide{row.first_chunk_ns} - since_ns));
    };
    add_first("stagespan.part_time_to_first_chunk_s", row.begin_ns);
    add_first("stagespan.time_to_first_chunk_s", row.request_ns);
  }
  if (row.link_segment != 0 && (row.link_trace_high | row.link_trace_low) != 0) {
    const std::array<char, 16> trace = trace_bytes(row.link_trace_high, row.link_trace_low);
    writer.link({trace.data(), trace.size()}, row.link_segment);
  }
  SpanHead head;
  head.trace_id = trace_id;
  head.id = row.segment;
  head.parent = row.parent_hop;
  head.has_parent = row.parent_hop != 0;
  head.has_remote_parent = head.has_parent && !follows(row);
  head.name = name_of(row, texts);
  head.kind = kind_of(part);
  head.begin_ns = part.begin_ns;
  head.end_ns = part.end_ns;
  const bool has_failed = row.status != kStatusOk && row.status != kStatusUnused;
  head.status = has_failed ? Status::kError : Status::kOk;
  if (has_failed) head.status_message = status;
  writer.finish(head);
}

void put_resource_spans(std::string_view resource, std::string_view schema_url, std::string_view scope,
                        std::string_view scope_version, std::span<const std::string_view> spans,
                        const std::function<char*(std::size_t)>& place) {
  const std::size_t scope_bytes = field_bytes(scope.size()) + field_bytes(scope_version.size());
  std::size_t of_scope = field_bytes(scope_bytes);
  for (const std::string_view one : spans) of_scope += one.size();
  std::size_t whole = field_bytes(resource.size()) + field_bytes(of_scope);
  if (!schema_url.empty()) whole += field_bytes(schema_url.size());
  Fields fields(place(field_bytes(whole)));
  fields.length(kResourceSpans, whole);
  fields.bytes(kResource, resource);
  fields.length(kScopeSpans, of_scope);
  fields.length(kScope, scope_bytes);
  fields.bytes(kScopeName, scope);
  fields.bytes(kScopeVersion, scope_version);
  for (const std::string_view one : spans) fields.raw(one);
  if (!schema_url.empty()) fields.bytes(kSchemaUrl, schema_url);
}

}  // namespace stagespan::otlp
