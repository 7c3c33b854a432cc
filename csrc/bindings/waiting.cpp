// waiting.cpp: reads the rings and sleeps while other threads run Python code.
#include "waiting.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <vector>

#include "completions.h"
#include "device/layer.h"
#include "docstrings.h"
#include "object.h"
#include "rows.h"
#include "stagespan/reader.h"
#include "stagespan/recorder.h"
#include "stagespan/span_row.h"

namespace stagespan::python {

namespace {

// A daemon thread may be ended when it takes the lock again or imports numpy. No code that is compiled with exceptions,
// such as pybind11, may be on the stack then.

/// Calls a function without the interpreter's lock.
template <class Function>
auto without_lock(Function function) noexcept {
  const Unlocked unlocked;
  return function();
}

double known(std::int64_t ns) noexcept {
  return ns == kUnknownNs ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(ns);
}

/// A fit with the interface of a PublishedClock, for spans whose times have not been returned yet.
struct FittedClock {
  const ClockFit& fit;

  std::int64_t unix_ns(std::uint64_t ticks) const noexcept { return fit.unix_ns(ticks); }
  std::int64_t end_ns(std::uint64_t begin, std::uint64_t end) const noexcept {
    return std::max(fit.unix_ns(begin), fit.unix_ns(end));
  }
  std::int64_t duration_ns(std::uint64_t count, std::uint64_t) const noexcept {
    return static_cast<std::int64_t>(fit.duration_ns(static_cast<double>(count)));
  }
};

// A time that is longer than the span cannot be true. The two clocks may differ a little.
double cpu_ns_in(std::int64_t cpu_ns, std::int64_t duration_ns) noexcept {
  const std::int64_t most_ns = duration_ns + duration_ns / 100 + 1'000'000;
  return known(cpu_ns <= most_ns ? cpu_ns : kUnknownNs);
}

template <class Clock>
PyObject* rows_by(const std::vector<SpanCopy>& copies, const DeviceCopies& devices, const Clock& clock) {
  const Ref rows(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(copies.size() * sizeof(SpanRow))));
  if (!rows) return nullptr;
  auto* row = reinterpret_cast<SpanRow*>(PyByteArray_AS_STRING(rows.get()));
  for (const SpanCopy& copy : copies) {
    DeviceFields device;
    if (const auto found = devices.find(copy.id); found != devices.end()) device = found->second;
    const std::int64_t begin = clock.unix_ns(copy.begin_ticks);
    const std::int64_t end = clock.end_ns(copy.begin_ticks, copy.end_ticks);
    *row++ = {copy.stage,
              copy.thread,
              begin,
              end,
              copy.id,
              copy.parent,
              copy.request,
              std::min(clock.duration_ns(copy.suspended_ticks, copy.begin_ticks), end - begin),
              copy.depth,
              copy.flags,
              known(device.elapsed_ns),
              known(device.queue_ns),
              known(device.tail_ns),
              cpu_ns_in(copy.cpu_ns, end - begin)};
  }
  return span_row_type().array(rows.get(), copies.size());
}

PyObject* rows_of(const std::vector<SpanCopy>& copies, const DeviceCopies& devices) {
  return rows_by(copies, devices, Recorder::get().published_clock());
}

// --- reading each span once -----------------------------------------------------------------------------

struct CursorObject {
  PyObject_HEAD ReadPositions* positions;
  std::uint64_t reads;  // the number of finished reads, so that a concurrent reader sees that another was first
  std::uint64_t generation;
};

PyTypeObject g_cursor_type = static_type("stagespan.SpanCursor", sizeof(CursorObject), 0);

CursorObject* cursor_of(PyObject* object) { return reinterpret_cast<CursorObject*>(object); }

PyObject* cursor_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"from_now", nullptr};
  int from_now = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "|$p:SpanCursor", const_cast<char**>(names), &from_now) == 0)
    return nullptr;
  auto* const self = cursor_of(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->positions = new ReadPositions;
  if (from_now != 0) *self->positions = positions_of_newest(Recorder::get().arena());
  self->generation = Recorder::get().generation();
  return reinterpret_cast<PyObject*>(self);
}

void cursor_dealloc(PyObject* object) {
  delete cursor_of(object)->positions;
  Py_TYPE(object)->tp_free(object);
}

PyObject* cursor_overwritten(PyObject* object, void*) {
  return PyLong_FromUnsignedLongLong(cursor_of(object)->positions->overwritten);
}

PyGetSetDef g_cursor_getset[] = {
    {"overwritten", cursor_overwritten, nullptr, docs::kSpanCursorOverwritten, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyObject* spans_since(CursorObject& cursor) {
  // The interpreter's lock is not held while the rings are read. If another thread has used the same cursor in the
  // meantime, this thread reads again from the other one's end.
  for (;;) {
    if (cursor.generation != Recorder::get().generation()) {
      // A forked child's recording is a new one.
      *cursor.positions = ReadPositions{};
      cursor.generation = Recorder::get().generation();
    }
    const std::uint64_t reads = cursor.reads;
    ReadPositions positions = *cursor.positions;
    std::vector<SpanCopy> copies;
    DeviceCopies devices;
    const auto read = [&] { return try_read_spans(Recorder::get().arena(), &positions, copies, devices); };
    if (Recorder::get().arena() && !without_lock(read)) return PyErr_NoMemory();
    Ref rows(rows_of(copies, devices));
    if (!rows) return nullptr;
    if (cursor.reads != reads || cursor.generation != Recorder::get().generation()) continue;
    ++cursor.reads;
    *cursor.positions = std::move(positions);
    return rows.release();
  }
}

PyObject* spans(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"since", nullptr};
  PyObject* since = Py_None;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "|$O:spans", const_cast<char**>(names), &since) == 0) return nullptr;
  if (Py_TYPE(since) == &g_cursor_type) {
    const Ref cursor(Py_NewRef(since));
    return spans_since(*cursor_of(cursor.get()));
  }
  if (since != Py_None)
    return PyErr_Format(
        PyExc_TypeError,
        "spans(since=...) takes a SpanCursor(), not %R: because spans do not end in the order in which they begin, an "
        "id or a time cannot say which spans have been read",
        since);
  std::vector<SpanCopy> copies;
  DeviceCopies devices;
  const auto read = [&] { return try_read_spans(Recorder::get().arena(), nullptr, copies, devices); };
  if (Recorder::get().arena() && !without_lock(read)) return PyErr_NoMemory();
  return rows_of(copies, devices);
}

PyObject* wait_for_work(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"timeout_s", nullptr};
  double timeout_s = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "d:wait_for_work", const_cast<char**>(names), &timeout_s) == 0)
    return nullptr;
  return PyBool_FromLong(without_lock([&] { return wait_for_completions(timeout_s); }) ? 1 : 0);
}

PyObject* resolve_device(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* const names[] = {"timeout_s", nullptr};
  double timeout_s = 0;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "|d:resolve_device", const_cast<char**>(names), &timeout_s) == 0)
    return nullptr;
  const std::uint32_t left = without_lock([&] { return device::resolve(timeout_s); });
  wake_for_results();
  return PyLong_FromUnsignedLong(left);
}

}  // namespace

PyObject* span_rows(const std::vector<SpanCopy>& copies, const DeviceCopies& devices, const ClockFit& fit) {
  return rows_by(copies, devices, FittedClock{fit});
}

bool init_waiting(PyObject* module) {
  g_cursor_type.tp_doc = docs::kSpanCursorType;
  g_cursor_type.tp_new = cursor_new;
  g_cursor_type.tp_dealloc = cursor_dealloc;
  g_cursor_type.tp_getset = g_cursor_getset;
  return PyModule_AddType(module, &g_cursor_type) == 0;
}

PyMethodDef g_waiting_functions[] = {
    {"spans", as_method(spans), METH_VARARGS | METH_KEYWORDS, "spans(*, since=None)\n--\n\n"},
    {"service_wait", as_method(wait_for_work), METH_VARARGS | METH_KEYWORDS, nullptr},
    {"device_resolve", as_method(resolve_device), METH_VARARGS | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
