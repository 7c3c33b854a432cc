// tables.cpp: writes entries into columns, and counts the others.
#include "trace/tables.h"

#include <algorithm>

#include "trace/text.h"

namespace stagespan::trace {

namespace {

const char* cause_of_phase(char phase) noexcept {
  switch (phase) {
    case 'P':
      return "sample";
    case 'v':
    case 'V':
      return "memory dump";
    case 'N':
    case 'O':
    case 'D':
      return "object";
    case 'b':
    case 'n':
    case 'e':
    case 'S':
    case 'T':
    case 'p':
    case 'F':
      return "async event";
    case 'c':
      return "clock mark";
    case '(':
    case ')':
      return "context mark";
    default:
      return nullptr;
  }
}

constexpr const char* kNegative = "negative duration, taken as 0";
constexpr const char* kNoDuration = "no duration, taken as 0";
constexpr std::size_t kCompared = 8;
constexpr const char* kUntimed = "event without a time";

}  // namespace

void Entry::clear() noexcept {
  for (Value* const value : {&phase, &name, &category, &pid, &tid, &id, &begin, &duration, &arguments_as_written})
    value->kind = Kind::kAbsent;
  shape = KeyTree::kRoot;
  arguments.clear();
}

std::int64_t Ids::of_text(std::string_view text) {
  const std::uint32_t code = texts_.code(text);
  if (code < numbers_.size()) return numbers_[code];
  std::int64_t number = 0;
  if (!read_numeral(text, &number)) {
    number = -2 - static_cast<std::int64_t>(named_.size());
    named_.emplace_back(number, text);
  }
  return numbers_.emplace_back(number);
}

void IdColumn::push(std::int64_t id) {
  // Most traces have few threads, whose ids are compared faster than they are hashed.
  const std::uint32_t first = static_cast<std::uint32_t>(std::min(values_.size(), kCompared));
  for (std::uint32_t code = 0; code < first; ++code)
    if (values_[code] == id) return codes_.push(code);
  const auto [place, is_new] =
      code_of_.try_emplace(static_cast<std::uint64_t>(id), static_cast<std::uint32_t>(values_.size()));
  if (is_new) values_.push(id);
  codes_.push(place->second);
}

void Tables::leave_out(const char* cause, std::uint64_t count) {
  if (count == 0) return;
  total += count;
  left_out[cause] += count;
}

void Tables::add(const Entry& entry) {
  ++total;
  const std::string_view phase = text(entry.phase, "phase");
  const char letter = phase.size() == 1 ? phase[0] : '\0';
  if (letter == 'X') return add_complete(entry);
  if (letter == 's' || letter == 't' || letter == 'f') return add_flow(entry, letter == 's');
  const bool counts = letter == 'C';
  if (counts || letter == 'i' || letter == 'I' || letter == 'R') {
    looks_like_a_trace = true;
    const std::int64_t begin_ns = time(entry.begin);
    if (timed(begin_ns, kUntimed)) add_event(entry, counts ? &counters : &instants, begin_ns, 0);
    return;
  }
  if (letter == 'M') return add_naming(entry);
  if (letter == 'B' || letter == 'E') return add_half(entry, letter == 'B');
  const char* const cause = cause_of_phase(letter);
  looks_like_a_trace = looks_like_a_trace || cause != nullptr;
  ++left_out[cause != nullptr ? cause : "entry of an unknown phase"];
}

void Tables::finish() {
  for (const auto& [thread, opened] : open_)
    if (!opened.empty()) left_out["begin event without an end event"] += opened.size();
  open_.clear();
}

void Tables::add_complete(const Entry& entry) {
  looks_like_a_trace = true;
  const std::int64_t begin_ns = time(entry.begin);
  if (!timed(begin_ns, kUntimed)) return;
  std::int64_t duration_ns = time(entry.duration);
  if (duration_ns < 0) {
    const bool missing = duration_ns == kMissing;
    ++adjusted[missing ? kNoDuration : kNegative];
    (missing ? events.no_duration : events.negative_duration).push(static_cast<std::int64_t>(events.begin_ns.size()));
    duration_ns = 0;
  }
  add_event(entry, &events, begin_ns, duration_ns);
}

void Tables::add_event(const Entry& entry, EventTable* table, std::int64_t begin_ns, std::int64_t duration_ns) {
  const std::string_view name = text(entry.name, "name");
  table->name.push(static_cast<std::int32_t>(names.code(name)));
  const std::string_view category = text(entry.category, "category");
  const std::uint32_t guess = table->category.empty() ? 0 : table->category.back();
  table->category.push(categories.code(category, guess));
  table->begin_ns.push(begin_ns);
  table->duration_ns.push(duration_ns);
  table->pid.push(id(entry.pid, "pid"));
  table->tid.push(id(entry.tid, "tid"));
  add_arguments(entry, table);
}

void Tables::add_arguments(const Entry& entry, EventTable* table) {
  if (entry.arguments_as_written.kind > Kind::kNull) ++adjusted["arguments that are not an object"];
  table->shape.push(entry.shape);
  if (entry.arguments.empty()) return;
  if (table->arguments.size() < keys.texts().size()) table->arguments.resize(keys.texts().size());
  for (const Argument& argument : entry.arguments) add_argument(argument, table);
}

void Tables::add_argument(const Argument& argument, EventTable* table) {
  ArgumentColumn& column = table->arguments[argument.key];
  const Role role = keys.role(argument.key);
  const Value& value = argument.value;
  bool as_text = false;
  if (role == Role::kTaskType) {
    as_text = value.kind != Kind::kString;
    if (as_text) ++adjusted["argument 'Task Type' that is not a text"];
  } else if (role != Role::kNone && value.kind != Kind::kString) {
    std::int64_t integer = 0;
    if (value.kind == Kind::kNumber && !value.number.whole && as_integer(value.number, &integer)) {
      Value whole = value;
      const auto digits = static_cast<std::uint64_t>(integer);
      whole.number = Number{integer < 0 ? ~digits + 1 : digits, 0, integer < 0};
      return column.add(whole, false, &texts, &scratch_);
    }
    as_text = value.kind != Kind::kNumber || !value.number.whole;
    if (as_text) ++adjusted[std::string("argument '") + name_of(role) + "' that is not a number or text"];
  }
  column.add(value, as_text, &texts, &scratch_);
}

void Tables::add_flow(const Entry& entry, bool starts) {
  looks_like_a_trace = true;
  const std::int64_t begin_ns = time(entry.begin);
  if (!timed(begin_ns, "flow without a time")) return;
  flows.id.push(id(entry.id, "id"));
  const std::string_view category = text(entry.category, "category");
  const std::uint32_t guess = flows.category.empty() ? 0 : flows.category.back();
  flows.category.push(categories.code(category, guess));
  flows.starts.push(starts ? 1 : 0);
  flows.begin_ns.push(begin_ns);
  flows.pid.push(id(entry.pid, "pid"));
  flows.tid.push(id(entry.tid, "tid"));
}

void Tables::add_naming(const Entry& entry) {
  looks_like_a_trace = true;
  std::string what(text(entry.name, "name"));
  if (what != "process_name" && what != "process_labels" && what != "thread_name") {
    ++left_out["metadata entry"];
    return;
  }
  const std::string_view wanted = what == "process_labels" ? "labels" : "name";
  std::string name;
  for (const Argument& argument : entry.arguments)
    if (keys.texts()[argument.key] == wanted)
      name = text(argument.value, wanted == "name" ? "argument 'name'" : "argument 'labels'");
  const std::int64_t pid = id(entry.pid, "pid"), tid = id(entry.tid, "tid");
  namings.push_back({std::move(what), pid, tid, std::move(name)});
}

// Joins a start and its end into one event.
void Tables::add_half(const Entry& entry, bool begins) {
  looks_like_a_trace = true;
  const std::int64_t time_ns = time(entry.begin);
  if (!timed(time_ns, kUntimed)) return;
  auto& opened = open_[{id(entry.pid, "pid"), id(entry.tid, "tid")}];
  if (begins) {
    opened.emplace_back(entry.written, time_ns);
    return;
  }
  if (opened.empty()) {
    ++left_out["end event without a begin event"];
    return;
  }
  const auto [written, begin_ns] = std::move(opened.back());
  opened.pop_back();
  ++adjusted["begin and end, joined to one event"];
  if (time_ns < begin_ns) {
    ++adjusted[kNegative];
    events.negative_duration.push(static_cast<std::int64_t>(events.begin_ns.size()));
  }
  Entry begin;
  bool cut = false;
  read_entry(written.data(), written.data() + written.size(), &fields, &keys, &begin, &cut);
  add_event(begin, &events, begin_ns, time_ns < begin_ns ? 0 : time_ns - begin_ns);
}

std::string_view Tables::text(const Value& value, const char* what) {
  switch (value.kind) {
    case Kind::kAbsent:
    case Kind::kNull:
      return {};
    case Kind::kString:
      if (value.plain) return value.written;
      unescape(value.written, &scratch_);
      return scratch_;
    default:
      ++adjusted[std::string(what) + " that is not a text"];
      return value.written;
  }
}

std::int64_t Tables::id(const Value& value, const char* what) {
  std::int64_t integer = 0;
  switch (value.kind) {
    case Kind::kAbsent:
    case Kind::kNull:
      return kMissing;
    case Kind::kString:
      return ids.of_text(text(value, what));
    case Kind::kNumber:
      if (as_integer(value.number, &integer)) return integer;
      if (value.number.whole) return ids.of_text(value.written);
      break;
    default:
      break;
  }
  ++adjusted[std::string(what) + " that is not a number or text"];
  return ids.of_text(value.written);
}

std::int64_t Tables::time(const Value& value) {
  if (value.kind == Kind::kNumber) return nanoseconds(value.number, value.written);
  return value.kind == Kind::kString ? nanoseconds_of_text(value.written) : kMissing;
}

bool Tables::timed(std::int64_t begin_ns, const char* cause) {
  if (begin_ns == kMissing) ++left_out[cause];
  return begin_ns != kMissing;
}

}  // namespace stagespan::trace
