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

void put_varint(std::string& out, std::uint64_t value) {
  char bytes[10];
  std::size_t count = 0;
  for (; value >= 0x80; value >>= 7) bytes[count++] = static_cast<char>(value | 0x80);
  bytes[count++] = static_cast<char>(value);
  out.append(bytes, count);
}

void put_key(std::string& out, unsigned field, Wire wire) { put_varint(out, field << 3 | wire); }

void put_number(std::string& out, unsigned field, std::uint64_t value) {
  put_key(out, field, kVarint);
  put_varint(out, value);
}

void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, kLength);
  put_varint(out, bytes.size());
  out.append(bytes);
}

/// Little-endian, or with the most significant byte first, as ids are written.
void put_raw(std::string& out, std::uint64_t value, std::size_t size, bool is_big = false) {
  char bytes[8];
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(value >> 8 * (is_big ? size - 1 - i : i));
  out.append(bytes, size);
}

void put_fixed64(std::string& out, unsigned field, std::uint64_t value) {
  put_key(out, field, kFixed64);
  put_raw(out, value, 8);
}

void put_fixed32(std::string& out, unsigned field, std::uint32_t value) {
  put_key(out, field, kFixed32);
  put_raw(out, value, 4);
}

void put_id(std::string& out, unsigned field, std::uint64_t id) {
  put_key(out, field, kLength);
  put_varint(out, 8);
  put_raw(out, id, 8, true);
}

}  // namespace

void Value::set(std::string_view text) {
  bytes_.clear();
  put_bytes(bytes_, kString, text);
}

void Value::set(bool value) {
  bytes_.clear();
  put_number(bytes_, kBool, value ? 1 : 0);
}

void Value::set(std::int64_t value) {
  bytes_.clear();
  put_number(bytes_, kInt, static_cast<std::uint64_t>(value));
}

void Value::set(double value) {
  bytes_.clear();
  put_fixed64(bytes_, kDouble, std::bit_cast<std::uint64_t>(value));
}

void Value::append(const Value& element) { put_bytes(bytes_, kElement, element.bytes_); }

void Value::close_array() {
  std::string array;
  put_bytes(array, kArray, bytes_);
  bytes_ = std::move(array);
}

void put_attribute(std::string& message, unsigned field, std::string_view key, const Value& value) {
  const std::string_view content = value.bytes();
  const std::size_t size = 2 + varint_bytes(key.size()) + key.size() + varint_bytes(content.size()) + content.size();
  put_key(message, field, kLength);
  put_varint(message, size);
  put_bytes(message, kAttributeKey, key);
  put_bytes(message, kAttributeValue, content);
}

void SpanWriter::attribute(std::string_view key, std::string_view text) {
  value_.set(text);
  attribute(key, value_);
}

void SpanWriter::attribute(std::string_view key, std::int64_t number) {
  value_.set(number);
  attribute(key, value_);
}

void SpanWriter::attribute(std::string_view key, double number) {
  value_.set(number);
  attribute(key, value_);
}

void SpanWriter::attribute(std::string_view key, const Value& value) {
  put_attribute(attributes_, kAttributes, key, value);
}

void SpanWriter::link(std::string_view trace_id, std::uint64_t id) {
  std::string link;
  put_bytes(link, kLinkTraceId, trace_id);
  put_id(link, kLinkSpanId, id);
  put_fixed32(link, kLinkFlags, kKnowsIsRemote);
  put_bytes(links_, kLinks, link);
}

void SpanWriter::finish(const SpanHead& head) {
  const bool is_span = head.trace_id.size() == kTraceIdBytes && head.begin_ns >= 0 && head.end_ns >= 0;
  if (is_span) {
    span_.clear();
    put_bytes(span_, kTraceId, head.trace_id);
    put_id(span_, kSpanId, head.id);
    if (head.has_parent) put_id(span_, kParentSpanId, head.parent);
    put_bytes(span_, kName, head.name);
    put_number(span_, kKind, head.kind);
    put_fixed64(span_, kStart, static_cast<std::uint64_t>(head.begin_ns));
    put_fixed64(span_, kEnd, static_cast<std::uint64_t>(head.end_ns));
    span_ += attributes_;
    span_ += links_;
    const std::size_t message = head.status_message.size();
    std::size_t status = head.status == Status::kUnset ? 0 : 2;
    if (message != 0) status += 1 + varint_bytes(message) + message;
    put_key(span_, kStatus, kLength);
    put_varint(span_, status);
    if (message != 0) put_bytes(span_, kStatusMessage, head.status_message);
    if (head.status != Status::kUnset) put_number(span_, kStatusCode, static_cast<unsigned>(head.status));
    put_fixed32(span_, kFlags, kKnowsIsRemote | (head.has_remote_parent ? kIsRemote : 0));
    if (parts_.empty() || parts_.back().count >= kMostSpans || parts_.back().bytes.size() >= kMostBytes)
      parts_.emplace_back();
    put_bytes(parts_.back().bytes, kSpans, span_);
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

std::string resource_spans(std::string_view resource, std::string_view schema_url, std::string_view scope,
                           std::string_view scope_version, std::span<const std::string_view> spans) {
  std::string of_scope;
  put_bytes(of_scope, kScopeName, scope);
  put_bytes(of_scope, kScopeVersion, scope_version);
  std::size_t size = 1 + varint_bytes(of_scope.size()) + of_scope.size();
  for (const std::string_view one : spans) size += one.size();
  std::string message;
  put_bytes(message, kResource, resource);
  put_key(message, kScopeSpans, kLength);
  put_varint(message, size);
  put_bytes(message, kScope, of_scope);
  std::string result;
  result.reserve(message.size() + size + schema_url.size() + 32);
  std::size_t whole = message.size() - (1 + varint_bytes(of_scope.size()) + of_scope.size()) + size;
  if (!schema_url.empty()) whole += 1 + varint_bytes(schema_url.size()) + schema_url.size();
  put_key(result, kResourceSpans, kLength);
  put_varint(result, whole);
  result += message;
  for (const std::string_view one : spans) result += one;
  if (!schema_url.empty()) put_bytes(result, kSchemaUrl, schema_url);
  return result;
}

}  // namespace stagespan::otlp
