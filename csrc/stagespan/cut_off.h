// cut_off.h: survives another program's truncation of the recording's file.
#pragma once

#include <atomic>

#include "arena.h"

namespace stagespan {

// A file in a tmpfs cannot be protected from truncation by its owner or by root. Afterwards, each access to the part
// that was cut off raises SIGBUS. Nothing on the hot path can check for this, so there is a signal handler: it replaces
// the whole arena by memory of the process, whose content is that of an arena in which nothing was recorded yet, and
// turns the recorder off. Spans that are open in threads have no frames in this arena, so from then on
//
// - opening a span does nothing, and leaving one does not look for its frame,
// - tasks get scopes without frames, and turns of coroutines and generators are not recorded,
// - what else is still written gets into the new arena, in which all links between frames lead to index 0, where all
//   walks end, and in which no frame has a scope (scope_of). The handler may run at any access to the arena.
//
// A forked child gets an arena of its own, and records again.
//
// Other accesses that raise SIGBUS are left to the handler that was there before. A handler that the program installs
// later comes first.

/// Called when the arena has been moved to the file, which is kept out of forked children.
void watch_for_cut_off(ArenaView arena) noexcept;

/// In a forked child: the arena is not in a file. If the parent's was cut off, turns the recorder on as it was before.
void forget_cut_off() noexcept;

namespace detail {
extern std::atomic<bool> g_is_cut_off;
}

/// Whether this process's recording was truncated, so that nothing is recorded any more.
inline bool is_cut_off() noexcept { return detail::g_is_cut_off.load(std::memory_order_relaxed); }

}  // namespace stagespan
