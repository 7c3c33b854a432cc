// reading.cpp: spans, open spans, losses, and facts about the clock and the arena.
#include "reading.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "completions.h"
#include "docstrings.h"
#include "execution_context.h"
#include "object.h"
#include "span_object.h"
#include "stage_names.h"
#include "stagespan/reader.h"
#include "stagespan/recorder.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

py::object name_of(std::uint32_t stage) { return owned(stage_name(stage)); }

py::list stage_names() {
  const NoCollection by_allocations;
  py::list result;
  const auto count = static_cast<std::uint32_t>(Recorder::get().names().size());
  for (std::uint32_t stage = 0; stage < count; ++stage) result.append(name_of(stage));
  return result;
}

py::list debug_stages() {
  const NoCollection by_allocations;
  py::list result;
  const auto count = static_cast<std::uint32_t>(Recorder::get().names().size());
  for (std::uint32_t stage = 0; stage < count; ++stage)
    if (has_debug_context(stage)) result.append(name_of(stage));
  return result;
}

py::list open_spans() {
  const NoCollection by_allocations;
  py::list result;
  Recorder& recorder = Recorder::get();
  if (!recorder.arena()) return result;
  std::vector<OpenCopy> copies = read_open(recorder.arena());
  find_activity(recorder.arena(), copies);
  const PublishedClock clock = recorder.published_clock();
  const std::int64_t now = clock.unix_ns(now_ticks());
  for (const OpenCopy& copy : copies)
    result.append(open_span_dict(copy, name_of(copy.stage), clock.unix_ns(copy.begin_ticks),
                                 clock.unix_ns(copy.active_ticks), now));
  return result;
}

py::object lost() {
  const NoCollection by_allocations;
  std::map<std::string, std::uint64_t> result;
  const Recorder& recorder = Recorder::get();
  if (!recorder.arena()) return py::cast(result);
  result["overwritten"] = overwritten(recorder.arena());
  for (std::uint32_t cause = 0; cause < kCauseCount; ++cause)
    result[kCauseNames[cause]] = recorder.arena().header().lost[cause].load(std::memory_order_relaxed);
  return py::cast(result);
}

void lose_by_name(const std::string& cause, std::uint64_t n) {
  for (std::uint32_t i = 0; i < kCauseCount; ++i) {
    if (cause != kCauseNames[i]) continue;
    Recorder::get().lose(static_cast<Cause>(i), n);
    return;
  }
  throw py::value_error("'" + cause + "' is not a cause of losses");
}

using RequestRow = std::tuple<py::object, std::uint64_t, std::int64_t, std::uint64_t, bool>;

py::list request_figures(const std::vector<std::pair<std::uint64_t, std::int64_t>>& requests) {
  const NoCollection by_allocations;
  Recorder& recorder = Recorder::get();
  struct Sum {
    std::uint64_t count = 0, ticks = 0, errors = 0;
  };
  const PublishedClock clock = recorder.published_clock();
  std::vector<std::uint64_t> numbers;
  std::uint64_t since_ticks = ~std::uint64_t{0}, complete_from = 0;
  for (const auto& [number, since_ns] : requests) {
    numbers.push_back(number);
    since_ticks = std::min(since_ticks, clock.ticks(since_ns));
  }
  std::sort(numbers.begin(), numbers.end());
  const std::vector<SpanCopy> spans = read_requests(recorder.arena(), numbers, since_ticks, &complete_from);
  std::unordered_map<std::uint64_t, std::vector<const SpanCopy*>> spans_of;
  for (const SpanCopy& span : spans)
    if (span.flags >> kKindShift == kExecution) spans_of[span.request].push_back(&span);
  py::list result;
  for (const auto& [number, since_ns] : requests) {
    const std::uint64_t begin_ticks = clock.ticks(since_ns);
    std::map<std::pair<std::uint32_t, bool>, Sum> sums;
    for (const SpanCopy* const span : spans_of[number]) {
      // A request that is entered again has the same number.
      if (span->end_ticks < begin_ticks && (span->flags & kFlagRecorded) == 0) continue;
      Sum& sum = sums[{span->stage, span->depth == 0}];
      ++sum.count;
      sum.ticks += span->end_ticks > span->begin_ticks ? span->end_ticks - span->begin_ticks : 0;
      sum.errors += (span->flags & kFlagError) != 0 ? 1 : 0;
    }
    std::vector<RequestRow> rows;
    for (const auto& [key, sum] : sums)
      rows.emplace_back(name_of(key.first), sum.count, clock.duration_ns(sum.ticks, begin_ticks), sum.errors,
                        key.second);
    result.append(py::make_tuple(rows, begin_ticks >= complete_from));
  }
  return result;
}

// The later of the host's and the device's end.
std::int64_t end_of(const Completion& completion, const PublishedClock& clock) {
  const std::int64_t end_ns = clock.end_ns(completion.begin_ticks, completion.end_ticks);
  const device::DeviceResult& device = completion.device;
  if (device.tail_ns != kUnknownNs) return end_ns + std::max<std::int64_t>(device.tail_ns, 0);
  if (device.elapsed_ns != kUnknownNs)  // its position is not known, but it did not begin before the span
    return std::max(end_ns, clock.unix_ns(completion.begin_ticks) + device.elapsed_ns);
  return end_ns;
}

py::list drain_completions(bool everything) {
  const NoCollection by_allocations;
  py::list result;
  const std::vector<Completion> taken = take_completions(everything);
  count_unqueued_completions(true);
  if (taken.empty()) return result;
  const PublishedClock clock = Recorder::get().published_clock();
  for (const Completion& c : taken)
    result.append(py::make_tuple(name_of(c.stage), clock.unix_ns(c.begin_ticks), end_of(c, clock), c.ident, c.thread,
                                 c.peak_bytes, c.flags, c.request));
  return result;
}

py::dict peak_rss_bytes() {
  const NoCollection by_allocations;
  py::dict result;
  const std::int64_t* const peaks_bytes = peak_rss_bytes_by_stage();
  for (std::uint32_t stage = 0; stage < kMaxStages; ++stage)
    if (peaks_bytes[stage] != 0) result[name_of(stage)] = peaks_bytes[stage];
  return result;
}

py::dict clock_info() {
  const NoCollection by_allocations;
  py::dict result;
  Recorder& recorder = Recorder::get();
  const ClockFit fit = recorder.clock_fit();
  const double resolution_ns = clock_resolution_ns(recorder.clock_source(), fit.ns_per_tick());
  result["source"] = clock_name(recorder.clock_source());
  result["ns_per_tick"] = fit.ns_per_tick();
  result["bracket_ns"] = fit.bracket_ns();
  result["resolution_ns"] = resolution_ns > 0 ? py::object(py::float_(resolution_ns)) : py::object(py::none());
  return result;
}

py::object arena_info() {
  const NoCollection by_allocations;
  std::map<std::string, std::uint64_t> result;
  const ArenaView arena = Recorder::get().arena();
  if (!arena) return py::cast(result);
  const ArenaHeader& header = arena.header();
  result["size_bytes"] = header.size_bytes;
  result["ring_spans"] = header.ring_spans;
  result["frames_per_thread"] = header.frames_per_thread;
  result["stages"] = header.name_count.load();
  result["thread_slots"] = header.slot_high_water.load();
  result["statistics_blocks"] = header.block_count.load();
  return py::cast(result);
}

}  // namespace

py::dict open_span_dict(const OpenCopy& copy, const py::object& stage, std::int64_t begin_ns, std::int64_t active_ns,
                        std::optional<std::int64_t> now_ns) {
  py::dict open;
  open["stage"] = stage;
  open["thread"] = copy.thread;
  open["thread_name"] = copy.detached ? py::object(py::none()) : field_text(copy.thread_name);
  open["id"] = copy.id;
  open["parent"] = copy.parent;
  open["request"] = copy.request;
  open["depth"] = copy.depth;
  open["begin_ns"] = begin_ns;
  open["active_ns"] = active_ns;
  open["elapsed_ns"] = now_ns ? std::optional(std::max<std::int64_t>(*now_ns - begin_ns, 0)) : std::nullopt;
  open["kind"] = static_cast<int>(copy.kind);
  open["detached"] = copy.detached;
  open["suspended"] = copy.suspended;
  return open;
}

void define_reading(py::module_& module) {
  module.def("open_spans", open_spans);
  module.def("stage_names", stage_names, docs::kStageNames);
  module.def("debug_stages", debug_stages);
  module.def("lost", lost, docs::kLost);
  module.def("lost_add", lose_by_name, py::arg("cause"), py::arg("n") = 1);
  module.def(
      "gauge_set",
      [](std::string_view name, double value) {
        if (mode_has(kModeEnabled)) Recorder::get().set_gauge(name, value);
      },
      py::arg("name"), py::arg("value"));
  module.def("_reset", [] { Recorder::get().reset(); });
  module.def("request_figures", request_figures, py::arg("requests"));
  module.def("device_drain_completions", drain_completions, py::arg("everything") = false);
  module.def(
      "device_drop_completions",
      [](bool everything) {
        take_completions(everything);
        count_unqueued_completions(false);
      },
      py::arg("everything") = false);
  module.def("memory_peak_rss_bytes", peak_rss_bytes);
  module.def("memory_forget_peak_rss", forget_peak_rss);
  module.def("memory_never_free", [](const py::object& object) { object.inc_ref(); }, py::arg("object"));
  module.def("service_wake", wake_waiter);
  module.def("clock_info", clock_info);
  module.def("now_ns", [] { return Recorder::get().arena() ? Recorder::get().published_ns(now_ticks()) : 0; });
  module.def("arena_info", arena_info);
}

}  // namespace stagespan::python
