// paths.cpp: nodes are numbered as their paths come, and are sorted at the end, because they are few.
#include "trace/paths.h"

#include <algorithm>
#include <numeric>

#include "trace/hash.h"

namespace stagespan::trace {

namespace {

/// Nodes in the order in which they come, and a hash table of them.
class Builder {
 public:
  std::int64_t node_of(std::int64_t above, std::int64_t word) {
    if (2 * (nodes_.size() + 1) > slots_.size()) grow();
    std::size_t at = place(above, word);
    for (; slots_[at] >= 0; at = next(at)) {
      const Node& node = nodes_[static_cast<std::size_t>(slots_[at])];
      if (node.parent == above && node.word == word) return slots_[at];
    }
    const auto number = static_cast<std::int64_t>(nodes_.size());
    slots_[at] = number;
    nodes_.push_back({above, word, above < 0 ? 0 : nodes_[static_cast<std::size_t>(above)].level + 1});
    return number;
  }

  std::int64_t level(std::int64_t number) const { return nodes_[static_cast<std::size_t>(number)].level; }

  /// Returns the nodes sorted by level, and the new number of each.
  PathNodes sorted(std::vector<std::int64_t>* numbers) const {
    std::vector<std::size_t> order(nodes_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [this](std::size_t a, std::size_t b) { return nodes_[a].level < nodes_[b].level; });
    numbers->assign(nodes_.size(), -1);
    PathNodes result;
    const auto above = [&](std::size_t at) {
      const std::int64_t parent = nodes_[at].parent;
      return parent < 0 ? parent : (*numbers)[static_cast<std::size_t>(parent)];
    };
    for (auto begin = order.begin(); begin != order.end();) {
      const std::int64_t level = nodes_[*begin].level;
      const auto end = std::find_if(begin, order.end(), [&](std::size_t at) { return nodes_[at].level != level; });
      // The level above has its numbers.
      std::sort(begin, end, [&](std::size_t a, std::size_t b) {
        const std::int64_t first = above(a), second = above(b);
        return first < second || (first == second && nodes_[a].word < nodes_[b].word);
      });
      for (; begin != end; ++begin) {
        (*numbers)[*begin] = static_cast<std::int64_t>(result.parent.size());
        result.parent.push_back(above(*begin));
        result.word.push_back(nodes_[*begin].word);
      }
    }
    return result;
  }

 private:
  struct Node {
    std::int64_t parent, word, level;
  };

  std::size_t place(std::int64_t above, std::int64_t word) const noexcept {
    const std::uint64_t inner =
        detail::product(static_cast<std::uint64_t>(above) ^ secrets_.first, secrets_.second | 1);
    return detail::product(static_cast<std::uint64_t>(word) ^ inner, secrets_.first | 1) & (slots_.size() - 1);
  }
  std::size_t next(std::size_t at) const noexcept { return (at + 1) & (slots_.size() - 1); }

  void grow() {
    slots_.assign(std::max<std::size_t>(2 * slots_.size(), 1024), -1);
    for (std::size_t number = 0; number < nodes_.size(); ++number) {
      std::size_t at = place(nodes_[number].parent, nodes_[number].word);
      while (slots_[at] >= 0) at = next(at);
      slots_[at] = static_cast<std::int64_t>(number);
    }
  }

  HashSecrets secrets_ = hash_secrets();
  std::vector<Node> nodes_;
  std::vector<std::int64_t> slots_;
};

}  // namespace

PathNodes paths_of(const WordForest& forest, std::int64_t* node, bool* folded) {
  constexpr std::int64_t unknown = -1, on_the_way = -2;
  Builder nodes;
  std::fill_n(node, forest.count, unknown);
  std::vector<std::size_t> waiting;
  for (std::size_t at = 0; at < forest.count; ++at) {
    std::size_t top = at;
    while (node[top] == unknown) {
      node[top] = on_the_way;
      waiting.push_back(top);
      if (forest.parent[top] < 0) break;
      top = static_cast<std::size_t>(forest.parent[top]);
    }
    for (; !waiting.empty(); waiting.pop_back()) {
      const std::size_t here = waiting.back();
      const std::int64_t parent = forest.parent[here], above = parent < 0 ? -1 : std::max(node[parent], unknown);
      folded[here] = above >= 0 && nodes.level(above) + 1 >= forest.deepest;
      node[here] = folded[here] ? above : nodes.node_of(above, forest.word[here]);
    }
  }
  std::vector<std::int64_t> numbers;
  PathNodes result = nodes.sorted(&numbers);
  for (std::size_t at = 0; at < forest.count; ++at) node[at] = numbers[static_cast<std::size_t>(node[at])];
  return result;
}

}  // namespace stagespan::trace
