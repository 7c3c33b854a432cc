// span_encoders.cpp: gives csrc/export rows of spans, and the Python values of what is no row.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "export/kept_spans.h"
#include "export/otlp_spans.h"
#include "object.h"
#include "parts.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

/// Reads a text. False, without an exception, if it is not one, or not one that UTF-8 can express.
bool text_of_object(PyObject* object, std::string_view& text) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (bytes == nullptr) {
    PyErr_Clear();
    return false;
  }
  text = {bytes, static_cast<std::size_t>(size)};
  return true;
}

std::string_view bytes_of(PyObject* object) {
  if (!PyBytes_Check(object)) throw py::type_error("expected bytes");
  return {PyBytes_AS_STRING(object), static_cast<std::size_t>(PyBytes_GET_SIZE(object))};
}

/// Reads a value of an attribute. False, without an exception, if no attribute can have it.
bool read_value(PyObject* object, otlp::Value& value) {
  if (object == Py_None) {
    value.clear();
  } else if (PyBool_Check(object)) {
    value.set(object == Py_True);
  } else if (PyLong_Check(object)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) return false;
    value.set(static_cast<std::int64_t>(number));
  } else if (PyFloat_Check(object)) {
    value.set(PyFloat_AS_DOUBLE(object));
  } else if (PyUnicode_Check(object)) {
    std::string_view text;
    if (!text_of_object(object, text)) return false;
    value.set(text);
  } else if (PyList_Check(object) || PyTuple_Check(object)) {
    value.clear();
    otlp::Value element;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      PyObject* const item = PySequence_Fast_GET_ITEM(object, i);
      if (PyList_Check(item) || PyTuple_Check(item) || !read_value(item, element)) return false;
      value.append(element);
    }
    value.close_array();
  } else {
    return false;
  }
  return true;
}

/// Calls a function with each key and value of a dict that an attribute can have; the others are left out.
template <class Add>
void each_attribute(PyObject* attributes, std::string_view prefix, const Add& add) {
  if (!PyDict_Check(attributes)) throw py::type_error("attributes are not a dict");
  PyObject *key = nullptr, *object = nullptr;
  Py_ssize_t position = 0;
  otlp::Value value;
  std::string name;
  while (PyDict_Next(attributes, &position, &key, &object) != 0) {
    std::string_view text;
    if (!text_of_object(key, text) || !read_value(object, value)) continue;
    name.assign(prefix).append(text);
    add(name, value);
  }
}

/// Returns what a dict has for a span; null if it has nothing.
PyObject* found_in(PyObject* dict, std::uint64_t id) {
  if (PyDict_GET_SIZE(dict) == 0) return nullptr;
  const Ref key(PyLong_FromUnsignedLongLong(id));
  PyObject* const value = key ? PyDict_GetItemWithError(dict, key.get()) : nullptr;
  if (value == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

/// What Python knows of rows. It borrows everything.
class Texts final : public otlp::RowTexts {
 public:
  Texts(PyObject* names, PyObject* kinds, PyObject* work, PyObject* failures)
      : names_(names), kinds_(kinds), work_(work), failures_(failures) {
    if (!PyList_Check(names) || !PyTuple_Check(kinds) || !PyDict_Check(work) || !PyDict_Check(failures))
      throw py::type_error("expected a list of names, a tuple of kinds, and two dicts");
  }

  bool stage(std::uint32_t number, std::string_view& name) override {
    return number < static_cast<std::size_t>(PyList_GET_SIZE(names_)) &&
           text_of_object(PyList_GET_ITEM(names_, static_cast<Py_ssize_t>(number)), name);
  }
  bool kind(std::uint32_t number, std::string_view& name) override {
    return number < static_cast<std::size_t>(PyTuple_GET_SIZE(kinds_)) &&
           text_of_object(PyTuple_GET_ITEM(kinds_, static_cast<Py_ssize_t>(number)), name);
  }
  bool add_work(const SpanRow& row, otlp::SpanWriter& writer) override {
    PyObject* const amounts = found_in(work_, row.id);
    if (amounts != nullptr)
      each_attribute(amounts, "stagespan.work.",
                     [&writer](std::string_view name, const otlp::Value& value) { writer.attribute(name, value); });
    return true;
  }
  bool failure(const SpanRow& row, std::string_view& type, std::string_view& message) override {
    PyObject* const pair = found_in(failures_, row.id);
    if (pair != nullptr && PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2) {
      text_of_object(PyTuple_GET_ITEM(pair, 0), type);
      text_of_object(PyTuple_GET_ITEM(pair, 1), message);
    }
    return true;
  }

 private:
  PyObject *names_, *kinds_, *work_, *failures_;
};

/// Returns the bytes that a dict has for a span, or a text that means there are none.
std::string_view bytes_for(PyObject* dict, std::uint64_t id, std::string_view otherwise) {
  PyObject* const value = found_in(dict, id);
  return value == nullptr ? otherwise : bytes_of(value);
}

std::uint64_t number_of(PyObject* object) {
  const std::uint64_t number = PyLong_AsUnsignedLongLong(object);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

/// Writes a span that is no row: a tuple (name, trace id, id, parent or None, whether the parent is remote, kind, begin
/// and end in Unix ns, attributes, links as pairs of ids, number of the status, its message or None).
void write_span(PyObject* span, otlp::SpanWriter& writer) {
  if (!PyTuple_Check(span) || PyTuple_GET_SIZE(span) != 12) throw py::type_error("a span is not a tuple of 12");
  const auto at = [span](Py_ssize_t i) { return PyTuple_GET_ITEM(span, i); };
  otlp::SpanHead head;
  if (!text_of_object(at(0), head.name)) return;
  head.trace_id = bytes_of(at(1));
  head.id = number_of(at(2));
  head.has_parent = at(3) != Py_None;
  if (head.has_parent) head.parent = number_of(at(3));
  head.has_remote_parent = at(4) == Py_True;
  head.kind = static_cast<unsigned>(number_of(at(5)));
  head.begin_ns = PyLong_AsLongLong(at(6));
  head.end_ns = PyLong_AsLongLong(at(7));
  head.status = static_cast<otlp::Status>(number_of(at(10)));
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (at(11) != Py_None && !text_of_object(at(11), head.status_message)) return;
  PyObject* const links = at(9);
  if (!PyList_Check(links)) throw py::type_error("links are not a list");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(links); ++i) {
    PyObject* const link = PyList_GET_ITEM(links, i);
    if (!PyTuple_Check(link) || PyTuple_GET_SIZE(link) != 2) throw py::type_error("a link is not a pair");
    writer.link(bytes_of(PyTuple_GET_ITEM(link, 0)), number_of(PyTuple_GET_ITEM(link, 1)));
  }
  each_attribute(at(8), {},
                 [&writer](std::string_view name, const otlp::Value& value) { writer.attribute(name, value); });
  writer.finish(head);
}

/// A contiguous buffer of rows, which lives as long as this.
class Rows {
 public:
  explicit Rows(PyObject* object) {
    if (object == Py_None) return;
    if (PyObject_GetBuffer(object, &buffer_, PyBUF_C_CONTIGUOUS) != 0) throw py::error_already_set();
    if (buffer_.itemsize != static_cast<Py_ssize_t>(sizeof(SpanRow))) {
      PyBuffer_Release(&buffer_);
      throw py::type_error("expected rows of spans()");
    }
  }
  ~Rows() {
    if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  std::span<const SpanRow> all() const noexcept {
    return {static_cast<const SpanRow*>(buffer_.buf), static_cast<std::size_t>(buffer_.len) / sizeof(SpanRow)};
  }

 private:
  Py_buffer buffer_{};
};

py::list encode_spans(const py::object& rows, const py::list& segments, const py::list& names, const py::tuple& kinds,
                      const py::bytes& trace_id, std::uint64_t segment, const py::object& route, const py::dict& work,
                      const py::dict& failures) {
  const NoCollection by_allocations;
  otlp::SpanWriter writer;
  for (const py::handle one : segments) write_span(one.ptr(), writer);
  const Rows read(rows.ptr());
  Texts texts(names.ptr(), kinds.ptr(), work.ptr(), failures.ptr());
  std::string_view text;
  if (!route.is_none()) text_of_object(route.ptr(), text);
  otlp::write_rows(writer, read.all(), bytes_of(trace_id.ptr()), segment, text, texts);
  py::list result;
  for (const otlp::SomeSpans& part : writer.parts()) result.append(py::make_tuple(py::bytes(part.bytes), part.count));
  return result;
}

py::bytes encode_kept_spans(const py::object& rows, const py::list& names, const py::tuple& kinds,
                            std::int64_t amounts_since_ns, const py::dict& work, const py::dict& failures) {
  const NoCollection by_allocations;
  const Rows read(rows.ptr());
  Texts texts(names.ptr(), kinds.ptr(), work.ptr(), failures.ptr());
  std::string out = "[";
  for (const SpanRow& row : read.all()) {
    kept::SpanTexts of;
    if (!texts.stage(row.stage, of.stage) || !texts.kind(row.flags >> kKindShift, of.kind))
      throw py::value_error("a span has no name");
    if (row.begin_ns > amounts_since_ns) of.work = bytes_for(work.ptr(), row.id, "{}");
    of.exception = bytes_for(failures.ptr(), row.id, of.exception);
    if (out.size() > 1) out += ',';
    kept::append_span(out, row, of);
  }
  return py::bytes(out += ']');
}

py::bytes encode_resource_spans(const py::dict& attributes, const std::string& schema_url, const std::string& scope,
                                const std::string& version, const py::list& spans) {
  const NoCollection by_allocations;
  std::string resource;
  each_attribute(attributes.ptr(), {}, [&resource](std::string_view name, const otlp::Value& value) {
    otlp::put_attribute(resource, 1, name, value);
  });
  std::vector<std::string_view> parts;
  for (const py::handle one : spans) parts.push_back(bytes_of(one.ptr()));
  return py::bytes(otlp::resource_spans(resource, schema_url, scope, version, parts));
}

}  // namespace

void define_span_encoders(py::module_& module) {
  module.def("encode_kept_spans", encode_kept_spans, py::arg("rows"), py::arg("names"), py::arg("kinds"),
             py::arg("amounts_since_ns"), py::arg("work"), py::arg("failures"));
  module.def("encode_spans", encode_spans, py::arg("rows"), py::arg("segments"), py::arg("names"), py::arg("kinds"),
             py::arg("trace_id"), py::arg("segment"), py::arg("route"), py::arg("work"), py::arg("failures"));
  module.def("encode_resource_spans", encode_resource_spans, py::arg("attributes"), py::arg("schema_url"),
             py::arg("scope"), py::arg("scope_version"), py::arg("spans"));
}

}  // namespace stagespan::python
