// process_info.h: collects facts about the process for its recording, from the environment.
#pragma once

#include "layout.h"

namespace stagespan {

/// Reads rank, world size, job, pipeline, program and host. The environment must not change during the call. Leaves the
/// versions empty.
ProcessInfo process_info_from_environment();

}  // namespace stagespan
