// arguments.h: the arguments of events, in one column for each key, without row numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trace/growing.h"
#include "trace/hash.h"
#include "trace/interner.h"
#include "trace/value.h"

namespace stagespan::trace {

/// Arguments that have a column of their own in a trace, and must therefore be of one type.
enum class Role : std::uint8_t {
  kNone,
  kCorrelation,
  kConnection,
  kExternal,
  kOldExternal,
  kDevice,
  kStream,
  kPython,
  kPythonParent,
  kTaskType,
  kCount,
};
const char* name_of(Role role) noexcept;

/// Values of one key in one table, in the order of the rows that have it.
class ArgumentColumn {
 public:
  enum class Type : std::uint8_t { kEmpty, kSmall, kWhole, kReal, kText };

  void add(const Value& value, bool text, Interner* texts, std::string* scratch);

  Type type() const noexcept { return type_; }
  /// int32 if small or text (then the number of a text), otherwise int64 or double.
  Growing<std::int32_t> take_narrow() noexcept { return std::move(narrow_); }
  Growing<std::int64_t> take_whole() noexcept { return std::move(whole_); }
  Growing<double> take_real() noexcept { return std::move(real_); }

 private:
  void add_integer(std::int64_t value, Interner* texts);
  void add_real(double value, Interner* texts);
  void to_whole();
  bool to_real();
  void to_text(Interner* texts);

  Type type_ = Type::kEmpty;
  Growing<std::int32_t> narrow_;
  Growing<std::int64_t> whole_;
  Growing<double> real_;
};

/// One argument of the entry that is being read.
struct Argument {
  std::uint32_t key = 0;
  Value value;
};

/// The set of keys of an object is a node in a tree: the node's key, and the keys of the nodes above it. Events of one
/// kind share a node, so a row only needs the node's number, and the next key can usually be predicted.
class KeyTree {
 public:
  static constexpr std::uint32_t kRoot = 0, kNoNode = 0xFFFFFFFF;

  KeyTree() { add(kRoot, 0); }

  /// The value that follows, and its key, if the text from `at` to a value is as before one below this node; else null.
  const char* expected(std::uint32_t node, const char* at, const char* end, std::uint32_t* key) {
    std::uint32_t below = next_[node];
    if (below == kNoNode || end - at < kLongest) return nullptr;
    for (int turn = 0; turn < kTurns; ++turn, below = sibling_[below]) {
      if (!leads_[below].begins(at)) continue;
      *key = key_[next_[node] = below];
      return at + leads_[below].size;
    }
    return nullptr;
  }
  std::uint32_t key(std::string_view text);
  /// Returns to the root, for the keys of another object.
  void restart() noexcept { ++object_; }
  /// The node below this one, for a key whose value is at `place`; kNoNode if the object already had the key. `lead` is
  /// the text between the previous value and this one, if it was not expected.
  std::uint32_t below(std::uint32_t node, std::uint32_t key, std::size_t place, std::string_view lead) {
    const std::uint32_t next = next_[node];
    const std::uint32_t below = next != kNoNode && key_[next] == key ? next : find_below(node, key);
    if (below != kNoNode) [[likely]] {
      had_[key] = {object_, place};
      if (!lead.empty()) expect(below, lead);
    }
    return below;
  }
  /// The position of the earlier value of the object with this key.
  std::size_t place(std::uint32_t key) const noexcept { return had_[key].place; }
  Role role(std::uint32_t key) const noexcept { return role_[key]; }
  Interner& texts() noexcept { return texts_; }
  Growing<std::int32_t> take_parents() noexcept { return std::move(parent_); }
  Growing<std::int32_t> take_keys() noexcept;

 private:
  std::uint32_t find_below(std::uint32_t node, std::uint32_t key);
  std::uint32_t add(std::uint32_t parent, std::uint32_t key);
  void expect(std::uint32_t node, std::string_view lead) noexcept;

  Interner texts_;
  struct Had {
    std::uint64_t object = 0;
    std::size_t place = 0;
  };
  static constexpr std::ptrdiff_t kLongest = 48;
  static constexpr int kTurns = 4;  // more nodes below one are not tried
  /// What is before the value of a node: the text in words, and which of their bytes count.
  struct Lead {
    std::size_t size = 0;
    std::array<std::uint64_t, kLongest / sizeof(std::uint64_t)> text{}, mask{};

    bool begins(const char* at) const noexcept {
      std::size_t word = 0;
      for (; word * sizeof(text[0]) < size; ++word, at += sizeof(text[0]))
        if (((detail::load<std::uint64_t>(at) ^ text[word]) & mask[word]) != 0) return false;
      return word > 0;
    }
  };

  std::vector<Role> role_;  // by key
  std::vector<Had> had_;    // by key: the last object that had it, and its position
  std::uint64_t object_ = 1;
  Growing<std::int32_t> parent_;
  Growing<std::uint32_t> key_;      // by node
  Growing<std::uint32_t> next_;     // by node: the node below it that was last used
  Growing<std::uint32_t> sibling_;  // by node: the next one below the same node, in a ring
  std::vector<Lead> leads_;         // by node
  std::unordered_map<std::uint64_t, std::uint32_t, SecretHash> edges_;
};

}  // namespace stagespan::trace
