// statistics.cpp: snapshots and their figures, in nanoseconds.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "object.h"
#include "reading.h"
#include "stage_names.h"
#include "stagespan/histogram.h"
#include "stagespan/packed_snapshot.h"
#include "stagespan/recorder.h"
#include "stagespan/snapshot.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

void check_quantile(double q) {
  if (!(q >= 0 && q <= 1)) throw py::value_error("a quantile must be from 0 to 1, not " + std::to_string(q));
}

/// How many are in the groups of buckets up to each one. `groups` has the group of each of `bucket_count` buckets,
/// ascending.
py::list cumulative_of(const BucketCounts& buckets, std::size_t bucket_count, const py::bytes& groups,
                       std::size_t size) {
  const auto group_of = static_cast<std::string_view>(groups);
  if (group_of.size() != bucket_count || static_cast<unsigned char>(group_of.back()) >= size ||
      !std::is_sorted(group_of.begin(), group_of.end(),
                      [](char a, char b) { return static_cast<unsigned char>(a) < static_cast<unsigned char>(b); }))
    throw py::value_error("groups must be " + std::to_string(bucket_count) + " ascending numbers below the size");
  std::vector<std::uint64_t> counts(size);
  for (const auto& [bucket, count] : buckets) counts[static_cast<unsigned char>(group_of[bucket])] += count;
  const NoCollection by_allocations;
  py::list result;
  std::uint64_t sum = 0;
  for (const std::uint64_t count : counts) result.append(sum += count);
  return result;
}

/// The distribution of a duration in nanoseconds, which is not empty.
struct Durations {
  std::shared_ptr<const Snapshot> snapshot;  // holds the distribution
  const Distribution* of;
  double ns_per_tick;

  std::int64_t ns(std::uint64_t ticks) const {
    return static_cast<std::int64_t>(std::llround(static_cast<double>(ticks) * ns_per_tick));
  }
  double mean_ns() const { return static_cast<double>(of->sum_ticks) * ns_per_tick / static_cast<double>(of->count); }
  double quantile_ns(double q) const {
    check_quantile(q);
    // Minimum and maximum are whole nanoseconds. Rounding must not move a quantile out of their range.
    const auto low = static_cast<double>(ns(of->min_ticks)), high = static_cast<double>(ns(of->max_ticks));
    return std::clamp(of->quantile_ticks(q).value() * ns_per_tick, low, std::max(low, high));
  }
  /// The middle of each bucket, and how many durations are in it. Durations that are counted, but not in a bucket yet,
  /// have their mean.
  py::list buckets_ns() const {
    const NoCollection by_allocations;
    py::list result;
    const auto low = static_cast<double>(of->min_ticks), high = static_cast<double>(of->max_ticks);
    const auto add = [&](double ticks, std::uint64_t count) {
      result.append(py::make_tuple(std::clamp(ticks, low, std::max(low, high)) * ns_per_tick, count));
    };
    // The last bucket has no upper bound. The longest duration is the best estimate.
    for (const auto& [bucket, count] : of->buckets) add(bucket == kBuckets - 1 ? high : bucket_value(bucket), count);
    if (of->buckets.empty() && of->count != 0)
      add(static_cast<double>(of->sum_ticks) / static_cast<double>(of->count), of->count);
    return result;
  }
};

/// One stage of a snapshot, which has run at least once, and its host time.
struct StageView : Durations {
  StageView(std::shared_ptr<const Snapshot> from, std::uint32_t number)
      : Durations{from, &from->stages.at(number).host, from->ns_per_tick}, stage(number) {}

  std::uint32_t stage;

  const StageFigures& figures() const { return snapshot->stages.at(stage); }
};

std::optional<Durations> device_figure(const StageView& view, DeviceFigure figure) {
  const Distribution& of = view.figures().device[figure];
  return of.count == 0 ? std::nullopt : std::optional(Durations{view.snapshot, &of, 1});
}

/// The distribution of amounts in one unit, which is not empty.
struct AmountSummary {
  std::shared_ptr<const Snapshot> snapshot;  // holds the distribution
  const AmountDistribution* of;

  double quantile(double q) const {
    check_quantile(q);
    return of->quantile(q).value();
  }
};

py::object name_in(const Snapshot& snapshot, std::uint32_t stage) {
  if (snapshot.names == nullptr) return owned(stage_name(stage));
  if (stage < snapshot.names->size()) return text_of((*snapshot.names)[stage]);
  return owned(PyUnicode_FromFormat("(unknown stage %u)", stage));
}

py::object parent_name(const Snapshot& snapshot, std::uint32_t stage) {
  if (stage == kNoStage) return py::none();
  if (stage == kSeveralStages) return py::str("(several)");
  return name_in(snapshot, stage);
}

py::dict parents(const StageView& view) {
  const NoCollection by_allocations;
  py::dict result;
  for (const auto& [stage, edge] : view.figures().parents)
    result[parent_name(*view.snapshot, stage)] = py::make_tuple(edge.count, view.ns(edge.sum_ticks));
  return result;
}

std::shared_ptr<Snapshot> fresh_snapshot() {
  Recorder& recorder = Recorder::get();
  if (!recorder.arena()) return std::make_shared<Snapshot>();
  const ClockFit fit = recorder.clock_fit();
  return std::make_shared<Snapshot>(take_snapshot(recorder.arena(), fit));
}

py::object work(const StageView& view) {
  const NoCollection by_allocations;
  return py::cast(view.figures().work);
}

py::dict amounts(const StageView& view) {
  const NoCollection by_allocations;
  py::dict result;
  for (const auto& [unit, of] : view.figures().amounts) result[py::str(unit)] = AmountSummary{view.snapshot, &of};
  return result;
}

/// The distributions of amounts of all stages of a kind: {name: {unit: summary}}. The unit of batch sizes is None.
py::dict all_amounts(const std::shared_ptr<Snapshot>& snapshot, std::uint32_t kind) {
  const NoCollection by_allocations;
  py::dict result;
  for (const auto& [stage, figures] : snapshot->stages) {
    const bool has_size = figures.batch_size.count != 0;
    if (figures.kind != kind || (figures.amounts.empty() && !has_size)) continue;
    py::dict units = amounts(StageView{snapshot, stage});
    if (has_size) units[py::none()] = AmountSummary{snapshot, &figures.batch_size};
    result[name_in(*snapshot, stage)] = units;
  }
  return result;
}

py::dict stages(const std::shared_ptr<Snapshot>& snapshot, std::uint32_t kind) {
  const NoCollection by_allocations;
  py::dict result;
  // A stage that has not run between two snapshots, or whose first run is still open, has no figures.
  for (const auto& [stage, figures] : snapshot->stages)
    if (figures.host.count != 0 && figures.kind == kind) result[name_in(*snapshot, stage)] = StageView{snapshot, stage};
  return result;
}

}  // namespace

void define_statistics(py::module_& module) {
  py::class_<Durations>(module, "Summary")
      .def_property_readonly("count", [](const Durations& view) { return view.of->count; })
      .def_property_readonly("total_ns", [](const Durations& view) { return view.ns(view.of->sum_ticks); })
      .def_property_readonly("mean_ns", &Durations::mean_ns)
      .def_property_readonly("min_ns", [](const Durations& view) { return view.ns(view.of->min_ticks); })
      .def_property_readonly("max_ns", [](const Durations& view) { return view.ns(view.of->max_ticks); })
      .def_property_readonly("p50_ns", [](const Durations& view) { return view.quantile_ns(0.50); })
      .def_property_readonly("p95_ns", [](const Durations& view) { return view.quantile_ns(0.95); })
      .def_property_readonly("p99_ns", [](const Durations& view) { return view.quantile_ns(0.99); })
      .def("quantile_ns", &Durations::quantile_ns, py::arg("q"))
      .def("buckets_ns", &Durations::buckets_ns)
      .def(
          "cumulative",
          [](const Durations& view, const py::bytes& groups, std::size_t size) {
            return cumulative_of(view.of->buckets, kBuckets, groups, size);
          },
          py::arg("groups"), py::arg("size"));

  py::class_<AmountSummary>(module, "AmountSummary")
      .def_property_readonly("count", [](const AmountSummary& view) { return view.of->count; })
      .def_property_readonly("total", [](const AmountSummary& view) { return view.of->sum; })
      .def_property_readonly(
          "mean", [](const AmountSummary& view) { return view.of->sum / static_cast<double>(view.of->count); })
      .def_property_readonly("min", [](const AmountSummary& view) { return view.of->least; })
      .def_property_readonly("max", [](const AmountSummary& view) { return view.of->most; })
      .def_property_readonly("p50", [](const AmountSummary& view) { return view.quantile(0.50); })
      .def_property_readonly("p95", [](const AmountSummary& view) { return view.quantile(0.95); })
      .def_property_readonly("p99", [](const AmountSummary& view) { return view.quantile(0.99); })
      .def("quantile", &AmountSummary::quantile, py::arg("q"))
      .def("buckets",
           [](const AmountSummary& view) {
             const NoCollection by_allocations;
             py::list result;
             for (const auto& [bucket, count] : view.of->buckets)
               result.append(py::make_tuple(view.of->amount_in(bucket), count));
             return result;
           })
      .def(
          "cumulative",
          [](const AmountSummary& view, const py::bytes& groups, std::size_t size) {
            return cumulative_of(view.of->buckets, kAmountBuckets, groups, size);
          },
          py::arg("groups"), py::arg("size"));

  py::class_<StageView, Durations>(module, "StageSummary")
      .def_property_readonly("name", [](const StageView& view) { return name_in(*view.snapshot, view.stage); })
      .def_property_readonly("errors", [](const StageView& view) { return view.figures().errors; })
      .def_property_readonly("suspended_ns",
                             [](const StageView& view) { return view.ns(view.figures().suspended_ticks); })
      .def_property_readonly("children_ns",
                             [](const StageView& view) { return view.ns(view.figures().children_ticks); })
      .def_property_readonly("cpu_total_ns",
                             [](const StageView& view) {
                               const StageFigures& of = view.figures();
                               return of.cpu_count != 0 ? std::optional(of.cpu_ns) : std::nullopt;
                             })
      .def_property_readonly("cpu_count", [](const StageView& view) { return view.figures().cpu_count; })
      .def_property_readonly("parents", parents)
      .def_property_readonly("work", work)
      .def_property_readonly("amounts", amounts)
      .def_property_readonly("batch_size",
                             [](const StageView& view) {
                               const AmountDistribution& of = view.figures().batch_size;
                               return of.count != 0 ? std::optional(AmountSummary{view.snapshot, &of}) : std::nullopt;
                             })
      .def_property_readonly("device_elapsed_ns",
                             [](const StageView& view) { return device_figure(view, kDeviceElapsed); })
      .def_property_readonly("device_queue_ns", [](const StageView& view) { return device_figure(view, kDeviceQueue); })
      .def_property_readonly("device_tail_ns", [](const StageView& view) { return device_figure(view, kDeviceTail); });

  py::class_<Snapshot, std::shared_ptr<Snapshot>>(module, "Snapshot")
      .def_property_readonly("time_ns", [](const Snapshot& snapshot) { return snapshot.unix_ns; })
      .def_property_readonly("ns_per_tick", [](const Snapshot& snapshot) { return snapshot.ns_per_tick; })
      .def_property_readonly("resets", [](const Snapshot& snapshot) { return snapshot.resets; })
      .def("stages", stages, py::arg("kind") = 0)
      .def("amounts", all_amounts, py::arg("kind"))
      .def(
          "since",
          [](const Snapshot& later, const Snapshot& earlier) {
            if (earlier.number > later.number)
              throw py::value_error("the snapshot to subtract is the later one: call since() on the later snapshot");
            return std::make_shared<Snapshot>(difference(later, earlier));
          },
          py::arg("earlier"))
      .def("pack", [](const Snapshot& snapshot) { return std::make_shared<PackedSnapshot>(snapshot); });

  py::class_<PackedSnapshot, std::shared_ptr<PackedSnapshot>>(module, "PackedSnapshot")
      .def_property_readonly("time_ns", &PackedSnapshot::unix_ns)
      .def_property_readonly("size_bytes", &PackedSnapshot::size_bytes)
      .def("unpack", [](const PackedSnapshot& packed) { return std::make_shared<Snapshot>(packed.unpack()); });

  module.def("snapshot", fresh_snapshot);
  module.def("amount_bounds", [] {
    std::vector<double> bounds(kAmountBuckets);
    for (std::uint32_t bucket = 0; bucket < kAmountBuckets; ++bucket) bounds[bucket] = amount_bucket_high(bucket);
    return bounds;
  });
  module.def("histogram_bounds", [] {
    std::vector<std::uint64_t> bounds(kBuckets + 1);
    for (std::uint32_t bucket = 0; bucket <= kBuckets; ++bucket) bounds[bucket] = bucket_low(bucket);
    return bounds;
  });
}

}  // namespace stagespan::python
