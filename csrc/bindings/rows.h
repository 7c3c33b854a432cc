// rows.h: structured arrays of numpy, whose types are made from the lists of fields of their rows.
#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace stagespan::python {

/// A field of a row.
struct RowField {
  const char* name;
  std::array<char, 5> format;  // in numpy, with a zero at its end
  std::size_t offset;
};

/// The name of a type in numpy: of numbers, and of texts in whole words.
template <class T>
constexpr std::array<char, 5> format_of() {
  constexpr std::size_t size = sizeof(T);
  static_assert(size < 1000);
  if constexpr (std::is_arithmetic_v<T>)
    return {std::is_floating_point_v<T> ? 'f' : (std::is_signed_v<T> ? 'i' : 'u'), '0' + size};
  else
    return {'S', '0' + size / 100, '0' + size / 10 % 10, '0' + size % 10};  // numpy accepts leading zeroes
}

/// The type of the rows of arrays, which is made when it is first needed: most processes never import numpy.
class RowType {
 public:
  constexpr RowType(std::span<const RowField> fields, std::size_t size_bytes)
      : fields_(fields), size_bytes_(size_bytes) {}

  /// A new array of `count` rows in a bytearray. Null with an exception set if that fails.
  PyObject* array(PyObject* bytes, std::size_t count);

  /// The same with a copy of rows.
  template <class Row>
  PyObject* array_of(const std::vector<Row>& rows) {
    static_assert(std::is_trivially_copyable_v<Row>);
    return array_of(rows.data(), rows.size());
  }

 private:
  PyObject* array_of(const void* rows, std::size_t count);
  PyObject* made(PyObject* numpy) const;

  std::span<const RowField> fields_;
  std::size_t size_bytes_;
  PyObject* type_ = nullptr;
};

/// The RowType of a struct `Row` with a list of fields.
#define STAGESPAN_ROW_FIELD(type, name, initial) {#name, format_of<type>(), offsetof(Row, name)},
#define STAGESPAN_ROW_TYPE(variable, Struct, LIST)                    \
  RowType& variable() {                                               \
    using Row = Struct;                                               \
    static constexpr RowField fields[] = {LIST(STAGESPAN_ROW_FIELD)}; \
    static constinit RowType type(fields, sizeof(Row));               \
    return type;                                                      \
  }

RowType& span_row_type();
RowType& segment_row_type();
RowType& segment_end_type();

}  // namespace stagespan::python
