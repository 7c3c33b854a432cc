// request_tables.h: finds requests by number or trace, and hops that come twice. The interpreter's lock guards all.
#pragma once

#include <Python.h>

#include <cstdint>

#include "request_object.h"

namespace stagespan::python {

/// Add an open request to the tables, and remove it.
void add_open(RequestObject& request) noexcept;
void remove_open(RequestObject& request) noexcept;

/// The latest open request with this number, borrowed; null if there is none.
RequestObject* find_open(std::uint64_t number) noexcept;
/// The latest open request that began in this process, and that a hop of this trace belongs to; null if there is none.
RequestObject* find_root(const TraceId& trace, const SentHop& hop) noexcept;

/// Remember the number, id and trace of a request that has begun, and of one that has ended.
void remember_begun(const RequestObject& request) noexcept;
void remember_ended(const RequestObject& request) noexcept;

/// Lists a request that has ended for `requests_finished`, which makes what Python code sees of it when it is asked.
void list_finished(RequestObject& request, std::uint64_t end_ticks, SegmentStatus status) noexcept;

/// The metadata of a request, borrowed, which it gets when somebody asks; null with an exception set if there is no
/// memory.
PyObject* metadata_of(RequestObject& request) noexcept;

/// Remembers a hop. Returns whether it is one of the latest 4,096 that this process has received.
bool is_repeated_hop(std::uint64_t hop) noexcept;

/// A trace id as a text of 32 digits, None for 0; a new reference.
PyObject* text_of_trace(const TraceId& trace) noexcept;

extern PyMethodDef g_request_table_functions[];

}  // namespace stagespan::python
