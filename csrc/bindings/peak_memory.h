// peak_memory.h: the highest resident set size of this process.
#pragma once

#include <cstdint>

namespace stagespan::python {

/// The highest resident set size since the process began, in bytes; -1 if not known. Never that of its parent.
std::int64_t peak_resident_bytes() noexcept;

}  // namespace stagespan::python
