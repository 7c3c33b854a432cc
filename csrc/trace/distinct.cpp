// distinct.cpp: a bit for each possible value if they are close together, else a small hash table.
#include "trace/distinct.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "trace/hash.h"

namespace stagespan::trace {

namespace {

using Key = std::pair<std::int64_t, std::int64_t>;

// There are at most this many bits for each element, or so many in all.
constexpr std::uint64_t kMostBits = 64, kFewBits = 1 << 16;

/// Values in a range, as a bit for each possible one.
class BitSet {
 public:
  explicit BitSet(std::size_t size) : words_((size + 63) / 64) {}

  void add(std::size_t value) noexcept { words_[value / 64].bits |= std::uint64_t{1} << value % 64; }

  /// Appends the values, ascending, to which `base` is added. `rank` can be used then.
  void number(std::uint64_t base, std::vector<std::int64_t>* values) {
    for (std::size_t at = 0; at < words_.size(); ++at) {
      words_[at].before = static_cast<std::int64_t>(values->size());
      for (std::uint64_t bits = words_[at].bits; bits != 0; bits &= bits - 1)
        values->push_back(
            static_cast<std::int64_t>(base + 64 * at + static_cast<std::uint64_t>(__builtin_ctzll(bits))));
    }
  }

  /// How many values are lower than this one.
  std::int64_t rank(std::size_t value) const noexcept {
    const Word& word = words_[value / 64];
    return word.before + __builtin_popcountll(word.bits & ((std::uint64_t{1} << value % 64) - 1));
  }

 private:
  struct Word {
    std::uint64_t bits = 0;
    std::int64_t before = 0;
  };

  std::vector<Word> words_;
};

/// Few different keys, numbered in the order in which they come: the slots stay in the first-level cache.
class FewKeys {
 public:
  FewKeys() { slots_.fill(-1); }

  /// The number of a key; -1 if there are too many.
  std::int64_t number(const Key& key) {
    if (last_ >= 0 && keys_[static_cast<std::size_t>(last_)] == key) return last_;
    const HashSecrets& secrets = hash_secrets();
    const std::uint64_t hash =
        detail::product(static_cast<std::uint64_t>(key.first) ^ secrets.first,
                        detail::product(static_cast<std::uint64_t>(key.second) ^ secrets.second, secrets.first | 1));
    for (std::size_t at = hash % kSlots;; at = (at + 1) % kSlots) {
      if (slots_[at] < 0) {
        if (keys_.size() == kMost) return -1;
        slots_[at] = static_cast<std::int16_t>(keys_.size());
        keys_.push_back(key);
      }
      if (keys_[static_cast<std::size_t>(slots_[at])] == key) return last_ = slots_[at];
    }
  }

  /// Sorts the keys, and gives each of `count` numbers the new one of its key.
  const std::vector<Key>& sorted(std::int64_t* index, std::size_t count) {
    std::vector<std::size_t> order(keys_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) { return keys_[a] < keys_[b]; });
    std::vector<std::int64_t> place(keys_.size());
    for (std::size_t at = 0; at < order.size(); ++at) place[order[at]] = static_cast<std::int64_t>(at);
    if (index != nullptr)
      for (std::size_t at = 0; at < count; ++at) index[at] = place[static_cast<std::size_t>(index[at])];
    std::sort(keys_.begin(), keys_.end());
    return keys_;
  }

 private:
  static constexpr std::size_t kMost = 512, kSlots = 4 * kMost;

  std::array<std::int16_t, kSlots> slots_;
  std::vector<Key> keys_;
  std::int64_t last_ = -1;
};

}  // namespace

template <class T>
bool number(const T* column, std::size_t count, std::int64_t* index, std::vector<std::int64_t>* values) {
  if (count == 0) return true;
  T low = column[0], high = column[0];
  for (std::size_t at = 1; at < count; ++at) {
    low = std::min(low, column[at]);
    high = std::max(high, column[at]);
  }
  const auto base = static_cast<std::uint64_t>(std::int64_t{low});
  const auto offset = [base](T value) {
    return static_cast<std::size_t>(static_cast<std::uint64_t>(std::int64_t{value}) - base);
  };
  if (offset(high) < std::max<std::uint64_t>(kMostBits * count, kFewBits)) {
    BitSet bits(offset(high) + 1);
    for (std::size_t at = 0; at < count; ++at) bits.add(offset(column[at]));
    bits.number(base, values);
    if (index != nullptr)
      for (std::size_t at = 0; at < count; ++at) index[at] = bits.rank(offset(column[at]));
    return true;
  }
  FewKeys keys;
  for (std::size_t at = 0; at < count; ++at) {
    const std::int64_t number = keys.number({column[at], 0});
    if (number < 0) return false;
    if (index != nullptr) index[at] = number;
  }
  for (const Key& key : keys.sorted(index, count)) values->push_back(key.first);
  return true;
}

template bool number(const std::int32_t*, std::size_t, std::int64_t*, std::vector<std::int64_t>*);
template bool number(const std::int64_t*, std::size_t, std::int64_t*, std::vector<std::int64_t>*);

bool number_pairs(const std::int64_t* first, const std::int64_t* second, std::size_t count, std::int64_t* index,
                  std::vector<std::int64_t>* pairs) {
  FewKeys keys;
  for (std::size_t at = 0; at < count; ++at) {
    index[at] = keys.number({first[at], second[at]});
    if (index[at] < 0) return false;
  }
  for (const auto& [one, other] : keys.sorted(index, count)) pairs->insert(pairs->end(), {one, other});
  return true;
}

template <class Code>
bool are_places(const Code* code, std::size_t count, std::size_t size) noexcept {
  std::uint32_t high = 0;  // a negative code is larger than all others
  for (std::size_t at = 0; at < count; ++at) high = std::max(high, static_cast<std::uint32_t>(code[at]));
  return count == 0 || high < size;
}

template <class Code>
void look_up(const bool* table, const Code* code, std::size_t count, bool* result) noexcept {
  for (std::size_t at = 0; at < count; ++at) result[at] = table[code[at]];
}

template <class Code>
void mark(const Code* code, const bool* chosen, std::size_t count, bool* table) noexcept {
  for (std::size_t at = 0; at < count; ++at)
    if (chosen[at]) table[code[at]] = true;
}

template <class Code, class T>
bool spread(const bool* table, const Code* code, std::size_t count, const T* value, std::size_t values,
            std::int64_t missing, std::int64_t* result) noexcept {
  std::size_t next = 0;
  for (std::size_t at = 0; at < count; ++at) {
    const bool has = table[code[at]];
    if (has && next == values) return false;
    result[at] = has ? std::int64_t{value[next++]} : missing;
  }
  return next == values;
}

#define STAGESPAN_FOR_CODE(Code)                                                                              \
  template bool are_places(const Code*, std::size_t, std::size_t) noexcept;                                   \
  template void look_up(const bool*, const Code*, std::size_t, bool*) noexcept;                               \
  template void mark(const Code*, const bool*, std::size_t, bool*) noexcept;                                  \
  template bool spread(const bool*, const Code*, std::size_t, const std::int32_t*, std::size_t, std::int64_t, \
                       std::int64_t*) noexcept;                                                               \
  template bool spread(const bool*, const Code*, std::size_t, const std::int64_t*, std::size_t, std::int64_t, \
                       std::int64_t*) noexcept;
STAGESPAN_FOR_CODE(std::int8_t)
STAGESPAN_FOR_CODE(std::int16_t)
STAGESPAN_FOR_CODE(std::int32_t)
#undef STAGESPAN_FOR_CODE

}  // namespace stagespan::trace
