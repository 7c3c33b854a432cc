// segments.h: what Python code records of a request besides the request itself, and the ids of requests.
#pragma once

#include <Python.h>

#include <cstdint>

namespace stagespan::python {

/// 64 random bits of the operating system, never 0.
std::uint64_t random_number() noexcept;

/// The identity of CLOCK_MONOTONIC: a hash of the boot id and the time namespace; 0 if they are unknown.
std::uint64_t clock_identity() noexcept;

extern PyMethodDef g_segment_functions[];

}  // namespace stagespan::python
