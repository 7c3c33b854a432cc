// paths.h: the tree of the paths of words of nested intervals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagespan::trace {

/// A forest whose elements have words. `parent` is an index or -1, in any order. A cycle is cut somewhere.
struct WordForest {
  const std::int64_t* parent;
  const std::int64_t* word;
  std::size_t count;
  std::int64_t deepest;  // the most elements of a path, at least 1
};

/// The different paths from a root: the node of the path without its last word, or -1, and the last word. Sorted by
/// length, then by these two, so that parents come first.
struct PathNodes {
  std::vector<std::int64_t> parent, word;
};

/// Writes the node of each element's path, and whether the element is too deep: its node is then that of the last
/// element around it that is not.
PathNodes paths_of(const WordForest& forest, std::int64_t* node, bool* folded);

}  // namespace stagespan::trace
