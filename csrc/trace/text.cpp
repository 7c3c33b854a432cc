// text.cpp: JSON strings, sixteen bytes at a time if the processor has SSE2, otherwise eight.
#include "trace/text.h"

#include <bit>
#include <cstdint>
#include <cstring>

// Tests define STAGESPAN_PORTABLE to test the code for other processors.
#if defined(__SSE2__) && !defined(STAGESPAN_PORTABLE)
#define STAGESPAN_TEXT_SSE2 1
#include <emmintrin.h>
#endif

namespace stagespan::trace {

namespace {

#if defined(STAGESPAN_TEXT_SSE2)

constexpr std::ptrdiff_t kStep = 16;

struct Block {
  std::uint32_t stops;    // one bit per byte: quote or backslash
  std::uint32_t strange;  // one bit per byte: control character or beyond ASCII
};

Block look(const char* at) noexcept {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  const __m128i quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
  const __m128i slashes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
  // As signed numbers, bytes beyond ASCII are negative.
  const __m128i strange = _mm_cmplt_epi8(bytes, _mm_set1_epi8(' '));
  return {static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_or_si128(quotes, slashes))),
          static_cast<std::uint32_t>(_mm_movemask_epi8(strange))};
}

#else

constexpr std::ptrdiff_t kStep = 8;

// Nonzero if any byte of the word is not a plain character.
std::uint64_t any_special(std::uint64_t word) noexcept {
  constexpr std::uint64_t ones = 0x0101010101010101, tops = 0x8080808080808080;
  const auto zeros = [](std::uint64_t w) { return (w - ones) & ~w & tops; };
  const std::uint64_t controls = (word - ones * 0x20) & ~word & tops;
  return zeros(word ^ (ones * '"')) | zeros(word ^ (ones * '\\')) | controls | (word & tops);
}

#endif

// Byte by byte; returns true at the closing quote. The character after a backslash is skipped, even after `stop`.
bool walk(const char** at, const char* stop, bool* plain) noexcept {
  while (*at < stop) {
    const char c = **at;
    if (c == '"') return true;
    if (static_cast<signed char>(c) < ' ' || c == '\\') *plain = false;
    *at += c == '\\' ? 2 : 1;
  }
  return false;
}

int hex_digit(char c) noexcept {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The number of a \uXXXX whose backslash is at `at`, or -1 if it is invalid.
int unit_at(std::string_view raw, std::size_t at) noexcept {
  if (raw.size() - at < 6 || raw[at] != '\\' || raw[at + 1] != 'u') return -1;
  int unit = 0;
  for (std::size_t i = at + 2; i < at + 6; ++i) {
    const int digit = hex_digit(raw[i]);
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

void append_utf8(std::uint32_t point, std::string* into) {
  const auto byte = [into](std::uint32_t value) { into->push_back(static_cast<char>(value)); };
  if (point < 0x80) {
    byte(point);
    return;
  }
  if (point < 0x800) {
    byte(0xC0 | (point >> 6));
  } else {
    if (point < 0x10000) {
      byte(0xE0 | (point >> 12));
    } else {
      byte(0xF0 | (point >> 18));
      byte(0x80 | ((point >> 12) & 0x3F));
    }
    byte(0x80 | ((point >> 6) & 0x3F));
  }
  byte(0x80 | (point & 0x3F));
}

// Appends the character of an escape; returns the escape's length in the raw text.
std::size_t append_escape(std::string_view raw, std::size_t at, std::string* into) {
  constexpr std::string_view kWritten = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
  const char next = at + 1 < raw.size() ? raw[at + 1] : '\0';
  if (const std::size_t found = kWritten.find(next); next != '\0' && found != std::string_view::npos) {
    into->push_back(kMeant[found]);
    return 2;
  }
  const int unit = unit_at(raw, at);
  if (unit < 0) {
    into->push_back('\\');
    return 1;
  }
  if (unit < 0xD800 || unit > 0xDFFF) {
    append_utf8(static_cast<std::uint32_t>(unit), into);
    return 6;
  }
  const int low = unit < 0xDC00 ? unit_at(raw, at + 6) : -1;
  if (low < 0xDC00 || low > 0xDFFF) {
    append_utf8(0xFFFD, into);
    return 6;
  }
  append_utf8(0x10000 + ((static_cast<std::uint32_t>(unit) - 0xD800) << 10) + static_cast<std::uint32_t>(low - 0xDC00),
              into);
  return 12;
}

}  // namespace

const char* string_end(const char* at, const char* end, bool* plain) noexcept {
  while (end - at >= kStep) {
#if defined(STAGESPAN_TEXT_SSE2)
    const Block block = look(at);
    if (block.stops == 0) {
      if (block.strange != 0) *plain = false;
      at += kStep;
      continue;
    }
    const int first = std::countr_zero(block.stops);
    if ((block.strange & ((1u << first) - 1)) != 0) *plain = false;
    at += first;
    if (*at == '"') return at;
    *plain = false;
    at += 2;
#else
    std::uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    if (any_special(word) == 0)
      at += kStep;
    else if (walk(&at, at + kStep, plain))
      return at;
#endif
  }
  return walk(&at, end, plain) ? at : nullptr;
}

void unescape(std::string_view raw, std::string* into) {
  into->clear();
  for (std::size_t at = 0; at < raw.size();) {
    const char c = raw[at];
    if (c == '\\') {
      at += append_escape(raw, at, into);
    } else {
      into->push_back(static_cast<unsigned char>(c) < ' ' ? ' ' : c);
      ++at;
    }
  }
}

}  // namespace stagespan::trace
