// worker_name.h: what a worker process is called.
#pragma once

#include <string>

namespace stagespan::python {

struct Worker {
  std::string name;             // "worker 2", "data loader worker 0", or the name that the program gave to it
  bool is_data_loader = false;  // it has the rank of the process that started it
};

/// What this process is called, if it is a worker. Called with the interpreter's lock. Does not run Python code.
Worker worker_of_this_process();

}  // namespace stagespan::python
