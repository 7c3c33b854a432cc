// cut_off.cpp: the handler of SIGBUS. It only uses memory of its own, atomic variables, and system calls.
#include "cut_off.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "mode.h"

namespace stagespan {

std::atomic<bool> detail::g_is_cut_off{false};

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

// Written before the address is stored, and not changed while it is.
std::atomic<std::byte*> g_begin{nullptr};
std::uint64_t g_size_bytes = 0;
alignas(ArenaHeader) std::byte g_header[sizeof(ArenaHeader)];

std::atomic<bool> g_is_replaced{false};
std::atomic<std::uint32_t> g_mode_before{0};
struct sigaction g_before;
bool g_is_installed = false;

// The new arena appears at once, so that no thread sees a part of it.
bool replace_arena(std::byte* begin) noexcept {
  void* const memory =
      mmap(nullptr, g_size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  std::memcpy(memory, g_header, sizeof(g_header));
  madvise(memory, g_size_bytes, MADV_NOHUGEPAGE);
  madvise(memory, g_size_bytes, MADV_DONTFORK);
  return mremap(memory, g_size_bytes, g_size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) != MAP_FAILED;
}

void call_handler_before(int number, siginfo_t* info, void* context) noexcept {
  if ((g_before.sa_flags & SA_SIGINFO) != 0) {
    g_before.sa_sigaction(number, info, context);
  } else if (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN) {
    g_before.sa_handler(number);
  } else if (info->si_code > 0) {
    // The access is repeated after the return, and has its usual effect. The system does not ignore such signals.
    struct sigaction usual{};
    usual.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &usual, nullptr);
  } else if (g_before.sa_handler == SIG_DFL) {
    sigaction(SIGBUS, &g_before, nullptr);
    raise(SIGBUS);
  }
}

void handle(int number, siginfo_t* info, void* context) {
  const int error = errno;
  std::byte* const begin = g_begin.load(std::memory_order_acquire);
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  const bool is_ours = begin != nullptr && info->si_code == BUS_ADRERR && at >= begin && at < begin + g_size_bytes;
  if (!is_ours) {
    call_handler_before(number, info, context);
  } else if (!g_is_replaced.exchange(true)) {
    g_mode_before.store(g_mode.exchange(0, relaxed), relaxed);
    detail::g_is_cut_off.store(true);
    if (!replace_arena(begin)) {
      g_begin.store(nullptr);
      call_handler_before(number, info, context);
    }
  }
  // Other threads repeat their access until the memory is there.
  errno = error;
}

}  // namespace

void watch_for_cut_off(ArenaView arena) noexcept {
  g_size_bytes = arena.header().size_bytes;
  // What was counted so far is lost with the rest. The clock and the facts about the process stay.
  std::memcpy(g_header, arena.base(), sizeof(g_header));
  auto& header = *reinterpret_cast<ArenaHeader*>(g_header);
  header.name_count.store(0, relaxed);
  header.name_pool_used.store(0, relaxed);
  header.work_key_count.store(0, relaxed);
  for (auto& piece : header.block_pieces) piece.store(kPieceRefused, relaxed);
  for (auto& piece : header.slot_pieces) piece.store(kPieceRefused, relaxed);
  g_begin.store(arena.base(), std::memory_order_release);
  if (g_is_installed) return;
  struct sigaction wanted{};
  wanted.sa_sigaction = handle;
  // On the thread's alternate stack, if it has one.
  wanted.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigemptyset(&wanted.sa_mask);
  g_is_installed = sigaction(SIGBUS, nullptr, &g_before) == 0 && sigaction(SIGBUS, &wanted, nullptr) == 0;
}

void forget_cut_off() noexcept {
  g_begin.store(nullptr, relaxed);
  g_is_replaced.store(false, relaxed);
  if (detail::g_is_cut_off.exchange(false, relaxed)) g_mode.store(g_mode_before.load(relaxed), relaxed);
}

}  // namespace stagespan
