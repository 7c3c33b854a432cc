// request_object.h: the base class of `request` and `Remote`: a request in this process.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string_view>

#include "object.h"
#include "stagespan/carrier.h"
#include "stagespan/layout.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

/// The keys of a carrier.
enum Key : std::size_t { kTraceParent, kTraceState, kOwnKey, kKeys };

/// A request, or one that another process has sent. Objects may be null, and all numbers 0, until it is initialised; in
/// code that torch.compile captures, it never is.
struct RequestObject {
  PyObject_HEAD std::uint64_t number;
  PyObject* id;
  PyObject* metadata;      // null until somebody asks for it (metadata_of)
  PyObject* pipeline;      // the name of its figures; null or None: that of the process's pipeline
  PyObject* texts[kKeys];  // what is passed on while nothing is recorded
  PyObject* state;         // the `tracestate` that it writes, of the segment `state_segment`; or null
  PyObject* entered;       // what `leave_request` takes; null while it is not open
  PyObject* outside;       // what `leave_context` takes while it is open; null if another tracer is not told of it
  TraceParent parent;      // the trace is 0 before it has one, and the hop if it has no parent
  std::uint64_t listed;    // its place among those that have ended; 0 before
  std::uint64_t segment;
  std::uint64_t state_segment;
  std::uint64_t sender;               // the segment in the `tracestate` that has brought it, 0 if there is none
  std::uint64_t begin_ticks;          // 0 if it is not recorded
  std::uint64_t since_ticks;          // when it was received, or else begun
  std::uint64_t request_ticks;        // when the request began, perhaps in another process; 0 if unknown
  std::int64_t request_monotonic_ns;  // the same on CLOCK_MONOTONIC; 0 until it is sent
  CountedRequest counted;
  std::uint32_t shown;       // 1 + index of its entry in the recording; 0 without one
  std::uint32_t generation;  // of the process that has entered it
  std::uint32_t traits;      // bits of SegmentTrait
  std::uint8_t status;       // as it was set
  bool has_given_id;
  bool is_new;     // it belongs to no request that is open around it
  bool is_nested;  // it began inside of another request, its parent
  bool follows;    // a part after the end of a request, which is its parent

  // Of one that was received:
  bool is_remote;
  bool is_started;         // its wait in the queue has ended
  bool begins_here;        // who sent it is unknown, so that replies come back to it
  bool is_entry;           // it comes from a client of the system
  bool has_foreign_queue;  // another process has chosen the name
  std::uint16_t attempt;
  std::uint32_t hop_shown;  // as `shown`, of the hop, which is its segment unless it has an owner
  std::uint64_t hop_number;
  RequestObject* owner;  // the request of this process that the hop has come back to
  PyObject* queue;
  PyObject* branch;

  // While it is open, it is in the tables of request_tables.h.
  bool is_root;
  RequestObject* next_of_number;
  RequestObject* next_of_trace;
};

/// A text of a request in UTF-8. Servers decode headers with lone surrogates, which have no UTF-8 encoding; they are
/// written as escapes.
class Utf8 {
 public:
  explicit Utf8(PyObject* text) noexcept {
    if (text == nullptr) return;
    Py_ssize_t size = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(text, &size);
    if (utf8 == nullptr) {
      PyErr_Clear();
      encoded_ = Ref(PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace"));
      if (!encoded_) return;
      utf8 = PyBytes_AS_STRING(encoded_.get());
      size = PyBytes_GET_SIZE(encoded_.get());
    }
    view_ = {utf8, static_cast<std::size_t>(size)};
  }
  explicit operator bool() const noexcept { return view_.data() != nullptr; }
  std::string_view view() const noexcept { return view_; }

 private:
  Ref encoded_;
  std::string_view view_;
};

extern PyTypeObject g_request_type;

inline bool is_request(PyObject* object) noexcept { return PyObject_TypeCheck(object, &g_request_type) != 0; }

/// The entry of a segment or hop in the recording, null if it has none.
inline SegmentEntry* entry_of(std::uint64_t number, std::uint32_t shown) noexcept {
  return shown != 0 ? Recorder::get().segment(number, shown - 1) : nullptr;
}

/// The name of the pipeline of a process, borrowed; null with an exception set.
PyObject* pipeline_of_process() noexcept;

/// Ends the wait of a received request in its queue, without making it current.
void start_request(RequestObject& self) noexcept;

extern PyMethodDef g_request_functions[];

/// False with an exception set if that fails.
bool init_request_type(PyObject* module);
bool init_batch_type(PyObject* module);

}  // namespace stagespan::python
