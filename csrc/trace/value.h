// value.h: one JSON value, as written in the file.
#pragma once

#include <cstdint>
#include <string_view>

#include "trace/number.h"

namespace stagespan::trace {

enum class Kind : std::uint8_t {
  kAbsent,
  kNull,  // null, and the words that some writers use instead of numbers: nan, inf, infinity
  kFalse,
  kTrue,
  kNumber,
  kString,
  kNested,  // a list or an object
};

struct Value {
  Kind kind = Kind::kAbsent;
  bool plain = true;         // a string without escapes or bytes beyond ASCII
  std::string_view written;  // as in the file; for a string, without its quotes
  Number number;
};

/// The maximum depth of lists and objects within an argument.
inline constexpr int kDeepest = 1000;

/// Reads the value at `at`, and checks it against the grammar of JSON. Returns its end; null if it is malformed or
/// incomplete before `end`, in which case `*cut` becomes true.
const char* read_value(const char* at, const char* end, Value* value, bool* cut) noexcept;

}  // namespace stagespan::trace
