// tables.h: the tables of a trace: entries are converted to rows, or counted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace/arguments.h"
#include "trace/growing.h"
#include "trace/hash.h"
#include "trace/interner.h"
#include "trace/value.h"

namespace stagespan::trace {

/// One entry of the list of events, as it is in the file.
struct Entry {
  std::string_view written;
  Value phase, name, category, pid, tid, id, begin, duration;
  Value arguments_as_written;  // if they are not an object
  std::uint32_t shape = KeyTree::kRoot;
  std::vector<Argument> arguments;

  void clear() noexcept;
};

/// Ids in the tables: numbers and numerals are kept, and other words get negative numbers.
class Ids {
 public:
  std::int64_t of_text(std::string_view text);
  const std::vector<std::pair<std::int64_t, std::string>>& named() const noexcept { return named_; }

 private:
  Interner texts_;
  std::vector<std::int64_t> numbers_;  // by text
  std::vector<std::pair<std::int64_t, std::string>> named_;
};

/// A column of ids, of which few are different: the number of each row's id among the different ones.
class IdColumn {
 public:
  void push(std::int64_t id);
  std::int64_t operator[](std::size_t at) const noexcept { return values_[codes_[at]]; }

  Codes& codes() noexcept { return codes_; }
  Growing<std::int64_t>& values() noexcept { return values_; }

 private:
  Codes codes_;
  Growing<std::int64_t> values_;
  std::unordered_map<std::uint64_t, std::uint32_t, SecretHash> code_of_;
};

/// Events with a duration, instants, or values of counters.
struct EventTable {
  Growing<std::int32_t> name;
  Codes category, shape;
  Growing<std::int64_t> begin_ns, duration_ns;
  IdColumn pid, tid;
  Growing<std::int64_t> no_duration, negative_duration;  // rows whose duration was replaced by 0
  std::vector<ArgumentColumn> arguments;                 // by key
};

struct FlowTable {
  Growing<std::int64_t> id, begin_ns;
  IdColumn pid, tid;
  Codes category;
  Growing<std::uint8_t> starts;
};

/// A name that an entry of the kind "metadata" gives to a process or thread.
struct Naming {
  std::string what;  // process_name, process_labels or thread_name
  std::int64_t pid, tid;
  std::string name;
};

/// The keys of entries.
KeyTree tree_of_fields();

/// Reads the entry whose `{` is at `at`. Returns its end; null if it is malformed or, with `*cut`, incomplete.
const char* read_entry(const char* at, const char* end, KeyTree* fields, KeyTree* keys, Entry* entry, bool* cut);

class Tables {
 public:
  /// Adds an entry to one of the tables or counts.
  void add(const Entry& entry);
  /// Counts entries that are not objects or are malformed.
  void leave_out(const char* cause, std::uint64_t count);
  /// Counts begins without an end.
  void finish();

  std::uint64_t total = 0;
  bool looks_like_a_trace = false;
  EventTable events, instants, counters;
  FlowTable flows;
  Interner names, categories, texts;
  KeyTree fields = tree_of_fields(), keys;
  Ids ids;
  std::vector<Naming> namings;
  std::map<std::string, std::uint64_t> left_out, adjusted;

 private:
  void add_event(const Entry& entry, EventTable* table, std::int64_t begin_ns, std::int64_t duration_ns);
  void add_complete(const Entry& entry);
  void add_flow(const Entry& entry, bool starts);
  void add_naming(const Entry& entry);
  void add_half(const Entry& entry, bool begins);
  void add_arguments(const Entry& entry, EventTable* table);
  void add_argument(const Argument& argument, EventTable* table);
  /// The text of a field that should be a text; any other value is used as written, and counted.
  std::string_view text(const Value& value, const char* what);
  std::int64_t id(const Value& value, const char* what);
  std::int64_t time(const Value& value);
  bool timed(std::int64_t begin_ns, const char* cause);

  std::string scratch_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::pair<std::string, std::int64_t>>> open_;
};

}  // namespace stagespan::trace
