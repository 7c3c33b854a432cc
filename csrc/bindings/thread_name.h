// thread_name.h: the names of Python's threads.
#pragma once

namespace stagespan::python {

/// Has the recorder ask Python for the name of each thread that opens its first span.
void watch_thread_names() noexcept;

}  // namespace stagespan::python
