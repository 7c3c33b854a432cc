// Tests of the texts of carriers: what is written is read, and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <set>
#include <string>
#include <string_view>

#include "stagespan/carrier.h"

namespace stagespan {
namespace {

constexpr std::string_view kHeader = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
constexpr std::string_view kOwn = "1;r-1;0000000000001388;0000000000001770;0000000000000007;0000000000000008;decode;1;";

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result(text);
  return result.replace(result.find(from), from.size(), to);
}

std::string written(const SentHop& hop) {
  char text[kMostCarrierBytes];
  return {text, write_sent_hop(hop, text)};
}

std::string written_id(std::string_view id) {
  SentHop hop;
  hop.id = id;
  const std::string text = written(hop);
  return text.substr(2, text.find(';', 2) - 2);
}

TEST(TraceParent, IsReadAsItWasWritten) {
  TraceParent found;
  ASSERT_TRUE(read_traceparent(kHeader, found));
  EXPECT_EQ(found.trace.high, 0x0af7651916cd43ddU);
  EXPECT_EQ(found.trace.low, 0x8448eb211c80319cU);
  EXPECT_EQ(found.hop, 0xb7ad6b7169203331U);
  EXPECT_EQ(found.flags, 1U);
  char text[kTraceParentBytes];
  write_traceparent(found, text);
  EXPECT_EQ(std::string_view(text, sizeof(text)), kHeader);
}

TEST(TraceParent, OfALaterVersionMayBeLonger) {
  TraceParent found;
  EXPECT_TRUE(read_traceparent(replaced(kHeader, "00-", "01-") + "-more", found));
  EXPECT_TRUE(read_traceparent(replaced(kHeader, "00-", "fe-"), found));
  EXPECT_TRUE(read_traceparent(" \t" + std::string(kHeader) + " ", found));
  for (const std::string& text :
       {std::string(), std::string(kHeader) + "-more", replaced(kHeader, "00-", "ff-"),
        replaced(kHeader, "00-", "01-") + "more", replaced(kHeader, "00-", "01-") + "- x",
        replaced(kHeader, "0af7", "0AF7"), std::string(kHeader) + "\n", replaced(kHeader, "-01", "-0"),
        replaced(kHeader, "0af7651916cd43dd8448eb211c80319c", std::string(32, '0')),
        replaced(kHeader, "b7ad6b7169203331", std::string(16, '0')),
        replaced(kHeader, "00-", "01-") + "-" + std::string(1000, 'x')})
    EXPECT_FALSE(read_traceparent(text, found)) << text;
  for (std::size_t length = 0; length < kHeader.size(); ++length)
    EXPECT_FALSE(read_traceparent(kHeader.substr(0, length), found)) << length;
}

TEST(SentHop, IsReadAsItWasWritten) {
  SentHop hop;
  hop.id = "Req 1;%\xc3\xbc\n";
  hop.queue = "decode";
  hop.branch = "b";
  hop.monotonic_ns = 5000;
  hop.unix_ns = (std::int64_t{1} << 62) - 1;
  hop.clock = ~std::uint64_t{0};
  hop.segment = 8;
  hop.attempt = kMostAttempt;
  hop.age_ns = 123'456'789'012;
  SentHop found;
  ASSERT_TRUE(read_sent_hop(written(hop), found));
  EXPECT_EQ(found.age_ns, hop.age_ns);
  EXPECT_EQ(found.id, hop.id);
  EXPECT_EQ(found.queue, hop.queue);
  EXPECT_EQ(found.branch, hop.branch);
  EXPECT_EQ(found.monotonic_ns, hop.monotonic_ns);
  EXPECT_EQ(found.unix_ns, hop.unix_ns);
  EXPECT_EQ(found.clock, hop.clock);
  EXPECT_EQ(found.segment, hop.segment);
  EXPECT_EQ(found.attempt, hop.attempt);
  // WHEN the age is not known THEN it is left out
  hop.age_ns = -1;
  ASSERT_TRUE(read_sent_hop(written(hop), found));
  EXPECT_EQ(found.age_ns, -1);
}

TEST(SentHop, OfTheFirstVersionHasNoAge) {
  SentHop found;
  found.age_ns = 5;
  ASSERT_TRUE(read_sent_hop(kOwn, found));
  EXPECT_EQ(found.age_ns, -1);
  const std::string second = replaced(kOwn, "1;", "2;");
  ASSERT_TRUE(read_sent_hop(second, found));
  EXPECT_EQ(found.age_ns, -1);
  ASSERT_TRUE(read_sent_hop(second + ";00000000000000ff", found));
  EXPECT_EQ(found.age_ns, 255);
  for (const char* const age : {";", ";ff", ";ffffffffffffffff", ";00000000000000FF", ";00000000000000ff;1"})
    EXPECT_FALSE(read_sent_hop(second + age, found)) << age;
  EXPECT_FALSE(read_sent_hop(std::string(kOwn) + ";00000000000000ff", found));
  EXPECT_FALSE(read_sent_hop(replaced(kOwn, "1;", "3;"), found));
}

TEST(SentHop, ThatIsCutOrChangedIsNotRead) {
  SentHop found;
  ASSERT_TRUE(read_sent_hop(kOwn, found));
  for (const std::string& text :
       {replaced(kOwn, "1;", "3;"), std::string(kOwn) + ";more", replaced(kOwn, "r-1", "%zz"),
        replaced(kOwn, "r-1", "%4"), replaced(kOwn, "r-1", "R"), replaced(kOwn, ";1;", ";0;"),
        replaced(kOwn, ";1;", ";65536;"), replaced(kOwn, ";1;", ";100000;"), replaced(kOwn, ";1;", ";;"),
        replaced(kOwn, "0000000000001388", "ffffffffffffffff"), replaced(kOwn, "0000000000001388", "000000000001388"),
        replaced(kOwn, "decode", std::string(300, 'x'))})
    EXPECT_FALSE(read_sent_hop(text, found)) << text;
  for (std::size_t length = 0; length < kOwn.size(); ++length)
    EXPECT_FALSE(read_sent_hop(kOwn.substr(0, length), found)) << length;
}

TEST(SentHop, HasLongTextsCutWithAHash) {
  // GIVEN ids that differ only behind what fits, also in the middle of a character
  std::set<std::string> ids;
  for (const std::string end : {"a", "b", "c"}) {
    for (int count : {90, 96, 97, 500}) {
      std::string long_id;
      for (int i = 0; i < count; ++i) long_id += "\xe2\x82\xac";
      ids.insert(written_id(long_id + end));
    }
    ids.insert(written_id(std::string(97, 'x') + end));
  }
  // THEN they stay different, fit, and contain whole characters
  EXPECT_EQ(ids.size(), 15U);
  for (const std::string& id : ids) {
    EXPECT_LE(id.size(), 96U);
    EXPECT_EQ(id.rfind('~') % 9 == 0 || id[0] == 'x', true) << id;
  }
  EXPECT_EQ(written_id(std::string(96, 'x')), std::string(96, 'x'));
  // The longest key fits.
  const std::string longest(1000, '\xff');
  SentHop hop;
  hop.id = hop.queue = hop.branch = longest;
  hop.attempt = kMostAttempt;
  hop.age_ns = (std::int64_t{1} << 62) - 1;
  EXPECT_LE(written(hop).size(), kMostCarrierBytes);
}

TEST(TraceParent, IsWrittenWithTheFlagsThatHaveAMeaning) {
  for (std::uint32_t flags = 0; flags < 256; ++flags) {
    char text[kTraceParentBytes];
    write_traceparent({{1, 2}, 3, flags}, text);
    EXPECT_EQ(std::string_view(text + sizeof(text) - 2, 2), "0" + std::to_string(flags & 3));
  }
}

struct Kept {
  std::string text;
  std::size_t dropped;
  bool is_given;  // not a copy
  bool operator==(const Kept&) const = default;
};

void PrintTo(const Kept& kept, std::ostream* to) {
  *to << kept.text << " (" << kept.dropped << " dropped" << (kept.is_given ? ", as it was given)" : ")");
}

Kept kept(std::string_view text) {
  char buffer[kMostWrittenBytes];
  const TraceState state = read_tracestate(text, true, buffer);
  return {std::string(state.text), state.dropped, state.text.data() == text.data()};
}

TEST(TraceState, OfWellFormedMembersIsPassedOnAsItIs) {
  for (const std::string& text : {std::string("vendor=a:b, other=2"), std::string("a=1"), std::string("t1@sys=x y"),
                                  std::string("a=1,,b=2 "), "k=" + std::string(256, 'v'), std::string("0/_-*@=!")})
    EXPECT_EQ(kept(text), (Kept{text, 0, true})) << text;
  for (const std::string text : {"", ",", " , \t,"}) EXPECT_EQ(kept(text).text, "");
}

TEST(TraceState, HasOurSegmentAtTheLeft) {
  char text[kMostWrittenBytes], buffer[kMostWrittenBytes];
  const auto written = [&](std::string_view others) {
    return std::string(text, write_tracestate(0x0af7651916cd43dd, others, text));
  };
  EXPECT_EQ(written(""), "stagespan=0af7651916cd43dd");
  EXPECT_EQ(written(" a=1, ,b=2"), "stagespan=0af7651916cd43dd,a=1,b=2");
  EXPECT_EQ(written("a=1,stagespan=00000000000000ff,b=2"), "stagespan=0af7651916cd43dd,a=1,b=2");
  // WHEN a trusted state is read THEN our member is in its place; else it is left out
  constexpr std::string_view kGiven = "a=1,stagespan=0af7651916cd43dd,b=2";
  for (const bool is_trusted : {true, false}) {
    const TraceState found = read_tracestate(kGiven, is_trusted, buffer);
    EXPECT_EQ(found.segment, is_trusted ? 0x0af7651916cd43ddU : 0U);
    EXPECT_EQ(found.text, is_trusted ? kGiven : "a=1,b=2");
    EXPECT_EQ(found.dropped, 0U);
  }
  for (const char* const state :
       {"stagespan=0af7651916cd43d", "stagespan=0af7651916cd43ddx", "stagespan=0AF7651916CD43DD",
        "stagespan=", "stagespan=0af7651916cd43dd,stagespan=0af7651916cd43dd"}) {
    const TraceState found = read_tracestate(std::string("a=1,") + state + ",b=2", true, buffer);
    EXPECT_EQ(found.segment, 0U) << state;
    EXPECT_EQ(found.text, "a=1,b=2") << state;
  }
  // THEN there are never more members than the specification allows
  std::string most = "m0=1";
  for (std::size_t i = 1; i < kMostStateMembers; ++i) most += ",m" + std::to_string(i) + "=1";
  const std::string whole = written(most);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), ','), static_cast<std::ptrdiff_t>(kMostStateMembers) - 1);
  EXPECT_LE(written("k=" + std::string(510, 'v')).size(), kMostWrittenBytes);
}

TEST(TraceState, LosesItsMalformedMembers) {
  const std::string malformed[] = {"a",
                                   "=1",
                                   "a=",
                                   "A=1",
                                   "a=1\n",
                                   "a=\xc3\xbc",
                                   "-a=1",
                                   "a=1=2",
                                   "a b=1",
                                   "a=\x7f",
                                   "a=\r\nx: y",
                                   std::string("a=\0", 3),
                                   "k=" + std::string(257, 'v'),
                                   std::string(257, 'k') + "=v"};
  for (const std::string& member : malformed) {
    EXPECT_EQ(kept(member), (Kept{"", 1, false})) << member;
    EXPECT_EQ(kept("b=1," + member + ", c=2"), (Kept{"b=1,c=2", 1, false})) << member;
  }
}

TEST(TraceState, IsCutAfterAWholeMember) {
  std::string text, first;
  for (std::size_t i = 0; i < kMostStateMembers + 5; ++i) {
    if (i == kMostStateMembers) first = text;
    text += (i != 0 ? "," : "") + std::string("m") + std::to_string(i) + "=1";
  }
  EXPECT_EQ(kept(first), (Kept{first, 0, true}));
  EXPECT_EQ(kept(text), (Kept{first, 5, false}));
  // AND longer ones THEN the first that does not fit is the end, also if a later one would fit
  const std::string large = "k=" + std::string(248, 'v');
  EXPECT_EQ(kept(large + "," + large + "," + large + ",a=1"), (Kept{large + "," + large, 2, false}));
  EXPECT_EQ(kept(large + "," + large + ",k=34567890"), (Kept{large + "," + large + ",k=34567890", 0, true}));
  EXPECT_EQ(kept(large + "," + large + ",k=345678901").text, large + "," + large);
  // AND blanks that do not fit are left out
  EXPECT_EQ(kept("a=1" + std::string(600, ' ') + ",b=2"), (Kept{"a=1,b=2", 0, false}));
}

}  // namespace
}  // namespace stagespan
