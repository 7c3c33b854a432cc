// test_trace_text.cpp: strings of JSON.
#include "trace_text_cases.h"

namespace stagespan::trace {
namespace {

TEST(TraceText, StringsEndWhereTheyEnd) { strings_end_where_they_end(); }

TEST(TraceText, EscapesAreDecoded) {
  // GIVEN every escape of JSON, including pairs of surrogates
  EXPECT_EQ(said(R"(\"\\\/\b\f\n\r\t)"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(said(R"(\u0041\u00e9\u6f22\ud83d\ude00)"), "Aé漢😀");
  EXPECT_EQ(said(R"(a\u0000b)"), std::string("a\0b", 3));
  EXPECT_EQ(said("é"), "é");
}

TEST(TraceText, InvalidCharactersAreCorrected) {
  // GIVEN backslashes before other characters, control characters, and halves of pairs
  EXPECT_EQ(said(R"(C:\Users\x)"), R"(C:\Users\x)");
  EXPECT_EQ(said(R"(\u12)"), R"(\u12)");
  EXPECT_EQ(said(R"(\u12g4)"), R"(\u12g4)");
  EXPECT_EQ(said("two\nlines\t"), "two lines ");
  EXPECT_EQ(said(R"(\ud800 half)"), "\xEF\xBF\xBD half");
  EXPECT_EQ(said(R"(\udc00\ud800\u0041)"),
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(said("ends \\"), "ends \\");
}

TEST(TraceText, SpacesAreSkippedToTheEndAndNoFurther) {
  for (std::size_t length = 0; length < 40; ++length) {
    const std::string spaces = "\n" + std::string(length, ' ');
    const std::string text = spaces + "\t\r x";
    EXPECT_EQ(skip_space(spaces.data(), spaces.data() + spaces.size()), spaces.data() + spaces.size());
    EXPECT_EQ(*skip_space(text.data(), text.data() + text.size()), 'x');
  }
}

}  // namespace
}  // namespace stagespan::trace
