// column.h: reads contiguous arrays of numpy.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <span>

namespace stagespan::python {

/// The items of a contiguous array, which lives as long as this. They have to be of the size of an Item.
template <class Item>
class Column {
 public:
  explicit Column(const pybind11::handle& object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_C_CONTIGUOUS) != 0) throw pybind11::error_already_set();
    if (buffer_.itemsize == static_cast<Py_ssize_t>(sizeof(Item))) return;
    PyBuffer_Release(&buffer_);
    throw pybind11::type_error("an array has items of another size");
  }
  ~Column() { PyBuffer_Release(&buffer_); }
  Column(const Column&) = delete;
  Column& operator=(const Column&) = delete;

  std::span<const Item> all() const noexcept {
    return {static_cast<const Item*>(buffer_.buf), static_cast<std::size_t>(buffer_.len) / sizeof(Item)};
  }

 private:
  Py_buffer buffer_{};
};

}  // namespace stagespan::python
