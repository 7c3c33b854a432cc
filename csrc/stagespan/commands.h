// commands.h: what another program asks of a process, and the answer, both through the recording.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "arena.h"
#include "layout.h"

namespace stagespan {

// The program that asks needs to write to the file, which only its owner can. It writes the command, then its number,
// and then it lets the process know in both ways: a thread that waits for commands sleeps on the futex `bell`, and
// where there is no such thread, the next span that opens finds kAttentionAsked and has one started. It uses pwrite(),
// so a file that is truncated does not end it by SIGBUS. Texts and answers contain the number of their command, because
// each of the two can be read while it is being replaced.

// --- the program that asks ---------------------------------------------------------------------------------

/// A command that was written, as the process sees it.
struct CommandState {
  std::uint32_t number = 0;  // of the latest command
  std::uint32_t listening = kListensInSpans;
  std::uint32_t noticed = 0;
  std::uint32_t answered = 0;
  std::string answer;  // empty if there is none, or while it is being written
};

/// Writes a command to the file that `fd` is open for writing on, and rings the bell. False with errno if that is not
/// possible; a text of more than kCommandBytes is EMSGSIZE.
bool write_command(int fd, std::uint32_t number, std::string_view text);

/// Lets the next span of each thread notice the command. `arena` is a copy that was made after write_command(): a
/// thread that is not in it has come later, and has seen the number when it came.
bool ask_threads(int fd, ArenaView arena);

/// Asks the process to end the command with this number.
bool cancel_command(int fd, std::uint32_t number);

/// False with errno if the file cannot be read.
bool read_command_state(int fd, CommandState& state);

// --- the process -------------------------------------------------------------------------------------------

/// The latest command, and the number of the one that is to end. The text is cut to kCommandBytes.
struct Command {
  std::uint32_t number = 0;
  std::uint32_t cancelled = 0;
  std::string text;
};
Command read_command(const CommandBlock& block);

/// False if the text has more than kAnswerBytes.
bool write_answer(CommandBlock& block, std::uint32_t number, std::string_view text) noexcept;

/// Waits until `bell` is no longer `seen`, or until a time of CLOCK_MONOTONIC.
void wait_for_bell(const std::atomic<std::uint32_t>& bell, std::uint32_t seen, std::int64_t until_ns) noexcept;

/// Wakes the thread that waits.
void ring_bell(std::atomic<std::uint32_t>& bell) noexcept;

}  // namespace stagespan
