// process_info.h: collects facts about the process for its recording, from the environment.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "layout.h"

namespace stagespan {

/// Reads rank, world size, job, pipeline, program and host. The environment must not change during the call. Leaves the
/// versions empty.
ProcessInfo process_info_from_environment();

/// The name of a process's program; empty if it cannot be read.
std::string program_of(pid_t pid);

/// The name of a program, from the arguments of its process, each of which ends with a zero byte: of an interpreter
/// with its script or module, of a web server with its application. Other arguments are left out, because they may
/// contain secrets.
std::string program_name(std::string_view arguments);

}  // namespace stagespan
