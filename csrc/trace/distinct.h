// distinct.h: the different values of columns, and columns that are made by looking up codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagespan::trace {

/// Writes the different values of a column, ascending, and for each element the index of its value, unless `index` is
/// null. Returns false, with nothing useful written, if the values are many and far apart.
template <class T>
bool number(const T* column, std::size_t count, std::int64_t* index, std::vector<std::int64_t>* values);

/// The same for pairs of elements of two columns; `pairs` has the two values of each. Returns false if they are many.
bool number_pairs(const std::int64_t* first, const std::int64_t* second, std::size_t count, std::int64_t* index,
                  std::vector<std::int64_t>* pairs);

/// Whether all codes are places in a table of `size` elements. Codes have 8, 16 or 32 bits.
template <class Code>
bool are_places(const Code* code, std::size_t count, std::size_t size) noexcept;

/// Writes the element of a table for each code.
template <class Code>
void look_up(const bool* table, const Code* code, std::size_t count, bool* result) noexcept;

/// Marks the codes of the chosen rows in a table.
template <class Code>
void mark(const Code* code, const bool* chosen, std::size_t count, bool* table) noexcept;

/// Writes the next of the values, which the rows have whose code is marked, or `missing` for the other rows. Returns
/// false if there are not as many values as such rows.
template <class Code, class T>
bool spread(const bool* table, const Code* code, std::size_t count, const T* value, std::size_t values,
            std::int64_t missing, std::int64_t* result) noexcept;

}  // namespace stagespan::trace
