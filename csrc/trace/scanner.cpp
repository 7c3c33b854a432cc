// scanner.cpp: splits bytes into entries.
#include "trace/scanner.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "trace/text.h"

namespace stagespan::trace {

namespace {

constexpr const char* kNoObject = "entry that is not an object";

enum Field : std::uint8_t { kPhase, kName, kCategory, kPid, kTid, kId, kBegin, kDuration, kArguments, kOther };

constexpr std::string_view kFields[] = {"ph", "name", "cat", "pid", "tid", "id", "ts", "dur", "args"};
constexpr Value Entry::* kPlaces[] = {&Entry::phase, &Entry::name, &Entry::category, &Entry::pid,
                                      &Entry::tid,   &Entry::id,   &Entry::begin,    &Entry::duration};

Field field_of(std::string_view key) noexcept {
  for (std::uint8_t i = 0; i < kOther; ++i)
    if (kFields[i] == key) return static_cast<Field>(i);
  return kOther;
}

// The letters of a key and the quote behind them, as the first bytes of a word.
struct Letters {
  std::uint64_t word, mask;
};

constexpr Letters letters_of(std::string_view key) noexcept {
  std::array<unsigned char, sizeof(std::uint64_t)> word{}, mask{};
  for (std::size_t i = 0; i <= key.size(); ++i) {
    word[i] = static_cast<unsigned char>(i < key.size() ? key[i] : '"');
    mask[i] = 0xFF;
  }
  return {std::bit_cast<std::uint64_t>(word), std::bit_cast<std::uint64_t>(mask)};
}

constexpr std::array<Letters, kOther> kLetters = [] {
  std::array<Letters, kOther> all{};
  for (std::uint8_t i = 0; i < kOther; ++i) all[i] = letters_of(kFields[i]);
  return all;
}();

// The field whose key begins at `at`, by its first letters; `size` is the key's length. kOther if the full key must be
// compared.
Field quick_field(const char* at, const char* end, std::size_t* size) noexcept {
  std::uint64_t word;
  if (static_cast<std::size_t>(end - at) < sizeof(word)) return kOther;
  std::memcpy(&word, at, sizeof(word));
  for (std::uint8_t i = 0; i < kOther; ++i) {
    if ((word & kLetters[i].mask) != kLetters[i].word) continue;
    *size = kFields[i].size();
    return static_cast<Field>(i);
  }
  return kOther;
}

// Returns the position after the colon that follows a key, and after its spaces.
const char* behind_colon(const char* at, const char* end, bool* cut) noexcept {
  at = skip_space(at, end);
  if (at < end && *at == ':') {
    at = skip_space(at + 1, end);
    if (at < end) return at;
  }
  if (at >= end) *cut = true;
  return nullptr;
}

// On the next key's quote, or on the brace that closes the object; `first` if it is the first member.
const char* next_member(const char* at, const char* end, bool first, bool* cut) noexcept {
  at = skip_space(at, end);
  if (at < end && *at == '}') return at;
  if (!first) {
    if (at < end && *at != ',') return nullptr;
    at = skip_space(at + (at < end), end);
  }
  if (at < end && *at == '"') return at;
  if (at >= end) *cut = true;
  return nullptr;
}

// Keeps the argument that was read last, unless it is null or the entry already has the key.
void settle(ArgumentKeys* keys, Entry* entry) {
  const Argument& last = entry->arguments.back();
  if (last.value.kind == Kind::kNull) return entry->arguments.pop_back();
  const std::uint32_t below = keys->below(entry->shape, last.key, entry->arguments.size() - 1);
  if (below != ArgumentKeys::kNoNode) {
    entry->shape = below;
    return;
  }
  // If a key occurs twice, the last one counts.
  entry->arguments[keys->place(last.key)].value = last.value;
  entry->arguments.pop_back();
}

const char* read_arguments(const char* at, const char* end, ArgumentKeys* keys, Entry* entry, bool* cut) {
  keys->restart();
  entry->shape = ArgumentKeys::kRoot;
  entry->arguments.clear();
  std::string unescaped;
  for (bool first = true;; first = false) {
    at = next_member(first ? at + 1 : at, end, first, cut);
    if (at == nullptr) return nullptr;
    if (*at == '}') return at + 1;
    ++at;
    std::uint32_t key = 0;
    std::size_t size = 0;
    if (keys->is_next(entry->shape, at, end, &key, &size)) {
      at += size;
    } else {
      bool plain = true;
      const char* const quote = string_end(at, end, &plain);
      if (quote == nullptr) {
        *cut = true;
        return nullptr;
      }
      std::string_view text(at, static_cast<std::size_t>(quote - at));
      if (!plain) {
        unescape(text, &unescaped);
        text = unescaped;
      }
      key = keys->key(text, plain);
      at = quote;
    }
    at = behind_colon(at + 1, end, cut);
    if (at == nullptr) return nullptr;
    Argument& argument = entry->arguments.emplace_back();
    argument.key = key;
    at = read_value(at, end, &argument.value, cut);
    if (at == nullptr) return nullptr;
    settle(keys, entry);
  }
}

}  // namespace

const char* read_entry(const char* at, const char* end, ArgumentKeys* keys, Entry* entry, bool* cut) {
  entry->clear();
  const char* const begin = at;
  Value ignored;
  std::string unescaped;
  for (bool first = true;; first = false) {
    at = next_member(first ? at + 1 : at, end, first, cut);
    if (at == nullptr) return nullptr;
    if (*at == '}') break;
    ++at;
    std::size_t size = 0;
    Field field = quick_field(at, end, &size);
    if (field == kOther) {
      bool plain = true;
      const char* const quote = string_end(at, end, &plain);
      if (quote == nullptr) {
        *cut = true;
        return nullptr;
      }
      size = static_cast<std::size_t>(quote - at);
      std::string_view key(at, size);
      if (!plain) {
        unescape(key, &unescaped);
        key = unescaped;
      }
      field = field_of(key);
    }
    at = behind_colon(at + size + 1, end, cut);
    if (at == nullptr) return nullptr;
    if (field != kArguments) {
      at = read_value(at, end, field == kOther ? &ignored : &(entry->*kPlaces[field]), cut);
    } else if (*at == '{') {
      entry->arguments_as_written.kind = Kind::kAbsent;
      at = read_arguments(at, end, keys, entry, cut);
    } else {
      entry->shape = ArgumentKeys::kRoot;
      entry->arguments.clear();
      at = read_value(at, end, &entry->arguments_as_written, cut);
    }
    if (at == nullptr) return nullptr;
  }
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
        next = read_entry(at, end, &tables_.keys, &entry_, &cut);
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
