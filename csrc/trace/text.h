// text.h: finds the ends of JSON strings, and decodes them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace stagespan::trace {

inline bool is_space(char c) noexcept { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

inline const char* skip_space(const char* at, const char* end) noexcept {
  if (at < end && *at > ' ') return at;
  while (at < end && is_space(*at)) {
    ++at;
    // Lines are often indented by many spaces.
    for (std::uint64_t word; static_cast<std::size_t>(end - at) >= sizeof(word);) {
      constexpr std::uint64_t kSpaces = 0x2020202020202020;
      std::memcpy(&word, at, sizeof(word));
      word ^= kSpaces;
      if (word != 0) {
        at += (std::endian::native == std::endian::little ? std::countr_zero(word) : std::countl_zero(word)) / 8;
        break;
      }
      at += sizeof(word);
    }
  }
  return at;
}

/// The quote that closes the string whose text begins at `at`; null if there is none before `end`. `plain` becomes
/// false if the text cannot be used as written: it has escapes, control characters, or bytes beyond ASCII.
const char* string_end(const char* at, const char* end, bool* plain) noexcept;

/// Decodes a string that is not plain to UTF-8. What JSON does not allow is corrected: a backslash before any other
/// character represents itself, control characters become spaces, and halves of surrogate pairs become U+FFFD. Bytes
/// that are not UTF-8 are kept.
void unescape(std::string_view raw, std::string* into);

}  // namespace stagespan::trace
