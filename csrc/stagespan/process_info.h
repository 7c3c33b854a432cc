// process_info.h: collects facts about the process for its recording, from the environment.
#pragma once

#include <string>
#include <string_view>

#include "layout.h"

namespace stagespan {

/// Reads rank, world size, job, pipeline, program and host. The environment must not change during the call. Leaves the
/// versions empty.
ProcessInfo process_info_from_environment();

/// The name of a program, from the arguments with which it was started, each of which ends with a zero byte: of an
/// interpreter with its script or module, of a server with its application. Other arguments are left out, because they
/// may contain secrets.
struct Program {
  std::string name;
  std::string argument;  // the first other argument that is a plain word and no value of an option; or empty
};
Program program_in(std::string_view arguments);

}  // namespace stagespan
