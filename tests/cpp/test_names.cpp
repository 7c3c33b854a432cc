// test_names.cpp: interning names in many threads, long names, and more names than fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <map>
#include <set>

#include "support.h"

namespace stagespan {
namespace {

using test::lost;
using test::Random;

class Names : public test::RecorderTest {};

/// Whether a text is complete UTF-8, without the finer rules on overlong forms.
bool is_whole_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (std::size_t k = 1; k < length; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return false;
    i += length;
  }
  return true;
}

TEST_F(Names, StagesThatExistFromTheStartHaveTheirNumbers) {
  // GIVEN a recorder
  EXPECT_EQ(recorder().intern("(overflow)"), kStageOverflow);
  EXPECT_EQ(recorder().intern("(invalid name)"), kStageInvalid);
  EXPECT_EQ(recorder().name_of(kStageOverflow), "(overflow)");
}

TEST_F(Names, TheSameNameIsTheSameStage) {
  const std::string texts[] = {"a",       "A", "a ", " a", "a/b", "a.b", "", "a\nb", "\"a\"", std::string("a\0b", 3),
                               "\xC3\xA4"};
  std::set<std::uint32_t> stages;
  for (const std::string& text : texts) {
    const std::uint32_t stage = recorder().intern(text);
    EXPECT_EQ(recorder().intern(text), stage);
    EXPECT_EQ(recorder().name_of(stage), text);
    stages.insert(stage);
  }
  // THEN different names are different stages
  EXPECT_EQ(stages.size(), std::size(texts));
}

TEST_F(Names, AllNamesAreListedByNumber) {
  const std::uint32_t one = recorder().intern("listed.one");
  const std::uint32_t two = recorder().intern("listed.two");
  const std::vector<std::string> names = recorder().names();
  ASSERT_GT(names.size(), two);
  EXPECT_EQ(names[one], "listed.one");
  EXPECT_EQ(names[two], "listed.two");
  // THEN an unknown number does not cause a failure
  EXPECT_EQ(recorder().name_of(static_cast<std::uint32_t>(names.size())), "(overflow)");
  EXPECT_EQ(recorder().name_of(kNoStage), "(overflow)");
}

TEST_F(Names, NamesAreKeptOverAReset) {
  const std::uint32_t stage = recorder().intern("stays");
  recorder().reset();
  EXPECT_EQ(recorder().intern("stays"), stage);
  EXPECT_EQ(recorder().name_of(stage), "stays");
}

TEST_F(Names, LongNamesAreCutAndStayDistinct) {
  // GIVEN names of the maximum length, and longer ones that differ only at their ends
  const std::string longest(kMaxNameBytes, 'n');
  const std::string base(1000, 'n');
  const std::uint32_t whole = recorder().intern(longest);
  const std::uint32_t one = recorder().intern(base + "1");
  const std::uint32_t two = recorder().intern(base + "2");
  EXPECT_EQ(recorder().name_of(whole), longest);
  EXPECT_LE(recorder().name_of(one).size(), kMaxNameBytes);
  EXPECT_EQ(recorder().name_of(one).substr(0, 200), base.substr(0, 200));
  EXPECT_NE(one, two);
  EXPECT_NE(one, whole);
  EXPECT_NE(recorder().name_of(one), recorder().name_of(two));
  EXPECT_EQ(recorder().intern(base + "1"), one);
  EXPECT_EQ(recorder().intern(base + "2"), two);
}

TEST_F(Names, LongNamesAreCutBetweenCharacters) {
  for (const std::string character : {"\xC3\xA4", "\xE4\xB8\xAD", "\xF0\x9F\x8E\xA5"}) {
    for (std::size_t shift = 0; shift < 5; ++shift) {
      SCOPED_TRACE(shift);
      // GIVEN a long name of characters of two to four bytes, at every position
      std::string name(shift, 'x');
      while (name.size() < 400) name += character;
      const std::string cut(recorder().name_of(recorder().intern(name)));
      // THEN the rest consists of complete characters
      EXPECT_LE(cut.size(), kMaxNameBytes);
      EXPECT_GE(cut.size(), kMaxNameBytes - 3);
      EXPECT_TRUE(is_whole_utf8(cut)) << cut;
    }
  }
}

TEST_F(Names, BytesThatAreNotTextAreNames) {
  // GIVEN long names of bytes that are not UTF-8
  const std::string middle(500, '\x80');
  const std::string high(500, '\xFF');
  EXPECT_NE(recorder().intern(middle), recorder().intern(high));
  EXPECT_LE(recorder().name_of(recorder().intern(middle)).size(), kMaxNameBytes);
}

TEST_F(Names, ManyThreadsInternTheSameNames) {
  constexpr unsigned kThreads = 8;
  constexpr std::uint32_t kNames = 300;
  std::vector<std::map<std::string, std::uint32_t>> found(kThreads);
  std::barrier start(kThreads + 1);
  std::atomic<unsigned> running{kThreads};
  auto threads = test::start_threads(kThreads, [&](unsigned i) {
    Random random(900 + i);
    std::vector<std::uint32_t> order(kNames);
    for (std::uint32_t n = 0; n < kNames; ++n) order[n] = n;
    std::shuffle(order.begin(), order.end(), random.engine());
    start.arrive_and_wait();
    for (const std::uint32_t n : order) {
      const std::string name = "concurrent." + std::to_string(n);
      found[i][name] = recorder().intern(name);
    }
    running.fetch_sub(1);
  });
  start.arrive_and_wait();
  std::vector<std::string> before;
  bool last = false;
  while (!last) {
    last = running.load() == 0;
    const std::vector<std::string> now = recorder().names();
    // THEN existing names are there, unchanged
    ASSERT_GE(now.size(), before.size());
    ASSERT_TRUE(std::equal(before.begin(), before.end(), now.begin()));
    before = now;
  }
  test::join(threads);
  std::set<std::uint32_t> stages;
  for (const auto& [name, stage] : found[0]) {
    stages.insert(stage);
    EXPECT_EQ(recorder().name_of(stage), name);
  }
  EXPECT_EQ(stages.size(), kNames);
  for (unsigned i = 1; i < kThreads; ++i) EXPECT_EQ(found[i], found[0]);
}

// The last two tests fill the table, each in a separate child.

TEST_F(Names, BeyondTheTableAllNamesShareAStageAndAreCounted) {
  const auto fill = [&] {
    // GIVEN as many names as fit
    const std::size_t room = kMaxStages - recorder().names().size();
    std::set<std::uint32_t> stages;
    for (std::size_t i = 0; i < room; ++i) stages.insert(recorder().intern("full." + std::to_string(i)));
    if (stages.size() != room || stages.contains(kStageOverflow) || lost(kLostNames) != 0) return 1;
    for (int i = 0; i < 100; ++i) {
      const std::uint32_t stage = recorder().intern("more." + std::to_string(i));
      if (stage != kStageOverflow) return 2;
      const ScopedTimer timer(stage);
    }
    if (lost(kLostNames) != 100) return 3;
    if (test::count_of(kStageOverflow) != 100) return 4;
    // THEN the existing names still work, including the last one
    if (recorder().name_of(kMaxStages - 1) != "full." + std::to_string(room - 1)) return 5;
    {
      const ScopedTimer timer(kMaxStages - 1);
    }
    return test::count_of(kMaxStages - 1) == 1 ? 0 : 6;
  };
  EXPECT_EXIT(_exit(fill()), ::testing::ExitedWithCode(0), "");
}

TEST_F(Names, BeyondTheNamePoolNamesShareAStageAndShorterOnesStillFit) {
  const auto fill = [&] {
    // GIVEN names of the maximum length, until their text no longer fits
    std::uint32_t taken = 0;
    while (lost(kLostNames) == 0) {
      std::string name = std::to_string(taken++);
      name.resize(kMaxNameBytes, '.');
      recorder().intern(name);
    }
    // THEN that happens before the table is full
    if (recorder().names().size() >= kMaxStages) return 1;
    if (taken < kNamePoolBytes / kMaxNameBytes / 2) return 2;
    const std::uint32_t stage = recorder().intern("s");
    if (stage != kStageOverflow && recorder().name_of(stage) != "s") return 3;
    return recorder().intern(std::string(kMaxNameBytes, 'z')) == kStageOverflow ? 0 : 4;
  };
  EXPECT_EXIT(_exit(fill()), ::testing::ExitedWithCode(0), "");
}

TEST_F(Names, OfOtherProcessesTakeOnlySomePlaces) {
  const std::uint32_t own = recorder().intern("own queue", kQueue);
  const std::size_t before = recorder().names().size();
  const std::uint32_t first = recorder().intern_foreign("foreign 0", kQueue);
  for (int i = 0; i < 2'000; ++i)
    for (const StageKind kind : {kQueue, kRemote})
      EXPECT_EQ(recorder().kind_of(recorder().intern_foreign("foreign " + std::to_string(i), kind)), kind);
  EXPECT_LE(recorder().names().size() - before, kMostForeignNames);
  EXPECT_GT(recorder().names().size() - before, kMostForeignNames / 2);
  EXPECT_EQ(recorder().name_of(recorder().intern_foreign("foreign 1999", kQueue)), kForeignName);
  EXPECT_EQ(recorder().intern_foreign("foreign 0", kQueue), first);
  EXPECT_GE(lost(kLostNames), 2U * 2'000U - kMostForeignNames);
  EXPECT_EQ(recorder().intern_foreign("own queue", kQueue), own);
  const std::uint32_t later = recorder().intern("foreign 1999", kQueue);
  EXPECT_EQ(recorder().name_of(later), "foreign 1999");
  EXPECT_EQ(recorder().intern_foreign("foreign 1999", kQueue), later);
}

}  // namespace
}  // namespace stagespan
