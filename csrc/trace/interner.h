// interner.h: stores each distinct text once, with a number.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "trace/growing.h"
#include "trace/hash.h"

namespace stagespan::trace {

/// Texts by number, in the order of their first occurrence.
class Interner {
 public:
  std::uint32_t code(std::string_view text) {
    const std::uint64_t hash = hash_of(text, secrets_);
    if (texts_.size() * 3 >= slots_.size() * 2) grow();
    const std::size_t mask = slots_.size() - 1;
    const auto mark = static_cast<std::uint32_t>(hash >> 32);
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.code == kEmpty) return add(at, mark, hash, text);
      if (slot.mark == mark && (*this)[slot.code] == text) return slot.code;
    }
  }

  /// The same, but slightly faster if the text is probably the one with the number `guess`.
  std::uint32_t code(std::string_view text, std::uint32_t guess) {
    return guess < texts_.size() && (*this)[guess] == text ? guess : code(text);
  }

  std::string_view operator[](std::uint32_t code) const noexcept {
    const std::uint64_t begin = code == 0 ? 0 : texts_[code - 1].end;
    return {bytes_.data() + begin, static_cast<std::size_t>(texts_[code].end - begin)};
  }
  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(texts_.size()); }

  /// Returns all texts, concatenated. The interner must not be used afterwards.
  Growing<char> take_bytes() noexcept { return std::move(bytes_); }
  /// The end of each text in this string.
  Growing<std::int64_t> ends() const {
    Growing<std::int64_t> result;
    for (std::size_t i = 0; i < texts_.size(); ++i) result.push(static_cast<std::int64_t>(texts_[i].end));
    return result;
  }

 private:
  static constexpr std::uint32_t kEmpty = 0xFFFFFFFF;
  struct Text {
    std::uint64_t end;
    std::uint64_t hash;
  };
  struct Slot {
    std::uint32_t code = kEmpty;
    std::uint32_t mark = 0;
  };

  std::uint32_t add(std::size_t at, std::uint32_t mark, std::uint64_t hash, std::string_view text) {
    const std::uint32_t code = size();
    bytes_.append(text.data(), text.size());
    texts_.push({bytes_.size(), hash});
    slots_[at] = {code, mark};
    return code;
  }

  void grow() {
    slots_.assign(slots_.empty() ? 64 : slots_.size() * 2, Slot{});
    const std::size_t mask = slots_.size() - 1;
    for (std::uint32_t code = 0; code < size(); ++code) {
      const std::uint64_t hash = texts_[code].hash;
      std::size_t at = hash & mask;
      while (slots_[at].code != kEmpty) at = (at + 1) & mask;
      slots_[at] = {code, static_cast<std::uint32_t>(hash >> 32)};
    }
  }

  HashSecrets secrets_ = hash_secrets();
  Growing<char> bytes_;
  Growing<Text> texts_;
  std::vector<Slot> slots_;
};

}  // namespace stagespan::trace
