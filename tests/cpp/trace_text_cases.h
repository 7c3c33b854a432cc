// trace_text_cases.h: strings of JSON, for both ways to scan them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "support.h"
#include "trace/text.h"

namespace stagespan::trace {

/// Byte by byte: the end of a string, and whether it is plain.
inline const char* slow_end(const char* at, const char* end, bool* plain) {
  for (; at < end; ++at) {
    if (*at == '"') return at;
    if (*at == '\\' || static_cast<unsigned char>(*at) < 0x20 || static_cast<unsigned char>(*at) >= 0x80)
      *plain = false;
    if (*at == '\\') ++at;
  }
  return nullptr;
}

inline void strings_end_where_they_end() {
  test::Random random(7);
  SCOPED_TRACE(random.trace());
  constexpr std::string_view kRare = "\"\\\n\x1f\x80\xff\x7f\0";
  for (std::uint64_t round = 0; round < test::scaled(20'000, 10); ++round) {
    // GIVEN a text of some length with a few special bytes
    std::string text(random.below(70), 'x');
    for (char& c : text)
      if (random.chance(12)) c = kRare[random.below(kRare.size())];
    bool plain = true, expected_plain = true;
    // WHEN its end is searched
    const char* const end = text.data() + text.size();
    const char* const found = string_end(text.data(), end, &plain);
    // THEN it equals the result of a search byte by byte
    const char* const expected = slow_end(text.data(), end, &expected_plain);
    ASSERT_EQ(found, expected) << testing::PrintToString(text);
    if (expected != nullptr) {
      ASSERT_EQ(plain, expected_plain) << testing::PrintToString(text);
    }
  }
}

inline std::string said(std::string_view raw) {
  std::string text = "left over";
  unescape(raw, &text);
  return text;
}

}  // namespace stagespan::trace
