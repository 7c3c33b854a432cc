// test_trace_number.cpp: numbers of a trace, to the last nanosecond.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>

#include "support.h"
#include "trace/number.h"

namespace stagespan::trace {
namespace {

std::int64_t time_of(const std::string& written) {
  Number number;
  const std::string text = written + ",";
  const char* const end = text.data() + text.size();
  if (read_number(text.data(), end, &number) != end - 1) return -1;
  return nanoseconds(number, written);
}

TEST(TraceNumber, TimesKeepTheirNanoseconds) {
  test::Random random(11);
  SCOPED_TRACE(random.trace());
  for (std::uint64_t round = 0; round < test::scaled(20'000, 10); ++round) {
    // GIVEN a time written with three decimals, as a text, and with an exponent
    const auto ns = 1 + static_cast<std::int64_t>(random.below(std::uint64_t{1} << random.between(1, 61)));
    char text[64];
    std::snprintf(text, sizeof(text), "%lld.%03lld", static_cast<long long>(ns / 1000),
                  static_cast<long long>(ns % 1000));
    // WHEN / THEN it is exact
    ASSERT_EQ(time_of(text), ns) << text;
    ASSERT_EQ(time_of(std::string("-") + text), -ns) << text;
    ASSERT_EQ(time_of(std::string(text) + "000000000000000000000000"), ns) << text;
    ASSERT_EQ(nanoseconds_of_text(text), ns) << text;
    ASSERT_EQ(nanoseconds_of_text(std::string(" +00") + text + " "), ns) << text;
    ASSERT_EQ(time_of(std::to_string(ns) + "e-3"), ns);
    ASSERT_EQ(time_of(std::to_string(ns) + "000000000000000000000E-24"), ns);
  }
}

TEST(TraceNumber, HalvesGoToTheEvenNanosecond) {
  // WHEN / THEN they are rounded
  EXPECT_EQ(time_of("0.0005"), 0);
  EXPECT_EQ(time_of("0.0015"), 2);
  EXPECT_EQ(time_of("0.0025"), 2);
  EXPECT_EQ(time_of("0.00250000000000000000000000000001"), 3);
  EXPECT_EQ(time_of("1736408883688177.9305"), 1736408883688177930);
  EXPECT_EQ(time_of("1736408883688177.93050000000000001"), 1736408883688177931);
  for (const char* text : {"1e-400", "1e-9223372036854775807", "1e-9223372036854775808", "1e-99999999999999999999"})
    EXPECT_EQ(time_of(text), 0) << text;
}

TEST(TraceNumber, TimesBeyondTheLimitAreNone) {
  // GIVEN times that do not fit into 64 bits of nanoseconds, or texts that are not times
  for (const char* text :
       {"4611686018427388", "1e16", "99999999999999999999999", "1e999999999999", "19000000000.000000000E6",
        "18446744073709551.616", "1e9223372036854775807", "1e+9223372036854775805", "1e99999999999999999999"})
    EXPECT_EQ(time_of(text), kMissing) << text;
  for (const char* text : {"", "soon", "nan", "1 2", "1.2.3", "e5", "1e", "--1", "."})
    EXPECT_EQ(nanoseconds_of_text(text), kMissing) << text;
  EXPECT_EQ(time_of("4611686018427.387"), 4611686018427387);
  EXPECT_EQ(time_of("0e999999999999"), 0);
  EXPECT_EQ(time_of("0e9223372036854775807"), 0);
}

TEST(TraceNumber, OnlyTheGrammarOfJsonCounts) {
  Number number;
  for (const std::string text : {"-x", "1.x", "1.,", "1e,", "1e+,", "-,", "x", ".5,"})
    EXPECT_EQ(read_number(text.data(), text.data() + text.size(), &number), nullptr) << text;
  const std::string zero = "01";
  EXPECT_EQ(read_number(zero.data(), zero.data() + 2, &number), zero.data() + 1);
}

TEST(TraceNumber, IntegersAndDoublesAreExact) {
  Number number;
  std::int64_t value = 0;
  const auto integer = [&](const std::string& text) {
    const std::string with_end = text + " ";
    read_number(with_end.data(), with_end.data() + with_end.size(), &number);
    return as_integer(number, &value);
  };
  EXPECT_TRUE(integer("9223372036854775807") && value == std::numeric_limits<std::int64_t>::max());
  EXPECT_TRUE(integer("-9223372036854775808") && value == kMissing);
  EXPECT_FALSE(integer("9223372036854775808"));
  EXPECT_FALSE(integer("99999999999999999999"));
  EXPECT_TRUE(integer("3.0") && value == 3);
  EXPECT_TRUE(integer("-1.5e1") && value == -15);
  EXPECT_FALSE(integer("1.5"));
  test::Random random(3);
  SCOPED_TRACE(random.trace());
  for (int round = 0; round < 5'000; ++round) {
    const double expected = random.normal() * std::pow(10.0, static_cast<double>(random.between(0, 40)) - 20);
    char text[64];
    std::snprintf(text, sizeof(text), "%.17g", expected);
    integer(text);
    ASSERT_EQ(as_double(number, text), expected) << text;
  }
}

TEST(TraceNumber, NumeralsInUsualNotationsAreRead) {
  std::int64_t value = 0;
  const auto is = [&](std::string_view text, std::int64_t expected) {
    return read_numeral(text, &value) && value == expected;
  };
  EXPECT_TRUE(is("25738", 25738) && is(" -3 ", -3) && is("007", 7) && is("0x1F", 31) && is("0b11", 3));
  EXPECT_TRUE(is("18446744073709551615", -1));
  for (const char* text : {"", "x", "stream 7", "7 stream", "0x", "1.5", "18446744073709551616", "-"})
    EXPECT_FALSE(read_numeral(text, &value)) << text;
}

}  // namespace
}  // namespace stagespan::trace
