// process_info.h: collects facts about the process for its recording, from the environment.
#pragma once

#include <string_view>

#include "layout.h"

namespace stagespan {

/// Reads rank, world size, job, pipeline, program and host. The environment must not change during the call. Leaves the
/// versions empty.
ProcessInfo process_info_from_environment();

/// Writes a text to a field. If it does not fit, it is cut between two UTF-8 characters.
void set_text(char* field, std::size_t size, std::string_view text) noexcept;

/// Returns the text of a field; at most `size` bytes, even if it is not terminated.
std::string_view text_in(const char* field, std::size_t size) noexcept;

}  // namespace stagespan
