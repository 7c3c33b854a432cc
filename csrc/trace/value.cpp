// value.cpp: the grammar of JSON's values.
#include "trace/value.h"

#include "trace/text.h"

namespace stagespan::trace {

namespace {

const char* skip_value(const char* at, const char* end, int depth, bool* cut) noexcept;

const char* fail(const char* at, const char* end, bool* cut) noexcept {
  if (at >= end) *cut = true;
  return nullptr;
}

bool is_letter(char c) noexcept { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

// A word, in any case; `at` is at its first letter.
const char* read_word(const char* at, const char* end, Kind* kind, bool* cut) noexcept {
  const char* stop = at;
  while (stop < end && is_letter(*stop)) ++stop;
  if (stop == end) return fail(stop, end, cut);
  const std::string_view word(at, static_cast<std::size_t>(stop - at));
  const auto is = [word](std::string_view lower) {
    if (word.size() != lower.size()) return false;
    for (std::size_t i = 0; i < word.size(); ++i)
      if ((word[i] | 0x20) != lower[i]) return false;
    return true;
  };
  if (word == "true")
    *kind = Kind::kTrue;
  else if (word == "false")
    *kind = Kind::kFalse;
  else if (word == "null" || is("nan") || is("inf") || is("infinity"))
    *kind = Kind::kNull;
  else
    return nullptr;
  return stop;
}

const char* skip_number(const char* at, const char* end, bool* cut) noexcept {
  // Most numbers in a list are short integers.
  if (is_digit(*at) && *at != '0') {
    const char* stop = at + 1;
    while (stop < end && is_digit(*stop)) ++stop;
    if (stop < end && *stop != '.' && (*stop | 0x20) != 'e') return stop;
  }
  Number number;
  const char* const stop = read_number(at, end, &number);
  // A value at the end of the bytes may continue, and "-" or "1." may become a number.
  if (stop == nullptr) {
    while (at < end && (is_digit(*at) || *at == '-' || *at == '+' || *at == '.' || (*at | 0x20) == 'e')) ++at;
    return fail(at, end, cut);
  }
  return stop == end ? fail(stop, end, cut) : stop;
}

const char* skip_nested(const char* at, const char* end, int depth, bool* cut) noexcept {
  if (depth > kDeepest) return nullptr;
  const bool object = *at == '{';
  const char close = object ? '}' : ']';
  at = skip_space(at + 1, end);
  if (at < end && *at == close) return at + 1;
  for (;;) {
    if (object) {
      if (at >= end || *at != '"') return fail(at, end, cut);
      bool plain = true;
      const char* const quote = string_end(at + 1, end, &plain);
      if (quote == nullptr) return fail(end, end, cut);
      at = skip_space(quote + 1, end);
      if (at >= end || *at != ':') return fail(at, end, cut);
      at = skip_space(at + 1, end);
    }
    at = skip_value(at, end, depth, cut);
    if (at == nullptr) return nullptr;
    at = skip_space(at, end);
    if (at >= end) return fail(at, end, cut);
    if (*at == close) return at + 1;
    if (*at != ',') return nullptr;
    at = skip_space(at + 1, end);
  }
}

const char* skip_value(const char* at, const char* end, int depth, bool* cut) noexcept {
  if (at >= end) return fail(at, end, cut);
  if (*at == '"') {
    bool plain = true;
    const char* const quote = string_end(at + 1, end, &plain);
    return quote == nullptr ? fail(end, end, cut) : quote + 1;
  }
  if (*at == '[' || *at == '{') return skip_nested(at, end, depth + 1, cut);
  if (is_digit(*at)) return skip_number(at, end, cut);
  Value value;
  return read_value(at, end, &value, cut);
}

}  // namespace

const char* read_value(const char* at, const char* end, Value* value, bool* cut) noexcept {
  if (at >= end) return fail(at, end, cut);
  const char* stop = nullptr;
  switch (*at) {
    case '"':
      value->plain = true;
      stop = string_end(at + 1, end, &value->plain);
      if (stop == nullptr) return fail(end, end, cut);
      value->kind = Kind::kString;
      value->written = {at + 1, static_cast<std::size_t>(stop - at - 1)};
      return stop + 1;
    case '[':
    case '{':
      stop = skip_nested(at, end, 1, cut);
      value->kind = Kind::kNested;
      break;
    case '-':
      if (at + 1 < end && is_letter(at[1])) {
        stop = read_word(at + 1, end, &value->kind, cut);
        // Only the words for numbers have a sign.
        if (stop != nullptr && (value->kind != Kind::kNull || std::string_view(at + 1, stop) == "null")) return nullptr;
        break;
      }
      [[fallthrough]];
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':  // clang-format off
    case '5': case '6': case '7': case '8': case '9':  // clang-format on
      stop = read_number(at, end, &value->number);
      if (stop == nullptr || stop == end) return skip_number(at, end, cut);
      value->kind = Kind::kNumber;
      break;
    default:
      if (!is_letter(*at)) return nullptr;
      stop = read_word(at, end, &value->kind, cut);
  }
  if (stop != nullptr) value->written = {at, static_cast<std::size_t>(stop - at)};
  return stop;
}

}  // namespace stagespan::trace
