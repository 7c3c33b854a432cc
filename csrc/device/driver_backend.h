// driver_backend.h: CUDA and ROCm through their drivers, found in the process at run time.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "backend.h"

namespace stagespan::device {

/// The functions of a driver, with the same signatures for both vendors.
struct DriverApi {
  bool is_hip = false;
  // The context is CUDA's; HIP has a current device instead, and 1 + its index represents the context.
  int (*context_get)(void** context) = nullptr;
  int (*context_set)(void* context) = nullptr;
  int (*context_device)(int* device) = nullptr;
  int (*device_get)(int* device) = nullptr;
  int (*device_set)(int device) = nullptr;
  int (*device_state)(int device, unsigned* flags, int* is_active) = nullptr;  // HIP's
  int (*event_create)(void** event, unsigned flags) = nullptr;
  int (*event_destroy)(void* event) = nullptr;
  int (*event_record)(void* event, void* stream) = nullptr;
  int (*event_query)(void* event) = nullptr;
  int (*event_elapsed)(float* ms, void* begin, void* end) = nullptr;
  int (*stream_create)(void** stream, unsigned flags, int priority) = nullptr;
  int (*stream_create_plain)(void** stream, unsigned flags) = nullptr;
  int (*stream_is_capturing)(void* stream, int* status) = nullptr;
  int (*exchange_capture_mode)(int* mode) = nullptr;
  int (*current_stream)(std::int32_t device, void** stream) = nullptr;  // torch's
};

/// Begin and end of a span are recorded with the driver itself, on the stream that torch says is current. Works
/// with and without the interpreter's lock.
class DriverBackend final : public EventBackend {
 public:
  /// Finds the driver and torch among the loaded libraries. Null, with a sentence as the reason, if something is
  /// missing. `kind` is "cuda" or "rocm".
  static std::unique_ptr<DriverBackend> find(const std::string& kind, std::string& reason);

  const char* name() const noexcept override { return "driver"; }
  StreamState current_stream(StreamRef& found) noexcept override;
  StreamState state_of(const StreamRef& where) noexcept override;
  Event create_event(const StreamRef& where) noexcept override;
  void destroy_event(Event event) noexcept override;
  bool record(Event event, const StreamRef& where) noexcept override;
  bool begin_resolving() noexcept override;
  // Older versions of HIP end captures regardless of the thread's mode.
  bool asks_in_captures() const noexcept override { return !api_.is_hip; }
  void end_resolving() noexcept override;
  EventState query(Event event, const StreamRef& where) noexcept override;
  bool elapsed_ns(Event begin, Event end, const StreamRef& where, double& ns) noexcept override;
  bool record_base(Event event, const StreamRef& where) noexcept override;
  std::map<std::string, bool> symbols() const override { return symbols_; }
  int last_error() const noexcept override { return last_error_.load(std::memory_order_relaxed); }
  bool is_gone() const noexcept override;

 private:
  DriverBackend(const DriverApi& api, std::map<std::string, bool> symbols) : api_(api), symbols_(std::move(symbols)) {}

  bool is_ok(int status) noexcept;
  StreamState capture_state(void* stream) noexcept;
  void* current_context() noexcept;
  bool is_used(int device) noexcept;
  bool make_current(void* context) noexcept;

  DriverApi api_;
  std::map<std::string, bool> symbols_;
  std::atomic<int> last_error_{0};
  std::atomic<std::uint64_t> used_{0};  // HIP devices that are known to have a context
  // Used only by the resolver.
  void* context_before_ = nullptr;
  void* context_now_ = nullptr;
  int mode_before_ = 0;
  std::map<void*, void*> base_streams_;  // by context
};

}  // namespace stagespan::device
