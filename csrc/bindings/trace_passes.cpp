// trace_passes.cpp: gives the passes of csrc/trace columns of numpy, to read and to fill, without copies.
#include <array>
#include <cstdint>
#include <string>

#include "parts.h"
#include "trace/covers.h"
#include "trace/division.h"
#include "trace/nesting.h"
#include "trace/schedule.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

/// A contiguous array of int64 with any number of dimensions, which lives as long as this.
class Numbers {
 public:
  Numbers(const py::buffer& array, bool writes) : info_(array.request(writes)) {
    const bool whole = info_.itemsize == 8 && (info_.format == "l" || info_.format == "q");
    if (!whole || PyBuffer_IsContiguous(info_.view(), 'C') == 0)
      throw py::type_error("expected a contiguous array of int64");
  }
  std::size_t size() const noexcept { return static_cast<std::size_t>(info_.size); }
  const std::int64_t* data() const noexcept { return static_cast<const std::int64_t*>(info_.ptr); }
  std::int64_t* fill() noexcept { return static_cast<std::int64_t*>(info_.ptr); }

 private:
  py::buffer_info info_;
};

void check(bool holds, const char* what) {
  if (!holds) throw py::value_error(what);
}

void nest(const py::buffer& begin, const py::buffer& end, const py::buffer& thread, const py::buffer& parent,
          const py::buffer& longer, const py::buffer& own) {
  const Numbers begins(begin, false), ends(end, false), threads(thread, false);
  Numbers parents(parent, true), longers(longer, true), owns(own, true);
  const std::size_t count = begins.size();
  for (const std::size_t size : {ends.size(), threads.size(), parents.size(), longers.size(), owns.size()})
    check(size == count, "the arrays differ in length");
  const py::gil_scoped_release released;
  trace::nest({begins.data(), ends.data(), threads.data(), count}, parents.fill(), longers.fill(), owns.fill());
}

void first_around(const py::buffer& parent, const py::buffer& chosen, const py::buffer& around) {
  const Numbers parents(parent, false);
  const py::buffer_info mask = chosen.request();
  Numbers filled(around, true);
  if (mask.format != "?" || PyBuffer_IsContiguous(mask.view(), 'C') == 0)
    throw py::type_error("expected a contiguous array of bool");
  const std::size_t count = parents.size();
  check(static_cast<std::size_t>(mask.size) == count && filled.size() == count, "the arrays differ in length");
  for (std::size_t at = 0; at < count; ++at)
    check(parents.data()[at] < static_cast<std::int64_t>(count), "an element has a parent that does not exist");
  const py::gil_scoped_release released;
  trace::first_around(parents.data(), static_cast<const bool*>(mask.ptr), count, filled.fill());
}

/// Returns -1, without filling the arrays, if the begins do not ascend.
std::int64_t merge(const py::buffer& begin, const py::buffer& end, const py::buffer& merged) {
  const Numbers begins(begin, false), ends(end, false);
  Numbers filled(merged, true);
  const std::size_t count = begins.size();
  check(ends.size() == count && filled.size() == 2 * count, "the arrays differ in length");
  const py::gil_scoped_release released;
  const trace::IntervalTable intervals{begins.data(), ends.data(), count};
  if (!trace::ascends(intervals)) return -1;
  return static_cast<std::int64_t>(trace::merge(intervals, filled.fill(), filled.fill() + count));
}

void covered_until(const py::buffer& begin, const py::buffer& end, const py::buffer& before, const py::buffer& place,
                   const py::buffer& covered) {
  const Numbers begins(begin, false), ends(end, false), lengths(before, false), places(place, false);
  Numbers filled(covered, true);
  const std::size_t count = begins.size();
  check(ends.size() == count && lengths.size() >= count && filled.size() == places.size(),
        "the arrays differ in length");
  const py::gil_scoped_release released;
  trace::covered_until({begins.data(), ends.data(), count}, lengths.data(), places.data(), places.size(),
                       filled.fill());
}

/// The edges of two arrays, which are checked.
trace::EdgeTable edges_of(const Numbers& source, const Numbers& target, std::size_t points) {
  const trace::EdgeTable edges{source.data(), target.data(), source.size(), points};
  check(target.size() == edges.count, "the arrays differ in length");
  check(trace::in_range(edges), "an edge has a point that does not exist");
  return edges;
}

void earliest(const py::buffer& source, const py::buffer& target, const py::buffer& lags, std::size_t cases,
              const py::buffer& times) {
  const Numbers sources(source, false), targets(target, false), lag(lags, false);
  Numbers filled(times, true);
  check(cases > 0 && filled.size() % cases == 0, "the times have no row for each point");
  const trace::EdgeTable edges = edges_of(sources, targets, filled.size() / cases);
  check(lag.size() == edges.count * cases, "the lags have no row for each edge");
  const py::gil_scoped_release released;
  trace::earliest(edges, lag.data(), cases, filled.fill());
}

void latest(const py::buffer& source, const py::buffer& target, const py::buffer& lags, const py::buffer& times) {
  const Numbers sources(source, false), targets(target, false), lag(lags, false);
  Numbers filled(times, true);
  const trace::EdgeTable edges = edges_of(sources, targets, filled.size());
  check(lag.size() == edges.count, "the lags have no element for each edge");
  const py::gil_scoped_release released;
  trace::latest(edges, lag.data(), filled.fill());
}

void topological_ranks(const py::buffer& source, const py::buffer& target, const py::buffer& ranks) {
  const Numbers sources(source, false), targets(target, false);
  Numbers filled(ranks, true);
  const trace::EdgeTable edges = edges_of(sources, targets, filled.size());
  const py::gil_scoped_release released;
  trace::topological_ranks(edges, filled.fill());
}

void divide(const py::buffer& part, const py::buffer& request, const py::buffer& owned, const py::buffer& outside) {
  const Numbers parts(part, false), requests(request, false);
  Numbers owners(owned, true), filled(outside, true);
  check(parts.size() % 8 == 0 && requests.size() % 2 == 0, "the parts have no 8 columns, or the requests no 2");
  const std::size_t count = parts.size() / 8, number = requests.size() / 2;
  check(filled.size() == 3 * number, "the last array has no 3 columns for each request");
  std::array<const std::int64_t*, 8> column{};
  for (std::size_t i = 0; i < column.size(); ++i) column[i] = parts.data() + i * count;
  const auto [of, kind, depth, level, since, owner, begin, end] = column;
  for (std::size_t i = 0; i < count; ++i) {
    const bool follows = of[i] >= (i == 0 ? 0 : of[i - 1]) && of[i] < static_cast<std::int64_t>(number);
    check(follows, "the parts are not sorted by request, or one has a request that does not exist");
    check(owner[i] >= 0 && owner[i] < static_cast<std::int64_t>(owners.size()),
          "a part has an owner that does not exist");
  }
  const py::gil_scoped_release released;
  std::int64_t* outputs = filled.fill();
  trace::divide({of, kind, depth, level, since, owner, begin, end, count},
                {requests.data(), requests.data() + number, number},
                {owners.fill(), outputs, outputs + number, outputs + 2 * number});
}

}  // namespace

void define_trace_passes(py::module_& module) {
  module.def("trace_nest", &nest);
  module.def("trace_first_around", &first_around);
  module.def("trace_merge", &merge);
  module.def("trace_covered_until", &covered_until);
  module.def("trace_earliest", &earliest);
  module.def("trace_latest", &latest);
  module.def("trace_topological_ranks", &topological_ranks);
  module.def("divide_requests", &divide);
}

}  // namespace stagespan::python
