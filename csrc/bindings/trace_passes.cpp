// trace_passes.cpp: gives the passes of csrc/trace columns of numpy, to read and to fill, without copies.
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "module.h"
#include "trace/covers.h"
#include "trace/distinct.h"
#include "trace/division.h"
#include "trace/nesting.h"
#include "trace/paths.h"
#include "trace/places.h"
#include "trace/schedule.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

/// A contiguous array with any number of dimensions, which lives as long as this.
template <class T>
class Array {
 public:
  Array(const py::buffer& array, bool writes) : info_(array.request(writes)) {
    if (!is_of(info_)) throw py::type_error(std::string("expected a contiguous array of ") + name());
  }
  /// Whether an array is contiguous and has elements of this type.
  static bool is_of(const py::buffer_info& info) {
    // int64 has two names, of which this is numpy's.
    const bool same = info.format == py::format_descriptor<T>::format() || info.format == "l";
    return same && info.itemsize == sizeof(T) && PyBuffer_IsContiguous(info.view(), 'C') != 0;
  }
  std::size_t size() const noexcept { return static_cast<std::size_t>(info_.size); }
  const T* data() const noexcept { return static_cast<const T*>(info_.ptr); }
  T* fill() noexcept { return static_cast<T*>(info_.ptr); }

 private:
  static constexpr const char* name() noexcept {
    return std::is_same_v<T, bool> ? "bool" : sizeof(T) == 8 ? "int64" : sizeof(T) == 4 ? "int32" : "int16 or int8";
  }

  py::buffer_info info_;
};
using Numbers = Array<std::int64_t>;
using Codes = Array<std::int32_t>;
using Mask = Array<bool>;

void check(bool holds, const char* what) {
  if (!holds) throw py::value_error(what);
}

/// The bytes of numbers, or None if they were not found.
py::object bytes_of(const std::vector<std::int64_t>& numbers, bool done) {
  if (!done) return py::none();
  return py::bytearray(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0]));
}

void nest(const py::buffer& begin, const py::buffer& end, const py::buffer& thread, const py::buffer& parent,
          const py::buffer& longer, const py::buffer& own) {
  const Numbers begins(begin, false), ends(end, false), threads(thread, false);
  Codes parents(parent, true), longers(longer, true);
  Numbers owns(own, true);
  const std::size_t count = begins.size();
  for (const std::size_t size : {ends.size(), threads.size(), parents.size(), longers.size(), owns.size()})
    check(size == count, "the arrays differ in length");
  const py::gil_scoped_release released;
  trace::nest({begins.data(), ends.data(), threads.data(), count}, parents.fill(), longers.fill(), owns.fill());
}

void open_at(const py::buffer& begin, const py::buffer& end, const py::buffer& longer, const py::buffer& place,
             const py::buffer& owner) {
  const Numbers begins(begin, false), ends(end, false), places(place, false);
  const Codes longers(longer, false);
  Numbers filled(owner, true);
  const std::size_t count = begins.size();
  check(ends.size() == count && longers.size() == count && filled.size() == places.size(),
        "the arrays differ in length");
  check(std::is_sorted(begins.data(), begins.data() + count), "the begins do not ascend");
  for (std::size_t at = 0; at < count; ++at)
    check(longers.data()[at] < static_cast<std::int64_t>(at), "an interval around another one comes after it");
  const py::gil_scoped_release released;
  trace::open_at({begins.data(), ends.data(), nullptr, count}, longers.data(), places.data(), places.size(),
                 filled.fill());
}

void add_those_below(const py::buffer& parent, const py::buffer& figure) {
  const Numbers parents(parent, false);
  Numbers figures(figure, true);
  const std::size_t count = parents.size();
  check(figures.size() == count, "the arrays differ in length");
  for (std::size_t at = 0; at < count; ++at)
    check(parents.data()[at] < static_cast<std::int64_t>(count), "an element has a parent that does not exist");
  const py::gil_scoped_release released;
  trace::add_those_below(parents.data(), count, figures.fill());
}

void begun_around(const py::buffer& begins, const py::buffer& asked, const py::buffer& around) {
  const Mask begin(begins, false);
  const Numbers places(asked, false);
  Numbers filled(around, true);
  check(places.size() == filled.size(), "the arrays differ in length");
  check(std::is_sorted(places.data(), places.data() + places.size()), "the edges do not ascend");
  const bool inside = places.size() == 0 || (places.data()[0] >= 0 && places.data()[places.size() - 1] <
                                                                          static_cast<std::int64_t>(begin.size()));
  check(inside, "an edge does not exist");
  const py::gil_scoped_release released;
  trace::begun_around(begin.data(), begin.size(), places.data(), places.size(), filled.fill());
}

void first_around(const py::buffer& parent, const py::buffer& chosen, const py::buffer& around) {
  const Codes parents(parent, false);
  const Mask mask(chosen, false);
  Codes filled(around, true);
  const std::size_t count = parents.size();
  check(mask.size() == count && filled.size() == count, "the arrays differ in length");
  for (std::size_t at = 0; at < count; ++at)
    check(parents.data()[at] < static_cast<std::int64_t>(count), "an element has a parent that does not exist");
  const py::gil_scoped_release released;
  trace::first_around(parents.data(), mask.data(), count, filled.fill());
}

/// Returns the parent and the word of each node.
py::tuple paths(const py::buffer& parent, const py::buffer& word, std::int64_t deepest, const py::buffer& node,
                const py::buffer& folded) {
  const Numbers parents(parent, false), words(word, false);
  Numbers filled(node, true);
  Mask too_deep(folded, true);
  const std::size_t count = parents.size();
  for (const std::size_t size : {words.size(), filled.size(), too_deep.size()})
    check(size == count, "the arrays differ in length");
  check(deepest > 0, "a path has at least one element");
  for (std::size_t at = 0; at < count; ++at)
    check(parents.data()[at] < static_cast<std::int64_t>(count), "an element has a parent that does not exist");
  trace::PathNodes nodes;
  {
    const py::gil_scoped_release released;
    nodes = trace::paths_of({parents.data(), words.data(), count, deepest}, filled.fill(), too_deep.fill());
  }
  return py::make_tuple(bytes_of(nodes.parent, true), bytes_of(nodes.word, true));
}

/// Unites intervals, and returns the number of the result.
std::size_t merge(const py::buffer& begin, const py::buffer& end, const py::buffer& merged) {
  const Numbers begins(begin, false), ends(end, false);
  Numbers filled(merged, true);
  const std::size_t count = begins.size();
  check(ends.size() == count && filled.size() == 2 * count, "the arrays differ in length");
  const py::gil_scoped_release released;
  return trace::merge({begins.data(), ends.data(), count}, filled.fill(), filled.fill() + count);
}

/// Unites two disjoint ascending sets, and returns the number of intervals.
std::size_t unite(const py::buffer& begin, const py::buffer& end, const py::buffer& other_begin,
                  const py::buffer& other_end, const py::buffer& united) {
  const Numbers begins(begin, false), ends(end, false), others(other_begin, false), other_ends(other_end, false);
  Numbers filled(united, true);
  const std::size_t count = begins.size() + others.size();
  check(ends.size() == begins.size() && other_ends.size() == others.size() && filled.size() == 2 * count,
        "the arrays differ in length");
  const py::gil_scoped_release released;
  return trace::unite({begins.data(), ends.data(), begins.size()}, {others.data(), other_ends.data(), others.size()},
                      filled.fill(), filled.fill() + count);
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

template <class T>
py::object number_of(const py::buffer& column, const std::optional<py::buffer>& index) {
  const Array<T> values(column, false);
  std::optional<Numbers> filled;
  if (index.has_value()) filled.emplace(*index, true);
  check(!filled.has_value() || filled->size() == values.size(), "the arrays differ in length");
  std::vector<std::int64_t> different;
  bool done = false;
  {
    const py::gil_scoped_release released;
    done = trace::number(values.data(), values.size(), filled.has_value() ? filled->fill() : nullptr, &different);
  }
  return bytes_of(different, done);
}

py::object number(const py::buffer& column, const std::optional<py::buffer>& index) {
  return Codes::is_of(column.request()) ? number_of<std::int32_t>(column, index)
                                        : number_of<std::int64_t>(column, index);
}

py::object number_pairs(const py::buffer& first, const py::buffer& second, const py::buffer& index) {
  const Numbers firsts(first, false), seconds(second, false);
  Numbers filled(index, true);
  check(seconds.size() == firsts.size() && filled.size() == firsts.size(), "the arrays differ in length");
  std::vector<std::int64_t> pairs;
  bool done = false;
  {
    const py::gil_scoped_release released;
    done = trace::number_pairs(firsts.data(), seconds.data(), firsts.size(), filled.fill(), &pairs);
  }
  return bytes_of(pairs, done);
}

/// Passes the codes of an array, which must be places in a table of `size` elements, to `use`.
template <class Use>
void with_codes(const py::buffer& code, std::size_t size, Use use) {
  const auto checked = [&]<class T>(const Array<T>& codes) {
    if (!trace::are_places(codes.data(), codes.size(), size)) throw py::index_error("a code has no place in the table");
    use(codes);
  };
  const py::buffer_info info = code.request();
  if (Array<std::int8_t>::is_of(info)) return checked(Array<std::int8_t>(code, false));
  if (Array<std::int16_t>::is_of(info)) return checked(Array<std::int16_t>(code, false));
  checked(Codes(code, false));
}

void look_up(const py::buffer& table, const py::buffer& code, const py::buffer& result) {
  const Mask marked(table, false);
  Mask filled(result, true);
  with_codes(code, marked.size(), [&](const auto& codes) {
    check(filled.size() == codes.size(), "the arrays differ in length");
    const py::gil_scoped_release released;
    trace::look_up(marked.data(), codes.data(), codes.size(), filled.fill());
  });
}

void mark(const py::buffer& code, const py::buffer& chosen, const py::buffer& table) {
  Mask filled(table, true);
  const Mask mask(chosen, false);
  with_codes(code, filled.size(), [&](const auto& codes) {
    check(mask.size() == codes.size(), "the arrays differ in length");
    const py::gil_scoped_release released;
    trace::mark(codes.data(), mask.data(), codes.size(), filled.fill());
  });
}

void spread(const py::buffer& table, const py::buffer& code, const py::buffer& value, std::int64_t missing,
            const py::buffer& result) {
  const Mask marked(table, false);
  Numbers filled(result, true);
  with_codes(code, marked.size(), [&](const auto& codes) {
    check(filled.size() == codes.size(), "the arrays differ in length");
    const auto spread_values = [&](const auto& values) {
      const py::gil_scoped_release released;
      return trace::spread(marked.data(), codes.data(), codes.size(), values.data(), values.size(), missing,
                           filled.fill());
    };
    check(Codes::is_of(value.request()) ? spread_values(Codes(value, false)) : spread_values(Numbers(value, false)),
          "the number of values is not that of the rows that have one");
  });
}

std::size_t place_events(const py::buffer& thread, const py::buffer& begin, const py::buffer& duration,
                         const std::array<std::int64_t, 3>& axis, const py::buffer& row, const py::buffer& first,
                         const py::buffer& last) {
  const Codes threads(thread, false);
  const Numbers begins(begin, false), durations(duration, false);
  Codes rows(row, true);
  Numbers firsts(first, true), lasts(last, true);
  const std::size_t count = begins.size();
  for (const std::size_t size : {threads.size(), durations.size(), rows.size(), firsts.size(), lasts.size()})
    check(size == count, "the arrays differ in length");
  const py::gil_scoped_release released;
  return trace::place_events({threads.data(), begins.data(), durations.data(), count}, {axis[0], axis[1], axis[2]},
                             {rows.fill(), firsts.fill(), lasts.fill()});
}

}  // namespace

void define_trace_passes(py::module_& module) {
  module.def("trace_nest", &nest);
  module.def("trace_open_at", &open_at);
  module.def("trace_add_those_below", &add_those_below);
  module.def("trace_begun_around", &begun_around);
  module.def("trace_first_around", &first_around);
  module.def("trace_paths", &paths);
  module.def("trace_merge", &merge);
  module.def("trace_unite", &unite);
  module.def("trace_covered_until", &covered_until);
  module.def("trace_earliest", &earliest);
  module.def("trace_latest", &latest);
  module.def("trace_topological_ranks", &topological_ranks);
  module.def("trace_number", &number, py::arg("column"), py::arg("index") = py::none());
  module.def("trace_number_pairs", &number_pairs);
  module.def("trace_look_up", &look_up);
  module.def("trace_mark", &mark);
  module.def("trace_spread", &spread);
  module.def("trace_place_events", &place_events);
  module.def("divide_requests", &divide);
}

}  // namespace stagespan::python
