// after_fork.h: how threads end for a fork, and when they can start again.
#pragma once

#include <pthread.h>
#include <sys/types.h>

namespace stagespan::python {

/// Joins a thread that ends, and waits until the kernel counts it no more: it does so for some microseconds after that,
/// and Python 3.12 and later warn of forks with threads. Without the interpreter's lock. `native_id` may be 0.
void join_before_fork(pthread_t thread, pid_t native_id) noexcept;

/// Calls `start` once the fork is over, with the interpreter's lock, which is held now too. Python 3.12 and later count
/// the threads after the functions that it calls after a fork, and warn if there are several.
void start_after_fork(int (*start)(void*), bool in_child) noexcept;

}  // namespace stagespan::python
