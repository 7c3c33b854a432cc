// api.h: the table of functions with which code in other shared objects records into this process's recorder.
#pragma once

#include <cstddef>
#include <cstdint>

// The namespace of code that other shared objects compile. Its name changes with `Api` and python.h, so that objects
// built with different versions of these headers do not share symbols.
#define STAGESPAN_API_NAMESPACE api_v1

namespace stagespan {
inline namespace STAGESPAN_API_NAMESPACE {

inline constexpr std::uint32_t kApiVersion = 1;
inline constexpr const char* kApiCapsule = "stagespan._core.api";

/// An open span of another shared object.
struct ApiSpan {
  void* frame;  // null when nothing is recorded
  std::uint64_t id;
};

/// New fields are only added at the end; `size_bytes` is the size.
struct Api {
  std::uint32_t version;
  std::uint32_t size_bytes;
  const std::uint32_t* mode;  // read atomically; bit 0: the recorder is on
  std::uint32_t (*intern)(const char* name, std::size_t length_bytes);
  ApiSpan (*open)(std::uint32_t stage);
  void (*close)(ApiSpan span, std::uint32_t flags);
  void (*add_work)(std::uint32_t stage, const char* key, std::size_t length_bytes, double amount);
};

}  // namespace STAGESPAN_API_NAMESPACE
}  // namespace stagespan
