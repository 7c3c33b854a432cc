// commands.cpp: writes and reads commands and answers.
#include "commands.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "clock.h"
#include "version_change.h"

namespace stagespan {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::size_t kBlock = offsetof(ArenaHeader, commands);

bool put(int fd, const void* bytes, std::size_t size, std::uint64_t offset) noexcept {
  const ssize_t written = pwrite(fd, bytes, size, static_cast<off_t>(offset));
  if (written >= 0 && written != static_cast<ssize_t>(size)) errno = ENOSPC;
  return written == static_cast<ssize_t>(size);
}

bool put(int fd, std::uint32_t value, std::size_t field) noexcept {
  return put(fd, &value, sizeof(value), kBlock + field);
}

// Numbers that change at random: the process may ring the bell too.
std::uint32_t other_bell(std::uint32_t number) noexcept {
  return (static_cast<std::uint32_t>(monotonic_ns()) * 2654435761U) ^ number;
}

// A futex of a shared mapping is the same one in all processes that map the file.
bool ring(int fd, std::uint32_t number) noexcept {
  if (!put(fd, other_bell(number), offsetof(CommandBlock, bell))) return false;
  constexpr std::uint64_t kPlace = kBlock + offsetof(CommandBlock, bell);
  constexpr std::uint64_t kPage = kPlace / kPageBytes * kPageBytes;
  void* const page = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, fd, kPage);
  if (page == MAP_FAILED) return false;
  syscall(SYS_futex, static_cast<std::byte*>(page) + (kPlace - kPage), FUTEX_WAKE, std::numeric_limits<int>::max(),
          nullptr, nullptr, 0);
  munmap(page, kPageBytes);
  return true;
}

// Where in the file threads look for commands: the second bytes of their words `attention`.
std::vector<std::uint64_t> attention_places(ArenaView arena) {
  std::vector<std::uint64_t> places;
  const ArenaHeader& header = arena.header();
  const std::uint32_t used = std::min(header.slot_high_water.load(relaxed), kMaxThreads);
  for (std::uint32_t i = 0; i < used; ++i) {
    if (arena.slot(i).state.load(relaxed) != kSlotLive || header.frames_recorded[i].load(relaxed) == 0) continue;
    const auto* const frame = reinterpret_cast<const std::byte*>(arena.frames(i));
    places.push_back(static_cast<std::uint64_t>(frame - arena.base()) + offsetof(OpenFrame, attention) + 1);
  }
  return places;
}

}  // namespace

bool write_command(int fd, std::uint32_t number, std::string_view text) {
  if (text.size() > kCommandBytes) {
    errno = EMSGSIZE;
    return false;
  }
  return put(fd, text.data(), text.size(), kBlock + offsetof(CommandBlock, text)) &&
         put(fd, static_cast<std::uint32_t>(text.size()), offsetof(CommandBlock, text_bytes)) &&
         put(fd, number, offsetof(CommandBlock, number)) && ring(fd, number);
}

bool ask_threads(int fd, ArenaView arena) {
  const std::vector<std::uint64_t> places = attention_places(arena);
  constexpr char kAsked = kAttentionAsked >> 8;
  return std::all_of(places.begin(), places.end(), [&](std::uint64_t place) { return put(fd, &kAsked, 1, place); });
}

bool cancel_command(int fd, std::uint32_t number) {
  return put(fd, number, offsetof(CommandBlock, cancelled)) && ring(fd, number);
}

bool read_command_state(int fd, CommandState& state) {
  alignas(CommandBlock) std::byte bytes[sizeof(CommandBlock)], again[sizeof(CommandBlock)];
  for (auto* const copy : {bytes, again})
    if (pread(fd, copy, sizeof(bytes), kBlock) != ssize_t{sizeof(bytes)}) {
      if (errno == 0) errno = ENODATA;
      return false;
    }
  const auto& block = *reinterpret_cast<const CommandBlock*>(bytes);
  const auto& later = *reinterpret_cast<const CommandBlock*>(again);
  state.number = block.number.load(relaxed);
  state.listening = block.listening.load(relaxed);
  state.noticed = block.noticed.load(relaxed);
  state.answered = 0;
  state.answer.clear();
  const std::uint32_t version = block.version.load(relaxed);
  const std::uint32_t size = block.answer_bytes.load(relaxed);
  // A version that is the same in both copies, and even, means that no answer was being written in between.
  if (version % 2 != 0 || version != later.version.load(relaxed) || size > kAnswerBytes) return true;
  state.answered = block.answered.load(relaxed);
  state.answer.assign(block.answer, size);
  return true;
}

Command read_command(const CommandBlock& block) {
  Command command;
  // Acquire: the text is at least as new as its number.
  command.number = block.number.load(std::memory_order_acquire);
  command.cancelled = block.cancelled.load(relaxed);
  command.text.assign(block.text, std::min(block.text_bytes.load(relaxed), kCommandBytes));
  return command;
}

bool write_answer(CommandBlock& block, std::uint32_t number, std::string_view text) noexcept {
  if (text.size() > kAnswerBytes) return false;
  const VersionChange change(block.version);
  block.answered.store(number, relaxed);
  block.answer_bytes.store(static_cast<std::uint32_t>(text.size()), relaxed);
  std::memcpy(block.answer, text.data(), text.size());
  return true;
}

void wait_for_bell(const std::atomic<std::uint32_t>& bell, std::uint32_t seen, std::int64_t until_ns) noexcept {
  const timespec until{static_cast<time_t>(until_ns / 1'000'000'000), static_cast<long>(until_ns % 1'000'000'000)};
  // FUTEX_WAIT_BITSET takes a time instead of a duration.
  syscall(SYS_futex, &bell, FUTEX_WAIT_BITSET, seen, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void ring_bell(std::atomic<std::uint32_t>& bell) noexcept {
  bell.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &bell, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

}  // namespace stagespan
