// number.h: numbers in JSON, and their meaning in a trace.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace stagespan::trace {

/// In an integer column: the event does not have this field.
inline constexpr std::int64_t kMissing = std::numeric_limits<std::int64_t>::min();

/// A number as written: digits * 10^exponent.
struct Number {
  std::uint64_t digits = 0;
  std::int32_t exponent = 0;
  bool negative = false;
  bool whole = true;  // written without a fraction and without an exponent
  bool fits = true;   // `digits` and `exponent` hold all of it
};

/// Reads the number at `at` by the grammar of JSON. Returns its end, or null if there is no number. A number that ends
/// at `end` may go on behind it.
const char* read_number(const char* at, const char* end, Number* number) noexcept;

/// Microseconds to the nearest nanosecond, halves to the even one; kMissing beyond about 146 years.
std::int64_t nanoseconds(const Number& number, std::string_view written) noexcept;

/// The same of a text, which may have spaces around the number, a plus, or leading zeros.
std::int64_t nanoseconds_of_text(std::string_view text) noexcept;

/// The number as an integer, when it is one that fits.
bool as_integer(const Number& number, std::int64_t* value) noexcept;

/// The nearest double.
double as_double(const Number& number, std::string_view written) noexcept;

/// A numeral as people write them (`12`, `-3`, `0x1f`, `007`) as an integer of 64 bits, with or without a sign.
bool read_numeral(std::string_view text, std::int64_t* value) noexcept;

}  // namespace stagespan::trace
