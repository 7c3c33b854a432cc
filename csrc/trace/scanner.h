// scanner.h: reads the list of events of a trace into tables, piece by piece.
#pragma once

#include <cstddef>

#include "trace/tables.h"

namespace stagespan::trace {

enum class State {
  kMore,    // all complete entries are in the tables; an incomplete entry follows
  kClosed,  // the list has ended
  kOdd,     // an entry is not JSON
};

class Scanner {
 public:
  /// Reads entries from a position within the list, before an entry or a comma. Returns how far it came: after the last
  /// complete entry, after the bracket that ends the list, or to the start of the invalid entry.
  State scan(const char* begin, const char* end, std::size_t* consumed);

  Tables& tables() noexcept { return tables_; }

 private:
  Tables tables_;
  Entry entry_;
};

}  // namespace stagespan::trace
