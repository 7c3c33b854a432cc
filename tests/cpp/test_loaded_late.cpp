// test_loaded_late.cpp: the recorder in a library that a program loads while its threads run.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

TEST(LoadedLate, ThreadsThatRunAlreadyRecord) {
  constexpr int kThreads = 4, kSpans = 100;
  std::barrier loaded(kThreads + 1);
  void (*record)() = nullptr;
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      loaded.arrive_and_wait();
      for (int span = 0; record != nullptr && span < kSpans; ++span) record();
    });

  void* const library = dlopen(STAGESPAN_LOADED_LATE, RTLD_NOW | RTLD_LOCAL);
  const char* const error = library == nullptr ? dlerror() : "";
  std::uint64_t (*recorded)() = nullptr;
  if (library != nullptr) {
    record = reinterpret_cast<void (*)()>(dlsym(library, "record_a_span"));
    recorded = reinterpret_cast<std::uint64_t (*)()>(dlsym(library, "recorded_spans"));
  }
  loaded.arrive_and_wait();
  threads.clear();

  ASSERT_NE(library, nullptr) << error;
  ASSERT_NE(recorded, nullptr);
  EXPECT_EQ(recorded(), std::uint64_t{kThreads} * kSpans);
}

}  // namespace
