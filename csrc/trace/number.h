// number.h: numbers in JSON, and their values in a trace.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace stagespan::trace {

/// The value in an integer column if the event does not have the field.
inline constexpr std::int64_t kMissing = std::numeric_limits<std::int64_t>::min();

/// A number as written: digits * 10^exponent.
struct Number {
  std::uint64_t digits = 0;
  std::int32_t exponent = 0;
  bool negative = false;
  bool whole = true;  // written without a fraction and without an exponent
  bool fits = true;   // `digits` and `exponent` represent it completely
};

/// Reads the number at `at` according to the grammar of JSON. Returns its end, or null if there is no number. A number
/// that ends at `end` may continue after it.
const char* read_number(const char* at, const char* end, Number* number) noexcept;

/// Microseconds to the nearest nanosecond, halves to the even one; kMissing if the time is more than about 146 years.
std::int64_t nanoseconds(const Number& number, std::string_view written) noexcept;

/// The same for a text, which may have spaces around the number, a plus sign, or leading zeros.
std::int64_t nanoseconds_of_text(std::string_view text) noexcept;

/// The number as an integer, if it is one that fits.
bool as_integer(const Number& number, std::int64_t* value) noexcept;

/// The nearest double.
double as_double(const Number& number, std::string_view written) noexcept;

/// A numeral in one of the usual notations (`12`, `-3`, `0x1f`, `007`) as a 64-bit integer, signed or unsigned.
bool read_numeral(std::string_view text, std::int64_t* value) noexcept;

}  // namespace stagespan::trace
