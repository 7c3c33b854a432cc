// collector.h: the state of Python's garbage collector, where it matters to code that uses context variables.
#pragma once

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

// Until Python 3.11, a collection may start whenever an object is created, so finalizers may run in the middle of a
// function of the CPython API. Later versions only collect between two bytecodes. Python has no public function for
// this state. All functions need the interpreter's lock.

/// Compares the interpreter's private structure with what the module `gc` returns. To be called once, on import.
/// Returns whether the structure is known; if not, and from Python 3.12 on, the other functions return 0.
int stagespan_know_collector(void);

/// Whether a collection is at work, in any thread: its finalizers may be what runs now. Read where the interpreter has
/// it, because each start and end of a span in a task asks.
extern const int* stagespan_collecting;
static inline int stagespan_is_collecting(void) { return *stagespan_collecting != 0; }

/// The number of collections that have ended.
Py_ssize_t stagespan_collections(void);

#ifdef __cplusplus
}
#endif
