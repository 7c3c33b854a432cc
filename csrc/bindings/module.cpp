// module.cpp: the extension module with its switches and hooks.
#include "module.h"

#include <pthread.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <utility>

#include "completions.h"
#include "context_layout.h"
#include "current_request.h"
#include "docstrings.h"
#include "execution_context.h"
#include "reading.h"
#include "request_details.h"
#include "request_object.h"
#include "request_tables.h"
#include "segments.h"
#include "span_object.h"
#include "stage_names.h"
#include "stagespan/api.h"
#include "stagespan/cut_off.h"
#include "stagespan/recorder.h"
#include "stagespan/scoped_timer.h"
#include "termination.h"
#include "timed_function.h"
#include "timed_iterator.h"
#include "timed_run.h"
#include "token_object.h"
#include "waiting.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

PyObject* or_null(const py::object& value) { return value.is_none() ? nullptr : value.ptr(); }

void switch_mode(std::uint32_t bit, bool on) {
  // Without an arena there is nothing to record into.
  if (on && Recorder::get().arena() && !is_cut_off())
    g_mode.fetch_or(bit, std::memory_order_relaxed);
  else if (!on)
    g_mode.fetch_and(~bit, std::memory_order_relaxed);
}

const Api& api() {
  static const Api table{
      kApiVersion,
      sizeof(Api),
      reinterpret_cast<const std::uint32_t*>(&g_mode),
      [](const char* name, std::size_t length) { return Recorder::get().intern({name, length}); },
      [](std::uint32_t stage) {
        const OpenSpan span = open_span(stage);
        return ApiSpan{span.frame, span.id};
      },
      [](ApiSpan span, std::uint32_t flags) {
        close_span({static_cast<OpenFrame*>(span.frame), span.id}, static_cast<std::uint16_t>(flags));
      },
      [](std::uint32_t stage, const char* key, std::size_t length, double amount) {
        if (mode_has(kModeEnabled))
          Recorder::get().add_work(stage, {key, length}, 0, amount, stagespan::working_span(stage));
      },
  };
  return table;
}

void define_switches(py::module_& module) {
  module.def("enable", [] { switch_mode(kModeEnabled, true); });
  module.def("disable", [] { switch_mode(kModeEnabled, false); });
  module.def("is_enabled", [] { return mode_has(kModeEnabled); }, docs::kIsEnabled);
  module.def("set_debug", [](bool on) { switch_mode(kModeDebug, on); }, py::arg("on"));
  module.def("is_debug", [] { return mode_has(kModeDebug); }, docs::kIsDebug);
  module.def("is_context_map_known", is_context_map_known);
}

void define_hooks(py::module_& module) {
  module.def(
      "hooks_set_contexts",
      [](const py::object& enter, const py::object& leave, const py::object& exit) {
        keep(g_hooks.enter, or_null(enter));
        keep(g_hooks.leave, or_null(leave));
        keep(g_hooks.exit, or_null(exit));
      },
      py::arg("enter"), py::arg("leave"), py::arg("exit"));
  const std::pair<const char*, void (*)(PyObject*)> of_names[] = {{"profiler_set_names", set_profiled},
                                                                  {"profiler_set_annotated_names", set_annotated}};
  for (const auto& [name, set] : of_names)
    module.def(
        name,
        [set = set](const py::iterable& names) {
          set(names.ptr());
          if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        },
        py::arg("names"));
  module.def(
      "calls_set_descriptions",
      [](const py::object& describe, const py::object& keep_one) {
        set_descriptions(or_null(describe), or_null(keep_one));
      },
      py::arg("describe"), py::arg("keep"));
  module.def("cpu_time_set", [](bool on) { set_cpu_time(on); }, py::arg("on"));
  module.def("system_counts_set", [](bool on) { set_system_counts(on); }, py::arg("on"));
  module.def("hooks_raise_later", [](const py::object& error) { raise_later(error.ptr()); }, py::arg("error"));
  module.def("memory_set_hook", [](bool on) { g_memory_hook = on; }, py::arg("on"));
  module.def(
      "hooks_set_torch_callback", [](const py::object& callback) { set_torch_callback(or_null(callback)); },
      py::arg("callback"));
  module.def(
      "service_set_start", [](const py::object& start) { keep(g_service_start, or_null(start)); }, py::arg("start"));
  module.def(
      "hooks_set_decorator", [](const py::object& decorate) { set_decorator(or_null(decorate)); }, py::arg("decorate"));
}

void define_constants(py::module_& module) {
  module.attr("RING_SPANS_DEFAULT") = kDefaultRingSpans;
  module.attr("RING_SPANS_LEAST") = kLeastRingSpans;
  module.attr("RING_SPANS_MOST") = kMostRingSpans;
  module.attr("REQUESTS_DEFAULT") = kDefaultRequests;
  module.attr("REQUESTS_LEAST") = kFewestRequests;
  module.attr("REQUESTS_MOST") = kMostRequests;
  module.attr("FLAG_ERROR") = static_cast<int>(kFlagError);
  module.attr("FLAG_ASYNC") = static_cast<int>(kFlagAsync);
  module.attr("FLAG_GENERATOR") = static_cast<int>(kFlagGenerator);
  module.attr("FLAG_CAPTURED") = static_cast<int>(kFlagCaptured);
  module.attr("FLAG_FIRST_OF_SHAPE") = static_cast<int>(kFlagFirstOfShape);
  module.attr("FLAG_RECORDED") = static_cast<int>(kFlagRecorded);
  module.attr("FLAG_DEBUG") = static_cast<int>(kFlagDebug);
  module.attr("KIND_SHIFT") = static_cast<int>(kKindShift);
  module.attr("COMPLETION_DEVICE_MEMORY") = static_cast<int>(kCompletionDeviceMemory);
}

void define_hot_objects(py::module_& module) {
  PyObject* const m = module.ptr();
  for (PyMethodDef* functions :
       {g_span_functions, g_token_functions, g_timed_function_functions, g_timed_iterator_functions,
        g_waiting_functions, g_termination_functions, g_current_request_functions, g_segment_functions,
        g_request_functions, g_request_detail_functions, g_request_table_functions, g_sampler_functions,
        g_listener_functions, g_child_call_functions})
    if (PyModule_AddFunctions(m, functions) != 0) throw py::error_already_set();
  if (!init_execution_context() || !init_stage_names() || !init_span_type(m) || !init_unnamed_span_type(m) ||
      !init_token_type(m) || !init_timed_functions(m) || !init_timed_iterators() || !init_waiting(m) ||
      !init_current_request() || !init_request_type(m) || !init_batch_type(m))
    throw py::error_already_set();
}

// If nothing can be recorded, one warning says why. False with an exception set if warnings are errors.
bool warn_without_arena() {
  if (Recorder::get().arena()) return true;
  return PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                          "stagespan records nothing in this process: the system refused the %d MiB of address space "
                          "that it needs at least; raise the limit (ulimit -v)",
                          static_cast<int>(((smallest_arena_bytes() + kLeftToTheProgramBytes) >> 20) + 1)) == 0;
}

bool require_main_interpreter() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return true;
  PyErr_SetString(PyExc_ImportError,
                  "stagespan works in the main interpreter only: import it there, not in a sub-interpreter");
  return false;
}

}  // namespace

}  // namespace stagespan::python

PYBIND11_MODULE(_core_of_main, module) {
#ifdef Py_GIL_DISABLED
  throw py::import_error("stagespan does not support free-threaded Python yet: use a build with the global lock");
#else
  namespace sp = stagespan::python;
  py::options options;
  options.disable_function_signatures();  // docstrings of public names contain their signatures
  stagespan::Recorder::get();
  if (!sp::warn_without_arena()) throw py::error_already_set();
  pthread_atfork(nullptr, nullptr, sp::completions_after_fork);
  sp::g_missing = PyObject_CallObject(reinterpret_cast<PyObject*>(&PyBaseObject_Type), nullptr);
  module.attr("MISSING") = py::handle(sp::g_missing);
  sp::define_hot_objects(module);
  sp::define_switches(module);
  sp::define_hooks(module);
  sp::define_constants(module);
  sp::define_statistics(module);
  sp::define_reading(module);
  sp::define_recording(module);
  sp::watch_thread_names();
  sp::listen_in_spans();
  sp::define_device(module);
  sp::define_trace_scanner(module);
  sp::define_trace_passes(module);
  sp::define_span_encoders(module);
  sp::define_torch_profile(module);
  module.def("c_api", [] {
    return py::reinterpret_steal<py::object>(
        PyCapsule_New(const_cast<stagespan::Api*>(&sp::api()), stagespan::kApiCapsule, nullptr));
  });
#endif
}

// Not pybind11's entry, because it waits forever in a sub-interpreter, or treats it as the main one. Since Python 3.13,
// the entry runs in the main interpreter, regardless of which interpreter imports: `stagespan/__init__.py` refuses
// there.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  return stagespan::python::require_main_interpreter() ? PyInit__core_of_main() : nullptr;
}
