// variables.h: values of environment variables, read by one set of rules in C++ and in Python.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace stagespan {

/// Removes ASCII white space from both ends.
inline std::string_view trimmed(std::string_view text) noexcept {
  constexpr std::string_view blanks = " \t\n\r\f\v";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

/// The value of an environment variable, trimmed; empty if it is not set.
inline std::string_view variable(const char* name) noexcept {
  const char* const text = std::getenv(name);
  return text == nullptr ? std::string_view() : trimmed(text);
}

/// The number in a text of up to 18 digits, with or without a plus sign; nothing for any other text.
inline std::optional<std::int64_t> whole_number(std::string_view text) noexcept {
  text = trimmed(text);
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  if (text.empty() || text.size() > 18) return std::nullopt;
  std::int64_t number = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    number = number * 10 + (digit - '0');
  }
  return number;
}

/// Normalises a choice from a variable: `text` without white space around it, in lower case.
inline std::string choice(std::string_view text) {
  std::string result(trimmed(text));
  for (char& letter : result)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return result;
}

}  // namespace stagespan
