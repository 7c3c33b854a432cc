// process_info.h: what a recording says of its process, as the environment tells it.
#pragma once

#include <string_view>

#include "layout.h"

namespace stagespan {

/// Rank, world size, job, pipeline, program and host. Reads the environment: the caller makes sure that nobody changes
/// it meanwhile. Leaves the versions empty.
ProcessInfo process_info_from_environment();

/// Writes a text to a field, cut before a character of UTF-8 that does not fit.
void set_text(char* field, std::size_t size, std::string_view text) noexcept;

/// What a field says; at most `size` bytes, whatever is in it.
std::string_view text_in(const char* field, std::size_t size) noexcept;

}  // namespace stagespan
