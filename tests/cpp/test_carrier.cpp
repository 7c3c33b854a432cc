// Tests of the texts of carriers: what is written is read, and nothing else.
#include <gtest/gtest.h>

#include <cstdint>
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
  SentHop found;
  ASSERT_TRUE(read_sent_hop(written(hop), found));
  EXPECT_EQ(found.id, hop.id);
  EXPECT_EQ(found.queue, hop.queue);
  EXPECT_EQ(found.branch, hop.branch);
  EXPECT_EQ(found.monotonic_ns, hop.monotonic_ns);
  EXPECT_EQ(found.unix_ns, hop.unix_ns);
  EXPECT_EQ(found.clock, hop.clock);
  EXPECT_EQ(found.segment, hop.segment);
  EXPECT_EQ(found.attempt, hop.attempt);
}

TEST(SentHop, ThatIsCutOrChangedIsNotRead) {
  SentHop found;
  ASSERT_TRUE(read_sent_hop(kOwn, found));
  for (const std::string& text :
       {replaced(kOwn, "1;", "2;"), std::string(kOwn) + ";more", replaced(kOwn, "r-1", "%zz"),
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
  EXPECT_LE(written(hop).size(), kMostCarrierBytes);
}

TEST(TraceState, IsPassedOnIfItIsPrintable) {
  EXPECT_TRUE(is_tracestate("vendor=a:b, other=2"));
  EXPECT_TRUE(is_tracestate(""));
  EXPECT_FALSE(is_tracestate("a=1\n"));
  EXPECT_FALSE(is_tracestate("a=\xc3\xbc"));
  EXPECT_FALSE(is_tracestate(std::string(kMostStateBytes + 1, 'a')));
}

}  // namespace
}  // namespace stagespan
