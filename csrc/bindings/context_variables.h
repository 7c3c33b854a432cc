// context_variables.h: the two variables that stagespan keeps in the interpreter's contexts.
#pragma once

#include <Python.h>

#include <cstdint>

#include "stagespan/thread_state.h"

namespace stagespan::python {

/// The value of the first variable, which copies of a context inherit. The second one contains the request object.
struct Inherited {
  ParentLink link;               // the open span; in own code of a thread: the one open when its request was entered
  std::uint64_t base = kExact;   // the serial of the thread whose own code stored this, or one of those below
  std::uint64_t generation = 0;  // spans and requests from before a fork belong to the parent
  static constexpr std::uint64_t kExact = 0;                    // `link` is what is open there
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};  // treated as empty
};

/// The inherited value as a bytes object, which is how the variable contains it; null with an exception set if there is
/// no memory.
PyObject* encode(Inherited inherited) noexcept;
/// The opposite. False for the values of other generations and other objects, and for kNothing.
bool decode(PyObject* value, Inherited& inherited) noexcept;

/// Reads the inherited value of the current context, or of any context. False if there is none.
bool read_inherited(Inherited& inherited) noexcept;
bool read_inherited_of(PyObject* context, Inherited& inherited) noexcept;

/// The request object of the current context, or None; a new reference.
PyObject* read_request() noexcept;

/// Store the inherited value, or the request object, in the current context. Dropping the previous values may run code
/// of the program.
void write_inherited(const ThreadState& thread, const Inherited& inherited) noexcept;
void write_request(const ThreadState& thread, PyObject* request) noexcept;

/// Stores the inherited value and, unless it is null, the request object in any context, as if its own code had stored
/// them: also in a context that has been entered, in any thread.
void write_elsewhere(const ThreadState& thread, PyObject* context, const Inherited& inherited,
                     PyObject* request) noexcept;

/// The variable that contains the request object; a new reference.
PyObject* request_variable() noexcept;

/// Creates the variables. Returns false with an exception set if that fails.
bool init_context_variables();

}  // namespace stagespan::python
