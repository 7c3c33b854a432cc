// text.h: finds the ends of JSON strings, and decodes them.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace stagespan::trace {

inline bool is_space(char c) noexcept { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

inline const char* skip_space(const char* at, const char* end) noexcept {
  if (at < end && *at > ' ') return at;
  // Lines are often indented by many spaces.
  constexpr std::string_view kIndent = "        ";
  while (at < end && is_space(*at)) {
    ++at;
    while (static_cast<std::size_t>(end - at) > kIndent.size() && std::memcmp(at, kIndent.data(), kIndent.size()) == 0)
      at += kIndent.size();
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
