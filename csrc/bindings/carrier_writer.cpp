// carrier_writer.cpp: writes requests to carriers.
#include "carrier_writer.h"

#include <atomic>
#include <cstring>
#include <string_view>

#include "carrier_texts.h"
#include "segments.h"
#include "stage_names.h"
#include "stagespan/carrier.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

namespace {

bool is_text_or_none(PyObject* value, const char* name) noexcept {
  if (value == Py_None || PyUnicode_Check(value) != 0) return true;
  PyErr_Format(PyExc_TypeError, "%s is %R: pass a text, or None for the default", name, value);
  return false;
}

bool is_attempt(InjectArguments& arguments) noexcept {
  PyObject* const given = arguments.attempt;
  if (given == nullptr) return true;
  const Ref number(PyNumber_Index(given));
  if (!number) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) return false;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "attempt is %R: pass a number from 1 to 65,535", given);
    return false;
  }
  int overflow = 0;
  const long attempt = PyLong_AsLongAndOverflow(number.get(), &overflow);
  if (overflow == 0 && attempt >= 1 && attempt <= static_cast<long>(kMostAttempt)) {
    arguments.attempt_number = static_cast<std::uint32_t>(attempt);
    return true;
  }
  PyErr_Format(PyExc_ValueError, "attempt is %R: pass a number from 1 to 65,535", given);
  return false;
}

bool set_text(PyObject* carrier, Key key, PyObject* text) noexcept {
  if (PyDict_CheckExact(carrier)) return PyDict_SetItem(carrier, name_of_key(key), text) == 0;
  return PyObject_SetItem(carrier, name_of_key(key), text) == 0;
}

bool set_text(PyObject* carrier, Key key, const char* text, std::size_t size_bytes) noexcept {
  const Ref made(PyUnicode_New(static_cast<Py_ssize_t>(size_bytes), 127));
  if (!made) return false;
  std::memcpy(PyUnicode_1BYTE_DATA(made.get()), text, size_bytes);
  return set_text(carrier, key, made.get());
}

/// Makes the `tracestate` that it writes, unless it has that of its segment. False with an exception set if that fails.
bool make_state(RequestObject& self) noexcept {
  if (self.state != nullptr && self.state_segment == self.segment) return true;
  char text[kMostWrittenBytes];
  const std::string_view others = view_of(self.texts[kTraceState], kMostWrittenBytes);
  const std::size_t size_bytes = write_tracestate(self.segment, others, text);
  const Ref made(PyUnicode_DecodeASCII(text, static_cast<Py_ssize_t>(size_bytes), nullptr));
  if (!made) return false;
  keep(self.state, made.get());
  self.state_segment = self.segment;
  return true;
}

/// The hop that was written to a carrier before, if it is the same message: from this segment, to the same queue, in
/// the same attempt and branch. 0 if there is none.
std::uint64_t earlier_hop(const RequestObject& self, PyObject* carrier, const SentHop& hop) noexcept {
  if (!PyDict_CheckExact(carrier) || PyDict_GET_SIZE(carrier) == 0) return 0;
  const std::string_view sent_before = view_of(PyDict_GetItem(carrier, name_of_key(kOwnKey)), kMostCarrierBytes);
  const std::string_view above = view_of(PyDict_GetItem(carrier, name_of_key(kTraceParent)), kMostCarrierBytes);
  TraceParent parent;
  SentHop before;
  const bool is_same = read_traceparent(above, parent) && read_sent_hop(sent_before, before) &&
                       before.segment == self.segment && before.queue == hop.queue && before.branch == hop.branch &&
                       before.attempt == hop.attempt;
  return is_same ? parent.hop : 0;
}

}  // namespace

bool parse_inject(PyObject* const* args, Py_ssize_t count, PyObject* kwnames, InjectArguments& to) noexcept {
  if (count > 1) {
    PyErr_Format(PyExc_TypeError, "inject() takes one carrier, but %zd arguments without a name were given", count);
    return false;
  }
  if (count == 1) to.carrier = args[0];
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject* const name = PyTuple_GET_ITEM(kwnames, i);
    PyObject* const value = args[count + i];
    if (PyUnicode_CompareWithASCIIString(name, "queue") == 0) {
      to.queue = value;
    } else if (PyUnicode_CompareWithASCIIString(name, "attempt") == 0) {
      to.attempt = value;
    } else if (PyUnicode_CompareWithASCIIString(name, "branch") == 0) {
      to.branch = value;
    } else if (PyUnicode_CompareWithASCIIString(name, "carrier") == 0 && count == 0) {
      to.carrier = value;
    } else {
      PyErr_Format(PyExc_TypeError, "inject() takes carrier, queue, attempt and branch, not another argument %R", name);
      return false;
    }
  }
  if (to.carrier != Py_None && PyDict_Check(to.carrier) == 0 && PyObject_HasAttrString(to.carrier, "keys") == 0) {
    PyErr_Format(PyExc_TypeError, "the carrier is of type '%s': pass a dict that inject() can write to, or None",
                 Py_TYPE(to.carrier)->tp_name);
    return false;
  }
  return is_text_or_none(to.queue, "queue") && is_text_or_none(to.branch, "branch") && is_attempt(to);
}

bool write_carrier(RequestObject& self, PyObject* carrier, const InjectArguments& arguments) noexcept {
  const Utf8 id(self.id);
  const Utf8 queue(arguments.queue != Py_None ? arguments.queue : nullptr);
  const Utf8 branch(arguments.branch != Py_None ? arguments.branch : nullptr);
  if (!id || PyErr_Occurred() != nullptr) return false;
  SentHop hop;
  hop.id = id.view();
  hop.queue = queue.view();
  hop.branch = branch.view();
  hop.attempt = arguments.attempt_number;
  hop.clock = clock_identity();
  hop.segment = self.segment;
  char parent[kTraceParentBytes];
  char own_text[kMostCarrierBytes];
  const std::uint64_t id_of_hop = random_number();
  write_traceparent({self.parent.trace, id_of_hop, self.parent.flags}, parent);
  const std::uint64_t sent_ticks = now_ticks();
  hop.monotonic_ns = monotonic_ns();
  hop.unix_ns = realtime_ns();
  if (SegmentEntry* const entry = entry_of(self.number, self.shown)) {
    // The receiver names the queue if the sender does not: probably in the same way.
    PyObject* const name = arguments.queue != Py_None ? arguments.queue : pipeline_of_process();
    if (name == nullptr) return false;
    const std::uint32_t stage = stage_of_kind(name, kQueue, Chooser::kOtherProcess);
    if (Recorder::get().add_sent({id_of_hop, self.number, sent_ticks, 0, stage}, earlier_hop(self, carrier, hop)))
      entry->hops_sent.fetch_add(1, std::memory_order_relaxed);
  }
  if (self.request_ticks != 0) {
    if (self.request_monotonic_ns == 0) {
      const double ticks = static_cast<double>(ticks_between(self.request_ticks, sent_ticks));
      self.request_monotonic_ns = hop.monotonic_ns - rounded(ticks * Recorder::get().ns_per_tick());
    }
    hop.age_ns = hop.monotonic_ns - self.request_monotonic_ns;
  }
  const std::size_t own_bytes = write_sent_hop(hop, own_text);
  return set_text(carrier, kTraceParent, parent, sizeof(parent)) && make_state(self) &&
         set_text(carrier, kTraceState, self.state) && set_text(carrier, kOwnKey, own_text, own_bytes);
}

bool forward_carrier(const RequestObject& self, PyObject* carrier) noexcept {
  for (std::size_t key = 0; key < kKeys; ++key)
    if (self.texts[key] != nullptr && !set_text(carrier, static_cast<Key>(key), self.texts[key])) return false;
  return true;
}

}  // namespace stagespan::python
