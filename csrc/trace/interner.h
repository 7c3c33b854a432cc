// interner.h: each different text once, with a number.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "trace/growing.h"

namespace stagespan::trace {

/// Texts by number, in the order in which they first came.
class Interner {
 public:
  std::uint32_t code(std::string_view text) {
    const std::uint64_t hash = hash_of(text);
    if (texts_.size() * 3 >= slots_.size() * 2) grow();
    const std::size_t mask = slots_.size() - 1;
    const auto mark = static_cast<std::uint32_t>(hash >> 32);
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.code == kEmpty) return add(at, mark, hash, text);
      if (slot.mark == mark && (*this)[slot.code] == text) return slot.code;
    }
  }

  /// The same, a little faster when the text is probably the one with the number `guess`.
  std::uint32_t code(std::string_view text, std::uint32_t guess) {
    return guess < texts_.size() && (*this)[guess] == text ? guess : code(text);
  }

  std::string_view operator[](std::uint32_t code) const noexcept {
    const std::uint64_t begin = code == 0 ? 0 : texts_[code - 1].end;
    return {bytes_.data() + begin, static_cast<std::size_t>(texts_[code].end - begin)};
  }
  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(texts_.size()); }

  /// All texts behind one another; the interner is of no use afterwards.
  Growing<char> take_bytes() noexcept { return std::move(bytes_); }
  /// Where each text ends in them.
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

  template <class Word>
  static std::uint64_t load(const char* at) noexcept {
    Word word;
    std::memcpy(&word, at, sizeof(word));
    return word;
  }
  static std::uint64_t mix(std::uint64_t h) noexcept {
    h *= 0x9E3779B97F4A7C15;
    return h ^ (h >> 29);
  }
  static std::uint64_t hash_of(std::string_view text) noexcept {
    const char* at = text.data();
    const char* const end = at + text.size();
    // Two chains, because one would wait for its own multiplications.
    std::uint64_t a = text.size() * 0xD6E8FEB86659FD93, b = 0xA0761D6478BD642F;
    for (; end - at > 16; at += 16) {
      a = mix(a ^ load<std::uint64_t>(at));
      b = mix(b ^ load<std::uint64_t>(at + 8));
    }
    // What is left is read from both of its ends, which may overlap.
    if (end - at >= 8) {
      a = mix(a ^ load<std::uint64_t>(at));
      b = mix(b ^ load<std::uint64_t>(end - 8));
    } else if (end - at >= 4) {
      a = mix(a ^ (load<std::uint32_t>(at) << 32 | load<std::uint32_t>(end - 4)));
    } else if (at < end) {
      a = mix(a ^ (load<std::uint8_t>(at) << 16 | load<std::uint8_t>(at + (end - at) / 2) << 8 |
                   load<std::uint8_t>(end - 1)));
    }
    const std::uint64_t h = mix(a ^ (b << 23 | b >> 41));
    return h ^ (h >> 32);
  }

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

  Growing<char> bytes_;
  Growing<Text> texts_;
  std::vector<Slot> slots_;
};

}  // namespace stagespan::trace
