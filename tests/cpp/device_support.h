// device_support.h: fake drivers, and common code for the tests of the device layer.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <map>
#include <string>

#include "../fakes/fake_driver.h"
#include "device/driver_backend.h"
#include "device/layer.h"
#include "fake_torch_npu.h"
#include "support.h"
#ifdef STAGESPAN_TEST_PYTHON
#include "bindings/device_torch_event.h"
#endif

namespace stagespan::test {

/// A fake driver and the torch that belongs to it, loaded permanently: the product finds them by name.
class Fake {
 public:
  explicit Fake(const std::string& kind) : kind_(kind) {
    const std::string folder = STAGESPAN_FAKES;
    const bool is_hip = kind == "rocm", is_npu = kind == "npu";
    const std::string library = folder + (is_npu ? "/libascendcl.so" : is_hip ? "/libamdhip64.so" : "/libcuda.so.1");
    library_ = dlopen(library.c_str(), RTLD_NOW);
    if (library_ == nullptr) return;
    if (is_npu)
      has_torch_ = start_torch(library);
    else
      has_torch_ = dlopen((folder + (is_hip ? "/libtorch_hip.so" : "/libtorch_cuda.so")).c_str(), RTLD_NOW) != nullptr;
    reset = find<FakeReset>("fake_reset");
    set_fault = find<FakeSetFault>("fake_set_fault");
    launch = find<FakeLaunch>("fake_launch");
    skip = find<FakeSkip>("fake_skip");
    make_stream = find<FakeMakeStream>("fake_make_stream");
    use_device = find<FakeUseDevice>("fake_use_device");
    second_context = find<FakeSecondContext>("fake_second_context");
    use_stream = find<FakeUseStream>("fake_use_stream");
    begin_capture = find<FakeBeginCapture>("fake_begin_capture");
    end_capture = find<FakeEndCapture>("fake_end_capture");
    last_record = find<FakeLastRecord>("fake_last_record");
    get_counts_ = find<FakeGetCounts>("fake_get_counts");
  }

  static Fake& of(const std::string& kind) {
    // Never destroyed: the drivers stay loaded, and objects that point to them stay reachable.
    static auto& fakes = *new std::map<std::string, Fake*>;
    Fake*& fake = fakes[kind];
    if (fake == nullptr) fake = new Fake(kind);
    return *fake;
  }

  bool is_loaded() const { return has_torch_ && get_counts_ != nullptr; }
  const std::string& kind() const { return kind_; }
  FakeCounts counts() const {
    FakeCounts counts{};
    get_counts_(&counts);
    return counts;
  }

  FakeReset reset = nullptr;
  FakeSetFault set_fault = nullptr;
  FakeLaunch launch = nullptr;
  FakeSkip skip = nullptr;
  FakeMakeStream make_stream = nullptr;
  FakeUseDevice use_device = nullptr;
  FakeSecondContext second_context = nullptr;
  FakeUseStream use_stream = nullptr;
  FakeBeginCapture begin_capture = nullptr;
  FakeEndCapture end_capture = nullptr;
  FakeLastRecord last_record = nullptr;

 private:
  template <class F>
  F find(const char* name) {
    return reinterpret_cast<F>(dlsym(library_, name));
  }

  static bool start_torch([[maybe_unused]] const std::string& library) {
#ifdef STAGESPAN_TEST_PYTHON
    return start_fake_torch(library);
#else
    return false;
#endif
  }

  std::string kind_;
  void* library_ = nullptr;
  bool has_torch_ = false;
  FakeGetCounts get_counts_ = nullptr;
};

/// The time between the events of a span as a driver returns it: a float in milliseconds.
inline std::int64_t as_told(double begin_ns, double end_ns) {
  return std::llround(static_cast<double>(static_cast<float>((end_ns - begin_ns) / 1e6)) * 1e6);
}

/// Waits until so many spans are pending, or fewer, without taking the processor from the resolver.
inline void wait_until_pending(std::uint32_t most) {
  while (device::pending() > most) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

/// Attaches a fake driver. This thread has used device 0, and its stream is a separate one.
class DeviceTest : public RecorderTest {
 protected:
  void attach(const std::string& kind) {
    fake_ = &Fake::of(kind);
    ASSERT_TRUE(fake_->is_loaded()) << dlerror();
    fake_->reset();
    device::set_every(1);
    device::set_timeout(60);
    std::string reason;
    auto backend = find_backend(kind, reason);
    ASSERT_NE(backend, nullptr) << reason;
    device::attach(kind, std::move(backend));
    fake_->use_device(0);
    stream_ = fake_->make_stream(0);
    fake_->use_stream(0, stream_);
  }

  void TearDown() override {
    if (fake_ != nullptr && fake_->is_loaded()) {
      fake_->set_fault(kFakeNone);
      device::set_timeout(0);
      device::resolve(10);
    }
    device::detach();
    g_mode.store(kModeEnabled);
  }

  static std::unique_ptr<device::EventBackend> find_backend(const std::string& kind, std::string& reason) {
#ifdef STAGESPAN_TEST_PYTHON
    if (kind == "npu") {
      const Interpreter lock(true);
      return python::make_torch_event_backend(kind, reason);
    }
#endif
    return device::DriverBackend::find(kind, reason);
  }

  /// What spans need to be timed on this device: for some the interpreter's lock, as in Python's threads.
  bool needs_interpreter() const { return fake_->kind() == "npu"; }
  OpenSpan open_span(std::uint32_t stage) {
    const Interpreter lock(needs_interpreter());
    return stagespan::open_span(stage);
  }
  void close_span(OpenSpan span, std::uint16_t flags) {
    const Interpreter lock(needs_interpreter());
    stagespan::close_span(span, flags);
  }

  Fake& fake() { return *fake_; }
  void* stream() { return stream_; }

  /// Opens a span, queues a kernel, and closes the span. Returns the span's id and the duration between its events.
  std::pair<std::uint64_t, std::int64_t> run(std::uint32_t stage, double kernel_ns) {
    const OpenSpan span = open_span(stage);
    const double begin = fake().last_record();
    fake().launch(current_, kernel_ns);
    close_span(span, 0);
    return {span.id, as_told(begin, fake().last_record())};
  }
  void use_stream(int device, void* stream) {
    current_ = stream;
    fake().use_stream(device, stream);
  }
  void use_own_stream() { current_ = stream_; }

  DeviceFields result_of(std::uint64_t id) {
    const auto all = read_device_spans(arena());
    const auto found = all.find(id);
    return found == all.end() ? DeviceFields{} : found->second;
  }

  Fake* fake_ = nullptr;
  void* stream_ = nullptr;
  void* current_ = nullptr;
};

}  // namespace stagespan::test
