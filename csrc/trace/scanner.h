// scanner.h: the list of events of a trace, piece by piece into tables.
#pragma once

#include <cstddef>

#include "trace/tables.h"

namespace stagespan::trace {

enum class State {
  kMore,    // all whole entries are in the tables: what follows them is not whole
  kClosed,  // the list has ended
  kOdd,     // an entry is not JSON
};

class Scanner {
 public:
  /// Reads entries from a position within the list, before an entry or a comma, and says how far it came: behind the
  /// last whole entry, behind the bracket that ends the list, or where the odd entry begins.
  State scan(const char* begin, const char* end, std::size_t* consumed);

  Tables& tables() noexcept { return tables_; }

 private:
  Tables tables_;
  Entry entry_;
};

}  // namespace stagespan::trace
