// trace_scanner.cpp: converts traces of profilers to columns that numpy uses without copying.
#include <pybind11/stl.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "module.h"
#include "reading.h"
#include "trace/scanner.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

using trace::ArgumentColumn;
using trace::Codes;
using trace::EventTable;
using trace::Growing;
using trace::Interner;

/// Memory of a column, as a buffer for Python.
class Column {
 public:
  template <class T>
  explicit Column(Growing<T> values) : size_(values.size()), item_bytes_(sizeof(T)) {
    values.fit();
    auto owned = std::make_shared<Growing<T>>(std::move(values));
    format_ = py::format_descriptor<T>::format();
    data_ = std::shared_ptr<void>(owned, owned->data());
  }
  py::buffer_info buffer() {
    const auto item = static_cast<py::ssize_t>(item_bytes_);
    return {size_ == 0 ? this : data_.get(), item, format_, 1, {static_cast<py::ssize_t>(size_)}, {item}};
  }

 private:
  std::size_t size_, item_bytes_;
  std::string format_;
  std::shared_ptr<void> data_;
};

template <class T>
py::object column(Growing<T>& values) {
  return py::cast(Column(std::move(values)));
}

template <class T>
py::object column(Growing<T>&& values) {
  return py::cast(Column(std::move(values)));
}

py::object column(Codes& codes) {
  return codes.take([](auto&& values) { return column(std::move(values)); });
}

// The different ids, and the number of each row's.
py::tuple column(trace::IdColumn& ids) { return py::make_tuple(column(ids.values()), column(ids.codes())); }

py::tuple texts_of(Interner& texts) {
  py::object ends = column(texts.ends());
  return py::make_tuple(column(texts.take_bytes()), std::move(ends));
}

// The argument columns of a table by key, without empty columns.
py::dict arguments_of(EventTable& table) {
  py::dict result;
  for (std::size_t key = 0; key < table.arguments.size(); ++key) {
    ArgumentColumn& found = table.arguments[key];
    const ArgumentColumn::Type type = found.type();
    if (type == ArgumentColumn::Type::kEmpty) continue;
    py::object values = type == ArgumentColumn::Type::kWhole  ? column(found.take_whole())
                        : type == ArgumentColumn::Type::kReal ? column(found.take_real())
                                                              : column(found.take_narrow());
    result[py::int_(key)] = py::make_tuple(type == ArgumentColumn::Type::kText, std::move(values));
  }
  table.arguments.clear();
  return result;
}

py::dict table_of(EventTable& table) {
  py::dict result;
  result["name"] = column(table.name);
  result["category"] = column(table.category);
  result["begin_ns"] = column(table.begin_ns);
  result["dur_ns"] = column(table.duration_ns);
  result["no_duration"] = column(table.no_duration);
  result["negative_duration"] = column(table.negative_duration);
  result["pid"] = column(table.pid);
  result["tid"] = column(table.tid);
  result["shape"] = column(table.shape);
  result["arguments"] = arguments_of(table);
  return result;
}

class TraceScanner {
 public:
  py::tuple scan(const py::bytes& buffer, std::size_t start) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(buffer.ptr(), &data, &size) != 0) throw py::error_already_set();
    if (start > static_cast<std::size_t>(size)) throw py::value_error("start lies behind the end of the buffer");
    if (busy_.exchange(true)) refuse();
    std::size_t consumed = 0;
    trace::State state = trace::State::kMore;
    bool memory = true;
    PyThreadState* const thread = PyEval_SaveThread();
    try {
      state = scanner_.scan(data + start, data + size, &consumed);
    } catch (const std::exception&) {  // the only possible error is a lack of memory
      memory = false;
    }
    busy_ = false;
    PyEval_RestoreThread(thread);
    if (!memory) throw std::bad_alloc();
    return py::make_tuple(start + consumed, static_cast<int>(state));
  }

  void leave_out(const std::string& cause, std::uint64_t count) { tables().leave_out(cause.c_str(), count); }

  py::dict take() {
    if (busy_) refuse();
    // Set first, because other threads may run while the columns are created.
    trace::Scanner taken = std::exchange(scanner_, trace::Scanner());
    trace::Tables& all = taken.tables();
    all.finish();
    py::dict result;
    result["left_out"] = all.left_out;
    result["adjusted"] = all.adjusted;
    result["events"] = table_of(all.events);
    result["instants"] = table_of(all.instants);
    result["counters"] = table_of(all.counters);
    py::dict flows;
    flows["id"] = column(all.flows.id);
    flows["category"] = column(all.flows.category);
    flows["starts"] = column(all.flows.starts);
    flows["begin_ns"] = column(all.flows.begin_ns);
    flows["pid"] = column(all.flows.pid);
    flows["tid"] = column(all.flows.tid);
    result["flows"] = flows;
    result["names"] = texts_of(all.names);
    result["categories"] = texts_of(all.categories);
    result["texts"] = texts_of(all.texts);
    result["shape_parents"] = column(all.keys.take_parents());
    result["shape_keys"] = column(all.keys.take_keys());
    result["keys"] = texts_of(all.keys.texts());
    py::dict named;
    for (const auto& [number, word] : all.ids.named()) named[py::int_(number)] = text_of(word);
    result["named_ids"] = named;
    py::list namings;
    for (const trace::Naming& each : all.namings)
      namings.append(py::make_tuple(text_of(each.what), each.pid, each.tid, text_of(each.name)));
    result["namings"] = namings;
    return result;
  }

  std::uint64_t total() { return tables().total; }
  bool looks_like_a_trace() { return tables().looks_like_a_trace; }

 private:
  [[noreturn]] static void refuse() { throw std::runtime_error("this scanner is in use by another thread"); }
  trace::Tables& tables() {
    if (busy_) refuse();
    return scanner_.tables();
  }

  trace::Scanner scanner_;
  std::atomic<bool> busy_{false};
};

}  // namespace

void define_trace_scanner(py::module_& module) {
  py::class_<Column>(module, "TraceColumn", py::buffer_protocol()).def_buffer(&Column::buffer);
  py::class_<TraceScanner>(module, "TraceScanner")
      .def(py::init<>())
      .def("scan", &TraceScanner::scan, py::arg("buffer"), py::arg("start"))
      .def("leave_out", &TraceScanner::leave_out, py::arg("cause"), py::arg("count"))
      .def("take", &TraceScanner::take)
      .def_property_readonly("total", &TraceScanner::total)
      .def_property_readonly("looks_like_a_trace", &TraceScanner::looks_like_a_trace);
  module.attr("SCAN_MORE") = static_cast<int>(trace::State::kMore);
  module.attr("SCAN_CLOSED") = static_cast<int>(trace::State::kClosed);
  module.attr("SCAN_ODD") = static_cast<int>(trace::State::kOdd);
}

}  // namespace stagespan::python
