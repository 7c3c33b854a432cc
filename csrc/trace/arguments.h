// arguments.h: the arguments of events, in one column for each key, without row numbers.
#pragma once

#include <cstdint>
#include <cstring>
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

/// The set of keys of an event is a node in a tree: the node's key, and the keys of the nodes above it. Events of one
/// kind share a node, so a row only needs the node's number, and the next key can usually be predicted.
class ArgumentKeys {
 public:
  static constexpr std::uint32_t kRoot = 0, kNoNode = 0xFFFFFFFF;

  ArgumentKeys() { add(kRoot, 0); }

  /// The number of the key whose text begins at `at`, if it is the key that last followed this node.
  bool is_next(std::uint32_t node, const char* at, const char* end, std::uint32_t* key, std::size_t* size) const {
    const std::uint32_t next = next_[node];
    if (next == kNoNode || !plain_[key_[next]]) return false;
    const std::string_view text = texts_[key_[next]];
    if (static_cast<std::size_t>(end - at) <= text.size() || at[text.size()] != '"' ||
        std::memcmp(at, text.data(), text.size()) != 0)
      return false;
    *key = key_[next];
    *size = text.size();
    return true;
  }
  std::uint32_t key(std::string_view text, bool plain);
  /// Returns to the root, for the arguments of another entry.
  void restart() noexcept { ++entry_; }
  /// The node below this one, for a key whose argument is at `place`; kNoNode if the entry already had the key.
  std::uint32_t below(std::uint32_t node, std::uint32_t key, std::size_t place) {
    const std::uint32_t next = next_[node];
    const std::uint32_t below = next != kNoNode && key_[next] == key ? next : find_below(node, key);
    if (below != kNoNode) [[likely]]
      had_[key] = {entry_, place};
    return below;
  }
  /// The position of the earlier argument of the entry with this key.
  std::size_t place(std::uint32_t key) const noexcept { return had_[key].place; }
  Role role(std::uint32_t key) const noexcept { return role_[key]; }
  Interner& texts() noexcept { return texts_; }
  Growing<std::int32_t> take_parents() noexcept { return std::move(parent_); }
  Growing<std::int32_t> take_keys() noexcept;

 private:
  std::uint32_t find_below(std::uint32_t node, std::uint32_t key);
  std::uint32_t add(std::uint32_t parent, std::uint32_t key);

  Interner texts_;
  struct Had {
    std::uint64_t entry = 0;
    std::size_t place = 0;
  };

  std::vector<Role> role_;   // by key
  std::vector<bool> plain_;  // by key: can be used as written in the file
  std::vector<Had> had_;     // by key: the last entry that had it, and its position
  std::uint64_t entry_ = 1;
  Growing<std::int32_t> parent_;
  Growing<std::uint32_t> key_;   // by node
  Growing<std::uint32_t> next_;  // by node: the node that last followed it
  std::unordered_map<std::uint64_t, std::uint32_t, SecretHash> edges_;
};

}  // namespace stagespan::trace
