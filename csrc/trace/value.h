// value.h: one value of JSON as it is in the file.
#pragma once

#include <cstdint>
#include <string_view>

#include "trace/number.h"

namespace stagespan::trace {

enum class Kind : std::uint8_t {
  kAbsent,
  kNull,  // null, and the words that some writers use for numbers that are none: nan, inf, infinity
  kFalse,
  kTrue,
  kNumber,
  kString,
  kNested,  // a list or an object
};

struct Value {
  Kind kind = Kind::kAbsent;
  bool plain = true;         // a string without escapes and bytes beyond ASCII
  std::string_view written;  // as in the file; a string without its quotes
  Number number;
};

/// How deep lists and objects may nest within an argument.
inline constexpr int kDeepest = 1000;

/// Reads the value at `at`, and checks it by the grammar of JSON. Gives where it ends; null when it is malformed, or
/// not whole before `end`: `*cut` then becomes true.
const char* read_value(const char* at, const char* end, Value* value, bool* cut) noexcept;

}  // namespace stagespan::trace
