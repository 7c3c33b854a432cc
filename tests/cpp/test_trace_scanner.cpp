// test_trace_scanner.cpp: reading the list of events of a trace into tables.
#include <gtest/gtest.h>

#include <string>

#include "support.h"
#include "trace/scanner.h"

namespace stagespan::trace {
namespace {

constexpr std::string_view kList = R"(
  {"ph": "X", "cat": "kernel", "name": "g\"e}, {m", "pid": 0, "tid": "7", "ts": 1736408883688177.930, "dur": 2.5,
   "args": {"stream": 7, "Input Dims": [[2, 3], []], "x": 0.5, "nothing": null}},
  {"name": "second", "ph": "X", "args": {"stream": 7, "x": NaN, "Input Dims": "[]"}, "ts": "1.001", "pid": "Spans"},
  17, null, "word", [1, {"a": "]"}],
  {"ph": "i", "name": "[memory]", "ts": 5, "args": {"Bytes": -4}},
  {"ph": "s", "id": 18446744073709551615, "ts": 3, "cat": "ac2g"},
  {"ph": "B", "name": "half", "ts": 1, "args": {"stream": 9}}, {"ph": "E", "ts": 4},
  {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "python"}}
] behind)";

void check(Scanner* scanner) {
  Tables& tables = scanner->tables();
  tables.finish();
  ASSERT_EQ(tables.events.name.size(), 3u);
  EXPECT_EQ(tables.names[static_cast<std::uint32_t>(tables.events.name[0])], "g\"e}, {m");
  EXPECT_EQ(tables.events.begin_ns[0], 1736408883688177930);
  EXPECT_EQ(tables.events.begin_ns[1], 1001);
  EXPECT_EQ(tables.events.duration_ns[0], 2500);
  EXPECT_EQ(tables.events.duration_ns[2], 3000);
  ASSERT_EQ(tables.events.no_duration.size(), 1u);
  EXPECT_EQ(tables.events.no_duration[0], 1);
  EXPECT_EQ(tables.events.negative_duration.size(), 0u);
  EXPECT_EQ(tables.events.tid[0], 7);
  EXPECT_EQ(tables.events.pid[1], -2);
  EXPECT_EQ(tables.events.tid[1], kMissing);
  EXPECT_EQ(tables.flows.id[0], -1);
  EXPECT_EQ(tables.instants.name.size(), 1u);
  ASSERT_EQ(tables.namings.size(), 1u);
  EXPECT_EQ(tables.namings[0].name, "python");
  EXPECT_EQ(tables.total, 11u);
  EXPECT_EQ(tables.left_out, (std::map<std::string, std::uint64_t>{{"entry that is not an object", 4}}));
  EXPECT_EQ(tables.adjusted, (std::map<std::string, std::uint64_t>{{"begin and end, joined to one event", 1},
                                                                   {"no duration, taken as 0", 1}}));
  const auto key = [&](std::string_view text) { return tables.keys.texts().code(text); };
  ArgumentColumn& stream = tables.events.arguments[key("stream")];
  EXPECT_EQ(stream.type(), ArgumentColumn::Type::kSmall);
  EXPECT_EQ(stream.take_narrow().size(), 3u);
  EXPECT_EQ(tables.events.arguments[key("x")].take_real().size(), 1u);
  const Growing<std::int32_t> dims = tables.events.arguments[key("Input Dims")].take_narrow();
  ASSERT_EQ(dims.size(), 2u);
  EXPECT_EQ(tables.texts[static_cast<std::uint32_t>(dims[0])], "[[2, 3], []]");
  EXPECT_EQ(tables.texts[static_cast<std::uint32_t>(dims[1])], "[]");
  EXPECT_NE(tables.events.shape[0], tables.events.shape[1]);
}

TEST(TraceScanner, EntriesGoToTheirTables) {
  // GIVEN a list with entries of each kind
  Scanner scanner;
  std::size_t consumed = 0;
  const State state = scanner.scan(kList.data(), kList.data() + kList.size(), &consumed);
  EXPECT_EQ(state, State::kClosed);
  EXPECT_EQ(kList.substr(consumed), " behind");
  check(&scanner);
}

TEST(TraceScanner, TheBytesCanBeCutAnywhere) {
  // GIVEN the same list, cut in two after any byte, with each part in separate memory so that reading too far is
  // detected
  for (std::size_t cut = 0; cut <= kList.size(); ++cut) {
    Scanner scanner;
    std::size_t consumed = 0;
    const std::string first(kList.substr(0, cut));
    State state = scanner.scan(first.data(), first.data() + first.size(), &consumed);
    if (state != State::kClosed) {
      ASSERT_EQ(state, State::kMore) << cut;
      const std::string rest(kList.substr(consumed));
      state = scanner.scan(rest.data(), rest.data() + rest.size(), &consumed);
    }
    ASSERT_EQ(state, State::kClosed) << cut;
    ASSERT_NO_FATAL_FAILURE(check(&scanner)) << cut;
  }
}

TEST(TraceScanner, InvalidEntriesAreDistinguishedFromIncompleteOnes) {
  const auto state = [](const std::string& text) {
    Scanner scanner;
    std::size_t consumed = 0;
    const State found = scanner.scan(text.data(), text.data() + text.size(), &consumed);
    EXPECT_EQ(consumed, 0u) << text;
    return found;
  };
  // GIVEN entries that more bytes cannot complete
  for (const char* odd : {R"({"ph" "X"})", R"({"a": 01})", R"({"a": 1.})", R"({"a": [1 2]})", R"({"a": [1,]})",
                          R"({"a": [1}]})", R"({"a": tru})", R"({"a": 1,})", R"({a: 1})", R"({"a": -null })",
                          R"({"name": "a "b" c", "ph": "X"})", R"({"a": 1 "b": 2})", R"({"args": {"a" 1}})"})
    EXPECT_EQ(state(odd), State::kOdd) << odd;
  EXPECT_EQ(state(R"({"a":)" + std::string(2000, '[')), State::kOdd);
  // GIVEN entries that more bytes could complete
  for (const char* part : {R"({)", R"({"a)", R"({"a")", R"({"a":)", R"({"a": 1)", R"({"a": 1.)", R"({"a": -)",
                           R"({"a": 1e)", R"({"a": tr)", R"({"a": "x\)", R"({"a": [1, {"b": "])", R"({"args": {"a)",
                           R"({"args": {"a": 1)", R"({"args": {"a": 1})", R"(17)", R"("wo)", R"([1)"})
    EXPECT_EQ(state(part), State::kMore) << part;
}

TEST(TraceScanner, WhatFollowsAnEntryLikeOthersIsChecked) {
  // GIVEN entries like two before them, with other spaces, other keys, or values that are null
  const std::string begin = R"({"ph": "X", "ts": 1, "args": {"a": 1, "b": 2}}, {"ph": "X", "ts": 2, "args": {"b": 3}})";
  const std::string behind(100, ' ');
  for (const char* like : {R"({"ph": "X", "ts":  3, "args":{"b":)"
                           "\n"
                           R"(4}})",
                           R"({"ts": 3, "ph": "X", "args": {"b": 4}})",
                           R"({"ph": "X", "id": null, "ts": 3, "args": {"c": null, "b": 4}})"}) {
    const std::string text = begin + "," + like + behind + "]";
    Scanner scanner;
    std::size_t consumed = 0;
    EXPECT_EQ(scanner.scan(text.data(), text.data() + text.size(), &consumed), State::kClosed) << like;
    Tables& tables = scanner.tables();
    ASSERT_EQ(tables.events.begin_ns.size(), 3u) << like;
    EXPECT_EQ(tables.events.begin_ns[2], 3000) << like;
    EXPECT_EQ(tables.events.arguments[tables.keys.texts().code("b")].take_narrow()[2], 4) << like;
    EXPECT_EQ(tables.events.shape[1], tables.events.shape[2]) << like;
  }
  // GIVEN entries that lack a comma, or have one too many, where another entry has not or has one
  for (const char* odd : {R"({, "ph": "X"})", R"({"ph": "X" "ts": 3})", R"({"ph": "X", "args": {, "b": 4}})",
                          R"({"ph": "X", "args": {"c": null{"b": 4}})", R"({"ph": "X", "args": {"a": 1"b": 4}})"}) {
    const std::string text = begin + "," + odd + behind + "]";
    Scanner scanner;
    std::size_t consumed = 0;
    EXPECT_EQ(scanner.scan(text.data(), text.data() + text.size(), &consumed), State::kOdd) << odd;
    EXPECT_EQ(consumed, begin.size() + 1) << odd;
  }
}

TEST(TraceScanner, TheLastValueOfAKeyCounts) {
  // GIVEN fields and arguments that occur twice, and an argument that is null the second time
  const std::string text = R"({"ph": "X", "ts": 1, "ts": 2, "args": {"a": 1, "b": 5, "a": 3, "b": null}}])";
  Scanner scanner;
  std::size_t consumed = 0;
  ASSERT_EQ(scanner.scan(text.data(), text.data() + text.size(), &consumed), State::kClosed);
  Tables& tables = scanner.tables();
  EXPECT_EQ(tables.events.begin_ns[0], 2000);
  const Growing<std::int32_t> a = tables.events.arguments[tables.keys.texts().code("a")].take_narrow();
  ASSERT_EQ(a.size(), 1u);
  EXPECT_EQ(a[0], 3);
}

TEST(TraceScanner, TheLastValuesOfManyKeysCount) {
  // GIVEN an entry with many arguments, each of which occurs again in another order; and a similar entry
  constexpr std::uint32_t kKeys = 20'000;
  std::string entry = R"({"ph": "X", "ts": 1, "args": {)";
  for (std::uint32_t i = 0; i < kKeys; ++i) entry += "\"" + std::to_string(i) + "\": -1, ";
  for (std::uint32_t i = kKeys; i-- != 0;) {
    const std::string number = std::to_string(i);
    entry += "\"" + number + "\": " + number + (i == 0 ? "}}" : ", ");
  }
  const std::string text = entry + "," + entry + "]";
  Scanner scanner;
  std::size_t consumed = 0;
  ASSERT_EQ(scanner.scan(text.data(), text.data() + text.size(), &consumed), State::kClosed);
  Tables& tables = scanner.tables();
  ASSERT_EQ(tables.events.arguments.size(), kKeys);
  EXPECT_EQ(tables.events.shape[0], tables.events.shape[1]);
  for (std::uint32_t i = 0; i < kKeys; ++i) {
    const std::uint32_t key = tables.keys.texts().code(std::to_string(i));
    const Growing<std::int32_t> values = tables.events.arguments[key].take_narrow();
    ASSERT_EQ(values.size(), 2u) << i;
    ASSERT_EQ(values[0], static_cast<std::int32_t>(i));
    ASSERT_EQ(values[1], static_cast<std::int32_t>(i));
  }
}

TEST(TraceScanner, ManyTextsAreKeptOnce) {
  // GIVEN more texts than a table has space for at first, each twice
  Interner texts;
  for (int round = 0; round < 2; ++round)
    for (std::uint32_t i = 0; i < 20'000; ++i)
      // WHEN / THEN each has its own number
      ASSERT_EQ(texts.code(std::string(i % 40, 'x') + std::to_string(i)), i);
  EXPECT_EQ(texts[19'999], std::string(39, 'x') + "19999");
}

}  // namespace
}  // namespace stagespan::trace
