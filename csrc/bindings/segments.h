// segments.h: what Python code records of a request: its segments, hops, chunks, and the batches that served it.
#pragma once

#include <Python.h>

namespace stagespan::python {

extern PyMethodDef g_segment_functions[];

}  // namespace stagespan::python
