// driver_backend.cpp: finds the driver's functions, and calls them without breaking a graph capture.
#include "driver_backend.h"

#include <dlfcn.h>

namespace stagespan::device {

namespace {

// Status codes and flags that CUDA's driver and HIP have in common.
constexpr int kSuccess = 0;
constexpr int kDeinitialised = 4;
constexpr int kNotReady = 600;
constexpr int kCaptureUnsupported = 900;  // and those up to the next
constexpr int kCapturedEvent = 907;
constexpr unsigned kNonBlocking = 1;
constexpr int kHighestPriority = -100;  // drivers reduce it to the available number
constexpr int kRelaxed = 2;

bool is_about_capture(int status) { return status >= kCaptureUnsupported && status <= kCapturedEvent; }

/// While this exists, the calling thread may use functions that a capture forbids, because nothing here is captured.
class WhileCapturing {
 public:
  explicit WhileCapturing(const DriverApi& api) noexcept : api_(api) {
    if (api_.exchange_capture_mode != nullptr) is_set_ = api_.exchange_capture_mode(&mode_) == kSuccess;
  }
  ~WhileCapturing() {
    if (is_set_) api_.exchange_capture_mode(&mode_);
  }
  WhileCapturing(const WhileCapturing&) = delete;
  WhileCapturing& operator=(const WhileCapturing&) = delete;

 private:
  const DriverApi& api_;
  int mode_ = kRelaxed;
  bool is_set_ = false;
};

/// A library that is already loaded, or null. The handle is never closed, so the library stays loaded.
void* loaded(std::initializer_list<const char*> names) {
  for (const char* const name : names)
    if (void* const library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY)) return library;
  return nullptr;
}

class Finder {
 public:
  Finder(void* library, std::map<std::string, bool>& found) : library_(library), found_(found) {}

  /// The first of these symbols that the library has.
  template <class F>
  bool find(F*& function, std::initializer_list<const char*> names, bool is_needed = true) {
    for (const char* const name : names) {
      function = reinterpret_cast<F*>(dlsym(library_, name));
      found_[name] = function != nullptr;
      if (function != nullptr) return true;
    }
    if (is_needed && missing_.empty()) missing_ = *names.begin();
    return false;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::map<std::string, bool>& found_;
  std::string missing_;
};

std::string find_cuda(Finder& driver, DriverApi& api) {
  driver.find(api.context_get, {"cuCtxGetCurrent"});
  driver.find(api.context_set, {"cuCtxSetCurrent"});
  driver.find(api.context_device, {"cuCtxGetDevice"});
  driver.find(api.event_create, {"cuEventCreate"});
  driver.find(api.event_destroy, {"cuEventDestroy_v2", "cuEventDestroy"}, false);
  driver.find(api.event_record, {"cuEventRecord"});
  driver.find(api.event_query, {"cuEventQuery"});
  driver.find(api.event_elapsed, {"cuEventElapsedTime_v2", "cuEventElapsedTime"});
  driver.find(api.stream_is_capturing, {"cuStreamIsCapturing"});
  driver.find(api.exchange_capture_mode, {"cuThreadExchangeStreamCaptureMode"});
  driver.find(api.stream_create, {"cuStreamCreateWithPriority"}, false);
  driver.find(api.stream_create_plain, {"cuStreamCreate"}, api.stream_create == nullptr);
  return driver.missing();
}

std::string find_hip(Finder& driver, DriverApi& api) {
  api.is_hip = true;
  driver.find(api.device_get, {"hipGetDevice"});
  driver.find(api.device_set, {"hipSetDevice"});
  driver.find(api.device_state, {"hipDevicePrimaryCtxGetState"}, false);
  driver.find(api.event_create, {"hipEventCreateWithFlags"});
  driver.find(api.event_destroy, {"hipEventDestroy"}, false);
  driver.find(api.event_record, {"hipEventRecord"});
  driver.find(api.event_query, {"hipEventQuery"});
  driver.find(api.event_elapsed, {"hipEventElapsedTime"});
  driver.find(api.stream_is_capturing, {"hipStreamIsCapturing"});
  driver.find(api.exchange_capture_mode, {"hipThreadExchangeStreamCaptureMode"});
  driver.find(api.stream_create, {"hipStreamCreateWithPriority"}, false);
  driver.find(api.stream_create_plain, {"hipStreamCreateWithFlags"}, api.stream_create == nullptr);
  return driver.missing();
}

}  // namespace

std::unique_ptr<DriverBackend> DriverBackend::find(const std::string& kind, std::string& reason) {
  const bool is_hip = kind == "rocm";
  const std::string driver_name = is_hip ? "libamdhip64.so" : "libcuda.so.1";
  const std::string torch_name = is_hip ? "libtorch_hip.so" : "libtorch_cuda.so";
  void* const driver = is_hip ? loaded({"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"})
                              : loaded({"libcuda.so.1", "libcuda.so"});
  if (driver == nullptr) {
    reason = "the driver " + driver_name + " is not loaded in this process: use the device before it is timed";
    return nullptr;
  }
  void* const torch = is_hip ? loaded({"libtorch_hip.so"}) : loaded({"libtorch_cuda.so"});
  if (torch == nullptr) {
    reason = torch_name + " is not loaded in this process: torch was built without this device";
    return nullptr;
  }
  DriverApi api;
  std::map<std::string, bool> symbols;
  Finder of_driver(driver, symbols);
  Finder of_torch(torch, symbols);
  const std::string missing = is_hip ? find_hip(of_driver, api) : find_cuda(of_driver, api);
  if (!missing.empty()) {
    reason = "the driver " + driver_name + " has no " + missing + ": it is too old for timing without waiting";
    return nullptr;
  }
  if (!of_torch.find(api.current_stream, {"aoti_torch_get_current_cuda_stream", "aoti_torch_get_current_hip_stream"})) {
    reason = torch_name + " has no aoti_torch_get_current_cuda_stream: torch is too old to report its current stream";
    return nullptr;
  }
  return std::unique_ptr<DriverBackend>(new DriverBackend(api, std::move(symbols)));
}

bool DriverBackend::is_ok(int status) noexcept {
  if (status == kSuccess) [[likely]]
    return true;
  last_error_.store(status, std::memory_order_relaxed);
  return false;
}

bool DriverBackend::is_gone() const noexcept { return last_error() == kDeinitialised; }

void* DriverBackend::current_context() noexcept {
  if (api_.is_hip) {
    int device = 0;
    return is_ok(api_.device_get(&device)) ? reinterpret_cast<void*>(std::intptr_t{device} + 1) : nullptr;
  }
  void* context = nullptr;
  return is_ok(api_.context_get(&context)) ? context : nullptr;
}

bool DriverBackend::is_used(int device) noexcept {
  // With HIP, each thread has a current device, used or not, and the first event would create its context.
  const std::uint64_t bit = std::uint64_t{1} << (static_cast<unsigned>(device) % 64);
  if (api_.device_state == nullptr || (used_.load(std::memory_order_relaxed) & bit) != 0) [[likely]]
    return true;
  unsigned flags = 0;
  int is_active = 0;
  if (api_.device_state(device, &flags, &is_active) == kSuccess && is_active == 0) return false;
  used_.fetch_or(bit, std::memory_order_relaxed);
  return true;
}

bool DriverBackend::make_current(void* context) noexcept {
  if (api_.is_hip && context == nullptr) return true;  // HIP always has one
  if (api_.is_hip) return is_ok(api_.device_set(static_cast<int>(reinterpret_cast<std::intptr_t>(context) - 1)));
  return is_ok(api_.context_set(context));
}

// --- recording ---------------------------------------------------------------------------------------------

StreamState DriverBackend::capture_state(void* stream) noexcept {
  int capturing = 0;
  const int status = api_.stream_is_capturing(stream, &capturing);
  // While another stream captures, the state of the legacy stream is unknown, and an event must not be recorded on it.
  if (is_about_capture(status)) return StreamState::kCapturing;
  if (!is_ok(status)) return StreamState::kFailed;
  return capturing == 0 ? StreamState::kOk : StreamState::kCapturing;
}

StreamState DriverBackend::current_stream(StreamRef& current) noexcept {
  current.context = current_context();
  if (current.context == nullptr) return is_gone() ? StreamState::kFailed : StreamState::kNone;
  int device = 0;
  if (api_.is_hip) {
    device = static_cast<int>(reinterpret_cast<std::intptr_t>(current.context) - 1);
    if (!is_used(device)) return StreamState::kNone;
  } else if (!is_ok(api_.context_device(&device))) {
    return StreamState::kFailed;
  }
  current.device = device;
  if (!is_ok(api_.current_stream(device, &current.stream))) return StreamState::kFailed;
  return capture_state(current.stream);
}

StreamState DriverBackend::state_of(const StreamRef& where) noexcept {
  // The legacy stream belongs to the current context, which may have changed.
  if (where.stream != nullptr || current_context() == where.context) [[likely]]
    return capture_state(where.stream);
  void* const before = current_context();
  if (!make_current(where.context)) return StreamState::kFailed;
  const StreamState state = capture_state(where.stream);
  make_current(before);
  return state;
}

Event DriverBackend::create_event(const StreamRef& where) noexcept {
  const WhileCapturing relaxed(api_);
  // An event is created in the current context, which can be any on the resolver's thread.
  void* const before = current_context();
  if (before != where.context && !make_current(where.context)) return nullptr;
  void* event = nullptr;
  const bool is_made = is_ok(api_.event_create(&event, 0));
  if (before != where.context) make_current(before);
  return is_made ? event : nullptr;
}

void DriverBackend::destroy_event(Event event) noexcept {
  const WhileCapturing relaxed(api_);
  if (api_.event_destroy != nullptr) api_.event_destroy(event);
}

bool DriverBackend::record(Event event, const StreamRef& where) noexcept {
  void* const before = current_context();
  if (before == where.context) [[likely]]
    return is_ok(api_.event_record(event, where.stream));
  if (!make_current(where.context)) return false;
  const bool done = is_ok(api_.event_record(event, where.stream));
  make_current(before);
  return done;
}

// --- resolving ---------------------------------------------------------------------------------------------

bool DriverBackend::begin_resolving() noexcept {
  mode_before_ = kRelaxed;
  if (!is_ok(api_.exchange_capture_mode(&mode_before_))) return false;
  context_before_ = context_now_ = current_context();
  return true;
}

void DriverBackend::end_resolving() noexcept {
  if (context_now_ != context_before_) make_current(context_before_);
  api_.exchange_capture_mode(&mode_before_);
}

EventState DriverBackend::query(Event event, const StreamRef& where) noexcept {
  if (context_now_ != where.context) {
    if (!make_current(where.context)) return EventState::kFailed;
    context_now_ = where.context;
  }
  const int status = api_.event_query(event);
  if (status == kSuccess) return EventState::kDone;
  if (status == kNotReady) return EventState::kNotReady;
  if (status == kCapturedEvent) return EventState::kCaptured;
  if (is_about_capture(status)) return EventState::kLater;
  is_ok(status);
  return EventState::kFailed;
}

bool DriverBackend::elapsed_ns(Event begin, Event end, const StreamRef&, double& ns) noexcept {
  float ms = 0;
  if (!is_ok(api_.event_elapsed(&ms, begin, end))) return false;
  ns = static_cast<double>(ms) * 1e6;
  return true;
}

bool DriverBackend::record_base(Event event, const StreamRef& where) noexcept {
  if (context_now_ != where.context) {
    if (!make_current(where.context)) return false;
    context_now_ = where.context;
  }
  const auto [entry, is_new] = base_streams_.try_emplace(where.context, nullptr);
  if (is_new) {
    const bool made =
        api_.stream_create != nullptr && is_ok(api_.stream_create(&entry->second, kNonBlocking, kHighestPriority));
    if (!made &&
        (api_.stream_create_plain == nullptr || !is_ok(api_.stream_create_plain(&entry->second, kNonBlocking))))
      entry->second = nullptr;
  }
  return entry->second != nullptr && is_ok(api_.event_record(event, entry->second));
}

}  // namespace stagespan::device
