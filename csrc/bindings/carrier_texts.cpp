// carrier_texts.cpp: finds the keys of a carrier in mappings and headers.
#include "carrier_texts.h"

#include <utility>

namespace stagespan::python {

namespace {

constexpr std::string_view kNames[kKeys] = {"traceparent", "tracestate", "stagespan"};
PyObject* g_names[kKeys];

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

/// A value as a str, which is empty if it is neither str nor bytes.
Ref as_text(PyObject* value) noexcept {
  if (PyUnicode_Check(value) != 0) return Ref(Py_NewRef(value));
  const std::string_view bytes = ascii_of(value);
  return Ref(PyUnicode_DecodeLatin1(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), nullptr));
}

bool take_pair(PyObject* name, PyObject* value, Texts& to, bool (&is_twice)[kKeys]) {
  const std::size_t key = key_of(name);
  if (key == kKeys) return true;
  Ref text = as_text(value);
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

bool take_pairs(PyObject* pairs, Texts& to) {
  const Ref iterator(PyObject_GetIter(pairs));
  if (!iterator) return false;
  bool is_twice[kKeys] = {};
  while (const Ref pair = Ref(PyIter_Next(iterator.get()))) {
    const bool is_tuple = PyTuple_Check(pair.get()) != 0;
    if ((!is_tuple && PyList_Check(pair.get()) == 0) || PySequence_Fast_GET_SIZE(pair.get()) != 2) continue;
    PyObject** const items = PySequence_Fast_ITEMS(pair.get());
    if (!take_pair(items[0], items[1], to, is_twice)) return false;
  }
  for (std::size_t key = 0; key < kKeys; ++key)
    if (is_twice[key]) to[key] = Ref();
  return PyErr_Occurred() == nullptr;
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

}  // namespace

bool take_texts(PyObject* carrier, Texts& to) {
  if (carrier == Py_None) return true;
  if (PyDict_CheckExact(carrier)) {
    if (take_from_dict(carrier, to)) return true;
    for (Ref& text : to) text = Ref();
  }
  const bool is_text = PyUnicode_Check(carrier) != 0 || PyBytes_Check(carrier) != 0;
  if (!is_text && (PyDict_Check(carrier) != 0 || PyObject_HasAttrString(carrier, "items") != 0)) {
    const Ref items(PyMapping_Items(carrier));
    return items && take_pairs(items.get(), to);
  }
  if (!is_text && (Py_TYPE(carrier)->tp_iter != nullptr || PySequence_Check(carrier) != 0))
    return take_pairs(carrier, to);
  PyErr_Format(PyExc_TypeError, "extract() takes a mapping, or pairs of names and values, not %s",
               Py_TYPE(carrier)->tp_name);
  return false;
}

std::string_view view_of(PyObject* text, std::size_t most_bytes) noexcept {
  if (text == nullptr || PyUnicode_Check(text) == 0) return {};
  if (static_cast<std::size_t>(PyUnicode_GET_LENGTH(text)) > most_bytes) return {};
  Py_ssize_t size_bytes = 0;
  const char* const found = PyUnicode_AsUTF8AndSize(text, &size_bytes);
  if (found == nullptr) {  // lone surrogates
    PyErr_Clear();
    return {};
  }
  return {found, static_cast<std::size_t>(size_bytes)};
}

PyObject* name_of_key(Key key) noexcept { return g_names[key]; }

bool init_carrier_texts() {
  for (std::size_t key = 0; key < kKeys; ++key)
    if ((g_names[key] = PyUnicode_InternFromString(kNames[key].data())) == nullptr) return false;
  return true;
}

}  // namespace stagespan::python
