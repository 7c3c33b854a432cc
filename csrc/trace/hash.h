// hash.h: keyed hashes of texts in a file, so that nobody can create a file whose texts all have the same hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace stagespan::trace {

/// Random numbers of this process.
struct HashSecrets {
  std::uint64_t first, second;
};
const HashSecrets& hash_secrets() noexcept;

namespace detail {

template <class Word>
std::uint64_t load(const char* at) noexcept {
  Word word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// Both halves of the 128-bit product. Without knowing one of the factors, nobody can find other factors with the same
// result, except by chance.
inline std::uint64_t product(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide wide = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(wide) ^ static_cast<std::uint64_t>(wide >> 64);
}

}  // namespace detail

/// The hash of a text.
inline std::uint64_t hash_of(std::string_view text, const HashSecrets& secrets) noexcept {
  using detail::load, detail::product;
  const char* at = text.data();
  const char* const end = at + text.size();
  std::uint64_t h = secrets.second;
  for (; end - at > 16; at += 16) h = product(load<std::uint64_t>(at) ^ secrets.first, load<std::uint64_t>(at + 8) ^ h);
  // The rest is read from both of its ends, which can overlap. The length distinguishes such texts.
  std::uint64_t a = 0, b = 0;
  if (end - at >= 8) {
    a = load<std::uint64_t>(at);
    b = load<std::uint64_t>(end - 8);
  } else if (end - at >= 4) {
    a = load<std::uint32_t>(at);
    b = load<std::uint32_t>(end - 4);
  } else if (at < end) {
    a = load<std::uint8_t>(at) << 16 | load<std::uint8_t>(at + (end - at) / 2) << 8 | load<std::uint8_t>(end - 1);
  }
  h = product(a ^ secrets.first, b ^ h);
  return product(h ^ text.size(), secrets.first | 1);
}

/// For tables of the standard library whose keys come from a file.
struct SecretHash {
  std::size_t operator()(std::uint64_t key) const noexcept {
    const HashSecrets& secrets = hash_secrets();
    return detail::product(key ^ secrets.first, secrets.second | 1);
  }
};

}  // namespace stagespan::trace
