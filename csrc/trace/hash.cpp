// hash.cpp: the random keys of this process's hashes.
#include "trace/hash.h"

#include <sys/random.h>
#include <time.h>

namespace stagespan::trace {

namespace {

HashSecrets make_secrets() noexcept {
  HashSecrets secrets{};
  // While a system boots, there may be no random numbers yet. This does not wait for them.
  if (getrandom(&secrets, sizeof(secrets), GRND_NONBLOCK) != static_cast<ssize_t>(sizeof(secrets))) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    const std::uint64_t time =
        static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
    const auto place = reinterpret_cast<std::uintptr_t>(&secrets);  // an address that the system chooses at random
    secrets.first = detail::product(time ^ 0xA0761D6478BD642F, place ^ 0xE7037ED1A0B428DB);
    secrets.second = detail::product(secrets.first ^ 0x8EBC6AF09C88C6E3, place ^ 0x589965CC75374CC3);
  }
  return secrets;
}

}  // namespace

const HashSecrets& hash_secrets() noexcept {
  static const HashSecrets secrets = make_secrets();
  return secrets;
}

}  // namespace stagespan::trace
