// context_variables.h: the variable that stagespan keeps in the interpreter's contexts.
#pragma once

#include <Python.h>

#include <cstdint>

#include "stagespan/thread_state.h"

namespace stagespan::python {

/// What copies of a context inherit, besides the request object. The variable's value contains both, so that entering
/// and leaving a request changes one variable:
///
///   variable --> value: [object header | Inherited: link, base, generation | request] --> the request object, or null
struct Inherited {
  ParentLink link;               // the open span; in own code of a thread: the one open when its request was entered
  std::uint64_t base = kExact;   // the serial of the thread whose own code stored this, or one of those below
  std::uint64_t generation = 0;  // spans and requests from before a fork belong to the parent
  static constexpr std::uint64_t kExact = 0;                    // `link` is what is open there
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};  // treated as empty
};

/// The inherited value as a bytes object, for functions that take it along; null with an exception set if there is no
/// memory.
PyObject* encode(Inherited inherited) noexcept;
/// The opposite. False for the values of other generations and other objects, and for kNothing.
bool decode(PyObject* value, Inherited& inherited) noexcept;

/// Reads the inherited value of the current context, or of any context. False if there is none, and as `decode`.
bool read_inherited(Inherited& inherited) noexcept;
bool read_inherited_of(PyObject* context, Inherited& inherited) noexcept;

/// The request object of the current context, or None; a new reference.
PyObject* read_request() noexcept;

/// The inherited value of `context`, which is current, for the caller to overwrite; null if it must not be changed in
/// place. Runs no other code, and leaves a pending exception alone.
Inherited* inherited_in_place(PyObject* context) noexcept;

/// Stores the inherited value and, unless it is null, the request object in the current context. Dropping what was
/// there before may run code of the program.
void write_inherited(const ThreadState& thread, const Inherited& inherited, PyObject* request = nullptr) noexcept;

/// The same in any context, as if its own code had stored them: also in a context that has been entered, in any thread.
void write_elsewhere(const ThreadState& thread, PyObject* context, const Inherited& inherited,
                     PyObject* request) noexcept;

/// Creates the variable. Returns false with an exception set if that fails.
bool init_context_variables();

}  // namespace stagespan::python
