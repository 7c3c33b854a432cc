// fake_driver.cpp: a driver whose devices run queues of kernels with given durations. It is built as CUDA's, as HIP's,
// and as Ascend's runtime, of which the product calls two functions, and a fake torch the others.
//
// Each stream is a queue in the device's own time: a kernel begins when the previous one has ended, or now if the queue
// is empty. An event gets the time at which all earlier work has ended, and is complete when the clock reaches it. No
// thread is needed, and the time of an event is known in advance to the nanosecond. The device's time is that of the
// host's CLOCK_MONOTONIC, and what a test has skipped.
#include "fake_driver.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#ifndef FAKE_HIP
#define FAKE_HIP 0
#endif
#ifndef FAKE_ASCEND
#define FAKE_ASCEND 0
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kOk = 0;
constexpr int kInvalidValue = 1;
constexpr int kDeinitialised = 4;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;
constexpr int kLaunchFailed = 700;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureImplicit = 906;
constexpr int kCapturedEvent = 907;
constexpr int kDevices = 4;
constexpr int kTorchsDevices = 3;  // torch must not use the last one
constexpr int kRelaxed = 2;

struct Stream {
  int device = 0;
  bool non_blocking = false;
  std::mutex mutex;
  double free_at_ns = 0;  // the time when all queued work will have ended
  std::atomic<bool> capturing{false};
  std::atomic<bool> broken{false};
};

struct Event {
  int device = 0;
  std::atomic<double> at_ns{-1};
  std::atomic<bool> in_capture{false};
};

struct Driver {
  std::mutex mutex;
  std::set<Stream*> streams;
  Stream legacy[kDevices];
  std::atomic<int> fault{kFakeNone};
  std::atomic<int> captures{0};
  std::atomic<std::uint64_t> synchronisations{0}, records{0}, queries{0}, queries_while_capturing{0}, events{0},
      other_context{0}, queries_in_capture{0}, contexts_made{0};
  std::atomic<bool> has_second_context{false};
  std::atomic<double> skipped_ns{0};
  std::atomic<bool> used[kDevices] = {};  // HIP's; with CUDA, a thread with a context uses its device
};

Driver& driver() {
  static Driver* const made = [] {
    auto* const d = new Driver;
    for (int i = 0; i < kDevices; ++i) d->legacy[i].device = i;
    return d;
  }();
  return *made;
}

thread_local int t_device = -1;  // HIP: 0 is current although nothing has been used
thread_local int t_mode = 0;     // global
thread_local double t_last_record_ns = 0;
thread_local void* t_streams[kDevices] = {};

double now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec) + driver().skipped_ns.load();
}

int gone() { return driver().fault.load() == kFakeDeinitialised ? kDeinitialised : kOk; }

int current_device() { return FAKE_HIP && t_device < 0 ? 0 : t_device; }

Stream* stream_of(void* handle) {
  const int device = current_device();
  return handle != nullptr ? static_cast<Stream*>(handle) : device >= 0 ? &driver().legacy[device] : nullptr;
}

void break_captures() {
  const std::lock_guard lock(driver().mutex);
  for (Stream* const stream : driver().streams)
    if (stream->capturing.load()) stream->broken.store(true);
}

/// Common to all calls that need a context.
void use(int device) {
  if (FAKE_HIP && !driver().used[device].exchange(true)) driver().contexts_made.fetch_add(1);
}

int create_event(void** event) {
  if (const int status = gone()) return status;
  if (driver().fault.load() == kFakeNoEvents) return 2;
  if (current_device() < 0) return kInvalidContext;
  use(current_device());
  auto* const made = new Event;
  made->device = current_device();
  driver().events.fetch_add(1);
  *event = made;
  return kOk;
}

int record(void* event, void* handle) {
  if (const int status = gone()) return status;
  if (driver().fault.load() == kFakeRecordFails) return kLaunchFailed;
  Stream* const stream = stream_of(handle);
  if (event == nullptr || stream == nullptr) return kInvalidHandle;
  auto* const of = static_cast<Event*>(event);
  if (stream->device != of->device || current_device() < 0) {
    driver().other_context.fetch_add(1);
    return kInvalidHandle;
  }
  driver().records.fetch_add(1, std::memory_order_relaxed);
  if (stream->capturing.load() || driver().fault.load() == kFakeUnseenCapture) {
    of->in_capture.store(true);
    return kOk;
  }
  if (handle == nullptr && driver().captures.load() != 0) {
    break_captures();
    return kCaptureImplicit;
  }
  of->in_capture.store(false);
  const std::lock_guard lock(stream->mutex);
  t_last_record_ns = std::max(now_ns(), stream->free_at_ns);
  of->at_ns.store(t_last_record_ns);
  return kOk;
}

/// Whether a query would end a capture. For Ascend no such case is known.
bool must_not_ask() {
  return !FAKE_ASCEND && driver().captures.load() != 0 &&
         (t_mode != kRelaxed || driver().fault.load() == kFakeOldCaptures);
}

[[maybe_unused]] int query(void* event) {
  if (const int status = gone()) return status;
  if (driver().fault.load() == kFakeQueryFails) return kLaunchFailed;
  if (driver().fault.load() == kFakeQueryLater) return kCaptureUnsupported;
  driver().queries.fetch_add(1, std::memory_order_relaxed);
  auto* const of = static_cast<Event*>(event);
  if (must_not_ask()) {
    driver().queries_while_capturing.fetch_add(1);
    break_captures();
    return kCaptureUnsupported;
  }
  if (of->in_capture.load()) {
    driver().queries_in_capture.fetch_add(1);
    break_captures();
    return kCapturedEvent;
  }
  return of->at_ns.load() <= now_ns() ? kOk : kNotReady;
}

int elapsed(float* ms, void* begin, void* end) {
  if (const int status = gone()) return status;
  if (must_not_ask()) {
    driver().queries_while_capturing.fetch_add(1);
    break_captures();
    return kCaptureUnsupported;
  }
  auto* const from = static_cast<Event*>(begin);
  auto* const to = static_cast<Event*>(end);
  if (from->device != to->device || from->at_ns.load() < 0 || to->at_ns.load() < 0) return kInvalidHandle;
  if (std::max(from->at_ns.load(), to->at_ns.load()) > now_ns()) return kNotReady;
  *ms = static_cast<float>((to->at_ns.load() - from->at_ns.load()) / 1e6);
  return kOk;
}

int is_capturing(void* handle, int* status) {
  if (const int failed = gone()) return failed;
  Stream* const stream = stream_of(handle);
  if (stream == nullptr) return kInvalidContext;
  if (handle == nullptr && driver().captures.load() != 0) return kCaptureImplicit;
  *status = stream->capturing.load() ? 1 : 0;
  return kOk;
}

int create_stream(void** handle, unsigned flags) {
  if (const int status = gone()) return status;
  if (current_device() < 0) return kInvalidContext;
  use(current_device());
  auto* const stream = new Stream;
  stream->device = current_device();
  stream->non_blocking = (flags & 1) != 0;
  const std::lock_guard lock(driver().mutex);
  driver().streams.insert(stream);
  *handle = stream;
  return kOk;
}

[[maybe_unused]] int exchange_mode(int* mode) {
  if (const int status = gone()) return status;
  if (driver().fault.load() == kFakeNoExchange) return kLaunchFailed;
  std::swap(*mode, t_mode);
  return kOk;
}

int synchronise() {
  driver().synchronisations.fetch_add(1);
  return kOk;
}

}  // namespace

#if !FAKE_ASCEND

// --- the driver ----------------------------------------------------------------------------------------------

#if FAKE_HIP
#define NAME(cuda, hip) hip
#else
#define NAME(cuda, hip) cuda
#endif

#ifndef FAKE_WITHOUT_QUERY
EXPORT int NAME(cuEventQuery, hipEventQuery)(void* event) { return query(event); }
#endif
EXPORT int NAME(cuEventCreate, hipEventCreateWithFlags)(void** event, unsigned) { return create_event(event); }
EXPORT int NAME(cuEventDestroy_v2, hipEventDestroy)(void* event) {
  delete static_cast<Event*>(event);
  driver().events.fetch_sub(1);
  return kOk;
}
EXPORT int NAME(cuEventRecord, hipEventRecord)(void* event, void* stream) { return record(event, stream); }
EXPORT int NAME(cuEventElapsedTime, hipEventElapsedTime)(float* ms, void* begin, void* end) {
  return elapsed(ms, begin, end);
}
EXPORT int NAME(cuStreamIsCapturing, hipStreamIsCapturing)(void* stream, int* status) {
  return is_capturing(stream, status);
}
EXPORT int NAME(cuThreadExchangeStreamCaptureMode, hipThreadExchangeStreamCaptureMode)(int* mode) {
  return exchange_mode(mode);
}
EXPORT int NAME(cuStreamCreateWithPriority, hipStreamCreateWithPriority)(void** stream, unsigned flags, int) {
  return create_stream(stream, flags);
}
EXPORT int NAME(cuCtxSynchronize, hipDeviceSynchronize)() { return synchronise(); }
EXPORT int NAME(cuStreamSynchronize, hipStreamSynchronize)(void*) { return synchronise(); }
EXPORT int NAME(cuEventSynchronize, hipEventSynchronize)(void*) { return synchronise(); }

#if FAKE_HIP
EXPORT int hipGetDevice(int* device) {
  *device = current_device();
  return gone();
}
EXPORT int hipSetDevice(int device) {
  t_device = device;
  return gone();
}
EXPORT int hipDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = driver().used[device].load() ? 1 : 0;
  return gone();
}
#else
EXPORT int cuCtxGetCurrent(void** context) {
  *context = t_device < 0 ? nullptr : &driver().legacy[t_device];
  return gone();
}
EXPORT int cuCtxSetCurrent(void* context) {
  t_device = context == nullptr ? -1 : static_cast<Stream*>(context)->device;
  return gone();
}
EXPORT int cuCtxGetDevice(int* device) {
  if (t_device < 0) return kInvalidContext;
  *device = t_device == kDevices - 1 && driver().has_second_context.load() ? 0 : t_device;
  return gone();
}
#endif

#else

// --- Ascend's runtime, and what a torch does with it ------------------------------------------------------------

namespace {

/// Like torch, independent of the current device: an event and a stream know their own.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(t_device) { t_device = device; }
  ~OnDevice() { t_device = before_; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_;
};

}  // namespace

EXPORT int aclrtEventGetTimestamp(void* event, std::uint64_t* us) {
  const double at = static_cast<Event*>(event)->at_ns.load();
  if (gone() != kOk || at < 0 || at > now_ns()) return kInvalidHandle;
  *us = static_cast<std::uint64_t>(at / 1e3);
  return kOk;
}
EXPORT int aclrtEventElapsedTime(float* ms, void* begin, void* end) { return elapsed(ms, begin, end); }

EXPORT void* fake_event(int device) {
  const OnDevice on(device);
  void* event = nullptr;
  return create_event(&event) == kOk ? event : nullptr;
}
EXPORT int fake_event_record(void* event, void* stream) {
  const OnDevice on(static_cast<Event*>(event)->device);
  return record(event, stream) == kOk ? 0 : -1;
}
EXPORT int fake_event_query(void* event) {
  const int status = query(event);
  return status == kOk ? 1 : status == kNotReady ? 0 : -1;
}
EXPORT void fake_event_destroy(void* event) {
  delete static_cast<Event*>(event);
  driver().events.fetch_sub(1);
}
EXPORT void fake_synchronise() { synchronise(); }
EXPORT int fake_torch_device() { return gone() == kOk ? std::max(t_device, 0) : -1; }
EXPORT void* fake_torch_stream(int device, int* status) {
  *status = driver().fault.load() == kFakeShimFails || device >= kTorchsDevices ? -1 : 0;
  return *status == 0 ? t_streams[device] : nullptr;
}
EXPORT void* fake_torch_new_stream(int device) {
  const OnDevice on(device);
  void* stream = nullptr;
  return create_stream(&stream, 1) == kOk ? stream : nullptr;
}
EXPORT int fake_torch_is_capturing() {
  int is_captured = 0;
  if (t_device < 0) return 0;
  const int status = is_capturing(t_streams[t_device], &is_captured);
  return status == kOk ? is_captured : status == kCaptureImplicit ? 1 : -1;
}

#endif

// --- the test's own ------------------------------------------------------------------------------------------

EXPORT void fake_reset() {
  Driver& d = driver();
  d.fault = kFakeNone;
  for (auto* counter : {&d.synchronisations, &d.records, &d.queries, &d.queries_while_capturing, &d.events,
                        &d.other_context, &d.queries_in_capture, &d.contexts_made})
    *counter = 0;
  d.has_second_context = false;
  d.skipped_ns = 0;
  for (auto& used : d.used) used = false;
  for (Stream& stream : d.legacy) {
    const std::lock_guard lock(stream.mutex);
    stream.free_at_ns = 0;
  }
}

EXPORT void fake_set_fault(int fault) { driver().fault = fault; }

EXPORT void fake_get_counts(FakeCounts* counts) {
  const Driver& d = driver();
  *counts = {d.synchronisations,   d.records,      d.queries, d.queries_while_capturing, d.events, d.other_context,
             d.queries_in_capture, d.contexts_made};
}

EXPORT void fake_launch(void* handle, double duration_ns) {
  Stream* const stream = stream_of(handle);
  if (stream->capturing.load()) return;
  const std::lock_guard lock(stream->mutex);
  stream->free_at_ns = driver().fault.load() == kFakeNeverDone ? std::numeric_limits<double>::infinity()
                                                               : std::max(now_ns(), stream->free_at_ns) + duration_ns;
}

EXPORT void fake_skip(double duration_ns) { driver().skipped_ns.fetch_add(duration_ns); }

EXPORT void* fake_make_stream(int device) {
  const int before = t_device;
  t_device = device;
  driver().used[device] = true;  // the application does this, and not the tested code
  void* stream = nullptr;
  create_stream(&stream, 1);
  t_device = before;
  return stream;
}

EXPORT void fake_second_context() { driver().has_second_context = true; }
EXPORT void fake_use_device(int device) { t_device = device; }
EXPORT void fake_use_stream(int device, void* stream) { t_streams[device] = stream; }

EXPORT double fake_last_record() { return t_last_record_ns; }

EXPORT void fake_begin_capture(void* handle) {
  auto* const stream = static_cast<Stream*>(handle);
  stream->broken = false;
  stream->capturing = true;
  driver().captures.fetch_add(1);
}

EXPORT int fake_end_capture(void* handle) {
  auto* const stream = static_cast<Stream*>(handle);
  stream->capturing = false;
  driver().captures.fetch_sub(1);
  return stream->broken.load() ? 0 : 1;
}

/// For the fake torch of CUDA and HIP, which is another library.
EXPORT int fake_current_stream(int device, void** stream) {
  if (driver().fault.load() == kFakeShimFails || device < 0 || device >= kTorchsDevices) return kInvalidValue;
  *stream = t_streams[device];
  return kOk;
}
