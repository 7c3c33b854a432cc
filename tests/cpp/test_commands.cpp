// test_commands.cpp: another program asks a process through its recording, and reads the answer.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <string>
#include <thread>

#include "recording_support.h"
#include "stagespan/commands.h"

namespace stagespan {
namespace {

using test::Recordings;

std::atomic<int> g_noticed{0};

class Commands : public Recordings {
 protected:
  void SetUp() override {
    Recordings::SetUp();
    if (IsSkipped()) return;
    g_noticed = 0;
    recorder().on_command.store([]() noexcept { ++g_noticed; });
    stage_ = recorder().intern("stage");
    {
      const ScopedTimer timer(stage_);
    }
    path_ = file_of(getpid());
    fd_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd_, 0);
  }
  void TearDown() override {
    recorder().on_command.store(nullptr);
    if (fd_ >= 0) close(fd_);
  }
  void ask(std::uint32_t number, std::string_view text) {
    ASSERT_TRUE(write_command(fd_, number, text));
    RecordingCopy copy;
    ASSERT_EQ(read(path_, copy, RecordingParts::kFiguresAndOpen), "");
    ASSERT_TRUE(ask_threads(fd_, copy.arena));
  }
  CommandBlock& block() { return recorder().arena().header().commands; }

  std::uint32_t stage_ = 0;
  std::string path_;
  int fd_ = -1;
};

TEST_F(Commands, TheNextSpanOfAThreadNoticesACommandOnce) {
  ask(7, "a wish");
  EXPECT_EQ(g_noticed, 0);
  for (int i = 0; i < 3; ++i) const ScopedTimer timer(stage_);
  EXPECT_EQ(g_noticed, 1);
  const Command command = read_command(block());
  EXPECT_EQ(command.number, 7U);
  EXPECT_EQ(command.cancelled, 0U);
  EXPECT_EQ(command.text, "a wish");
  ASSERT_TRUE(cancel_command(fd_, 7));
  EXPECT_EQ(read_command(block()).cancelled, 7U);
}

TEST_F(Commands, AThreadThatBeginsAfterACommandNoticesIt) {
  ASSERT_TRUE(write_command(fd_, 1, ""));
  block().noticed.store(0);
  std::thread([&] { const ScopedTimer timer(stage_); }).join();
  EXPECT_EQ(g_noticed, 1);
  block().noticed.store(1);
  std::thread([&] { const ScopedTimer timer(stage_); }).join();
  EXPECT_EQ(g_noticed, 1);
}

TEST_F(Commands, TheBellWakesAThreadThatWaits) {
  const std::uint32_t before = block().bell.load();
  std::thread waiting([&] {
    while (block().bell.load() == before) wait_for_bell(block().bell, before, std::numeric_limits<std::int64_t>::max());
  });
  ASSERT_TRUE(write_command(fd_, 3, "x"));
  waiting.join();
  const std::uint32_t now = block().bell.load();
  wait_for_bell(block().bell, now, 1);  // a time that is over
  ring_bell(block().bell);
  EXPECT_NE(block().bell.load(), now);
}

TEST_F(Commands, AnAnswerIsReadWholeOrNotAtAll) {
  CommandState state;
  const std::string longest(kAnswerBytes, 'a');
  ASSERT_TRUE(write_answer(block(), 5, longest));
  ASSERT_TRUE(read_command_state(fd_, state));
  EXPECT_EQ(state.answered, 5U);
  EXPECT_EQ(state.answer, longest);
  EXPECT_FALSE(write_answer(block(), 6, longest + "a"));
  EXPECT_FALSE(write_command(fd_, 6, std::string(kCommandBytes + 1, 'a')));
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (std::uint32_t number = 0; !is_over; ++number)
      write_answer(block(), number, std::string(1 + number % 100, static_cast<char>('a' + number % 26)));
  });
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(read_command_state(fd_, state));
    if (state.answer.empty() || state.answer == longest) continue;
    ASSERT_EQ(state.answer, std::string(1 + state.answered % 100, static_cast<char>('a' + state.answered % 26)));
  }
  is_over = true;
  writer.join();
}

TEST_F(Commands, AnEndOfASpanElsewhereIsStillNoticed) {
  // Both reasons are in one word, of which the asker writes only a part.
  const int key = 0;
  ASSERT_NE(open_frame(recorder().this_thread(), stage_, &key), nullptr);
  std::thread([&] {
    const FoundFrame found = recorder().find_elsewhere(&key);
    ASSERT_TRUE(recorder().close_away(found, 0));
  }).join();
  ask(9, "");
  {
    const ScopedTimer timer(stage_);
  }
  EXPECT_EQ(g_noticed, 1);
  RecordingCopy copy;
  ASSERT_EQ(read(path_, copy, RecordingParts::kAll), "");
  EXPECT_TRUE(copy.open.empty());
}

}  // namespace
}  // namespace stagespan
