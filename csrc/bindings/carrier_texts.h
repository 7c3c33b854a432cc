// carrier_texts.h: takes the texts of a carrier from the Python object that contains it.
#pragma once

#include <Python.h>

#include <string_view>

#include "object.h"
#include "request_object.h"

namespace stagespan::python {

/// The texts of a carrier; empty where it has none.
using Texts = Ref[kKeys];

/// Takes the texts of a mapping, such as a WSGI environ, or of pairs of names and values. Values are str or bytes, or
/// lists of them; names are in any case. A key that occurs twice with different values is left out. The first carrier
/// with values of another type is told. False with an exception set if `carrier` is neither.
bool take_texts(PyObject* carrier, Texts& to);

/// A text in UTF-8; its data is null if the object is null, not a str, or longer.
std::string_view view_of(PyObject* text, std::size_t most_bytes) noexcept;

/// The members of a `tracestate` that can be passed on, as a text that may be empty; the others are counted as lost.
/// Empty with an exception set if that fails. `segment` is what our own member says, or 0 if it is not believed.
Ref kept_state(PyObject* text, bool is_trusted, std::uint64_t& segment) noexcept;

/// A name of a queue as an object that is the same each time, so that its stages are found by its address. Empty with
/// an exception set if it is not UTF-8.
Ref kept_name(std::string_view name) noexcept;

/// The names of the keys, borrowed.
PyObject* name_of_key(Key key) noexcept;

/// False with an exception set if that fails.
bool init_carrier_texts();

}  // namespace stagespan::python
