// recording.cpp: the recording of this process, and reading the recordings of other processes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "object.h"
#include "reading.h"
#include "stagespan/commands.h"
#include "stagespan/cut_off.h"
#include "stagespan/histogram.h"
#include "stagespan/process_info.h"
#include "stagespan/process_life.h"
#include "stagespan/reader.h"
#include "stagespan/recorder.h"
#include "stagespan/recording_reader.h"
#include "stagespan/snapshot.h"
#include "stagespan/text.h"
#include "termination.h"
#include "waiting.h"
#include "worker_name.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

template <std::size_t size>
py::object field_text(const char (&field)[size]) {
  return text_of(text_in(field, size));
}

// --- of this process --------------------------------------------------------------------------------------

const char* kind_name(RecordingKind kind) {
  switch (kind) {
    case RecordingKind::kNotYet:
      return "not yet";
    case RecordingKind::kOff:
      return "off";
    case RecordingKind::kFile:
      return "file";
    case RecordingKind::kMemfd:
      return "memfd";
    case RecordingKind::kMemory:
      break;
  }
  return "memory";
}

py::dict recording_place() {
  const NoCollection by_allocations;
  const RecordingPlace place = Recorder::get().recording_place();
  py::dict result;
  result["kind"] = kind_name(place.kind);
  result["path"] = place.path.empty() ? py::object(py::none()) : text_of(place.path);
  result["is_fault"] = place.is_fault;
  result["why"] = place.why.empty() ? py::object(py::none()) : text_of(place.why);
  result["reserved_bytes"] = place.reserved_bytes;
  result["refused_bytes"] = place.refused_bytes;
  return result;
}

// What Python knows about the process that started this one. Used with the interpreter's lock only.
struct Start {
  bool is_worker = false;
  std::int32_t rank = -1;  // of the process that started this worker
};
Start g_start;

// Reads the environment again. Called with the interpreter's lock, which Python holds when it changes the environment.
void describe(ProcessInfo info) {
  const ProcessInfo before = Recorder::get().process_info();
  std::copy(std::begin(before.version), std::end(before.version), info.version);
  std::copy(std::begin(before.python_version), std::end(before.python_version), info.python_version);
  std::copy(std::begin(before.program), std::end(before.program), info.program);
  std::copy(std::begin(before.argument), std::end(before.argument), info.argument);
  if (info.rank < 0) info.rank = before.rank;
  if (info.world_size == 0) info.world_size = before.world_size;
  if (g_start.is_worker) {
    const Worker worker = worker_of_this_process();
    set_text(info.worker, sizeof(info.worker), worker.name);
    info.shares_rank = info.rank >= 0 && (worker.is_data_loader || info.rank == g_start.rank) ? 1 : 0;
  }
  Recorder::get().describe_process(info);
}

void describe_worker(std::optional<std::int32_t> rank) {
  g_start = {true, rank.value_or(-1)};
  describe(process_info_from_environment());
}

void describe_program(const std::string& version, const py::bytes& arguments) {
  ProcessInfo info = Recorder::get().process_info();
  set_text(info.version, sizeof(info.version), version);
  const std::string python = Py_GetVersion();
  set_text(info.python_version, sizeof(info.python_version), python.substr(0, python.find(' ')));
  const Program program = program_in(std::string(arguments));
  if (!program.name.empty()) {
    set_text(info.program, sizeof(info.program), program.name);
    set_text(info.argument, sizeof(info.argument), program.argument);
  }
  Recorder::get().describe_process(info);
  describe(process_info_from_environment());
}

void describe_process(std::int32_t rank, std::uint32_t world_size) {
  ProcessInfo info = process_info_from_environment();
  if (info.rank < 0) info.rank = rank;
  if (info.world_size == 0) info.world_size = world_size;
  describe(info);
}

PyObject* g_tell_fault = nullptr;  // called once a recording that should be in a file is not

// A pending call, because a span may open in any thread and at any moment.
int tell_fault(void*) noexcept {
  const Ref done(PyObject_CallNoArgs(g_tell_fault));
  if (!done) {
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return -1;  // an interrupt
    PyErr_Clear();
    Recorder::get().lose(kLostHookErrors);
  }
  return 0;
}

// A thread without the interpreter's lock does not read the environment: the earlier values stay.
void on_recording() {
  try {
    const RecordingPlace place = Recorder::get().recording_place();
    if (place.kind == RecordingKind::kFile) watch_stops_of_recording();
    if (place.is_fault && g_tell_fault != nullptr && Py_IsInitialized() != 0) Py_AddPendingCall(tell_fault, nullptr);
    if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return;
    describe(process_info_from_environment());
  } catch (const std::exception&) {
  }
}

// --- of another -------------------------------------------------------------------------------------------

struct Recording {
  RecordingCopy copy;
  std::shared_ptr<const std::vector<std::string>> names;

  py::object name_of(std::uint32_t stage) const {
    return stage < names->size() ? text_of((*names)[stage]) : text_of("(unknown)");
  }
  const ArenaHeader& header() const { return copy.arena.header(); }
};

std::shared_ptr<Recording> read_recording(int fd, const std::string& what, bool everything) {
  auto recording = std::make_shared<Recording>();
  std::string wrong;
  {
    const py::gil_scoped_release unlocked;
    wrong =
        copy_recording(fd, what, everything ? RecordingParts::kAll : RecordingParts::kFiguresAndOpen, recording->copy);
  }
  if (!wrong.empty()) {
    PyErr_SetObject(PyExc_ValueError, text_of(wrong).ptr());
    throw py::error_already_set();
  }
  recording->names = std::make_shared<const std::vector<std::string>>(recording->copy.names);
  return recording;
}

py::dict info(const Recording& recording) {
  const NoCollection by_allocations;
  const ArenaHeader& header = recording.header();
  const ProcessInfo& of = recording.copy.info;
  py::dict result;
  result["pid"] = header.pid;
  result["start_ticks"] = header.process_start_ticks;
  result["pid_namespace"] = header.pid_namespace;
  result["boot"] = header.boot;
  result["begin_ns"] = header.begin_unix_ns;
  result["end_ns"] = header.end_unix_ns.load(std::memory_order_relaxed);
  const std::uint32_t stop = header.stop_signal.load(std::memory_order_relaxed);
  result["stop_signal"] = stop & ~kStopIsFinal;
  result["stop_is_final"] = (stop & kStopIsFinal) != 0;
  result["stop_ns"] = header.stop_unix_ns.load(std::memory_order_relaxed);
  result["is_locked"] = header.is_locked != 0;
  result["is_deferred"] = header.is_deferred.load(std::memory_order_relaxed) != 0;
  result["rank"] = of.rank >= 0 ? py::object(py::int_(of.rank)) : py::object(py::none());
  result["world_size"] = of.world_size != 0 ? py::object(py::int_(of.world_size)) : py::object(py::none());
  result["job"] = field_text(of.job);
  result["service"] = field_text(of.service);
  result["pipeline"] = field_text(of.pipeline);
  result["program"] = field_text(of.program);
  result["argument"] = field_text(of.argument);
  result["name"] = field_text(of.name);
  result["worker"] = field_text(of.worker);
  result["shares_rank"] = of.shares_rank != 0;
  result["host"] = field_text(of.host);
  result["version"] = field_text(of.version);
  result["python_version"] = field_text(of.python_version);
  result["ring_spans"] = header.ring_spans;
  result["threads_not_in_file"] = recording.copy.threads_not_in_file;
  result["blocks_not_in_file"] = recording.copy.blocks_not_in_file;
  result["refusals"] = header.refusals.load(std::memory_order_relaxed);
  result["damaged"] = recording.copy.damaged;
  result["missing_bytes"] = recording.copy.missing_bytes;
  result["is_moving"] = recording.copy.is_moving;
  const std::uint64_t now = recording.copy.now_ticks;
  result["unix_offset_ns"] = recording.copy.fit.unix_offset_ns();
  result["clock"] = header.clock;
  result["segment_entries"] = header.segment_entries;
  const std::uint64_t since = header.amounts_since_ticks.load(std::memory_order_relaxed);
  result["amounts_since_ns"] = since != 0 ? recording.copy.fit.unix_ns(since) : 0;
  result["amounts_written"] = header.amount_head.load(std::memory_order_relaxed);
  result["amounts_kept"] = recording.copy.arena.amount_count();
  result["now_ns"] = now != 0 ? py::object(py::int_(recording.copy.fit.unix_ns(now))) : py::object(py::none());
  return result;
}

py::list stage_names(const Recording& recording) {
  const NoCollection by_allocations;
  py::list result;
  for (const std::string& name : *recording.names) result.append(text_of(name));
  return result;
}

py::list stage_kinds(const Recording& recording) {
  const NoCollection by_allocations;
  py::list result;
  for (std::uint32_t stage = 0; stage < recording.names->size(); ++stage)
    result.append(static_cast<int>(recording.copy.arena.name(stage).kind));
  return result;
}

std::shared_ptr<Snapshot> snapshot_of(const Recording& recording) {
  auto snapshot = std::make_shared<Snapshot>(take_snapshot(recording.copy.arena, recording.copy.fit));
  const std::uint64_t now = recording.copy.now_ticks;
  snapshot->unix_ns = now != 0 ? recording.copy.fit.unix_ns(now) : recording.header().end_unix_ns.load();
  snapshot->names = recording.names;
  return snapshot;
}

py::object spans_of(const Recording& recording) {
  PyObject* const rows =
      span_rows(read_spans(recording.copy.arena), read_device_spans(recording.copy.arena), recording.copy.fit);
  if (rows == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(rows);
}

py::list open_of(const Recording& recording) {
  const NoCollection by_allocations;
  py::list result;
  const ClockFit& fit = recording.copy.fit;
  const std::uint64_t now = recording.copy.now_ticks;
  for (const OpenCopy& copy : recording.copy.open) {
    const std::int64_t begin = fit.unix_ns(copy.begin_ticks);
    py::dict open;
    open["stage"] = recording.name_of(copy.stage);
    open["thread"] = copy.thread;
    open["thread_name"] = copy.detached ? py::object(py::none()) : field_text(copy.thread_name);
    open["id"] = copy.id;
    open["parent"] = copy.parent;
    open["request"] = copy.request;
    open["depth"] = copy.depth;
    open["begin_ns"] = begin;
    open["active_ns"] = fit.unix_ns(copy.active_ticks);
    open["elapsed_ns"] =
        now != 0 ? py::object(py::int_(std::max<std::int64_t>(fit.unix_ns(now) - begin, 0))) : py::object(py::none());
    open["kind"] = static_cast<int>(copy.kind);
    open["detached"] = copy.detached;
    open["suspended"] = copy.suspended;
    result.append(std::move(open));
  }
  return result;
}

// 32 hexadecimal digits; None without a trace.
py::object trace_text(const TraceId& trace) {
  if (trace.high == 0 && trace.low == 0) return py::none();
  char text[33];
  std::snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, trace.high, trace.low);
  return py::str(text);
}

py::object id_text(std::uint64_t id) {
  if (id == 0) return py::none();
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, id);
  return py::str(text);
}

// What identifies an entry: the number of a segment, or a negative number of a hop that has come back to one, because
// its entry has the number of that segment.
std::int64_t key_of(const SegmentCopy& copy) {
  if (copy.origin != kOriginReturn || copy.parent_hop == 0) return static_cast<std::int64_t>(copy.number);
  return -static_cast<std::int64_t>(copy.parent_hop >> 1) - 1;
}

py::list segment_keys(const Recording& recording, bool only_open) {
  const NoCollection by_allocations;
  py::list result;
  for (const SegmentCopy& copy : recording.copy.segments)
    if (!only_open || (copy.origin != kOriginReturn && copy.end_ticks == 0)) result.append(key_of(copy));
  return result;
}

// The keys of requests that began here and have ended since a time: the latest one of each pipeline, status and sixth
// of the buckets, which are those that exporters count in. They are few, however many requests there were.
py::list latest_requests(const Recording& recording, std::int64_t since_ns) {
  const ClockFit& fit = recording.copy.fit;
  std::map<std::tuple<std::uint32_t, std::uint8_t, std::uint32_t>, const SegmentCopy*> latest;
  for (const SegmentCopy& copy : recording.copy.segments) {
    const bool began_here = copy.parent_segment == 0 && (copy.origin == kOriginRoot || copy.origin == kOriginRemote);
    if (!began_here || copy.end_ticks == 0) continue;
    const std::int64_t end_ns = fit.unix_ns(copy.end_ticks);
    if (end_ns < since_ns) continue;
    const std::uint64_t begin_ticks = copy.received_ticks != 0 ? copy.received_ticks : copy.begin_ticks;
    const std::int64_t lasted_ns = std::max<std::int64_t>(end_ns - fit.unix_ns(begin_ticks), 0);
    const std::uint32_t bucket = (bucket_of(static_cast<std::uint64_t>(lasted_ns)) + 4) / 6;
    const SegmentCopy*& one = latest[{copy.pipeline, copy.status, bucket}];
    if (one == nullptr || one->end_ticks < copy.end_ticks) one = &copy;
  }
  const NoCollection by_allocations;
  py::list result;
  for (const auto& [of, copy] : latest) result.append(key_of(*copy));
  return result;
}

// {name: int, float or text}
py::dict fields_of(const Recording& recording, std::uint64_t number) {
  py::dict result;
  const auto found = recording.copy.fields.find(number);
  if (found == recording.copy.fields.end()) return result;
  const RequestFields& fields = found->second;
  for (std::uint32_t i = 0; i < kMostFields; ++i) {
    if (fields.kinds[i] == kFieldMissing) continue;
    const py::object name = field_text(recording.header().field_names[i]);
    if (fields.kinds[i] == kFieldWhole)
      result[name] = py::int_(static_cast<std::int64_t>(fields.numbers[i]));
    else if (fields.kinds[i] == kFieldFraction)
      result[name] = py::float_(std::bit_cast<double>(fields.numbers[i]));
    else
      result[name] =
          text_of(text_in(reinterpret_cast<const char*>(fields.texts.data()) + i * kFieldTextBytes, kFieldTextBytes));
  }
  return result;
}

// Makes dicts whose keys are the same, in the same order: each is a copy of the first one with other values.
class AlikeDicts {
 public:
  void begin() {
    current_ = first_ ? py::reinterpret_steal<py::dict>(PyDict_Copy(first_.ptr())) : py::dict();
    if (!current_) throw py::error_already_set();
    next_ = 0;
  }

  template <typename Value>
  void set(const char* key, Value&& value) {
    if (next_ == keys_.size()) {
      keys_.push_back(py::reinterpret_steal<py::object>(PyUnicode_InternFromString(key)));
      if (!keys_.back()) throw py::error_already_set();
    }
    const py::object object = py::detail::object_or_cast(std::forward<Value>(value));
    if (PyDict_SetItem(current_.ptr(), keys_[next_++].ptr(), object.ptr()) != 0) throw py::error_already_set();
  }

  py::dict end() {
    if (!first_) first_ = current_;
    return std::move(current_);
  }

 private:
  py::dict current_;
  py::dict first_ = py::reinterpret_steal<py::dict>(nullptr);
  std::vector<py::object> keys_;
  std::size_t next_ = 0;
};

py::dict segment_of(const Recording& recording, const SegmentCopy& copy, AlikeDicts& segment) {
  const ClockFit& fit = recording.copy.fit;
  const auto time = [&](std::uint64_t ticks) {
    return ticks != 0 ? py::object(py::int_(fit.unix_ns(ticks))) : py::object(py::none());
  };
  segment.begin();
  segment.set("number", copy.number);
  segment.set("id", text_of(text_in(copy.id)));
  segment.set("trace_id", trace_text({copy.trace_high, copy.trace_low}));
  segment.set("begin_ns", time(copy.begin_ticks));
  segment.set("end_ns", time(copy.end_ticks));
  segment.set("first_chunk_ns", time(copy.first_chunk_ticks));
  segment.set("last_chunk_ns", time(copy.last_chunk_ticks));
  segment.set("request_ns", time(copy.request_ticks));
  segment.set("linked", copy.linked);
  segment.set("chunks", copy.chunks);
  segment.set("chunk_amount", copy.chunk_amount);
  segment.set("hops_sent", copy.hops_sent);
  segment.set("status", static_cast<int>(copy.status));
  segment.set("origin", static_cast<int>(copy.origin));
  segment.set("attempt", copy.attempt);
  segment.set("segment", id_text(copy.segment));
  segment.set("parent_hop", id_text(copy.parent_hop));
  segment.set("parent_segment", id_text(copy.parent_segment));
  segment.set("received_ns", time(copy.received_ticks));
  segment.set("sent_ns", time(copy.sent_ticks));
  segment.set("work_ns", time(copy.work_ticks));
  const bool is_known = copy.sent_clock != 0;
  segment.set("sent_monotonic_ns", is_known ? py::object(py::int_(copy.sent_monotonic_ns)) : py::object(py::none()));
  segment.set("sent_unix_ns", is_known ? py::object(py::int_(copy.sent_unix_ns)) : py::object(py::none()));
  segment.set("sent_clock", copy.sent_clock);
  segment.set("queue", copy.received_ticks != 0 ? recording.name_of(copy.queue_stage) : py::object(py::none()));
  segment.set("pipeline", recording.name_of(copy.pipeline));
  segment.set("is_http", (copy.traits & kTraitHttp) != 0);
  const bool has_route = (copy.traits & kTraitRoute) != 0;
  segment.set("route", has_route ? recording.name_of(copy.pipeline) : py::object(py::none()));
  segment.set("fields", fields_of(recording, copy.number));
  segment.set("trace_flags", copy.trace_flags);
  const std::string_view branch = text_in(copy.branch);
  segment.set("branch", branch.empty() ? py::object(py::none()) : text_of(branch));
  return segment.end();
}

// [(key, Unix time of the end or 0, trace)] of all entries. A hop that has come back ends when it is received.
py::list segment_ends(const Recording& recording) {
  const NoCollection by_allocations;
  const ClockFit& fit = recording.copy.fit;
  py::list result;
  for (const SegmentCopy& copy : recording.copy.segments) {
    const std::uint64_t ticks = copy.origin == kOriginReturn ? copy.received_ticks : copy.end_ticks;
    const py::object trace = trace_text({copy.trace_high, copy.trace_low});
    result.append(py::make_tuple(key_of(copy), ticks != 0 ? fit.unix_ns(ticks) : 0, trace));
  }
  return result;
}

// [(key, segment)] of all entries, or of those with these keys.
py::list segments_of(const Recording& recording, const std::optional<std::unordered_set<std::int64_t>>& keys) {
  const NoCollection by_allocations;
  py::list result;
  AlikeDicts dicts;
  for (const SegmentCopy& copy : recording.copy.segments)
    if (const std::int64_t key = key_of(copy); !keys || keys->contains(key))
      result.append(py::make_tuple(key, segment_of(recording, copy, dicts)));
  return result;
}

py::list links_of(const Recording& recording) {
  const NoCollection by_allocations;
  py::list result;
  for (const LinkFields& link : read_links(recording.copy.arena))
    result.append(py::make_tuple(link.span, link.request, link.size));
  return result;
}

// [(id of the hop, number of the segment that has sent it, queue, time, count of messages to the queue)]
py::list sent_of(const Recording& recording) {
  const NoCollection by_allocations;
  py::list result;
  for (const SentFields& sent : read_sent(recording.copy.arena))
    result.append(py::make_tuple(sent.hop, sent.request, recording.name_of(sent.stage),
                                 recording.copy.fit.unix_ns(sent.ticks), sent.count));
  return result;
}

// The ids of the hops that were received.
py::set received_of(const Recording& recording) {
  const NoCollection by_allocations;
  py::set result;
  for (const SegmentCopy& copy : recording.copy.segments)
    if (copy.received_ticks != 0) result.add(copy.parent_hop);
  return result;
}

py::dict gauges_of(const Recording& recording) {
  const NoCollection by_allocations;
  py::dict result;
  const ArenaHeader& header = recording.header();
  const std::uint32_t count = std::min(header.gauge_count.load(std::memory_order_relaxed), kMostGauges);
  for (std::uint32_t i = 0; i < count; ++i)
    if (const double value = header.gauges[i].value.load(std::memory_order_relaxed); std::isfinite(value))
      result[field_text(header.gauges[i].name)] = value;
  return result;
}

// [(span id, request number, type, message)]
py::list failures_of(const Recording& recording) {
  const NoCollection by_allocations;
  py::list result;
  for (const FailureFields& failure : read_failures(recording.copy.arena))
    result.append(py::make_tuple(failure.span, failure.request, recording.name_of(failure.type),
                                 text_of(text_in(failure.message))));
  return result;
}

// An int if it is a whole number that a double represents exactly, otherwise a float.
py::object number_of(const Amount& amount) {
  if (amount.fraction == 0) return py::int_(amount.whole);
  constexpr double largest = std::numeric_limits<double>::max();
  const double sum = std::clamp(static_cast<double>(amount.whole) + amount.fraction, -largest, largest);
  if (std::trunc(sum) == sum && std::abs(sum) < 0x1p53) return py::int_(static_cast<std::int64_t>(sum));
  return py::float_(sum);
}

// {span id: {unit: amount}}
py::dict amounts_of(const Recording& recording, const std::optional<std::unordered_set<std::uint64_t>>& spans) {
  const auto found = read_amounts(recording.copy.arena, spans ? &*spans : nullptr);
  const NoCollection by_allocations;
  py::dict result;
  std::map<std::uint32_t, py::object> units;
  for (const auto& [span, amounts] : found) {
    py::dict of_span;
    for (const auto& [key, amount] : amounts) {
      py::object& unit = units[key];
      if (!unit) unit = field_text(recording.copy.arena.work_keys()[key].text);
      of_span[unit] = number_of(amount);
    }
    result[py::int_(span)] = std::move(of_span);
  }
  return result;
}

py::list threads_of(const Recording& recording) {
  const NoCollection by_allocations;
  py::list result;
  const ArenaView arena = recording.copy.arena;
  const std::uint32_t slots = arena.header().slot_high_water.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < slots; ++i) {
    const ThreadSlot& slot = arena.slot(i);
    const std::uint32_t state = slot.state.load(std::memory_order_relaxed);
    if (state == kSlotFree) continue;
    ThreadName name;
    copy_name(slot, name);
    py::dict thread;
    thread["thread"] = slot.thread.load(std::memory_order_relaxed);
    thread["name"] = field_text(name);
    thread["is_alive"] = state == kSlotLive;
    thread["spans"] = slot.head.load(std::memory_order_relaxed) - slot.floor.load(std::memory_order_relaxed);
    result.append(std::move(thread));
  }
  return result;
}

// --- asking its process -----------------------------------------------------------------------------------

[[noreturn]] void throw_errno() {
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

void command_write(int fd, std::uint32_t number, const py::bytes& text) {
  if (!write_command(fd, number, std::string(text))) throw_errno();
}

void command_ask_threads(int fd, const Recording& recording) {
  if (!ask_threads(fd, recording.copy.arena)) throw_errno();
}

void command_cancel(int fd, std::uint32_t number) {
  if (!cancel_command(fd, number)) throw_errno();
}

py::tuple command_state(int fd) {
  CommandState state;
  if (!read_command_state(fd, state)) throw_errno();
  return py::make_tuple(state.number, state.listening, state.noticed, state.answered, py::bytes(state.answer));
}

py::dict lost_of(const Recording& recording) {
  const NoCollection by_allocations;
  py::dict result;
  result["overwritten"] = overwritten(recording.copy.arena);
  for (std::uint32_t cause = 0; cause < kCauseCount; ++cause)
    result[kCauseNames[cause]] = recording.header().lost[cause].load(std::memory_order_relaxed);
  return result;
}

}  // namespace

void define_recording(py::module_& module) {
  Recorder::get().on_recording.store(on_recording, std::memory_order_relaxed);
  // An interpreter that an interrupt ends raises SIGINT instead of calling exit, which would call this.
  Py_AtExit([] { Recorder::get().end_recording(); });
  module.def("recording_place", recording_place);
  module.def("recording_hide", [] { Recorder::get().hide_recording(); });
  module.def("recording_describe_program", describe_program, py::arg("version"), py::arg("arguments"));
  module.def("recording_describe_process", describe_process, py::arg("rank") = -1, py::arg("world_size") = 0);
  module.def("recording_describe_worker", describe_worker, py::arg("rank"));
  module.def("recording_is_cut_off", is_cut_off);
  module.def(
      "recording_set_tell_fault",
      [](py::object tell) { Py_XDECREF(std::exchange(g_tell_fault, tell.release().ptr())); }, py::arg("tell"));
  module.def("recording_reserve_for_marks", reserve_for_marks, py::arg("fd"));
  module.def(
      "recording_program_name",
      [](const py::bytes& arguments) { return text_of(program_in(std::string(arguments)).name); },
      py::arg("arguments"));
  module.def("recording_end", [] { Recorder::get().end_recording(); });
  module.def(
      "recording_why_not_in",
      [](const std::string& folder) {
        std::string why = why_not_in(folder);
        return why.empty() ? py::object(py::none()) : text_of(why);
      },
      py::arg("folder"));
  module.def("recording_default_folder", default_recording_folder);
  module.def("recording_boot", [] { return identity_of_this_process().boot; });
  py::class_<Recording, std::shared_ptr<Recording>>(module, "RecordingCopy")
      .def("info", info)
      .def("stage_names", stage_names)
      .def("stage_kinds", stage_kinds)
      .def("snapshot", snapshot_of)
      .def("spans", spans_of)
      .def("open_spans", open_of)
      .def("segment_keys", segment_keys, py::arg("only_open") = false)
      .def("segment_ends", segment_ends)
      .def("latest_requests", latest_requests, py::arg("since_ns"))
      .def("segments", segments_of, py::arg("keys") = py::none())
      .def("links", links_of)
      .def("sent", sent_of)
      .def("received", received_of)
      .def("failures", failures_of)
      .def("gauges", gauges_of)
      .def("amounts", amounts_of, py::arg("spans") = py::none())
      .def("threads", threads_of)
      .def("lost", lost_of);
  module.def(
      "recording_marks",
      [](int fd) {
        std::string marks;
        {
          const py::gil_scoped_release unlocked;
          marks = recording_marks(fd);
        }
        return py::bytes(marks);
      },
      py::arg("fd"));
  module.def("command_write", command_write, py::arg("fd"), py::arg("number"), py::arg("text"));
  module.def("command_ask_threads", command_ask_threads, py::arg("fd"), py::arg("recording"));
  module.def("command_cancel", command_cancel, py::arg("fd"), py::arg("number"));
  module.def("command_state", command_state, py::arg("fd"));
  module.def("recording_read", read_recording, py::arg("fd"), py::arg("what"), py::arg("everything") = true);
}

}  // namespace stagespan::python
