// recording.cpp: the recording of this process, and reading the recordings of other processes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "column.h"
#include "object.h"
#include "reading.h"
#include "request_tables.h"
#include "rows.h"
#include "segments.h"
#include "stagespan/commands.h"
#include "stagespan/cut_off.h"
#include "stagespan/histogram.h"
#include "stagespan/process_info.h"
#include "stagespan/process_life.h"
#include "stagespan/reader.h"
#include "stagespan/recorder.h"
#include "stagespan/recording_reader.h"
#include "stagespan/ring_watch.h"
#include "stagespan/segment_row.h"
#include "stagespan/snapshot.h"
#include "stagespan/span_row.h"
#include "stagespan/text.h"
#include "termination.h"
#include "waiting.h"
#include "worker_name.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

// --- of this process --------------------------------------------------------------------------------------

constexpr const char* kKindNames[] = {"not yet", "off", "file", "memfd", "memory"};  // by RecordingKind

py::dict recording_place() {
  const NoCollection by_allocations;
  const RecordingPlace place = Recorder::get().recording_place();
  py::dict result;
  result["kind"] = kKindNames[static_cast<std::size_t>(place.kind)];
  result["path"] = text_or_none(place.path);
  result["is_fault"] = place.is_fault;
  result["why"] = text_or_none(place.why);
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
    set_text(info.worker, worker.name);
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
  set_text(info.version, version);
  const std::string python = Py_GetVersion();
  set_text(info.python_version, python.substr(0, python.find(' ')));
  const Program program = program_in(std::string(arguments));
  if (!program.name.empty()) {
    set_text(info.program, program.name);
    set_text(info.argument, program.argument);
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
  const RingView<AmountRecord> amounts = recording.copy.arena.ring_of<AmountRecord>();
  result["amounts_written"] = amounts.head.load(std::memory_order_relaxed);
  result["amounts_kept"] = amounts.capacity;
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
  return owned(
      span_rows(read_spans(recording.copy.arena), read_device_spans(recording.copy.arena), recording.copy.fit));
}

py::list open_of(const Recording& recording) {
  const NoCollection by_allocations;
  py::list result;
  const ClockFit& fit = recording.copy.fit;
  const std::uint64_t now = recording.copy.now_ticks;
  const std::optional<std::int64_t> now_ns = now != 0 ? std::optional(fit.unix_ns(now)) : std::nullopt;
  for (const OpenCopy& copy : recording.copy.open)
    result.append(open_span_dict(copy, recording.name_of(copy.stage), fit.unix_ns(copy.begin_ticks),
                                 fit.unix_ns(copy.active_ticks), now_ns));
  return result;
}

py::object trace_text(const TraceId& trace) { return owned(text_of_trace(trace)); }

py::object id_text(std::uint64_t id) {
  if (id == 0) return py::none();
  char text[16];
  return text_of({text, put_hexadecimal(text, id)});
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

py::dict fields_in(const Recording& recording, const RequestFields& fields) {
  py::dict result;
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

// {number of the request: {name: int, float or text}}
py::dict fields_of(const Recording& recording, const std::vector<std::uint64_t>& numbers) {
  const NoCollection by_allocations;
  py::dict result;
  for (const std::uint64_t number : numbers)
    if (const auto found = recording.copy.fields.find(number); found != recording.copy.fields.end())
      result[py::int_(number)] = fields_in(recording, found->second);
  return result;
}

// Makes dicts whose keys are the same, in the same order: each is a copy of the first one with other values.
class AlikeDicts {
 public:
  void begin() {
    current_ = first_ ? py::dict(owned(PyDict_Copy(first_.ptr()))) : py::dict();
    next_ = 0;
  }

  template <typename Value>
  void set(const char* key, Value&& value) {
    if (next_ == keys_.size()) keys_.push_back(owned(PyUnicode_InternFromString(key)));
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

// Makes a dict of the fields that visit() hands over. It borrows everything.
class DictSink {
 public:
  DictSink(const py::list& names, const py::dict& fields, const py::dict& failures)
      : names_(names), fields_(fields), failures_(failures) {}

  py::dict made(const SegmentRow& row) {
    dicts_.begin();
    visit(row, *this);
    return dicts_.end();
  }

  void number(const char* field, std::uint64_t value) { dicts_.set(field, value); }
  void time(const char* field, std::int64_t ns) {
    dicts_.set(field, ns != kUnknownNs ? py::object(py::int_(ns)) : py::object(py::none()));
  }
  void text(const char* field, std::string_view value) { dicts_.set(field, text_of(value)); }
  void text_or_none(const char* field, std::string_view value) { dicts_.set(field, python::text_or_none(value)); }
  void word(const char* field, const char* value) { dicts_.set(field, value); }
  void flag(const char* field, bool value) { dicts_.set(field, value); }
  void trace(const char* field, std::uint64_t high, std::uint64_t low) { dicts_.set(field, trace_text({high, low})); }
  void id(const char* field, std::uint64_t value) { dicts_.set(field, id_text(value)); }
  void name(const char* field, std::uint32_t number) {
    if (number == kNoName)
      dicts_.set(field, py::none());
    else
      dicts_.set(field, number < names_.size() ? py::object(names_[number]) : text_of("(unknown)"));
  }
  void link(const char* field, const SegmentRow& row) {
    const TraceId trace{row.link_trace_high, row.link_trace_low};
    const bool is_one = row.link_segment != 0 && (trace.high | trace.low) != 0;
    dicts_.set(field, is_one ? py::object(py::make_tuple(trace_text(trace), id_text(row.link_segment)))
                             : py::object(py::none()));
  }
  void details(const SegmentRow& row) {
    const py::int_ number(row.number);
    dicts_.set("fields", fields_.contains(number) ? py::object(py::dict(fields_[number]).attr("copy")()) : py::dict());
    const bool has_failed = row.status == kStatusError && failures_.contains(number);
    const py::object failure = has_failed ? py::object(failures_[number]) : py::make_tuple(py::none(), py::none());
    dicts_.set("exception", failure[py::int_(0)]);
    dicts_.set("exception_message", failure[py::int_(1)]);
  }

 private:
  const py::list& names_;
  const py::dict& fields_;
  const py::dict& failures_;
  AlikeDicts dicts_;
};

py::list segment_dicts(const py::buffer& rows, const py::list& names, const py::dict& fields,
                       const py::dict& failures) {
  const NoCollection by_allocations;
  const Column<SegmentRow> read(rows);
  DictSink sink(names, fields, failures);
  py::list result;
  for (const SegmentRow& row : read.all()) result.append(sink.made(row));
  return result;
}

// {span id: (type, message or None)}, or the same by the number of a request
py::dict failures_of(const Recording& recording, bool of_requests) {
  const NoCollection by_allocations;
  py::dict result;
  for (const FailureFields& failure : read_ring<FailureRecord>(recording.copy.arena)) {
    if ((failure.span == 0) != of_requests) continue;
    result[py::int_(of_requests ? failure.request : failure.span)] =
        py::make_tuple(recording.name_of(failure.type), text_or_none(text_in(failure.message)));
  }
  return result;
}

using Keys = std::optional<std::vector<std::int64_t>>;

std::vector<SegmentRow> rows_of(const Recording& recording, const Keys& keys, bool has_ended) {
  return segment_rows(recording.copy, keys ? &*keys : nullptr, has_ended);
}

// What ends when, of all entries.
py::object segment_ends_of(const Recording& recording) {
  std::vector<SegmentEnd> rows;
  rows.reserve(recording.copy.segments.size());
  for (const SegmentCopy& copy : recording.copy.segments) {
    const std::uint64_t ticks = copy.origin == kOriginReturn ? copy.received_ticks : copy.end_ticks;
    rows.push_back({key_of(copy), ticks != 0 ? recording.copy.fit.unix_ns(ticks) : 0, copy.trace_high, copy.trace_low});
  }
  return owned(segment_end_type().array_of(rows));
}

py::object segments_of(const Recording& recording, const Keys& keys, bool has_ended) {
  return owned(segment_row_type().array_of(rows_of(recording, keys, has_ended)));
}

// Numbers, in a table with open addressing. Looking up is linear, also for the numbers of a forged file, which cannot
// know the factor.
class Numbers {
 public:
  explicit Numbers(std::span<const std::uint64_t> numbers)
      : bits_(std::bit_width(2 * numbers.size() | 1)), table_(std::size_t{1} << bits_) {
    for (const std::uint64_t number : numbers) {
      has_zero_ = has_zero_ || number == 0;
      table_[place_of(number)] = number;
    }
  }
  bool contains(std::uint64_t number) const { return number == 0 ? has_zero_ : table_[place_of(number)] == number; }

 private:
  std::size_t place_of(std::uint64_t number) const {
    static const std::uint64_t factor = random_number() | 1;
    // Twice: the products of a sequence are one too, which with some factors falls on few places.
    const std::uint64_t once = number * factor;
    std::size_t place = (once ^ once >> 32) * factor >> (64 - bits_);
    while (table_[place] != 0 && table_[place] != number) place = (place + 1) & (table_.size() - 1);
    return place;
  }

  int bits_;
  std::vector<std::uint64_t> table_;
  bool has_zero_ = false;  // which stands for an empty place
};

// A byte for each number of 8 bytes: 1 if it is among others.
py::bytes are_in(const py::buffer& numbers, const py::buffer& among) {
  const Column<std::uint64_t> read(numbers), others(among);
  const Numbers known(others.all());
  std::string result;
  for (const std::uint64_t number : read.all()) result += static_cast<char>(known.contains(number));
  return py::bytes(result);
}

// The executions and waits in queues of requests, or of those with these numbers, ordered by number.
py::object spans_of_requests(const std::vector<py::buffer>& arrays, const std::optional<py::buffer>& requests) {
  std::optional<Numbers> wanted;
  if (requests) wanted.emplace(Column<std::uint64_t>(*requests).all());
  std::deque<Column<SpanRow>> columns;
  std::vector<const SpanRow*> chosen;
  for (const py::buffer& array : arrays)
    for (const SpanRow& row : columns.emplace_back(array).all()) {
      const int kind = row.flags >> kKindShift;
      if (row.request != 0 && (kind == kExecution || kind == kQueue) && (!wanted || wanted->contains(row.request)))
        chosen.push_back(&row);
    }
  const auto is_before = [](const SpanRow* a, const SpanRow* b) { return a->request < b->request; };
  if (!std::is_sorted(chosen.begin(), chosen.end(), is_before))
    std::stable_sort(chosen.begin(), chosen.end(), is_before);
  const py::object bytes =
      owned(PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(chosen.size() * sizeof(SpanRow))));
  auto* row = reinterpret_cast<SpanRow*>(PyByteArray_AS_STRING(bytes.ptr()));
  for (const SpanRow* const one : chosen) *row++ = *one;
  return owned(span_row_type().array(bytes.ptr(), chosen.size()));
}

// The same as dicts, for commands that do without numpy.
py::list dicts_of(const Recording& recording, const Keys& keys, bool has_ended) {
  const NoCollection by_allocations;
  const std::vector<SegmentRow> rows = rows_of(recording, keys, has_ended);
  std::vector<std::uint64_t> numbers;
  if (!recording.copy.fields.empty())
    for (const SegmentRow& row : rows) numbers.push_back(row.number);
  const py::list names = stage_names(recording);
  const py::dict fields = fields_of(recording, numbers), failures = failures_of(recording, true);
  DictSink sink(names, fields, failures);
  py::list result;
  for (const SegmentRow& row : rows) result.append(sink.made(row));
  return result;
}

#define STAGESPAN_RING_ROWS(Name, LIST, per_request, further) STAGESPAN_ROW_TYPE(rows_of_##Name, Name##Fields, LIST)
STAGESPAN_SHARED_RINGS(STAGESPAN_RING_ROWS)

// The records of the shared ring with this name, as they were written.
py::object records_of(const Recording& recording, const std::string& ring) {
#define STAGESPAN_RING_ARRAY(Name, LIST, per_request, further) \
  if (ring == #Name) return owned(rows_of_##Name().array_of(read_ring<Name##Record>(recording.copy.arena)));
  STAGESPAN_SHARED_RINGS(STAGESPAN_RING_ARRAY)
  throw py::key_error(ring);
}

// [(id of the hop, number of the segment that has sent it, queue, time, count of messages to the queue)]
py::list sent_of(const Recording& recording) {
  const NoCollection by_allocations;
  py::list result;
  for (const SentFields& sent : read_ring<SentRecord>(recording.copy.arena))
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

// `of` are the files of recordings, what recording_heads() has returned of each, and the size of its rings.
bool wait_for_recordings(int signal_fd, double seconds,
                         const std::vector<std::tuple<int, std::vector<std::uint64_t>, std::uint64_t>>& of,
                         const std::vector<std::string>& folders) {
  std::vector<ReadRings> recordings;
  for (const auto& [fd, heads, ring_spans] : of) recordings.push_back({fd, heads, ring_spans});
  const py::gil_scoped_release unlocked;
  return wait_for_rings(signal_fd, seconds, recordings, folders);
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
      "recording_why_not_in", [](const std::string& folder) { return text_or_none(why_not_in(folder)); },
      py::arg("folder"));
  module.def("recording_default_folder", default_recording_folder);
  module.def("recording_boot", [] { return identity_of_this_process().boot; });
  py::class_<Recording, std::shared_ptr<Recording>>(module, "RecordingCopy")
      .def("info", info)
      .def("stage_names", stage_names)
      .def("stage_kinds", stage_kinds)
      .def("snapshot", snapshot_of)
      .def("spans", spans_of)
      .def("drop_spans", [](Recording& recording) { recording.copy.drop_spans(); })
      .def("open_spans", open_of)
      .def("segment_keys", segment_keys, py::arg("only_open") = false)
      .def("latest_requests", latest_requests, py::arg("since_ns"))
      .def("segments", segments_of, py::arg("keys") = py::none(), py::arg("has_ended") = false)
      .def("segment_ends", segment_ends_of)
      .def("segment_dicts", dicts_of, py::arg("keys") = py::none(), py::arg("has_ended") = false)
      .def("fields", fields_of, py::arg("numbers"))
      .def("records", records_of, py::arg("ring"))
      .def("sent", sent_of)
      .def("received", received_of)
      .def("failures", failures_of, py::arg("of_requests") = false)
      .def("gauges", gauges_of)
      .def("amounts", amounts_of, py::arg("spans") = py::none())
      .def("threads", threads_of)
      .def("lost", lost_of);
  module.def("recording_heads", recording_heads, py::arg("fd"));
  module.def("recording_wait", wait_for_recordings, py::arg("signal_fd"), py::arg("seconds"), py::arg("recordings"),
             py::arg("folders"));
  module.def(
      "recording_marks",
      [](int fd) {
        return py::bytes([fd] {
          const py::gil_scoped_release unlocked;
          return recording_marks(fd);
        }());
      },
      py::arg("fd"));
  module.attr("RING_ENOUGH_S") = kEnough_s;
  module.attr("UNKNOWN_NS") = kUnknownNs;
  module.attr("NO_NAME") = kNoName;
  module.attr("TRAIT_HTTP") = static_cast<int>(kTraitHttp);
  module.attr("TRAIT_ROUTE") = static_cast<int>(kTraitRoute);
  // Without the type, an accessor would be returned, which outlives the array that it refers to.
  module.def("segment_type", []() -> py::object {
    return owned(segment_row_type().array_of(std::vector<SegmentRow>{})).attr("dtype");
  });
  module.attr("STATUSES") = py::tuple(py::cast(std::to_array(kStatusNames)));
  module.attr("ORIGINS") = py::tuple(py::cast(std::to_array(kOriginNames)));
  module.def("are_in", are_in, py::arg("numbers"), py::arg("among"));
  module.def("spans_of_requests", spans_of_requests, py::arg("arrays"), py::arg("requests") = py::none());
  module.def("segment_dicts", segment_dicts, py::arg("rows"), py::arg("names"), py::arg("fields"), py::arg("failures"));
  module.def("command_write", command_write, py::arg("fd"), py::arg("number"), py::arg("text"));
  module.def("command_ask_threads", command_ask_threads, py::arg("fd"), py::arg("recording"));
  module.def("command_cancel", command_cancel, py::arg("fd"), py::arg("number"));
  module.def("command_state", command_state, py::arg("fd"));
  module.def("recording_read", read_recording, py::arg("fd"), py::arg("what"), py::arg("everything") = true);
}

}  // namespace stagespan::python
