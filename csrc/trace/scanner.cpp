// scanner.cpp: splits bytes into entries.
#include "trace/scanner.h"

#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "trace/text.h"

namespace stagespan::trace {

namespace {

constexpr const char* kNoObject = "entry that is not an object";

// The fields of an entry; the numbers of their keys in `tree_of_fields` are their positions.
constexpr std::string_view kFields[] = {"ph", "name", "cat", "pid", "tid", "id", "ts", "dur", "args"};
constexpr Value Entry::* kPlaces[] = {&Entry::phase, &Entry::name, &Entry::category, &Entry::pid,
                                      &Entry::tid,   &Entry::id,   &Entry::begin,    &Entry::duration};
constexpr std::uint32_t kArguments = std::size(kPlaces);

/// Walks through the members of an object.
class Members {
 public:
  static constexpr std::uint32_t kClosed = KeyTree::kNoNode;

  /// `open` is at the brace that opens the object.
  Members(const char* open, const char* end, KeyTree* keys, bool* cut)
      : open_(open), end_(end), keys_(keys), cut_(cut) {
    keys->restart();
  }

  /// Moves from the brace, or the end of a value, to the next value, or to the brace that closes the object, where
  /// `key` is kClosed. Returns null if there is neither.
  const char* next(const char* at) {
    const bool first = at == open_;
    // Without the check, the first member of another object could be expected after a null.
    const char* value = first == (node == KeyTree::kRoot) ? keys_->expected(node, at, end_, &key) : nullptr;
    if (value != nullptr) {
      lead_ = {};
      value = skip_space(value, end_);
    } else {
      const char* const before = at;
      at = skip_space(first ? at + 1 : at, end_);
      if (at < end_ && *at == '}') {
        key = kClosed;
        return at;
      }
      if (!first && (at = behind(',', at)) == nullptr) return nullptr;
      if ((at = read_key(at)) == nullptr || (value = behind(':', at)) == nullptr) return nullptr;
      value = skip_space(value, end_);
      lead_ = {before, static_cast<std::size_t>(value - before)};
    }
    return value < end_ ? value : cut_off();
  }

  /// Adds the key to the node, for a value that is at `place`. False if the object already had it.
  bool add(std::size_t place) {
    const std::uint32_t below = keys_->below(node, key, place, lead_);
    if (below != KeyTree::kNoNode) node = below;
    return below != KeyTree::kNoNode;
  }

  std::uint32_t node = KeyTree::kRoot, key = kClosed;

 private:
  const char* cut_off() {
    *cut_ = true;
    return nullptr;
  }

  // Behind a character that may follow spaces.
  const char* behind(char wanted, const char* at) {
    at = skip_space(at, end_);
    if (at >= end_) return cut_off();
    return *at == wanted ? at + 1 : nullptr;
  }

  const char* read_key(const char* at) {
    if ((at = behind('"', at)) == nullptr) return nullptr;
    bool plain = true;
    const char* const quote = string_end(at, end_, &plain);
    if (quote == nullptr) return cut_off();
    const std::string_view written(at, static_cast<std::size_t>(quote - at));
    std::string unescaped;
    if (!plain) unescape(written, &unescaped);
    key = keys_->key(plain ? written : unescaped);
    return quote + 1;
  }

  const char* open_;
  const char* end_;
  KeyTree* keys_;
  bool* cut_;
  std::string_view lead_;
};

const char* read_arguments(const char* at, const char* end, KeyTree* keys, Entry* entry, bool* cut) {
  entry->arguments.clear();
  Members members(at, end, keys, cut);
  while ((at = members.next(at)) != nullptr && members.key != Members::kClosed) {
    Argument& last = entry->arguments.emplace_back();
    last.key = members.key;
    at = read_value(at, end, &last.value, cut);
    if (at == nullptr) return nullptr;
    if (last.value.kind == Kind::kNull) {
      entry->arguments.pop_back();
    } else if (!members.add(entry->arguments.size() - 1)) {
      // If a key occurs twice, the last one counts.
      entry->arguments[keys->place(last.key)].value = last.value;
      entry->arguments.pop_back();
    }
  }
  entry->shape = members.node;
  return at == nullptr ? nullptr : at + 1;
}

}  // namespace

KeyTree tree_of_fields() {
  KeyTree tree;
  for (const std::string_view field : kFields) tree.key(field);
  return tree;
}

const char* read_entry(const char* at, const char* end, KeyTree* fields, KeyTree* keys, Entry* entry, bool* cut) {
  entry->clear();
  const char* const begin = at;
  Value ignored;
  Members members(at, end, fields, cut);
  while ((at = members.next(at)) != nullptr && members.key != Members::kClosed) {
    members.add(0);
    if (members.key != kArguments) {
      at = read_value(at, end, members.key > kArguments ? &ignored : &(entry->*kPlaces[members.key]), cut);
    } else if (*at == '{') {
      entry->arguments_as_written.kind = Kind::kAbsent;
      at = read_arguments(at, end, keys, entry, cut);
    } else {
      entry->shape = KeyTree::kRoot;
      entry->arguments.clear();
      at = read_value(at, end, &entry->arguments_as_written, cut);
    }
    if (at == nullptr) return nullptr;
  }
  if (at == nullptr) return nullptr;
  entry->written = {begin, static_cast<std::size_t>(at + 1 - begin)};
  return at + 1;
}

State Scanner::scan(const char* begin, const char* end, std::size_t* consumed) {
  const char* at = begin;
  const auto stop = [&](const char* where, State state) {
    *consumed = static_cast<std::size_t>(where - begin);
    return state;
  };
  for (;;) {
    while (at < end && (is_space(*at) || *at == ',')) ++at;
    if (at >= end) return stop(at, State::kMore);
    bool cut = false;
    const char* next = nullptr;
    switch (*at) {
      case '{':
        next = read_entry(at, end, &tables_.fields, &tables_.keys, &entry_, &cut);
        if (next != nullptr) tables_.add(entry_);
        break;
      case ']':
        return stop(at + 1, State::kClosed);
      case '}':
        next = at + 1;
        tables_.leave_out(kNoObject, 1);
        break;
      case '[':
      case '"': {
        Value value;
        next = read_value(at, end, &value, &cut);
        if (next != nullptr) tables_.leave_out(kNoObject, 1);
        break;
      }
      default:
        next = at;
        while (next < end && !is_space(*next) && std::strchr(",[]{}\"", *next) == nullptr) ++next;
        if (next == at) ++next;  // strchr finds the end of its text too
        cut = next == end;
        if (cut)
          next = nullptr;
        else
          tables_.leave_out(kNoObject, 1);
    }
    if (next == nullptr) return stop(at, cut ? State::kMore : State::kOdd);
    at = next;
  }
}

}  // namespace stagespan::trace
