// span_encoders.cpp: gives csrc/export rows of spans, and the Python values of what is no row.
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "column.h"
#include "export/kept_spans.h"
#include "export/otlp_spans.h"
#include "module.h"
#include "object.h"
#include "reading.h"
#include "stagespan/segment_row.h"
#include "stagespan/text.h"

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

/// Reads the type and the message of an exception from a pair, or from null.
void read_failure(PyObject* pair, std::string_view& type, std::string_view& message) {
  if (pair == nullptr || !PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) return;
  text_of_object(PyTuple_GET_ITEM(pair, 0), type);
  text_of_object(PyTuple_GET_ITEM(pair, 1), message);
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
  /// The name of a stage as it is shown; empty for kNoName.
  std::string_view name(std::uint32_t number) {
    std::string_view name = "(unknown)";
    if (number == kNoName) return {};
    stage(number, name);
    return name;
  }
  bool kind(std::uint32_t number, std::string_view& name) override {
    return number < static_cast<std::size_t>(PyTuple_GET_SIZE(kinds_)) &&
           text_of_object(PyTuple_GET_ITEM(kinds_, static_cast<Py_ssize_t>(number)), name);
  }
  void add_work(const SpanRow& row, otlp::SpanWriter& writer) override {
    PyObject* const amounts = found_in(work_, row.id);
    if (amounts != nullptr)
      each_attribute(amounts, "stagespan.work.",
                     [&writer](std::string_view name, const otlp::Value& value) { writer.attribute(name, value); });
  }
  void failure(const SpanRow& row, std::string_view& type, std::string_view& message) override {
    read_failure(found_in(failures_, row.id), type, message);
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
  if (!text_of_object(at(0), head.name)) return writer.leave_out();
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
  if (at(11) != Py_None && !text_of_object(at(11), head.status_message)) return writer.leave_out();
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

// --- parts of requests ------------------------------------------------------------------------------------

/// A text in UTF-8; other bytes become replacement characters. What it refers to lives as long as this.
class Utf8Text {
 public:
  explicit Utf8Text(std::string_view text) : text_(text) {
    if (std::all_of(text.begin(), text.end(), [](char one) { return static_cast<unsigned char>(one) < 0x80; })) return;
    decoded_ = text_of(text);
    text_of_object(decoded_.ptr(), text_);
  }
  operator std::string_view() const noexcept { return text_; }

 private:
  std::string_view text_;
  py::object decoded_;
};

/// Appends a dict of numbers and texts as an object of JSON.
void append_object(std::string& out, PyObject* dict) {
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  const std::size_t first = (out += '{').size();
  while (dict != nullptr && PyDict_Next(dict, &position, &key, &value) != 0) {
    std::string_view name, text;
    if (!text_of_object(key, name)) throw py::value_error("a name is not a text");
    if (out.size() != first) out += ',';
    kept::append_text(out, name);
    out += ':';
    if (PyFloat_Check(value))
      kept::append_float(out, PyFloat_AS_DOUBLE(value));
    else if (PyLong_Check(value))
      kept::append_integer(out, static_cast<std::int64_t>(PyLong_AsLongLong(value)));
    else if (text_of_object(value, text))
      kept::append_text(out, text);
    else
      throw py::value_error("a value is neither a number nor a text");
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  out += '}';
}

/// Writes a segment as an object of JSON.
class JsonSink {
 public:
  JsonSink(std::string& out, Texts& texts, PyObject* fields, PyObject* failures)
      : out_(out), texts_(texts), fields_(fields), failures_(failures) {}

  void write(const SegmentRow& row) {
    out_ += '{';
    visit(row, *this);
    out_ += '}';
  }

  void number(std::string_view field, std::uint64_t value) {
    begin(field);
    kept::append_integer(out_, value);
  }
  void time(std::string_view field, std::int64_t ns) {
    if (ns == kUnknownNs) return none(field);
    begin(field);
    kept::append_integer(out_, ns);
  }
  void text(std::string_view field, std::string_view value) {
    begin(field);
    kept::append_text(out_, Utf8Text(value));
  }
  void text_or_none(std::string_view field, std::string_view value) {
    value.empty() ? none(field) : text(field, value);
  }
  void word(std::string_view field, std::string_view value) { text(field, value); }
  void flag(std::string_view field, bool value) {
    begin(field);
    out_ += value ? "true" : "false";
  }
  void trace(std::string_view field, std::uint64_t high, std::uint64_t low) {
    if ((high | low) == 0) return none(field);
    begin(field);
    digits({high, low});
  }
  void id(std::string_view field, std::uint64_t value) {
    if (value == 0) return none(field);
    begin(field);
    digits({value});
  }
  void name(std::string_view field, std::uint32_t number) {
    if (number == kNoName) return none(field);
    begin(field);
    kept::append_text(out_, texts_.name(number));
  }
  void link(std::string_view field, const SegmentRow& row) {
    if (row.link_segment == 0 || (row.link_trace_high | row.link_trace_low) == 0) return none(field);
    begin(field);
    out_ += '[';
    digits({row.link_trace_high, row.link_trace_low});
    out_ += ',';
    digits({row.link_segment});
    out_ += ']';
  }
  void details(const SegmentRow& row) {
    begin("fields");
    append_object(out_, found_in(fields_, row.number));
    std::string_view type, message;
    if (row.status == kStatusError) read_failure(found_in(failures_, row.number), type, message);
    text_or_none("exception", type);
    text_or_none("exception_message", message);
  }

 private:
  void begin(std::string_view field) {
    if (out_.back() != '{') out_ += ',';
    out_ += '"';
    out_ += field;
    out_ += "\":";
  }
  void none(std::string_view field) {
    begin(field);
    out_ += "null";
  }
  void digits(std::initializer_list<std::uint64_t> ids) {
    out_ += '"';
    char digits[16];
    for (const std::uint64_t one : ids) out_.append(digits, put_hexadecimal(digits, one));
    out_ += '"';
  }
  std::string& out_;
  Texts& texts_;
  PyObject *fields_, *failures_;
};

/// The parts of requests that one reading of a process has found, as columns with what they refer to.
class PartColumns {
 public:
  PartColumns(const py::buffer& segments, const py::buffer& begins_ns, const py::buffer& ends_ns,
              const py::buffer& is_whole, const py::buffer& spans, const py::buffer& bounds, const py::buffer& returns,
              const py::buffer& return_bounds, py::list names, py::tuple kinds, py::dict fields,
              py::dict request_failures, py::dict work, py::dict failures, std::int64_t amounts_since_ns)
      : segments_(segments),
        begins_ns_(begins_ns),
        ends_ns_(ends_ns),
        is_whole_(is_whole),
        spans_(spans),
        bounds_(bounds),
        returns_(returns),
        return_bounds_(return_bounds),
        names_(std::move(names)),
        kinds_(std::move(kinds)),
        fields_(std::move(fields)),
        request_failures_(std::move(request_failures)),
        work_(std::move(work)),
        failures_(std::move(failures)),
        amounts_since_ns_(amounts_since_ns) {
    const std::size_t count = segments_.all().size();
    if (begins_ns_.all().size() != count || ends_ns_.all().size() != count || is_whole_.all().size() != count ||
        !are_bounds(bounds_.all(), count + 1, spans_.all().size()) ||
        !are_bounds(return_bounds_.all(), 2 * count, returns_.all().size()))
      throw py::value_error("columns of parts have other lengths");
  }

  py::tuple otlp(const std::vector<std::size_t>& parts, const py::dict& attributes, const py::dict& others) const {
    const NoCollection by_allocations;
    otlp::SpanWriter writer;
    Texts texts(names_.ptr(), kinds_.ptr(), work_.ptr(), failures_.ptr());
    std::vector<std::size_t> last;  // by part: the message in which it ends, from 1 on
    for (const std::size_t part : parts) {
      write_otlp(part, attributes.ptr(), others.ptr(), writer, texts);
      last.push_back(writer.parts().size());
    }
    py::list result;
    for (const otlp::SomeSpans& message : writer.parts()) {
      const auto number = static_cast<std::size_t>(&message - writer.parts().data()) + 1;
      const auto ended = std::upper_bound(last.begin(), last.end(), number) - last.begin();
      result.append(py::make_tuple(py::bytes(message.bytes), message.count, ended));
    }
    return py::make_tuple(result, writer.left_out());
  }

  py::list kept(const std::vector<std::size_t>& parts, const py::bytes& head, const py::dict& batches,
                const py::dict& slowness, std::int64_t least_ns) const {
    const NoCollection by_allocations;
    Texts texts(names_.ptr(), kinds_.ptr(), work_.ptr(), failures_.ptr());
    py::list result;
    std::string out;
    JsonSink sink(out, texts, fields_.ptr(), request_failures_.ptr());
    for (const std::size_t part : parts) {
      out = bytes_of(head.ptr());
      out += is_whole_.all()[checked(part)] != 0 ? "true,\"segment\":" : "false,\"segment\":";
      sink.write(segments_.all()[part]);
      out += ",\"returns\":[";
      for (const SegmentRow& hop : returns_of(part)) {
        if (out.back() != '[') out += ',';
        sink.write(hop);
      }
      out += "],\"spans\":[";
      for (const SpanRow& row : spans_of(part))
        if (least_ns == 0 || row.end_ns - row.begin_ns >= least_ns) append_kept(out, row, texts);
      out += "],\"batches\":";
      out += bytes_for(batches.ptr(), part, "[]");
      out += ",\"slowness\":";
      out += bytes_for(slowness.ptr(), part, "null");
      out += '}';
      result.append(py::bytes(out));
    }
    return result;
  }

 private:
  static bool are_bounds(std::span<const std::int64_t> bounds, std::size_t count, std::size_t rows) {
    const auto is_one = [rows](std::int64_t bound) { return bound >= 0 && static_cast<std::size_t>(bound) <= rows; };
    return bounds.size() == count && std::all_of(bounds.begin(), bounds.end(), is_one);
  }

  template <class Row>
  static std::span<const Row> between(std::span<const Row> rows, std::int64_t first, std::int64_t end) {
    return first < end ? rows.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first))
                       : std::span<const Row>{};
  }

  std::size_t checked(std::size_t part) const {
    if (part >= segments_.all().size()) throw py::index_error("there is no such part");
    return part;
  }
  std::span<const SpanRow> spans_of(std::size_t part) const {
    return between(spans_.all(), bounds_.all()[part], bounds_.all()[part + 1]);
  }
  std::span<const SegmentRow> returns_of(std::size_t part) const {
    return between(returns_.all(), return_bounds_.all()[2 * part], return_bounds_.all()[2 * part + 1]);
  }
  bool is_complete(std::size_t part) const {
    const auto has_work = [this](const SpanRow& row) { return row.begin_ns > amounts_since_ns_; };
    return is_whole_.all()[part] != 0 && std::all_of(spans_of(part).begin(), spans_of(part).end(), has_work);
  }

  void write_otlp(std::size_t part, PyObject* attributes, PyObject* others, otlp::SpanWriter& writer,
                  Texts& texts) const {
    const SegmentRow& row = segments_.all()[checked(part)];
    const std::array<char, 16> bytes = otlp::trace_bytes(row.trace_high, row.trace_low);
    const std::string_view trace_id(bytes.data(), bytes.size());
    const auto write_hop = [&](const SegmentRow& hop) {
      if (hop.parent_segment != 0) otlp::write_hop(writer, hop, trace_id, texts.name(hop.queue));
    };
    if (!otlp::follows(row)) write_hop(row);
    for (const SegmentRow& hop : returns_of(part)) write_hop(hop);
    const Utf8Text id(text_in(row.id)), branch(text_in(row.branch));
    otlp::PartTexts of{id, texts.name(row.pipeline), texts.name(row.queue), branch, {}, row.queue != kNoName};
    std::string_view message;
    if (row.status == kStatusError) read_failure(found_in(request_failures_.ptr(), row.number), of.exception, message);
    const auto add = [&](std::string_view key, const otlp::Value& value) {
      if (key != "error.type" || of.exception.empty()) writer.attribute(key, value);
    };
    if (PyObject* const more = found_in(attributes, part); more != nullptr) each_attribute(more, {}, add);
    if (PyObject* const fields = found_in(fields_.ptr(), row.number); fields != nullptr)
      each_attribute(fields, "stagespan.field.", add);
    otlp::write_segment(writer, {row, begins_ns_.all()[part], ends_ns_.all()[part], is_complete(part)}, trace_id, of);
    if (PyObject* const spans = found_in(others, part); spans != nullptr) {
      if (!PyList_Check(spans)) throw py::type_error("spans are not a list");
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(spans); ++i) write_span(PyList_GET_ITEM(spans, i), writer);
    }
    const std::string_view route = (row.traits & kTraitRoute) != 0 ? of.pipeline : std::string_view{};
    otlp::write_rows(writer, spans_of(part), trace_id, row.segment, route, texts);
  }

  void append_kept(std::string& out, const SpanRow& row, Texts& texts) const {
    kept::SpanTexts of;
    if (!texts.stage(row.stage, of.stage) || !texts.kind(row.flags >> kKindShift, of.kind))
      throw py::value_error("a span has no name");
    std::string work, exception;
    if (row.begin_ns > amounts_since_ns_) append_object(work, found_in(work_.ptr(), row.id));
    if (!work.empty()) of.work = work;
    std::string_view type, message;
    if (texts.failure(row, type, message); !type.empty()) {
      kept::append_text(exception, type);
      exception += ',';
      message.empty() ? void(exception += "null") : kept::append_text(exception, message);
      of.exception = exception;
    }
    if (out.back() != '[') out += ',';
    kept::append_span(out, row, of);
  }

  Column<SegmentRow> segments_;
  Column<std::int64_t> begins_ns_, ends_ns_;
  Column<bool> is_whole_;
  Column<SpanRow> spans_;
  Column<std::int64_t> bounds_;
  Column<SegmentRow> returns_;
  Column<std::int64_t> return_bounds_;
  py::list names_;
  py::tuple kinds_;
  py::dict fields_, request_failures_, work_, failures_;
  std::int64_t amounts_since_ns_;
};

py::bytes encode_resource_spans(const py::dict& attributes, const std::string& schema_url, const std::string& scope,
                                const std::string& version, const py::list& spans) {
  const NoCollection by_allocations;
  std::string resource;
  each_attribute(attributes.ptr(), {}, [&resource](std::string_view name, const otlp::Value& value) {
    otlp::put_attribute(resource, 1, name, value);
  });
  std::vector<std::string_view> parts;
  for (const py::handle one : spans) parts.push_back(bytes_of(one.ptr()));
  py::object result;
  otlp::put_resource_spans(resource, schema_url, scope, version, parts, [&result](std::size_t bytes) {
    result = owned(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
    return PyBytes_AS_STRING(result.ptr());
  });
  return result;
}

}  // namespace

void define_span_encoders(py::module_& module) {
  py::class_<PartColumns>(module, "PartColumns")
      .def(py::init<const py::buffer&, const py::buffer&, const py::buffer&, const py::buffer&, const py::buffer&,
                    const py::buffer&, const py::buffer&, const py::buffer&, py::list, py::tuple, py::dict, py::dict,
                    py::dict, py::dict, std::int64_t>(),
           py::arg("segments"), py::arg("begins_ns"), py::arg("ends_ns"), py::arg("is_whole"), py::arg("spans"),
           py::arg("bounds"), py::arg("returns"), py::arg("return_bounds"), py::arg("names"), py::arg("kinds"),
           py::arg("fields"), py::arg("request_failures"), py::arg("work"), py::arg("failures"),
           py::arg("amounts_since_ns"))
      .def("otlp", &PartColumns::otlp, py::arg("parts"), py::arg("attributes"), py::arg("others"))
      .def("kept", &PartColumns::kept, py::arg("parts"), py::arg("head"), py::arg("batches"), py::arg("slowness"),
           py::arg("least_ns") = 0);
  module.def("encode_resource_spans", encode_resource_spans, py::arg("attributes"), py::arg("schema_url"),
             py::arg("scope"), py::arg("scope_version"), py::arg("spans"));
}

}  // namespace stagespan::python
