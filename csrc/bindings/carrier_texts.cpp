// carrier_texts.cpp: finds the keys of a carrier in mappings and headers.
#include "carrier_texts.h"

#include <iterator>
#include <utility>

#include "stagespan/recorder.h"
#include "stagespan/text.h"

namespace stagespan::python {

namespace {

constexpr std::string_view kNames[kKeys] = {"traceparent", "tracestate", "stagespan"};
PyObject* g_names[kKeys];
constexpr std::string_view kEnvironNames[kKeys] = {"HTTP_TRACEPARENT", "HTTP_TRACESTATE", "HTTP_STAGESPAN"};
PyObject* g_environ_names[kKeys];

/// A str or bytes as it is; its data is null for other objects, and for str that are not ASCII.
std::string_view ascii_of(PyObject* object) noexcept {
  if (PyBytes_Check(object) != 0)
    return {PyBytes_AS_STRING(object), static_cast<std::size_t>(PyBytes_GET_SIZE(object))};
  if (PyByteArray_Check(object) != 0)
    return {PyByteArray_AS_STRING(object), static_cast<std::size_t>(PyByteArray_GET_SIZE(object))};
  if (PyUnicode_Check(object) != 0 && PyUnicode_IS_ASCII(object))
    return {static_cast<const char*>(PyUnicode_DATA(object)), static_cast<std::size_t>(PyUnicode_GET_LENGTH(object))};
  return {};
}

/// The key with this name; kKeys if it is none.
std::size_t key_of(PyObject* name) noexcept {
  const std::string_view text = ascii_of(name);
  for (std::size_t key = 0; key < kKeys; ++key) {
    if (text.size() != kNames[key].size()) continue;
    bool is_equal = true;
    for (std::size_t i = 0; i < text.size() && is_equal; ++i) {
      const char c = text[i];
      is_equal = (c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c) == kNames[key][i];
    }
    if (is_equal) return key;
  }
  return kKeys;
}

/// By key: whether it has several values that differ.
using Twice = bool[kKeys];

/// Says once that a carrier of an unknown shape is not read, because its hops would be missing without a word.
void warn_of(std::size_t key, PyObject* value) noexcept {
  static bool is_told = false;
  if (is_told) return;
  is_told = true;
  // It names the caller of `extract`, which is a function of Python.
  if (PyErr_WarnFormat(PyExc_RuntimeWarning, 2,
                       "stagespan: a carrier has the key '%s' with a value of type '%s', which is not a text, so it is "
                       "not read: pass texts, bytes, or lists of them to extract() (shown once)",
                       kNames[key].data(), Py_TYPE(value)->tp_name) != 0)
    PyErr_Clear();
}

bool take_text(std::size_t key, PyObject* value, Texts& to, Twice& is_twice) {
  const bool is_text = PyUnicode_Check(value) != 0;
  if (!is_text && PyBytes_Check(value) == 0 && PyByteArray_Check(value) == 0) {
    if (value != Py_None) warn_of(key, value);
    return true;
  }
  const std::string_view bytes = is_text ? std::string_view() : ascii_of(value);
  Ref text(is_text ? Py_NewRef(value)
                   : PyUnicode_DecodeLatin1(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), nullptr));
  if (!text) return false;
  if (!to[key]) {
    to[key] = std::move(text);
  } else if (key == kTraceState) {
    to[key] = Ref(PyUnicode_FromFormat("%U,%U", to[key].get(), text.get()));  // as HTTP joins headers
    if (!to[key]) return false;
  } else if (PyUnicode_Compare(to[key].get(), text.get()) != 0) {
    is_twice[key] = true;
  }
  return true;
}

/// Takes a value, which may be a list of texts, as mappings have them whose keys can occur several times.
bool take_value(std::size_t key, PyObject* value, Texts& to, Twice& is_twice) {
  if (PyList_Check(value) == 0 && PyTuple_Check(value) == 0) return take_text(key, value, to, is_twice);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
    if (!take_text(key, Ref(Py_NewRef(PySequence_Fast_GET_ITEM(value, i))).get(), to, is_twice)) return false;
  return true;
}

bool take_pairs(PyObject* pairs, Texts& to, Twice& is_twice) {
  const Ref iterator(PyObject_GetIter(pairs));
  if (!iterator) return false;
  while (const Ref pair = Ref(PyIter_Next(iterator.get()))) {
    const bool is_tuple = PyTuple_Check(pair.get()) != 0;
    if ((!is_tuple && PyList_Check(pair.get()) == 0) || PySequence_Fast_GET_SIZE(pair.get()) != 2) continue;
    const std::size_t key = key_of(PySequence_Fast_GET_ITEM(pair.get(), 0));
    const Ref value(Py_NewRef(PySequence_Fast_GET_ITEM(pair.get(), 1)));
    if (key != kKeys && !take_value(key, value.get(), to, is_twice)) return false;
  }
  return PyErr_Occurred() == nullptr;
}

bool has_any(const Texts& texts) noexcept {
  for (const Ref& text : texts)
    if (text) return true;
  return false;
}

/// Takes the headers of a WSGI environ, which has them under names of its own. Not from other containers, in which a
/// client could choose such a name.
bool take_from_environ(PyObject* dict, Texts& to, Twice& is_twice) {
  for (std::size_t key = 0; key < kKeys; ++key) {
    const Ref value(Py_XNewRef(PyDict_GetItemWithError(dict, g_environ_names[key])));
    PyErr_Clear();
    if (value && !take_value(key, value.get(), to, is_twice)) return false;
  }
  return true;
}

/// The usual carrier has the keys as `inject` writes them. False if it is not one.
bool take_from_dict(PyObject* dict, Texts& to) noexcept {
  bool is_any = false;
  for (std::size_t key = 0; key < kKeys; ++key) {
    PyObject* const value = PyDict_GetItemWithError(dict, g_names[key]);
    if (value == nullptr) {
      PyErr_Clear();
      continue;
    }
    if (PyUnicode_Check(value) == 0) return false;
    to[key] = Ref(Py_NewRef(value));
    is_any = true;
  }
  return is_any;
}

/// False with an exception set if `carrier` is neither a mapping nor pairs.
bool take_all(PyObject* carrier, Texts& to, Twice& is_twice) {
  if (PyDict_CheckExact(carrier)) {
    if (take_from_dict(carrier, to)) return true;
    for (Ref& text : to) text = Ref();
  }
  const bool is_text = PyUnicode_Check(carrier) != 0 || PyBytes_Check(carrier) != 0;
  if (!is_text && (PyDict_Check(carrier) != 0 || PyObject_HasAttrString(carrier, "items") != 0)) {
    const Ref items(PyMapping_Items(carrier));
    if (!items || !take_pairs(items.get(), to, is_twice)) return false;
    return PyDict_Check(carrier) == 0 || has_any(to) || take_from_environ(carrier, to, is_twice);
  }
  if (!is_text && (Py_TYPE(carrier)->tp_iter != nullptr || PySequence_Check(carrier) != 0))
    return take_pairs(carrier, to, is_twice);
  PyErr_Format(PyExc_TypeError, "extract() takes a mapping, or pairs of names and values, not %s",
               Py_TYPE(carrier)->tp_name);
  return false;
}

}  // namespace

bool take_texts(PyObject* carrier, Texts& to) {
  if (carrier == Py_None) return true;
  Twice is_twice = {};
  if (!take_all(carrier, to, is_twice)) return false;
  for (std::size_t key = 0; key < kKeys; ++key)
    if (is_twice[key]) to[key] = Ref();
  return true;
}

std::string_view view_of(PyObject* text, std::size_t most_bytes) noexcept {
  if (text == nullptr || PyUnicode_Check(text) == 0) return {};
  if (static_cast<std::size_t>(PyUnicode_GET_LENGTH(text)) > most_bytes) return {};
  Py_ssize_t size_bytes = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(text, &size_bytes);
  if (utf8 == nullptr) {  // lone surrogates
    PyErr_Clear();
    return {};
  }
  return {utf8, static_cast<std::size_t>(size_bytes)};
}

Ref kept_state(PyObject* text, bool is_trusted, std::uint64_t& segment) noexcept {
  // A lone surrogate becomes bytes that no member can have.
  const Ref encoded(PyUnicode_IS_ASCII(text) ? nullptr : PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass"));
  if (!encoded && PyErr_Occurred() != nullptr) return Ref();
  const std::string_view view = encoded ? std::string_view(PyBytes_AS_STRING(encoded.get()),
                                                           static_cast<std::size_t>(PyBytes_GET_SIZE(encoded.get())))
                                        : std::string_view(static_cast<const char*>(PyUnicode_DATA(text)),
                                                           static_cast<std::size_t>(PyUnicode_GET_LENGTH(text)));
  char buffer[kMostWrittenBytes];
  const TraceState state = read_tracestate(view, is_trusted, buffer);
  segment = state.segment;
  if (state.dropped != 0) Recorder::get().lose(kLostTraceState, state.dropped);
  return Ref(state.text.data() == view.data()
                 ? Py_NewRef(text)
                 : PyUnicode_FromStringAndSize(state.text.data(), static_cast<Py_ssize_t>(state.text.size())));
}

Ref kept_name(std::string_view name) noexcept {
  static PyObject* kept[256];
  PyObject*& place = kept[fnv1a(name) % std::size(kept)];
  if (place == nullptr || view_of(place, kMostCarrierBytes) != name) {
    const Ref made(PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), nullptr));
    if (!made) return Ref();
    keep(place, made.get());
  }
  return Ref(Py_NewRef(place));
}

PyObject* name_of_key(Key key) noexcept { return g_names[key]; }

bool init_carrier_texts() {
  for (std::size_t key = 0; key < kKeys; ++key)
    if ((g_names[key] = PyUnicode_InternFromString(kNames[key].data())) == nullptr ||
        (g_environ_names[key] = PyUnicode_InternFromString(kEnvironNames[key].data())) == nullptr)
      return false;
  return true;
}

}  // namespace stagespan::python
