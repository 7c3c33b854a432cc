// fuzz_driver.cpp: runs a fuzz target without libFuzzer: on the given files, or on random inputs.
//
// Usage: TARGET [FILE...] or TARGET -runs=N [-seed=N]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::uint64_t kInteresting[] = {0,          1,          255,        1016,       1017,       4096, 8193,
                                          0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 32, 1ULL << 62, ~0ULL};

void run_random(std::uint64_t runs, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::uint64_t i = 0; i < runs; ++i) {
    std::vector<std::uint8_t> input(5 + 12 * (1 + random() % 4));
    for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random());
    if (random() % 2 == 0) {
      const std::uint64_t value = kInteresting[random() % std::size(kInteresting)];
      for (std::size_t k = 0; k < 8; ++k) input[9 + k] = static_cast<std::uint8_t>(value >> (8 * k));
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%llu inputs, seed %llu\n", static_cast<unsigned long long>(runs), static_cast<unsigned long long>(seed));
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 0, seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("-runs=")) {
      runs = std::strtoull(argv[i] + 6, nullptr, 10);
    } else if (argument.starts_with("-seed=")) {
      seed = std::strtoull(argv[i] + 6, nullptr, 10);
    } else {
      std::ifstream file(argv[i], std::ios::binary);
      if (!file) {
        std::fprintf(stderr, "%s cannot be read\n", argv[i]);
        return 2;
      }
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    }
  }
  if (runs != 0) run_random(runs, seed);
  return 0;
}
