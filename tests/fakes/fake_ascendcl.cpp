// fake_ascendcl.cpp: the two functions of Ascend's runtime that are called; an event is a pointer to its time in us.
#include <cstdint>

extern "C" {

__attribute__((visibility("default"))) int aclrtEventGetTimestamp(void* event, std::uint64_t* us) {
  if (event == nullptr) return 107000;
  *us = static_cast<std::uint64_t>(*static_cast<const double*>(event));
  return 0;
}

__attribute__((visibility("default"))) int aclrtEventElapsedTime(float* ms, void* begin, void* end) {
  if (begin == nullptr || end == nullptr) return 107000;
  *ms = static_cast<float>((*static_cast<const double*>(end) - *static_cast<const double*>(begin)) / 1e3);
  return 0;
}
}
