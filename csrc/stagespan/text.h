// text.h: texts in fields of a fixed size, and their hash.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace stagespan {

/// At most `most_bytes` of a text in UTF-8, without splitting a character.
inline std::string_view cut(std::string_view text, std::size_t most_bytes) noexcept {
  if (text.size() <= most_bytes) return text;
  while (most_bytes > 0 && (static_cast<unsigned char>(text[most_bytes]) & 0xC0) == 0x80) --most_bytes;
  return text.substr(0, most_bytes);
}

/// Stores a text in a field of an arena, cut if it is too long, and zeroes the rest of the field.
inline void set_text(char* field, std::size_t size_bytes, std::string_view text) noexcept {
  const std::string_view stored = cut(text, size_bytes);
  std::memset(field, 0, size_bytes);
  if (!stored.empty()) std::memcpy(field, stored.data(), stored.size());
}

/// The text of a field, which has no terminator if it fills the field.
inline std::string_view text_in(const char* field, std::size_t size_bytes) noexcept {
  return {field, strnlen(field, size_bytes)};
}

/// The same for fields whose size is that of their type, which may be of whole words.
template <std::size_t size>
void set_text(char (&field)[size], std::string_view text) noexcept {
  set_text(field, size, text);
}
template <std::size_t size>
std::string_view text_in(const char (&field)[size]) noexcept {
  return text_in(field, size);
}
template <std::size_t size>
void set_text(std::array<std::uint64_t, size>& field, std::string_view text) noexcept {
  set_text(reinterpret_cast<char*>(field.data()), sizeof(field), text);
}
template <std::size_t size>
std::string_view text_in(const std::array<std::uint64_t, size>& field) noexcept {
  return text_in(reinterpret_cast<const char*>(field.data()), sizeof(field));
}

inline constexpr char kHexadecimal[] = "0123456789abcdef";

/// Writes the lowest digits of a number in hexadecimal, and returns their end.
inline char* put_hexadecimal(char* to, std::uint64_t value, int digits = 16) noexcept {
  for (int i = digits - 1; i >= 0; --i) *to++ = kHexadecimal[value >> (4 * i) & 0xF];
  return to;
}

/// The 64-bit FNV-1a hash of a text.
inline std::uint64_t fnv1a(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace stagespan
