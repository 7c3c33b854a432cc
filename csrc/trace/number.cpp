// number.cpp: parses decimal numbers exactly, without doubles.
#include "trace/number.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "trace/text.h"

namespace stagespan::trace {

namespace {

// Far from the limits of 64 bits, so that adding a base and a duration cannot overflow.
constexpr std::uint64_t kTimeLimitNs = (std::uint64_t{1} << 62) / 1000 * 1000;
constexpr std::int32_t kExponentLimit = 100'000'000;

/// Of ten, as far as they fit into 64 bits.
constexpr struct Powers {
  std::uint64_t of[20] = {1};
  constexpr Powers() {
    for (int i = 1; i < 20; ++i) of[i] = 10 * of[i - 1];
  }
} kPowers;

std::int64_t signed_time(std::uint64_t ns, bool negative) noexcept {
  if (ns >= kTimeLimitNs) return kMissing;
  return negative ? -static_cast<std::int64_t>(ns) : static_cast<std::int64_t>(ns);
}

// Any number of digits: those up to the nanosecond, then whether the rest is below, at or above a half.
std::int64_t long_nanoseconds(std::string_view written) noexcept {
  const std::size_t mantissa_end = std::min(written.find_first_of("eE"), written.size());
  std::int64_t exponent = 0;
  if (mantissa_end < written.size()) {
    std::string_view text = written.substr(mantissa_end + 1);
    if (!text.empty() && text[0] == '+') text.remove_prefix(1);
    if (std::from_chars(text.data(), text.data() + text.size(), exponent).ec != std::errc())
      exponent = text[0] == '-' ? -kExponentLimit : kExponentLimit;
    exponent = std::clamp<std::int64_t>(exponent, -kExponentLimit, kExponentLimit);
  }
  const std::string_view mantissa = written.substr(0, mantissa_end);
  const std::size_t dot = std::min(mantissa.find('.'), mantissa.size());
  // The number of digits before the decimal point of the nanoseconds.
  std::int64_t before = exponent + 3;
  for (std::size_t i = 0; i < dot; ++i) before += is_digit(mantissa[i]) ? 1 : 0;
  constexpr std::uint64_t kMostTenth = (kTimeLimitNs - 1) / 10;
  std::uint64_t ns = 0;
  int first_behind = 0;
  bool more_behind = false;
  std::int64_t at = 0;
  for (const char c : mantissa) {
    if (!is_digit(c)) continue;
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (at < before) {
      if (ns > kMostTenth) return kMissing;
      ns = ns * 10 + digit;
    } else if (at == before) {
      first_behind = static_cast<int>(digit);
    } else {
      more_behind = more_behind || digit != 0;
    }
    ++at;
  }
  for (; at < before && ns != 0; ++at) {
    if (ns > kMostTenth) return kMissing;
    ns *= 10;
  }
  if (first_behind > 5 || (first_behind == 5 && (more_behind || ns % 2 == 1))) ++ns;
  return signed_time(ns, !written.empty() && written[0] == '-');
}

// Any number, digit by digit.
const char* read_long_number(const char* at, const char* end, Number* number) noexcept {
  *number = Number{};
  if (at < end && *at == '-') {
    number->negative = true;
    ++at;
  }
  if (at >= end || !is_digit(*at)) return nullptr;
  std::uint64_t digits = 0;
  int count = 0;
  const auto take = [&](char c) {
    if (count < 19) {
      digits = digits * 10 + static_cast<std::uint64_t>(c - '0');
      count += digits != 0 ? 1 : 0;
      return true;
    }
    number->fits = false;
    return false;
  };
  const bool zero = *at == '0';
  do {
    if (!take(*at)) ++number->exponent;
    ++at;
  } while (at < end && is_digit(*at) && !zero);
  if (at < end && *at == '.') {
    number->whole = false;
    ++at;
    if (at >= end || !is_digit(*at)) return nullptr;
    do {
      if (take(*at)) --number->exponent;
      ++at;
    } while (at < end && is_digit(*at));
  }
  if (at < end && (*at == 'e' || *at == 'E')) {
    number->whole = false;
    ++at;
    const bool down = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) ++at;
    if (at >= end || !is_digit(*at)) return nullptr;
    std::int32_t exponent = 0;
    for (; at < end && is_digit(*at); ++at)
      if (exponent < kExponentLimit) exponent = exponent * 10 + (*at - '0');
    number->exponent += down ? -exponent : exponent;
  }
  number->digits = digits;
  return at;
}

inline const char* take_digits(const char* at, const char* end, std::uint64_t* digits) noexcept {
  std::uint64_t value = *digits;
  for (; at < end; ++at) {
    const auto digit = static_cast<unsigned>(*at) - '0';
    if (digit > 9) break;
    value = value * 10 + digit;
  }
  *digits = value;
  return at;
}

}  // namespace

const char* read_number(const char* at, const char* end, Number* number) noexcept {
  constexpr std::ptrdiff_t kSafe = 18;  // a number of digits that always fits
  std::uint64_t digits = 0;
  const bool negative = at < end && *at == '-';
  const char* const first = at + (negative ? 1 : 0);
  const char* stop = take_digits(first, end, &digits);
  const char* behind_dot = stop;
  if (stop < end && *stop == '.') {
    behind_dot = stop + 1;
    stop = take_digits(behind_dot, end, &digits);
    if (stop == behind_dot) return nullptr;
  }
  if (stop == end || (*stop | 0x20) == 'e' || !is_digit(*first) || stop - first > kSafe ||
      (*first == '0' && is_digit(first[1])))
    return read_long_number(at, end, number);
  number->digits = digits;
  number->whole = behind_dot == stop;
  number->exponent = number->whole ? 0 : -static_cast<std::int32_t>(stop - behind_dot);
  number->negative = negative;
  number->fits = true;
  return stop;
}

std::int64_t nanoseconds(const Number& number, std::string_view written) noexcept {
  if (!number.fits || number.exponent > 16 || number.exponent < -19 - 3) return long_nanoseconds(written);
  const std::int32_t scale = number.exponent + 3;
  if (scale >= 0) {
    std::uint64_t ns = 0;
    if (__builtin_mul_overflow(number.digits, kPowers.of[scale], &ns)) return kMissing;
    return signed_time(ns, number.negative);
  }
  const std::uint64_t power = kPowers.of[-scale];
  std::uint64_t ns = number.digits / power;
  const std::uint64_t rest = number.digits % power, half = power / 2;
  if (rest > half || (rest == half && ns % 2 == 1)) ++ns;
  return signed_time(ns, number.negative);
}

std::int64_t nanoseconds_of_text(std::string_view text) noexcept {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  Number number;
  const char* const end = text.data() + text.size();
  const char* const stop = read_number(text.data(), end, &number);
  if (stop == end && stop != nullptr) return nanoseconds(number, text);
  // Forms that JSON does not allow: leading zeros, or no digit before or after the point.
  std::size_t at = !text.empty() && text[0] == '-' ? 1 : 0;
  std::size_t digits = 0, dots = 0;
  for (; at < text.size() && (is_digit(text[at]) || text[at] == '.'); ++at) {
    digits += text[at] == '.' ? 0 : 1;
    dots += text[at] == '.' ? 1 : 0;
  }
  if (digits == 0 || dots > 1) return kMissing;
  if (at < text.size()) {
    if (text[at] != 'e' && text[at] != 'E') return kMissing;
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    if (at == text.size()) return kMissing;
    for (; at < text.size(); ++at)
      if (!is_digit(text[at])) return kMissing;
  }
  return long_nanoseconds(text);
}

bool as_integer(const Number& number, std::int64_t* value) noexcept {
  constexpr std::uint64_t kTop = std::uint64_t{1} << 63;
  std::uint64_t digits = number.digits;
  if (!number.fits || number.exponent > 19 || number.exponent < -19) return false;
  if (number.exponent < 0) {
    if (digits % kPowers.of[-number.exponent] != 0) return false;
    digits /= kPowers.of[-number.exponent];
  } else if (number.exponent > 0) {
    if (digits != 0 && digits > kTop / kPowers.of[number.exponent]) return false;
    digits *= kPowers.of[number.exponent];
  }
  if (digits > kTop || (digits == kTop && !number.negative)) return false;
  *value = number.negative ? static_cast<std::int64_t>(~digits + 1) : static_cast<std::int64_t>(digits);
  return true;
}

double as_double(const Number& number, std::string_view written) noexcept {
  // Both are exact as doubles, so one rounding gives the nearest double.
  if (number.fits && number.digits <= (std::uint64_t{1} << 53) && number.exponent <= 0 && number.exponent >= -19) {
    const double value = static_cast<double>(number.digits) / static_cast<double>(kPowers.of[-number.exponent]);
    return number.negative ? -value : value;
  }
  double value = 0;
  const auto [stop, error] = std::from_chars(written.data(), written.data() + written.size(), value);
  if (error == std::errc::result_out_of_range) {
    // Too small becomes zero, too large becomes infinity.
    value = number.exponent < 0 ? 0.0 : HUGE_VAL;
    return number.negative ? -value : value;
  }
  return value;
}

bool read_numeral(std::string_view text, std::int64_t* value) noexcept {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  bool negative = false;
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    negative = text.front() == '-';
    text.remove_prefix(1);
  }
  int base = 10;
  if (text.size() > 2 && text[0] == '0') {
    const char mark = static_cast<char>(text[1] | 0x20);
    base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    if (base != 10) text.remove_prefix(2);
  }
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  if (text.empty() || !(is_digit(text[0]) || base == 16)) return false;
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  if (error != std::errc() || stop != end) return false;
  if (negative && number > std::uint64_t{1} << 63) return false;
  *value = static_cast<std::int64_t>(negative ? ~number + 1 : number);
  return true;
}

}  // namespace stagespan::trace
