// segments.cpp: writes the segments of requests to the recording. The carriers and objects are Python's (requests.py).
#include "segments.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <string_view>

#include "execution_context.h"
#include "object.h"
#include "stage_names.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

// These functions attach the thread, but do not look for its scope (current_thread): they neither need the scope of the
// running code nor open spans in it.

// --- ids ------------------------------------------------------------------------------------------------

// Random bytes of the system, read in blocks. Guarded by the interpreter's lock. Not Python's `random`, which programs
// seed, so that two ranks would make the same ids.
struct {
  std::uint64_t numbers[64];
  std::size_t left = 0;
  std::uint32_t generation = 0;
} g_random;

std::uint64_t random_number() noexcept {
  const std::uint32_t generation = Recorder::get().generation();
  // A forked child must not use the rest of its parent's numbers.
  if (g_random.left == 0 || g_random.generation != generation) {
    g_random.generation = generation;
    std::size_t done = 0;
    auto* const bytes = reinterpret_cast<std::byte*>(g_random.numbers);
    while (done < sizeof(g_random.numbers)) {
      const ssize_t got = getrandom(bytes + done, sizeof(g_random.numbers) - done, 0);
      if (got > 0)
        done += static_cast<std::size_t>(got);
      else if (got < 0 && errno != EINTR)
        break;
    }
    if (done < sizeof(g_random.numbers)) {
      // Without the system's generator: ids that differ between processes and times.
      std::uint64_t seed = now_ticks() ^ (static_cast<std::uint64_t>(getpid()) << 32);
      for (std::uint64_t& number : g_random.numbers) {
        seed = (seed ^ now_ticks()) * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d;
        number = seed;
      }
    }
    g_random.left = std::size(g_random.numbers);
  }
  const std::uint64_t number = g_random.numbers[--g_random.left];
  return number != 0 ? number : 1;  // ids of zeroes are invalid
}

PyObject* random_id(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(random_number()); }

std::uint64_t clock_identity() noexcept {
  static std::uint64_t identity = 0;
  static std::uint32_t generation = ~std::uint32_t{0};
  // A child may be in another time namespace than its parent.
  if (const std::uint32_t now = Recorder::get().generation(); now != generation) {
    identity = identity_of_this_process().clock;
    generation = now;
  }
  return identity;
}

PyObject* segment_clock(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(clock_identity()); }

// --- segments -------------------------------------------------------------------------------------------

bool is_number(PyObject* object, std::uint64_t& to) noexcept {
  Ref converted;
  if (PyLong_Check(object) == 0) {  // an integer of NumPy, for example
    converted = Ref(PyNumber_Index(object));
    if (!converted) return false;
    object = converted.get();
  }
  to = PyLong_AsUnsignedLongLong(object);
  return to != ~std::uint64_t{0} || PyErr_Occurred() == nullptr;
}

/// A text of a request in UTF-8. Servers decode headers with lone surrogates, which have no UTF-8 encoding; they are
/// written as escapes.
class Utf8 {
 public:
  explicit Utf8(PyObject* text) noexcept {
    Py_ssize_t size = 0;
    const char* found = PyUnicode_AsUTF8AndSize(text, &size);
    if (found == nullptr) {
      PyErr_Clear();
      encoded_ = Ref(PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace"));
      if (!encoded_) return;
      found = PyBytes_AS_STRING(encoded_.get());
      size = PyBytes_GET_SIZE(encoded_.get());
    }
    view_ = {found, static_cast<std::size_t>(size)};
  }
  explicit operator bool() const noexcept { return view_.data() != nullptr; }
  std::string_view view() const noexcept { return view_; }

 private:
  Ref encoded_;
  std::string_view view_;
};

bool takes(Py_ssize_t count, Py_ssize_t wanted, const char* function) noexcept {
  if (count == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", function, wanted, count);
  return false;
}

// segment_begin(number, id, trace_high, trace_low, segment, parent_hop, trace_flags)
PyObject* segment_begin(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 7, "segment_begin")) return nullptr;
  std::uint64_t number = 0, flags = 0;
  SegmentStart start;
  const Utf8 id(args[1]);
  if (!id || !is_number(args[0], number) || !is_number(args[2], start.trace.high) ||
      !is_number(args[3], start.trace.low) || !is_number(args[4], start.segment) ||
      !is_number(args[5], start.parent_hop) || !is_number(args[6], flags))
    return nullptr;
  start.id = id.view();
  start.trace_flags = static_cast<std::uint32_t>(flags);
  start.begin_ticks = now_ticks();
  return PyLong_FromUnsignedLong(Recorder::get().begin_segment(number, start));
}

// segment_receive(number, id, trace_high, trace_low, segment, parent_hop, trace_flags, parent_segment, origin, attempt,
//                 branch, queue, sent_monotonic_ns, sent_unix_ns, sent_clock)
PyObject* segment_receive(PyObject*, PyObject* const* args, Py_ssize_t count) {
  const std::uint64_t received_ticks = now_ticks();
  const std::int64_t received_monotonic_ns = monotonic_ns();
  if (!takes(count, 15, "segment_receive")) return nullptr;
  std::uint64_t number = 0, flags = 0, origin = 0, attempt = 0, sent_monotonic_ns = 0, sent_unix_ns = 0;
  SegmentStart start;
  const Utf8 id(args[1]), branch(args[10]);
  if (!id || !branch || !is_number(args[0], number) || !is_number(args[2], start.trace.high) ||
      !is_number(args[3], start.trace.low) || !is_number(args[4], start.segment) ||
      !is_number(args[5], start.parent_hop) || !is_number(args[6], flags) ||
      !is_number(args[7], start.parent_segment) || !is_number(args[8], origin) || !is_number(args[9], attempt) ||
      !is_number(args[12], sent_monotonic_ns) || !is_number(args[13], sent_unix_ns) ||
      !is_number(args[14], start.sent_clock))
    return nullptr;
  start.id = id.view();
  start.branch = branch.view();
  start.trace_flags = static_cast<std::uint32_t>(flags);
  start.origin = static_cast<SegmentOrigin>(origin);
  start.attempt = static_cast<std::uint16_t>(attempt);
  start.queue_stage = stage_of_kind(args[11], kQueue);
  start.received_ticks = received_ticks;
  start.sent_monotonic_ns = static_cast<std::int64_t>(sent_monotonic_ns);
  start.sent_unix_ns = static_cast<std::int64_t>(sent_unix_ns);
  const bool is_same_clock = start.sent_clock != 0 && start.sent_clock == clock_identity();
  Recorder& recorder = Recorder::get();
  if (is_same_clock) {
    const double ns_per_tick = recorder.ns_per_tick();
    const double ns = static_cast<double>(received_monotonic_ns - start.sent_monotonic_ns);
    // Not clamped: a time in the future shows that the stamp is wrong.
    start.sent_ticks = received_ticks - static_cast<std::uint64_t>(rounded(ns / ns_per_tick));
  }
  const std::uint32_t index = recorder.begin_segment(number, start);
  // The hop is a span of this process, unless its begin is unknown or impossible.
  if (is_same_clock && start.sent_ticks != 0 && start.sent_ticks <= received_ticks && start.origin != kOriginRepeated)
    recorder.record_ticks(stage_of_kind(args[11], kHandOff), start.sent_ticks, received_ticks, number);
  return PyLong_FromUnsignedLong(index);
}

// segment_enter(number, index, queue): the wait from received to entered ends.
PyObject* segment_enter(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 3, "segment_enter")) return nullptr;
  std::uint64_t number = 0, index = 0;
  if (!is_number(args[0], number) || !is_number(args[1], index)) return nullptr;
  Recorder::get().enter_segment(number, static_cast<std::uint32_t>(index), stage_of_kind(args[2], kQueue));
  Py_RETURN_NONE;
}

// segment_end(number, index, status)
PyObject* segment_end(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 3, "segment_end")) return nullptr;
  std::uint64_t number = 0, index = 0, status = 0;
  if (!is_number(args[0], number) || !is_number(args[1], index) || !is_number(args[2], status)) return nullptr;
  Recorder::get().end_segment(number, static_cast<std::uint32_t>(index), static_cast<SegmentStatus>(status));
  Py_RETURN_NONE;
}

// segment_set_status(number, index, status)
PyObject* segment_set_status(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 3, "segment_set_status")) return nullptr;
  std::uint64_t number = 0, index = 0, status = 0;
  if (!is_number(args[0], number) || !is_number(args[1], index) || !is_number(args[2], status)) return nullptr;
  if (SegmentEntry* const entry = Recorder::get().segment(number, static_cast<std::uint32_t>(index)))
    entry->status.store(static_cast<std::uint8_t>(status), relaxed);
  Py_RETURN_NONE;
}

// segment_send(number, index) -> (monotonic_ns, unix_ns)
PyObject* segment_send(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 2, "segment_send")) return nullptr;
  std::uint64_t number = 0, index = 0;
  if (!is_number(args[0], number) || !is_number(args[1], index)) return nullptr;
  if (SegmentEntry* const entry = Recorder::get().segment(number, static_cast<std::uint32_t>(index)))
    entry->hops_sent.fetch_add(1, relaxed);
  return Py_BuildValue("LL", static_cast<long long>(monotonic_ns()), static_cast<long long>(realtime_ns()));
}

PyObject* innermost_stage(PyObject*, PyObject*) {
  ThreadState& thread = current_thread();
  const std::uint32_t stage = innermost(thread, *thread.scope).stage;
  publish(thread);  // a scope without open spans is removed again
  if (stage >= kMaxStages) Py_RETURN_NONE;
  return stage_name(stage);
}

// segment_now() -> ticks
PyObject* segment_now(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(mode_has(kModeEnabled) ? now_ticks() : 0);
}

// segment_wait(number, queue, begin_ticks): records a wait that ends now.
PyObject* segment_wait(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 3, "segment_wait")) return nullptr;
  std::uint64_t number = 0, begin_ticks = 0;
  if (!is_number(args[0], number) || !is_number(args[2], begin_ticks)) return nullptr;
  const std::uint64_t now = now_ticks();
  if (begin_ticks != 0 && begin_ticks <= now && mode_has(kModeEnabled))
    Recorder::get().record_ticks(stage_of_kind(args[1], kQueue), begin_ticks, now, number);
  Py_RETURN_NONE;
}

// segment_chunk(number, index, name, amount)
PyObject* segment_chunk(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 4, "segment_chunk")) return nullptr;
  std::uint64_t number = 0, index = 0, amount = 0;
  if (!is_number(args[0], number) || !is_number(args[1], index) || !is_number(args[3], amount)) return nullptr;
  Recorder& recorder = Recorder::get();
  if (SegmentEntry* const entry = recorder.segment(number, static_cast<std::uint32_t>(index)))
    recorder.add_chunk(*entry, amount, stage_of_kind(args[2], kFirstChunk), stage_of_kind(args[2], kBetweenChunks),
                       stage_of_kind(args[2], kPerToken));
  Py_RETURN_NONE;
}

// segment_link(numbers): links the innermost open span.
PyObject* segment_link(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!takes(count, 1, "segment_link")) return nullptr;
  if (!mode_has(kModeEnabled)) Py_RETURN_NONE;
  ThreadState& thread = current_thread();
  const std::uint64_t span = innermost(thread, *thread.scope).id;
  publish(thread);  // a scope without open spans is removed again
  const Ref numbers(PySequence_Fast(args[0], "segment_link() takes a list of numbers"));
  if (!numbers) return nullptr;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(numbers.get());
  const std::unique_ptr<std::uint64_t[]> copied(new (std::nothrow) std::uint64_t[static_cast<std::size_t>(size) + 1]);
  if (!copied) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < size; ++i)
    if (!is_number(PySequence_Fast_GET_ITEM(numbers.get(), i), copied[static_cast<std::size_t>(i)])) return nullptr;
  if (span != 0) Recorder::get().add_links(span, copied.get(), static_cast<std::uint32_t>(size));
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef g_segment_functions[] = {
    {"segment_random_id", random_id, METH_NOARGS, nullptr},
    {"segment_clock", segment_clock, METH_NOARGS, nullptr},
    {"segment_begin", as_method(segment_begin), METH_FASTCALL, nullptr},
    {"segment_receive", as_method(segment_receive), METH_FASTCALL, nullptr},
    {"segment_enter", as_method(segment_enter), METH_FASTCALL, nullptr},
    {"segment_end", as_method(segment_end), METH_FASTCALL, nullptr},
    {"segment_set_status", as_method(segment_set_status), METH_FASTCALL, nullptr},
    {"segment_send", as_method(segment_send), METH_FASTCALL, nullptr},
    {"innermost_stage", innermost_stage, METH_NOARGS, nullptr},
    {"segment_now", segment_now, METH_NOARGS, nullptr},
    {"segment_wait", as_method(segment_wait), METH_FASTCALL, nullptr},
    {"segment_chunk", as_method(segment_chunk), METH_FASTCALL, nullptr},
    {"segment_link", as_method(segment_link), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
