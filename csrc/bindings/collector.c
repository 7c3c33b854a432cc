// collector.c: reads the collector's state. It is C because Python's internal headers do not compile as C++.
#define Py_BUILD_CORE_MODULE 1
#include "collector.h"

#if PY_VERSION_HEX < 0x030c0000 && defined(__has_include)
#if __has_include(<internal/pycore_interp.h>)
#include <internal/pycore_interp.h>
#define STAGESPAN_HAS_COLLECTOR 1
#endif
#endif

static const int g_never = 0;
const int* stagespan_collecting = &g_never;  // unless it is known

#ifdef STAGESPAN_HAS_COLLECTOR

static const struct _gc_runtime_state* collector(void) { return &PyInterpreterState_Get()->gc; }

static int is_number(PyObject* object, Py_ssize_t expected) {
  return object != NULL && PyLong_Check(object) && PyLong_AsSsize_t(object) == expected;
}

int stagespan_know_collector(void) {
  const int was_on = PyGC_Disable();  // the figures stay the same while they are compared
  PyObject* const module = PyImport_ImportModule("gc");
  PyObject* const thresholds = module != NULL ? PyObject_CallMethod(module, "get_threshold", NULL) : NULL;
  PyObject* const stats = thresholds != NULL ? PyObject_CallMethod(module, "get_stats", NULL) : NULL;
  int is_known = stats != NULL && PyTuple_Check(thresholds) && PyTuple_GET_SIZE(thresholds) == NUM_GENERATIONS &&
                 PyList_Check(stats) && PyList_GET_SIZE(stats) == NUM_GENERATIONS;
  for (int i = 0; is_known && i < NUM_GENERATIONS; ++i) {
    PyObject* const of_generation = PyList_GET_ITEM(stats, i);
    const struct gc_generation_stats* const read = &collector()->generation_stats[i];
    is_known = is_number(PyTuple_GET_ITEM(thresholds, i), collector()->generations[i].threshold) &&
               PyDict_Check(of_generation) &&
               is_number(PyDict_GetItemString(of_generation, "collections"), read->collections) &&
               is_number(PyDict_GetItemString(of_generation, "collected"), read->collected);
  }
  Py_XDECREF(stats);
  Py_XDECREF(thresholds);
  Py_XDECREF(module);
  PyErr_Clear();
  if (was_on) PyGC_Enable();
  if (is_known) stagespan_collecting = &collector()->collecting;
  return is_known;
}

Py_ssize_t stagespan_collections(void) {
  if (stagespan_collecting == &g_never) return 0;
  Py_ssize_t sum = 0;
  for (int i = 0; i < NUM_GENERATIONS; ++i) sum += collector()->generation_stats[i].collections;
  return sum;
}

#else

int stagespan_know_collector(void) { return 0; }
Py_ssize_t stagespan_collections(void) { return 0; }

#endif
