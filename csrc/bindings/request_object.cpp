// request_object.cpp: begins, receives, sends and ends requests, and writes their segments to the recording.
#include "request_object.h"

#include <structmember.h>

#include <cstddef>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "carrier_texts.h"
#include "carrier_writer.h"
#include "context_method.h"
#include "context_variables.h"
#include "current_request.h"
#include "docstrings.h"
#include "execution_context.h"
#include "object.h"
#include "ready_object.h"
#include "request_details.h"
#include "request_tables.h"
#include "segments.h"
#include "stage_names.h"
#include "stagespan/recorder.h"
#include "stagespan/text.h"
#include "timed_run.h"

namespace stagespan::python {

namespace {

// Except where current_thread is called, the thread is only attached (this_thread): these functions neither need the
// scope of the running code nor open spans in it.

constexpr auto relaxed = std::memory_order_relaxed;
std::uint64_t g_last_number = 0;

// Functions of Python, and what they have returned.
PyObject* g_find_parent = nullptr;    // () -> (trace_high, trace_low, hop, flags) of OpenTelemetry's span, or None
PyObject* g_find_hash = nullptr;      // () -> a function from an id to what files show, or None if they show the id
PyObject* g_find_pipeline = nullptr;  // () -> the name of the process's pipeline
PyObject* g_is_captured = nullptr;    // () -> whether torch.compile or torch.export runs this code to capture it
PyObject* g_enter_context = nullptr;  // takes a request that was entered, and tells another tracer of it; or null
PyObject* g_leave_context = nullptr;  // takes a request that is left, and what the former has returned
PyObject* g_when_ended = nullptr;     // is called once, when the next request has ended; or null
PyObject* g_hash = nullptr;
PyObject* g_pipeline = nullptr;

RequestObject* self_of(PyObject* object) { return reinterpret_cast<RequestObject*>(object); }

bool has_trace(const RequestObject& self) noexcept { return (self.parent.trace.high | self.parent.trace.low) != 0; }

/// Calls the function unless it has been called.
PyObject* found_once(PyObject*& place, PyObject* function) noexcept {
  if (place == nullptr) {
    PyObject* const result = PyObject_CallNoArgs(function);
    if (place == nullptr)
      place = result;
    else  // by another thread meanwhile
      Py_XDECREF(result);
  }
  return place;
}

/// The name of its own pipeline, or else that of the process's, in the same way.
PyObject* pipeline_of(const RequestObject& self) noexcept {
  return self.pipeline != nullptr && self.pipeline != Py_None ? self.pipeline : pipeline_of_process();
}

/// The stage of its pipeline, of kind kRequestOk; kNoStage with an exception set.
std::uint32_t pipeline_stage(const RequestObject& self) noexcept {
  PyObject* const name = pipeline_of(self);
  return name != nullptr ? stage_of_kind(name, kRequestOk) : kNoStage;
}

/// What files show of an id; empty with an exception set.
Ref shown_id(PyObject* id) noexcept {
  PyObject* const hash = found_once(g_hash, g_find_hash);
  if (hash == nullptr) return Ref();
  return Ref(hash == Py_None ? Py_NewRef(id) : PyObject_CallOneArg(hash, id));
}

/// The stage of its queue, or of another kind with this name.
std::uint32_t queue_stage(const RequestObject& self, StageKind kind) noexcept {
  return stage_of_kind(self.queue, kind, self.has_foreign_queue ? Chooser::kOtherProcess : Chooser::kThisProcess);
}

/// The request object of the calling code, or None.
Ref current_object() noexcept;

// --- begin and end --------------------------------------------------------------------------------------

/// Gives it a number and an id. `metadata` may be null for none. False with an exception set if that fails.
bool initialise(RequestObject& self, PyObject* given_id, PyObject* metadata) noexcept {
  const int is_given = given_id != nullptr ? PyObject_IsTrue(given_id) : 0;
  if (is_given < 0) return false;
  self.number = ++g_last_number;
  self.attempt = 1;
  self.has_given_id = is_given != 0;
  const Ref id(self.has_given_id ? PyObject_Str(given_id)
                                 : PyUnicode_FromFormat("req_%llu", static_cast<unsigned long long>(self.number)));
  if (!id) return false;
  keep(self.id, id.get());
  keep(self.metadata, metadata);
  self.listed = 0;
  self.parent = {};
  return true;
}

bool is_open(RequestObject& self) noexcept {
  if (self.entered == nullptr) return false;
  PyErr_Format(PyExc_RuntimeError, "the request %R is already open: create a new one for each unit of work.", self.id);
  return true;
}

/// Takes the trace of OpenTelemetry's current span, if the program uses it, or makes a new one.
bool join_trace(RequestObject& self) noexcept {
  static PyObject* const name = PyUnicode_InternFromString("opentelemetry.trace");
  self.parent = {};
  if (g_find_parent != nullptr && name != nullptr && PyDict_GetItem(PyImport_GetModuleDict(), name) != nullptr) {
    const Ref parent(PyObject_CallNoArgs(g_find_parent));
    if (!parent) return false;
    unsigned long long high = 0, low = 0, hop = 0;
    if (parent.get() != Py_None) {
      if (PyArg_ParseTuple(parent.get(), "KKKI", &high, &low, &hop, &self.parent.flags) == 0) return false;
      self.parent.trace = {high, low};
      self.parent.hop = hop;
      return true;
    }
  }
  self.parent.trace = {random_number(), random_number()};
  return true;
}

/// Writes its segment or hop to the recording. Returns 1 + index of the entry; 0 with an exception set if that fails.
std::uint32_t write_entry(const RequestObject& self, SegmentFields& start) noexcept {
  const Ref shown = shown_id(self.id);
  if (!shown) return 0;
  const Utf8 id(shown.get());
  if (!id) return 0;
  start.pipeline = pipeline_stage(self);
  if (start.pipeline == kNoStage) return 0;
  start.traits = self.traits;
  // Last, so that what is done once for each process or thread is not part of the request.
  const bool begins = start.origin == kOriginRoot || start.origin == kOriginNested;
  if (begins && start.begin_ticks == 0) start.begin_ticks = start.request_ticks = now_ticks();
  set_text(start.id, id.view());
  start.trace_high = self.parent.trace.high;
  start.trace_low = self.parent.trace.low;
  start.segment = self.segment;
  start.parent_hop = self.parent.hop;
  start.trace_flags = self.parent.flags;
  return Recorder::get().begin_segment(self.number, start) + 1;
}

/// Makes it a child of the request that is open around it. If that one has ended, as in a task that goes on after it,
/// it is only linked. Returns the number of that one, or 0.
std::uint64_t join_outer(RequestObject& self) noexcept {
  if (self.is_nested) self.parent = {};  // it was entered before
  self.is_nested = false;
  if (self.is_new || has_trace(self)) return 0;
  const Ref current = current_object();
  if (current.get() == Py_None) return 0;
  const RequestObject& outer = *self_of(current.get());
  if (outer.begin_ticks == 0 || outer.generation != Recorder::get().generation() || !has_trace(outer)) return 0;
  if (outer.entered == nullptr || outer.follows) return outer.number;
  self.is_nested = true;
  self.parent = {outer.parent.trace, outer.segment, outer.parent.flags};
  return outer.number;
}

bool begin_root(RequestObject& self) noexcept {
  self.status = kStatusOpen;
  const std::uint64_t linked = join_outer(self);
  if (!has_trace(self) && !join_trace(self)) return false;
  self.segment = random_number();
  Recorder::get().this_thread();  // makes the recording, which takes a millisecond
  SegmentFields start;
  start.linked = linked;
  if (self.is_nested) {
    start.origin = kOriginNested;
    start.parent_segment = self.parent.hop;
  }
  self.shown = write_entry(self, start);
  self.begin_ticks = self.since_ticks = self.request_ticks = start.begin_ticks;
  self.request_monotonic_ns = 0;
  self.is_root = true;
  return self.shown != 0;
}

/// Writes the segment of a part after the end of a request. Most have nothing to show, and are never written.
bool show_following(RequestObject& self) noexcept {
  if (self.shown != 0 || self.begin_ticks == 0) return true;
  SegmentFields start;
  start.begin_ticks = self.begin_ticks;
  start.request_ticks = self.request_ticks;
  start.parent_segment = self.parent.hop;
  self.shown = write_entry(self, start);
  return self.shown != 0;
}

/// When a request was received, and a reading of both clocks.
struct Arrival {
  std::uint64_t received_ticks = now_ticks();
  std::uint64_t ticks = received_ticks;
  std::int64_t monotonic_ns = stagespan::monotonic_ns();

  Arrival() noexcept {
    // If the thread was paused between the two readings, they do not belong together.
    constexpr std::uint64_t kLongestReading_ticks = 10'000;
    constexpr int kMostReadings = 4;
    for (int i = 1; i < kMostReadings && now_ticks() - ticks > kLongestReading_ticks; ++i) {
      ticks = now_ticks();
      monotonic_ns = stagespan::monotonic_ns();
    }
  }
};

/// When a request that was received began, on this process's clock; 0 if unknown.
std::uint64_t request_ticks_of(const RequestObject& self, const SentHop* sent, const SegmentFields& start,
                               const Arrival& arrival) noexcept {
  if (self.owner != nullptr) return self.owner->request_ticks;
  if (sent == nullptr) return self.is_entry ? arrival.received_ticks : 0;
  // A time in the future, or before the clock began, shows that the sender's figures are wrong.
  const bool is_possible = start.sent_ticks != 0 && start.sent_ticks <= arrival.received_ticks && sent->age_ns >= 0 &&
                           sent->age_ns <= sent->monotonic_ns;
  if (!is_possible) return 0;
  const double ticks = static_cast<double>(sent->age_ns) / Recorder::get().ns_per_tick();
  return ticks < static_cast<double>(start.sent_ticks) ? start.sent_ticks - static_cast<std::uint64_t>(rounded(ticks))
                                                       : 0;
}

/// Writes that a request was received. `sent` is null if that is not known.
bool write_received(RequestObject& self, const SentHop* sent, const Arrival& arrival) noexcept {
  const Utf8 branch(self.branch != Py_None ? self.branch : nullptr);
  SegmentFields start;
  start.origin = self.owner == nullptr ? kOriginRemote : kOriginReturn;
  if (!has_trace(self) && !join_trace(self)) return false;
  // Our own key names one message. A foreign `traceparent` may be the parent of any number of calls.
  if (!self.begins_here && self.parent.hop != 0 && is_repeated_hop(self.parent.hop)) start.origin = kOriginRepeated;
  self.segment = self.owner == nullptr ? random_number() : self.owner->segment;
  set_text(start.branch, branch.view());
  start.attempt = self.attempt;
  start.queue_stage = queue_stage(self, kQueue);
  start.received_ticks = arrival.received_ticks;
  Recorder& recorder = Recorder::get();
  start.parent_segment = self.sender;
  if (sent != nullptr) {
    start.parent_segment = sent->segment;
    start.sent_monotonic_ns = sent->monotonic_ns;
    start.sent_unix_ns = sent->unix_ns;
    start.sent_clock = sent->clock;
  }
  const bool is_same_clock = start.sent_clock != 0 && start.sent_clock == clock_identity();
  if (is_same_clock) {
    const double ns = static_cast<double>(arrival.monotonic_ns - start.sent_monotonic_ns);
    // Not clamped: a time in the future shows that the stamp is wrong.
    start.sent_ticks = arrival.ticks - static_cast<std::uint64_t>(rounded(ns / recorder.ns_per_tick()));
  }
  if (ThreadState* const thread = t_state) {
    start.work_ticks = takes_turns(*thread) ? recorder.last_work_in_turns(*thread, self.number)
                                            : recorder.last_work(*thread, self.number, start.sent_ticks);
  }
  self.request_ticks = request_ticks_of(self, sent, start, arrival);
  self.request_monotonic_ns = 0;
  start.request_ticks = self.request_ticks;
  const std::uint32_t entry = write_entry(self, start);
  if (entry == 0) return false;
  self.since_ticks = arrival.received_ticks;
  self.hop_number = self.number;
  self.hop_shown = entry;
  self.shown = self.owner == nullptr ? entry : self.owner->shown;
  // The hop is a span of this process, unless its start is unknown or impossible.
  if (is_same_clock && start.sent_ticks != 0 && start.sent_ticks <= arrival.received_ticks &&
      start.origin != kOriginRepeated) {
    const bool is_behind = was_behind_others(start.sent_ticks, start.work_ticks, arrival.received_ticks);
    recorder.record_ticks(queue_stage(self, kHandOff), is_behind ? start.work_ticks : start.sent_ticks,
                          arrival.received_ticks, self.number);
  }
  return true;
}

/// Ends the wait in the queue.
bool enter_received(RequestObject& self) noexcept {
  // The recorder was off when it was received.
  if (self.hop_shown == 0 && !write_received(self, nullptr, Arrival())) return false;
  self.is_started = true;
  Recorder::get().enter_segment(self.hop_number, self.hop_shown - 1, queue_stage(self, kQueue));
  return true;
}

std::uint64_t end_received(RequestObject& self, SegmentStatus status) noexcept {
  const std::uint32_t stage = status != kStatusUnused ? queue_stage(self, kRemote) : kNoStage;
  return Recorder::get().end_segment(self.hop_number, self.hop_shown - 1, status, stage);
}

/// Counts a request that began in this process; again if it was counted with another status or duration. False with an
/// exception set if the name of its pipeline cannot be found.
bool count(RequestObject& self, SegmentStatus status, std::uint64_t ticks) noexcept {
  const bool begins_here = !self.is_remote || (self.begins_here && self.sender == 0);
  const bool is_counted = begins_here && !self.follows && !self.is_nested && self.owner == nullptr;
  // In a forked child, the requests of the parent do not go on.
  if (!is_counted || self.generation != Recorder::get().generation()) return true;
  const std::uint32_t pipeline = pipeline_stage(self);
  if (pipeline == kNoStage) return false;
  Recorder::get().count_request(self.counted, pipeline, status, ticks);
  return true;
}

/// Counts the amounts of its spans and chunks when it ends; those of one inside of another request are that one's.
/// False with an exception set if the name of its pipeline cannot be found.
bool count_work(const RequestObject& self) noexcept {
  Recorder& recorder = Recorder::get();
  if (self.generation != recorder.generation()) return true;
  const SegmentEntry* const entry = entry_of(self.number, self.shown);
  if (self.is_nested) {
    if (entry != nullptr) recorder.pass_request_work(self.number, entry->linked.load(relaxed));
    return true;
  }
  const bool is_again = self.counted.stage != 0;  // its chunks were counted before
  const std::uint64_t tokens = entry != nullptr && !is_again ? entry->chunk_amount.load(relaxed) : 0;
  if (tokens == 0 && !recorder.has_request_work(self.number)) return true;
  const std::uint32_t pipeline = pipeline_stage(self);
  if (pipeline == kNoStage) return false;
  recorder.count_request_work(self.number, pipeline, tokens);
  return true;
}

/// Whether torch.compile or torch.export runs this code to capture it. Negative with an exception set if that fails.
int is_captured() noexcept {
  static PyObject* const name = PyUnicode_InternFromString("torch._dynamo");
  if (name == nullptr || PyDict_GetItem(PyImport_GetModuleDict(), name) == nullptr || g_is_captured == nullptr)
    return 0;
  const Ref answer(PyObject_CallNoArgs(g_is_captured));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

bool enter(PyObject* object) noexcept {
  RequestObject& self = *self_of(object);
  if (const int captured = is_captured(); captured != 0) return captured > 0;
  if (is_open(self)) return false;
  if (self.number == 0 && !initialise(self, nullptr, nullptr)) return false;  // made while compiled code was captured
  self.begin_ticks = 0;
  if (mode_has(kModeEnabled)) {
    if (self.follows) {
      self.status = kStatusOpen;
      self.segment = random_number();
      if (self.parent.hop != 0) self.begin_ticks = now_ticks();
    } else if (self.is_remote ? !enter_received(self) : !begin_root(self)) {
      return false;
    }
    if (self.is_remote) {
      self.begin_ticks = now_ticks();
      self.is_root = self.begins_here;
    }
  }
  Ref entered = enter_request(self.number, object);
  if (!entered) return false;
  self.entered = entered.release();
  remember_begun(self);
  add_open(self);
  write_recorded_fields(self);
  if (g_enter_context != nullptr && self.shown != 0) {
    Ref outside(PyObject_CallOneArg(g_enter_context, object));
    if (!outside) lose_hook_error();
    self.outside = outside.release();
    raise_kept();
  }
  return true;
}

/// What an attribute of a module is, if the module has been imported.
Ref imported(const char* module, const char* name) noexcept {
  PyObject* const found = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  return attribute(found, name);
}

/// The status of a request that an exception of this type has left; None is no exception.
SegmentStatus status_of(PyObject* kind) noexcept {
  if (kind == Py_None) return kStatusOk;
  const auto is_of = [kind](PyObject* type) { return type != nullptr && PyErr_GivenExceptionMatches(kind, type) != 0; };
  const bool is_cancelled = is_of(PyExc_GeneratorExit) ||
                            is_of(imported("asyncio.exceptions", "CancelledError").get()) ||
                            is_of(imported("concurrent.futures", "CancelledError").get());
  return is_cancelled ? kStatusCancelled : kStatusError;
}

/// Ends a request, if it is open. False with an exception set if its pipeline cannot be found.
bool leave(PyObject* object, PyObject* kind, PyObject* error = nullptr) noexcept {
  RequestObject& self = *self_of(object);
  if (self.entered == nullptr) return true;
  const SegmentStatus derived = status_of(kind);
  if (const Ref outside(std::exchange(self.outside, nullptr)); outside && g_leave_context != nullptr) {
    const ErrorAside pending;
    if (!Ref(PyObject_CallFunctionObjArgs(g_leave_context, object, outside.get(), nullptr))) lose_hook_error();
    raise_kept();
  }
  const Ref entered(std::exchange(self.entered, nullptr));
  remove_open(self);
  leave_request(entered.get(), object);
  if (self.begin_ticks == 0) return true;
  const SegmentStatus status = self.status != kStatusOpen ? static_cast<SegmentStatus>(self.status) : derived;
  if (derived == kStatusError) note_failure(0, self.number, error != nullptr ? error : kind);
  write_recorded_fields(self);  // which may have changed since it was entered
  if (self.owner != nullptr) {
    end_received(self, derived);
    return true;
  }
  const std::uint64_t end_ticks =
      self.is_remote ? end_received(self, status) : Recorder::get().end_segment(self.number, self.shown - 1, status);
  remember_ended(self);
  if (!count_work(self)) return false;
  if (self.follows) return true;  // it is not counted
  if (!count(self, status, ticks_between(self.since_ticks, end_ticks))) return false;
  list_finished(self, end_ticks, status);
  const Ref when_ended(std::exchange(g_when_ended, nullptr));
  return !when_ended || Ref(PyObject_CallNoArgs(when_ended.get()));
}

// _enter() and _leave(kind)
PyObject* request_enter(PyObject* object, PyObject*) { return enter(object) ? Py_NewRef(Py_None) : nullptr; }
PyObject* request_leave(PyObject* object, PyObject* kind) { return leave(object, kind) ? Py_NewRef(Py_None) : nullptr; }

PyObject* request_with_enter(PyObject* object, PyObject* const*, Py_ssize_t) {
  return enter(object) ? Py_NewRef(object) : nullptr;
}

PyObject* request_with_exit(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  PyObject* const kind = count > 0 ? args[0] : Py_None;
  PyObject* const error = count > 1 && args[1] != Py_None ? args[1] : nullptr;
  return leave(object, kind, error) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* request_aenter(PyObject* object, PyObject*) { return ready(request_with_enter(object, nullptr, 0)); }

PyObject* request_aexit(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  return ready(request_with_exit(object, args, count));
}

// The decorators of `__enter__` and `__exit__`.
PyObject* enter_method(PyObject*, PyObject* function) { return context_method(function, request_with_enter, 0); }
PyObject* exit_method(PyObject*, PyObject* function) { return context_method(function, request_with_exit, 3); }

PyObject* request_set_status(PyObject* object, PyObject* status) {
  RequestObject& self = *self_of(object);
  std::uint8_t number = kStatusOk;
  while (number != kStatusUnused &&
         (PyUnicode_Check(status) == 0 || PyUnicode_CompareWithASCIIString(status, kStatusNames[number]) != 0))
    ++number;
  if (number == kStatusUnused)
    return PyErr_Format(PyExc_ValueError,
                        "%R is not a status of a request: pass one of ok, error, cancelled, discarded, abandoned",
                        status);
  self.status = number;
  if (self.shown != 0)
    Recorder::get().set_segment_status(self.number, self.shown - 1, static_cast<SegmentStatus>(number));
  const bool has_ended = self.counted.stage != 0 && self.entered == nullptr;
  if (has_ended && !count(self, static_cast<SegmentStatus>(number), self.counted.ticks)) return nullptr;
  Py_RETURN_NONE;
}

// --- what it is made from -------------------------------------------------------------------------------

/// What a request is made from; borrowed.
struct RequestArguments {
  PyObject* id = nullptr;
  PyObject* traceparent = Py_None;
  PyObject* is_new = Py_False;
  PyObject* metadata = nullptr;
};

/// False with an exception set if that fails.
bool begin_with(RequestObject& self, const RequestArguments& given) noexcept {
  const int is_new = PyObject_IsTrue(given.is_new);
  if (is_new < 0 || is_open(self) || !initialise(self, given.id, given.metadata)) return false;
  self.is_new = is_new != 0;
  if (given.traceparent == Py_None) return true;
  if (TraceParent parent; read_traceparent(view_of(given.traceparent, kMostCarrierBytes), parent)) {
    self.parent = parent;
    keep(self.texts[kTraceParent], given.traceparent);
  }
  return true;
}

// _initialise(request_id, traceparent, metadata, is_new)
PyObject* request_initialise(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return PyErr_Format(PyExc_TypeError, "_initialise() takes 4 arguments, not %zd", count);
  return begin_with(*self_of(object), {args[0], args[1], args[3], args[2]}) ? Py_NewRef(Py_None) : nullptr;
}

// _follow(request): makes it a part of a request that has ended.
PyObject* request_follow(PyObject* object, PyObject* given) {
  RequestObject& self = *self_of(object);
  if (!is_request(given)) return PyErr_Format(PyExc_TypeError, "_follow() takes a request, not %R", given);
  RequestObject& first = *self_of(given);
  PyObject* const metadata = metadata_of(first);
  if (metadata == nullptr || is_open(self) || !initialise(self, first.id, metadata)) return nullptr;
  self.parent = {first.parent.trace, first.segment, first.parent.flags};
  self.follows = true;
  self.request_ticks = first.request_ticks;
  for (std::size_t key = 0; key < kKeys; ++key)
    if (first.texts[key] != nullptr) keep(self.texts[key], first.texts[key]);
  if (first.pipeline != nullptr) keep(self.pipeline, first.pipeline);
  Py_RETURN_NONE;
}

PyObject* request_show(PyObject* object, PyObject*) {
  RequestObject& self = *self_of(object);
  if (self.follows && !show_following(self)) return nullptr;
  Py_RETURN_NONE;
}

/// What a remote is made from; borrowed.
struct RemoteArguments {
  PyObject* carrier;
  PyObject* id = nullptr;
  PyObject* is_trusted = Py_True;
  PyObject* entry = Py_None;  // the queue if the carrier names none; None for the pipeline
};

/// False with an exception set if that fails.
bool receive(RequestObject& self, const RemoteArguments& given) noexcept {
  Arrival arrival;
  if (is_open(self)) return false;
  Texts texts;
  if (!take_texts(given.carrier, texts)) return false;
  const int is_trusted = PyObject_IsTrue(given.is_trusted);
  if (is_trusted < 0) return false;
  if (is_trusted == 0) texts[kOwnKey] = Ref();
  TraceParent parent;
  SentHop sent;
  const bool has_parent = read_traceparent(view_of(texts[kTraceParent].get(), kMostCarrierBytes), parent);
  bool is_sent = has_parent && read_sent_hop(view_of(texts[kOwnKey].get(), kMostCarrierBytes), sent);
  Ref id, queue, branch(Py_NewRef(Py_None));
  if (is_sent) {
    id = Ref(PyUnicode_DecodeUTF8(sent.id.data(), static_cast<Py_ssize_t>(sent.id.size()), nullptr));
    if (id && !sent.queue.empty()) queue = kept_name(sent.queue);
    if (id && !sent.branch.empty())
      branch = Ref(PyUnicode_DecodeUTF8(sent.branch.data(), static_cast<Py_ssize_t>(sent.branch.size()), nullptr));
    is_sent = id && branch && (queue || sent.queue.empty());
    PyErr_Clear();
    if (!is_sent) branch = Ref(Py_NewRef(Py_None));
  }
  if (!queue) {
    PyObject* const entry = PyUnicode_Check(given.entry) ? given.entry : pipeline_of_process();
    if (entry == nullptr) return false;
    queue = Ref(Py_NewRef(entry));
  }
  if (!initialise(self, is_sent ? id.get() : given.id, nullptr)) return false;
  self.is_remote = true;
  self.has_foreign_queue = is_sent && !sent.queue.empty();
  if (has_parent) {
    self.parent = parent;
    keep(self.texts[kTraceParent], texts[kTraceParent].get());
    if (texts[kTraceState]) {
      std::uint64_t sender = 0;
      const Ref state = kept_state(texts[kTraceState].get(), is_trusted != 0, sender);
      if (!state) return false;
      if (!is_sent) self.sender = sender;
      if (PyUnicode_GET_LENGTH(state.get()) != 0) keep(self.texts[kTraceState], state.get());
    }
    const std::string_view own = view_of(texts[kOwnKey].get(), kMostCarrierBytes);
    if (own.data() != nullptr && is_header_text(own)) keep(self.texts[kOwnKey], texts[kOwnKey].get());
  }
  self.attempt = static_cast<std::uint16_t>(is_sent ? sent.attempt : 1);
  keep(self.branch, branch.get());
  keep(self.queue, queue.get());
  self.begins_here = !is_sent;
  self.is_entry = !is_sent && PyUnicode_Check(given.entry) != 0;
  if (RequestObject* const owner = is_sent ? find_root(parent.trace, sent) : nullptr) {
    // The hop has come back: its spans belong to the request that is open here.
    self.owner = reinterpret_cast<RequestObject*>(Py_NewRef(reinterpret_cast<PyObject*>(owner)));
    self.number = owner->number;
    keep(self.id, owner->id);
    PyObject* const metadata = metadata_of(*owner);
    if (metadata == nullptr) return false;
    keep(self.metadata, metadata);
  }
  if (mode_has(kModeEnabled) && t_state == nullptr && !is_sent) {
    Recorder::get().this_thread();  // making the recording takes a millisecond, which is not a part of the request
    arrival = Arrival();
  }
  if (mode_has(kModeEnabled) && !write_received(self, is_sent ? &sent : nullptr, arrival)) return false;
  return true;
}

// _receive(carrier, request_id, trusted, entry)
PyObject* request_receive(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return PyErr_Format(PyExc_TypeError, "_receive() takes 4 arguments, not %zd", count);
  return receive(*self_of(object), {args[0], args[1], args[2], args[3]}) ? Py_NewRef(Py_None) : nullptr;
}

// --- calls of the types ---------------------------------------------------------------------------------

// A class whose `__init__` is a Python function runs it in each call, which takes longer than entering a request. So
// the calls of `request` and `Remote` themselves do the same here, while their `__init__` is the one that they were
// made with, and leave arguments that it would refuse to it. Subclasses are called in the usual way.

/// A class that is called without its `__init__`.
struct QuickClass {
  PyTypeObject* type = nullptr;
  PyObject* init = nullptr;  // borrowed from the class
};
QuickClass g_request_class, g_remote_class;
PyObject* g_init = nullptr;  // the name

bool has_own_init(const QuickClass& quick) noexcept {
  return _PyType_Lookup(quick.type, g_init) == quick.init && quick.type->tp_new == PyBaseObject_Type.tp_new;
}

PyObject* call_usual(PyObject* type, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) noexcept {
  const Ref positional(positional_tuple(args, nargsf)), named(keyword_dict(args, nargsf, kwnames));
  return positional && named ? PyType_Type.tp_call(type, positional.get(), named.get()) : nullptr;
}

bool is_name(PyObject* name, const char* text) noexcept { return PyUnicode_CompareWithASCIIString(name, text) == 0; }

/// The arguments of request(). False if `__init__` is asked, or with an exception set.
bool parse(PyObject* const* args, Py_ssize_t count, PyObject* kwnames, RequestArguments& to, Ref& metadata) noexcept {
  if (count > 1) return false;
  if (count == 1) to.id = args[0];
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject* const name = PyTuple_GET_ITEM(kwnames, i);
    PyObject* const value = args[count + i];
    if (is_name(name, "request_id")) {
      if (count == 1) return false;
      to.id = value;
    } else if (is_name(name, "traceparent")) {
      to.traceparent = value;
    } else if (is_name(name, "new")) {
      to.is_new = value;
    } else if (is_name(name, "self")) {
      return false;
    } else {
      if (!metadata) metadata = Ref(PyDict_New());
      if (!metadata || PyDict_SetItem(metadata.get(), name, value) != 0) return false;
    }
  }
  to.metadata = metadata.get();
  return to.id == nullptr || PyCallable_Check(to.id) == 0;
}

PyObject* call_request(PyObject* type, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  RequestArguments given;
  Ref metadata;
  if (!has_own_init(g_request_class) || !parse(args, PyVectorcall_NARGS(nargsf), kwnames, given, metadata))
    return PyErr_Occurred() == nullptr ? call_usual(type, args, nargsf, kwnames) : nullptr;
  const int captured = is_captured();
  if (captured < 0) return nullptr;
  Ref made(g_request_class.type->tp_alloc(g_request_class.type, 0));
  // A number taken during compilation would become part of the graph and its guards.
  if (made && captured == 0 && !begin_with(*self_of(made.get()), given)) return nullptr;
  return made.release();
}

/// The arguments of Remote(). False if `__init__` is asked.
bool parse(PyObject* const* args, Py_ssize_t count, PyObject* kwnames, RemoteArguments& to) noexcept {
  if (count < 1 || count > 2) return false;
  to.carrier = args[0];
  if (count == 2) to.id = args[1];
  for (Py_ssize_t i = 0; kwnames != nullptr && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject* const name = PyTuple_GET_ITEM(kwnames, i);
    PyObject* const value = args[count + i];
    if (is_name(name, "trusted")) {
      to.is_trusted = value;
    } else if (is_name(name, "entry")) {
      to.entry = value;
    } else if (is_name(name, "request_id") && count == 1) {
      to.id = value;
    } else {
      return false;
    }
  }
  return true;
}

PyObject* call_remote(PyObject* type, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  RemoteArguments given;
  if (!has_own_init(g_remote_class) || !parse(args, PyVectorcall_NARGS(nargsf), kwnames, given))
    return call_usual(type, args, nargsf, kwnames);
  Ref made(g_remote_class.type->tp_alloc(g_remote_class.type, 0));
  return made && receive(*self_of(made.get()), given) ? made.release() : nullptr;
}

PyObject* call_quickly(PyObject* object, QuickClass& quick, vectorcallfunc call) noexcept {
  auto* const type = reinterpret_cast<PyTypeObject*>(object);
  if (PyType_Check(object) == 0 || PyType_IsSubtype(type, &g_request_type) == 0 || quick.type != nullptr ||
      Py_TYPE(object) != &PyType_Type)
    return PyErr_Format(PyExc_TypeError, "%R is not a class of requests, or the second one", object);
  if (g_init == nullptr && (g_init = PyUnicode_InternFromString("__init__")) == nullptr) return nullptr;
  quick = {reinterpret_cast<PyTypeObject*>(Py_NewRef(object)), _PyType_Lookup(type, g_init)};
  type->tp_vectorcall = call;
  return Py_NewRef(object);
}

// The decorators of `request` and `Remote`.
PyObject* request_class(PyObject*, PyObject* type) { return call_quickly(type, g_request_class, call_request); }
PyObject* remote_class(PyObject*, PyObject* type) { return call_quickly(type, g_remote_class, call_remote); }

// --- inject ---------------------------------------------------------------------------------------------

/// Writes a request, which may be null, to the carrier of the arguments or to a new one, and returns it.
PyObject* inject(RequestObject* self, const InjectArguments& arguments) noexcept {
  Ref carrier(arguments.carrier != Py_None ? Py_NewRef(arguments.carrier) : PyDict_New());
  if (!carrier || self == nullptr) return carrier.release();
  if (self->follows && !show_following(*self)) return nullptr;
  const bool is_recorded = (!self->is_remote || self->is_started) && self->shown != 0 && has_trace(*self);
  const bool is_written = is_recorded && mode_has(kModeEnabled) ? write_carrier(*self, carrier.get(), arguments)
                                                                : forward_carrier(*self, carrier.get());
  return is_written ? carrier.release() : nullptr;
}

PyObject* request_inject(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  InjectArguments arguments;
  return parse_inject(args, count, kwnames, arguments) ? inject(self_of(object), arguments) : nullptr;
}

Ref current_object() noexcept {
  Ref request(read_request());
  if (request.get() != Py_None || t_state == nullptr) return request;
  // A greenlet belongs to its creator's request, but does not have its context variables.
  ThreadState& thread = current_thread();
  const std::uint64_t number = thread.scope->request;
  publish(thread);  // a scope without open spans is removed again
  RequestObject* const open = number != 0 ? find_open(number) : nullptr;
  return open != nullptr ? Ref(Py_NewRef(reinterpret_cast<PyObject*>(open))) : std::move(request);
}

PyObject* inject_current(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  InjectArguments arguments;
  if (!parse_inject(args, count, kwnames, arguments)) return nullptr;
  const Ref current = current_object();
  return inject(current.get() != Py_None ? self_of(current.get()) : nullptr, arguments);
}

PyObject* current_request(PyObject*, PyObject*) { return current_object().release(); }

// --- chunks ---------------------------------------------------------------------------------------------

bool is_amount(PyObject* given, std::uint64_t& to) noexcept {
  const Ref number(PyNumber_Index(given));
  if (number) to = PyLong_AsUnsignedLongLong(number.get());
  if (PyErr_Occurred() == nullptr) return true;
  const bool is_number = static_cast<bool>(number);
  if (PyErr_ExceptionMatches(is_number ? PyExc_OverflowError : PyExc_TypeError) == 0) return false;
  PyErr_Clear();
  PyErr_Format(is_number ? PyExc_ValueError : PyExc_TypeError, "tokens is %R: pass %s from 0 to 2**64 - 1", given,
               is_number ? "a number" : "an integer");
  return false;
}

PyObject* request_chunk(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  const Py_ssize_t named = kwnames != nullptr ? PyTuple_GET_SIZE(kwnames) : 0;
  if (count + named > 1 ||
      (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "tokens") != 0))
    return PyErr_Format(PyExc_TypeError, "chunk() takes one argument: tokens");
  RequestObject& self = *self_of(object);
  std::uint64_t tokens = 1;
  if (count + named == 1 && !is_amount(args[0], tokens)) return nullptr;
  SegmentEntry* const entry = entry_of(self.number, self.shown);
  if (entry == nullptr) Py_RETURN_NONE;
  PyObject* const name = pipeline_of(self);
  if (name == nullptr) return nullptr;
  Recorder& recorder = Recorder::get();
  if (entry->chunks.load(relaxed) == 0)
    recorder.add_first_chunk(*entry, tokens, stage_of_kind(name, kFirstChunk), stage_of_kind(name, kPartFirstChunk));
  else
    recorder.add_chunk(*entry, tokens, stage_of_kind(name, kBetweenChunks), stage_of_kind(name, kPerToken));
  Py_RETURN_NONE;
}

// --- the functions of Python ----------------------------------------------------------------------------

// request_set_functions(parent, hash, pipeline, captured)
PyObject* set_functions(PyObject*, PyObject* args) {
  PyObject *parent = nullptr, *hash = nullptr, *pipeline = nullptr, *captured = nullptr;
  if (PyArg_ParseTuple(args, "OOOO", &parent, &hash, &pipeline, &captured) == 0) return nullptr;
  keep(g_find_parent, parent);
  keep(g_find_hash, hash);
  keep(g_find_pipeline, pipeline);
  keep(g_is_captured, captured);
  Py_RETURN_NONE;
}

// request_call_when_ended(function)
PyObject* call_when_ended(PyObject*, PyObject* function) {
  keep(g_when_ended, function);
  Py_RETURN_NONE;
}

// request_set_context(enter, leave): None for none
PyObject* set_context(PyObject*, PyObject* args) {
  PyObject *enter = nullptr, *leave = nullptr;
  if (PyArg_ParseTuple(args, "OO", &enter, &leave) == 0) return nullptr;
  keep(g_leave_context, leave);
  if (enter != Py_None)
    keep(g_enter_context, enter);
  else
    drop_from(g_enter_context);  // requests that are open are still left
  Py_RETURN_NONE;
}

PyObject* set_pipeline(PyObject*, PyObject* name) {
  keep(g_pipeline, name);
  Py_RETURN_NONE;
}

// --- the type -------------------------------------------------------------------------------------------

int request_traverse(PyObject* object, visitproc visit, void* arg) {
  const RequestObject& self = *self_of(object);
  Py_VISIT(self.metadata);
  Py_VISIT(self.pipeline);
  Py_VISIT(self.outside);
  Py_VISIT(reinterpret_cast<PyObject*>(self.owner));
  return 0;
}

int request_clear(PyObject* object) {
  RequestObject& self = *self_of(object);
  drop_from(self.metadata);
  drop_from(self.pipeline);
  drop_from(self.outside);
  drop_from(self.owner);
  return 0;
}

void request_dealloc(PyObject* object) {
  RequestObject& self = *self_of(object);
  PyObject_GC_UnTrack(object);
  const ErrorAside pending;
  if (self.entered != nullptr) remove_open(self);
  if (self.hop_shown != 0 && !self.is_started) end_received(self, kStatusUnused);
  request_clear(object);
  drop_from(self.entered);
  drop_from(self.state);
  drop_from(self.id);
  drop_from(self.queue);
  drop_from(self.branch);
  for (PyObject*& text : self.texts) drop_from(text);
  Py_TYPE(object)->tp_free(object);
}

PyObject* get_pipeline(PyObject* object, void*) {
  PyObject* const name = self_of(object)->pipeline;
  return Py_NewRef(name != nullptr ? name : Py_None);
}

int set_pipeline_of(PyObject* object, PyObject* name, void*) {
  RequestObject& self = *self_of(object);
  if (name == nullptr || !(name == Py_None || (PyUnicode_Check(name) != 0 && PyUnicode_GET_LENGTH(name) != 0))) {
    PyErr_Format(PyExc_TypeError, "pipeline is %R: pass a text that is not empty, or None for that of the process",
                 name != nullptr ? name : Py_None);
    return -1;
  }
  keep(self.pipeline, name);
  SegmentEntry* const entry = entry_of(self.number, self.shown);
  if (entry == nullptr) return 0;
  const std::uint32_t stage = pipeline_stage(self);
  if (stage == kNoStage) return -1;
  entry->pipeline.store(stage, relaxed);
  return 0;
}

// _serve_http(route): it serves a call; the route is its template, or None if it is not known.
PyObject* request_serve_http(PyObject* object, PyObject* route) {
  RequestObject& self = *self_of(object);
  self.traits = kTraitHttp;
  if (route != Py_None) self.traits |= kTraitRoute;
  if (SegmentEntry* const entry = entry_of(self.number, self.shown)) entry->traits.store(self.traits, relaxed);
  if (route != Py_None && set_pipeline_of(object, route, nullptr) != 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* get_metadata(PyObject* object, void*) { return Py_XNewRef(metadata_of(*self_of(object))); }

int set_metadata(PyObject* object, PyObject* value, void*) {
  keep(self_of(object)->metadata, value);  // null if it is deleted: then it has none again
  return 0;
}

PyObject* get_trace_id(PyObject* object, void*) { return text_of_trace(self_of(object)->parent.trace); }

// The name under which its wait is counted, or None.
PyObject* get_counted_queue(PyObject* object, void*) {
  const RequestObject& self = *self_of(object);
  return self.queue != nullptr && mode_has(kModeEnabled) ? stage_name(queue_stage(self, kQueue)) : Py_NewRef(Py_None);
}

// What W3C Trace Context says of it: (trace_high, trace_low, segment, flags); None if it is not recorded.
PyObject* get_w3c(PyObject* object, void*) {
  const RequestObject& self = *self_of(object);
  if (!has_trace(self) || self.segment == 0) Py_RETURN_NONE;
  return Py_BuildValue("(KKKI)", static_cast<unsigned long long>(self.parent.trace.high),
                       static_cast<unsigned long long>(self.parent.trace.low),
                       static_cast<unsigned long long>(self.segment), self.parent.flags);
}

PyObject* get_is_open(PyObject* object, void*) { return PyBool_FromLong(self_of(object)->entered != nullptr); }

PyObject* get_given_id(PyObject* object, void*) {
  const RequestObject& self = *self_of(object);
  return self.has_given_id ? Py_NewRef(self.id) : PyUnicode_FromString("");
}

PyMethodDef g_methods[] = {
    {"chunk", as_method(request_chunk), METH_FASTCALL | METH_KEYWORDS, docs::kRequestChunk},
    {"inject", as_method(request_inject), METH_FASTCALL | METH_KEYWORDS, docs::kRequestInject},
    {"_initialise", as_method(request_initialise), METH_FASTCALL, nullptr},
    {"_receive", as_method(request_receive), METH_FASTCALL, nullptr},
    {"_follow", request_follow, METH_O, nullptr},
    {"_serve_http", request_serve_http, METH_O, nullptr},
    {"_show", request_show, METH_NOARGS, nullptr},
    {"__aenter__", request_aenter, METH_NOARGS, nullptr},
    {"__aexit__", as_method(request_aexit), METH_FASTCALL, nullptr},
    {"_enter", request_enter, METH_NOARGS, nullptr},
    {"_leave", request_leave, METH_O, nullptr},
    {"set_status", request_set_status, METH_O, docs::kRequestSetStatus},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef g_members[] = {
    {"number", T_ULONGLONG, offsetof(RequestObject, number), READONLY, docs::kRequestNumber},
    {"id", T_OBJECT, offsetof(RequestObject, id), READONLY, docs::kRequestId},
    {"attempt", T_USHORT, offsetof(RequestObject, attempt), READONLY, docs::kRequestAttempt},
    {"branch", T_OBJECT, offsetof(RequestObject, branch), READONLY, docs::kRequestBranch},
    {"queue", T_OBJECT, offsetof(RequestObject, queue), READONLY, docs::kRequestQueue},
    {"_is_new", T_BOOL, offsetof(RequestObject, is_new), READONLY, nullptr},
    {"_traceparent", T_OBJECT, offsetof(RequestObject, texts) + kTraceParent * sizeof(PyObject*), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef g_getset[] = {
    {"metadata", get_metadata, set_metadata, nullptr, nullptr},
    {"trace_id", get_trace_id, nullptr, docs::kRequestTraceId, nullptr},
    {"pipeline", get_pipeline, set_pipeline_of, nullptr, nullptr},
    {"_is_open", get_is_open, nullptr, nullptr, nullptr},
    {"_w3c", get_w3c, nullptr, nullptr, nullptr},
    {"_counted_queue", get_counted_queue, nullptr, nullptr, nullptr},
    {"_given_id", get_given_id, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

PyTypeObject g_request_type =
    static_type("stagespan._core.Request", sizeof(RequestObject), Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC);

PyObject* pipeline_of_process() noexcept { return found_once(g_pipeline, g_find_pipeline); }

void start_request(RequestObject& self) noexcept {
  if (self.is_remote && !self.is_started && !enter_received(self)) {
    raise_error_later();
    raise_kept();
  }
}

PyMethodDef g_request_functions[] = {
    {"inject", as_method(inject_current), METH_FASTCALL | METH_KEYWORDS, docs::kInject},
    {"current_request", current_request, METH_NOARGS, docs::kCurrentRequest},
    {"request_set_functions", set_functions, METH_VARARGS, nullptr},
    {"request_call_when_ended", call_when_ended, METH_O, nullptr},
    {"request_set_context", set_context, METH_VARARGS, nullptr},
    {"request_set_pipeline", set_pipeline, METH_O, nullptr},
    {"request_class", request_class, METH_O, nullptr},
    {"remote_class", remote_class, METH_O, nullptr},
    {"request_enter_method", enter_method, METH_O, nullptr},
    {"request_exit_method", exit_method, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

bool init_request_type(PyObject* module) {
  g_request_type.tp_doc = docs::kRequestType;
  g_request_type.tp_methods = g_methods;
  g_request_type.tp_members = g_members;
  g_request_type.tp_getset = g_getset;
  g_request_type.tp_traverse = request_traverse;
  g_request_type.tp_clear = request_clear;
  g_request_type.tp_dealloc = request_dealloc;
  // Objects are made by object.__new__, because torch.compile captures only those.
  g_request_type.tp_new = PyBaseObject_Type.tp_new;
  if (!init_carrier_texts() || !init_context_method() || PyType_Ready(&g_request_type) != 0 ||
      PyDict_DelItemString(g_request_type.tp_dict, "__new__") != 0)
    return false;
  PyType_Modified(&g_request_type);
  return PyModule_AddObjectRef(module, "Request", reinterpret_cast<PyObject*>(&g_request_type)) == 0;
}

}  // namespace stagespan::python
