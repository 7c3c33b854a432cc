// rows.cpp: makes the types of structured arrays.
#include "rows.h"

#include "object.h"
#include "stagespan/layout.h"
#include "stagespan/segment_row.h"
#include "stagespan/span_row.h"

namespace stagespan::python {

// numpy.dtype({"names": [...], "formats": [...], "offsets": [...], "itemsize": ...})
PyObject* RowType::made(PyObject* numpy) const {
  const Ref names(PyList_New(0)), formats(PyList_New(0)), offsets(PyList_New(0));
  if (!names || !formats || !offsets) return nullptr;
  for (const RowField& field : fields_) {
    const Ref name(PyUnicode_FromString(field.name)), format(PyUnicode_FromString(field.format.data()));
    const Ref offset(PyLong_FromSize_t(field.offset));
    if (!name || !format || !offset || PyList_Append(names.get(), name.get()) != 0 ||
        PyList_Append(formats.get(), format.get()) != 0 || PyList_Append(offsets.get(), offset.get()) != 0)
      return nullptr;
  }
  const Ref parts(Py_BuildValue("{s:O,s:O,s:O,s:n}", "names", names.get(), "formats", formats.get(), "offsets",
                                offsets.get(), "itemsize", static_cast<Py_ssize_t>(size_bytes_)));
  return parts ? PyObject_CallMethod(numpy, "dtype", "O", parts.get()) : nullptr;
}

PyObject* RowType::array(PyObject* bytes, std::size_t count) {
  // A fork waits for this import.
  const Ref imports(PyImport_ImportModule("stagespan.process.imports"));
  const Ref numpy(imports ? PyObject_CallMethod(imports.get(), "load", "s", "numpy") : nullptr);
  if (!numpy) return nullptr;
  if (type_ == nullptr) {
    PyObject* const type = made(numpy.get());
    // Another thread may have created it in the meantime.
    if (type_ == nullptr)
      type_ = type;
    else
      Py_XDECREF(type);
  }
  return type_ == nullptr
             ? nullptr
             : PyObject_CallMethod(numpy.get(), "ndarray", "nOO", static_cast<Py_ssize_t>(count), type_, bytes);
}

PyObject* RowType::array_of(const void* rows, std::size_t count) {
  const Ref bytes(
      PyByteArray_FromStringAndSize(static_cast<const char*>(rows), static_cast<Py_ssize_t>(count * size_bytes_)));
  return bytes ? array(bytes.get(), count) : nullptr;
}

STAGESPAN_ROW_TYPE(span_row_type, SpanRow, STAGESPAN_SPAN_ROW_FIELDS)
STAGESPAN_ROW_TYPE(segment_row_type, SegmentRow, STAGESPAN_SEGMENT_ROW_FIELDS)
STAGESPAN_ROW_TYPE(segment_end_type, SegmentEnd, STAGESPAN_SEGMENT_END_FIELDS)

}  // namespace stagespan::python
