// trace_passes.cpp: gives the passes of csrc/trace columns of numpy, to read and to fill, without copies.
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
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

/// A contiguous array with any number of dimensions, to read or to fill, which lives as long as this.
template <class T, bool writes = false>
class Array {
 public:
  explicit Array(const py::buffer& array) : info_(array.request(writes)) {
    if (!is_of(info_)) throw py::type_error(std::string("expected a contiguous array of ") + name());
  }
  /// Whether an array is contiguous and has elements of this type.
  static bool is_of(const py::buffer_info& info) {
    // int64 has two names, of which this is numpy's.
    const bool same = info.format == py::format_descriptor<T>::format() || info.format == "l";
    return same && info.itemsize == sizeof(T) && PyBuffer_IsContiguous(info.view(), 'C') != 0;
  }
  std::size_t size() const noexcept { return static_cast<std::size_t>(info_.size); }
  auto* data() const noexcept { return static_cast<std::conditional_t<writes, T, const T>*>(info_.ptr); }

 private:
  static constexpr const char* name() noexcept {
    return std::is_same_v<T, bool> ? "bool" : sizeof(T) == 8 ? "int64" : sizeof(T) == 4 ? "int32" : "int16 or int8";
  }

  py::buffer_info info_;
};
using Numbers = Array<std::int64_t>;
using Codes = Array<std::int32_t>;
using Mask = Array<bool>;
using FilledNumbers = Array<std::int64_t, true>;
using FilledCodes = Array<std::int32_t, true>;
using FilledMask = Array<bool, true>;

}  // namespace

}  // namespace stagespan::python

/// Makes the arrays above parameters of functions.
template <class T, bool writes>
struct py::detail::type_caster<stagespan::python::Array<T, writes>> {
  using Array = stagespan::python::Array<T, writes>;
  template <class>
  using cast_op_type = const Array&;
  static constexpr auto name = const_name("numpy.ndarray");

  bool load(handle source, bool) {
    if (!isinstance<buffer>(source)) return false;
    array.emplace(reinterpret_borrow<buffer>(source));
    return true;
  }
  operator const Array&() const { return *array; }

  std::optional<Array> array;
};

namespace stagespan::python {

namespace {

void check(bool holds, const char* what) {
  if (!holds) throw py::value_error(what);
}

void check_lengths(std::size_t count, std::initializer_list<std::size_t> lengths) {
  for (const std::size_t length : lengths) check(length == count, "the arrays differ in length");
}

void check_parents(const auto& parents) {
  for (std::size_t at = 0; at < parents.size(); ++at)
    check(parents.data()[at] < static_cast<std::int64_t>(parents.size()),
          "an element has a parent that does not exist");
}

/// The bytes of numbers, or None if they were not found.
py::object bytes_of(const std::vector<std::int64_t>& numbers, bool done) {
  if (!done) return py::none();
  return py::bytearray(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0]));
}

// --- without the interpreter's lock -----------------------------------------------------------------------

void nest(const Numbers& begins, const Numbers& ends, const Numbers& threads, const FilledCodes& parents,
          const FilledCodes& longers, const FilledNumbers& owns) {
  const std::size_t count = begins.size();
  check_lengths(count, {ends.size(), threads.size(), parents.size(), longers.size(), owns.size()});
  trace::nest({begins.data(), ends.data(), threads.data(), count}, parents.data(), longers.data(), owns.data());
}

void open_at(const Numbers& begins, const Numbers& ends, const Codes& longers, const Numbers& places,
             const FilledNumbers& owners) {
  const std::size_t count = begins.size();
  check_lengths(count, {ends.size(), longers.size()});
  check_lengths(places.size(), {owners.size()});
  check(std::is_sorted(begins.data(), begins.data() + count), "the begins do not ascend");
  for (std::size_t at = 0; at < count; ++at)
    check(longers.data()[at] < static_cast<std::int64_t>(at), "an interval around another one comes after it");
  trace::open_at({begins.data(), ends.data(), nullptr, count}, longers.data(), places.data(), places.size(),
                 owners.data());
}

void add_those_below(const Numbers& parents, const FilledNumbers& figures) {
  check_lengths(parents.size(), {figures.size()});
  check_parents(parents);
  trace::add_those_below(parents.data(), parents.size(), figures.data());
}

void begun_around(const Mask& begins, const Numbers& asked, const FilledNumbers& around) {
  check_lengths(asked.size(), {around.size()});
  check(std::is_sorted(asked.data(), asked.data() + asked.size()), "the edges do not ascend");
  const bool inside = asked.size() == 0 || (asked.data()[0] >= 0 &&
                                            asked.data()[asked.size() - 1] < static_cast<std::int64_t>(begins.size()));
  check(inside, "an edge does not exist");
  trace::begun_around(begins.data(), begins.size(), asked.data(), asked.size(), around.data());
}

void first_around(const Codes& parents, const Mask& chosen, const FilledCodes& around) {
  check_lengths(parents.size(), {chosen.size(), around.size()});
  check_parents(parents);
  trace::first_around(parents.data(), chosen.data(), parents.size(), around.data());
}

/// Unites intervals, and returns the number of the result.
std::size_t merge(const Numbers& begins, const Numbers& ends, const FilledNumbers& merged) {
  const std::size_t count = begins.size();
  check_lengths(count, {ends.size()});
  check_lengths(2 * count, {merged.size()});
  return trace::merge({begins.data(), ends.data(), count}, merged.data(), merged.data() + count);
}

/// Unites two disjoint ascending sets, and returns the number of intervals.
std::size_t unite(const Numbers& begins, const Numbers& ends, const Numbers& others, const Numbers& other_ends,
                  const FilledNumbers& united) {
  const std::size_t count = begins.size() + others.size();
  check_lengths(begins.size(), {ends.size()});
  check_lengths(others.size(), {other_ends.size()});
  check_lengths(2 * count, {united.size()});
  return trace::unite({begins.data(), ends.data(), begins.size()}, {others.data(), other_ends.data(), others.size()},
                      united.data(), united.data() + count);
}

void covered_until(const Numbers& begins, const Numbers& ends, const Numbers& before, const Numbers& places,
                   const FilledNumbers& covered) {
  const std::size_t count = begins.size();
  check(ends.size() == count && before.size() >= count && covered.size() == places.size(),
        "the arrays differ in length");
  trace::covered_until({begins.data(), ends.data(), count}, before.data(), places.data(), places.size(),
                       covered.data());
}

/// The edges of two arrays, which are checked.
trace::EdgeTable edges_of(const Numbers& source, const Numbers& target, std::size_t points) {
  const trace::EdgeTable edges{source.data(), target.data(), source.size(), points};
  check_lengths(edges.count, {target.size()});
  check(trace::in_range(edges), "an edge has a point that does not exist");
  return edges;
}

void earliest(const Numbers& sources, const Numbers& targets, const Numbers& lags, std::size_t cases,
              const FilledNumbers& times) {
  check(cases > 0 && times.size() % cases == 0, "the times have no row for each point");
  const trace::EdgeTable edges = edges_of(sources, targets, times.size() / cases);
  check(lags.size() == edges.count * cases, "the lags have no row for each edge");
  trace::earliest(edges, lags.data(), cases, times.data());
}

void latest(const Numbers& sources, const Numbers& targets, const Numbers& lags, const FilledNumbers& times) {
  const trace::EdgeTable edges = edges_of(sources, targets, times.size());
  check(lags.size() == edges.count, "the lags have no element for each edge");
  trace::latest(edges, lags.data(), times.data());
}

void topological_ranks(const Numbers& sources, const Numbers& targets, const FilledNumbers& ranks) {
  trace::topological_ranks(edges_of(sources, targets, ranks.size()), ranks.data());
}

void divide(const Numbers& parts, const Numbers& requests, const FilledNumbers& owned, const FilledNumbers& outside) {
  check(parts.size() % 8 == 0 && requests.size() % 2 == 0, "the parts have no 8 columns, or the requests no 2");
  const std::size_t count = parts.size() / 8, number = requests.size() / 2;
  check(outside.size() == 3 * number, "the last array has no 3 columns for each request");
  std::array<const std::int64_t*, 8> column{};
  for (std::size_t i = 0; i < column.size(); ++i) column[i] = parts.data() + i * count;
  const auto [of, kind, depth, level, since, owner, begin, end] = column;
  for (std::size_t i = 0; i < count; ++i) {
    const bool follows = of[i] >= (i == 0 ? 0 : of[i - 1]) && of[i] < static_cast<std::int64_t>(number);
    check(follows, "the parts are not sorted by request, or one has a request that does not exist");
    check(owner[i] >= 0 && owner[i] < static_cast<std::int64_t>(owned.size()),
          "a part has an owner that does not exist");
  }
  std::int64_t* const outputs = outside.data();
  trace::divide({of, kind, depth, level, since, owner, begin, end, count},
                {requests.data(), requests.data() + number, number},
                {owned.data(), outputs, outputs + number, outputs + 2 * number});
}

std::size_t place_events(const Codes& threads, const Numbers& begins, const Numbers& durations,
                         const std::array<std::int64_t, 3>& axis, const FilledCodes& rows, const FilledNumbers& firsts,
                         const FilledNumbers& lasts) {
  const std::size_t count = begins.size();
  check_lengths(count, {threads.size(), durations.size(), rows.size(), firsts.size(), lasts.size()});
  return trace::place_events({threads.data(), begins.data(), durations.data(), count}, {axis[0], axis[1], axis[2]},
                             {rows.data(), firsts.data(), lasts.data()});
}

// --- with it, to look at arrays and to make objects -------------------------------------------------------

/// Returns the parent and the word of each node.
py::tuple paths(const Numbers& parents, const Numbers& words, std::int64_t deepest, const FilledNumbers& node,
                const FilledMask& folded) {
  const std::size_t count = parents.size();
  check_lengths(count, {words.size(), node.size(), folded.size()});
  check(deepest > 0, "a path has at least one element");
  check_parents(parents);
  const trace::PathNodes nodes = [&] {
    const py::gil_scoped_release released;
    return trace::paths_of({parents.data(), words.data(), count, deepest}, node.data(), folded.data());
  }();
  return py::make_tuple(bytes_of(nodes.parent, true), bytes_of(nodes.word, true));
}

template <class T>
py::object number_of(const py::buffer& column, const std::optional<py::buffer>& index) {
  const Array<T> values(column);
  std::optional<FilledNumbers> filled;
  if (index.has_value()) check_lengths(values.size(), {filled.emplace(*index).size()});
  std::vector<std::int64_t> different;
  const bool done = [&] {
    const py::gil_scoped_release released;
    return trace::number(values.data(), values.size(), filled.has_value() ? filled->data() : nullptr, &different);
  }();
  return bytes_of(different, done);
}

py::object number(const py::buffer& column, const std::optional<py::buffer>& index) {
  return Codes::is_of(column.request()) ? number_of<std::int32_t>(column, index)
                                        : number_of<std::int64_t>(column, index);
}

py::object number_pairs(const Numbers& firsts, const Numbers& seconds, const FilledNumbers& index) {
  check_lengths(firsts.size(), {seconds.size(), index.size()});
  std::vector<std::int64_t> pairs;
  const bool done = [&] {
    const py::gil_scoped_release released;
    return trace::number_pairs(firsts.data(), seconds.data(), firsts.size(), index.data(), &pairs);
  }();
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
  if (Array<std::int8_t>::is_of(info)) return checked(Array<std::int8_t>(code));
  if (Array<std::int16_t>::is_of(info)) return checked(Array<std::int16_t>(code));
  checked(Codes(code));
}

void look_up(const Mask& table, const py::buffer& code, const FilledMask& result) {
  with_codes(code, table.size(), [&](const auto& codes) {
    check_lengths(codes.size(), {result.size()});
    const py::gil_scoped_release released;
    trace::look_up(table.data(), codes.data(), codes.size(), result.data());
  });
}

void mark(const py::buffer& code, const Mask& chosen, const FilledMask& table) {
  with_codes(code, table.size(), [&](const auto& codes) {
    check_lengths(codes.size(), {chosen.size()});
    const py::gil_scoped_release released;
    trace::mark(codes.data(), chosen.data(), codes.size(), table.data());
  });
}

void spread(const Mask& table, const py::buffer& code, const py::buffer& value, std::int64_t missing,
            const FilledNumbers& result) {
  with_codes(code, table.size(), [&](const auto& codes) {
    check_lengths(codes.size(), {result.size()});
    const auto spread_values = [&](const auto& values) {
      const py::gil_scoped_release released;
      return trace::spread(table.data(), codes.data(), codes.size(), values.data(), values.size(), missing,
                           result.data());
    };
    check(Codes::is_of(value.request()) ? spread_values(Codes(value)) : spread_values(Numbers(value)),
          "the number of values is not that of the rows that have one");
  });
}

}  // namespace

void define_trace_passes(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> unlocked;
  module.def("trace_nest", &nest, unlocked);
  module.def("trace_open_at", &open_at, unlocked);
  module.def("trace_add_those_below", &add_those_below, unlocked);
  module.def("trace_begun_around", &begun_around, unlocked);
  module.def("trace_first_around", &first_around, unlocked);
  module.def("trace_paths", &paths);
  module.def("trace_merge", &merge, unlocked);
  module.def("trace_unite", &unite, unlocked);
  module.def("trace_covered_until", &covered_until, unlocked);
  module.def("trace_earliest", &earliest, unlocked);
  module.def("trace_latest", &latest, unlocked);
  module.def("trace_topological_ranks", &topological_ranks, unlocked);
  module.def("trace_number", &number, py::arg("column"), py::arg("index") = py::none());
  module.def("trace_number_pairs", &number_pairs);
  module.def("trace_look_up", &look_up);
  module.def("trace_mark", &mark);
  module.def("trace_spread", &spread);
  module.def("trace_place_events", &place_events, unlocked);
  module.def("divide_requests", &divide, unlocked);
}

}  // namespace stagespan::python
