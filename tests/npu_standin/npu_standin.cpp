// npu_standin.cpp: an accelerator simulated by threads, for torch's PrivateUse1, to test the use of torch.Event.
//
// A stream is a thread that processes a queue. A kernel takes its exact time on the device's own clock, and about as
// long in real time. An event reads that clock when it is processed. A test therefore knows the expected results.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "standin.h"

namespace standin {

constexpr int kDevices = 2, kStreams = 8;  // stream 0 is a device's default
constexpr auto kType = c10::DeviceType::PrivateUse1;

enum Count { kRecords, kQueries, kWaits, kBlockingReads, kCreated, kDestroyed, kNativeHandles, kCounts };
std::array<std::atomic<long>, kCounts> g_counts{};
std::atomic<int> g_failing_records{0}, g_failing_queries{0};
std::atomic<bool> g_capturing{false};
std::atomic<bool> g_set_up{false};

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

class Stream {
 public:
  using Work = std::function<void(std::int64_t& clock_ns)>;

  void add(Work work) {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    queue_.push_back({std::move(work), now_ns()});
    ++added_;
    changed_.notify_all();
  }
  void hold(bool on) {
    const std::lock_guard lock(mutex_);
    if (!on && held_) released_ns_ = now_ns();
    held_ = on;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, until = added_] { return done_ >= until; });
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return done_ == added_;
  }

 private:
  struct Item {
    Work work;
    std::int64_t added_ns;
  };
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !queue_.empty() && !held_; });
      const Item item = std::move(queue_.front());
      queue_.pop_front();
      clock_ns_ = std::max({clock_ns_, item.added_ns, released_ns_});
      lock.unlock();
      item.work(clock_ns_);
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  std::thread thread_;
  std::uint64_t added_ = 0, done_ = 0;
  std::int64_t clock_ns_ = 0, released_ns_ = 0;
  bool held_ = false;
};

// Never destroyed: its threads run until the process ends.
auto& g_streams = *new std::array<std::array<Stream, kStreams>, kDevices>;
thread_local int t_device = 0;
thread_local std::array<int, kDevices> t_stream{};

Stream& of(const c10::Stream& stream) { return g_streams.at(stream.device_index()).at(stream.id()); }
Stream& current() { return g_streams[t_device][t_stream[t_device]]; }
void count(Count what) { ++g_counts[what]; }
bool fails(std::atomic<int>& left) { return left.load() > 0 && left.fetch_sub(1) > 0; }
bool is_done(const Event& event) { return event.reached.load() == event.recorded.load(); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, static_cast<c10::DeviceIndex>(t_device)}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "the stand-in has no device ", device.index());
    t_device = std::max<int>(device.index(), 0);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { t_device = std::max<int>(device.index(), 0); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream made(int device, int id) const {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, static_cast<c10::DeviceIndex>(device)), id);
  }
  static int index(c10::Device device) { return device.has_index() ? device.index() : t_device; }
  c10::Stream getStream(c10::Device device) const override { return made(index(device), t_stream[index(device)]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return made(index(device), 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<int> next{0};
    return made(index(device), 1 + next++ % (kStreams - 1));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    t_stream[stream.device_index()] = static_cast<int>(stream.id());
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    count(kNativeHandles);
    return &of(stream);
  }
  bool isStreamCapturing(const c10::Stream&) const override { return g_capturing; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    count(kRecords);
    TORCH_CHECK(!fails(g_failing_records), "the stand-in was told to fail to record");
    if (*event == nullptr) {
      count(kCreated);
      *event = new Event;
    }
    Event* mine = static_cast<Event*>(*event);
    const std::uint64_t turn = ++mine->recorded;
    of(stream).add([mine, turn](std::int64_t& clock_ns) {
      mine->time_ns = clock_ns;
      mine->reached = turn;
    });
  }
  bool queryEvent(void* event) const override {
    count(kQueries);
    TORCH_CHECK(!fails(g_failing_queries), "the stand-in was told to fail to query");
    return event == nullptr || is_done(*static_cast<Event*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    // Its memory is not freed: it may still be in a queue, and the real runtime would wait there.
    if (event != nullptr) count(kDestroyed);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    const Event &first = *static_cast<Event*>(begin), &second = *static_cast<Event*>(end);
    if (!is_done(first) || !is_done(second)) count(kBlockingReads);
    synchronizeEvent(begin);
    synchronizeEvent(end);
    return static_cast<double>(second.time_ns - first.time_ns) / 1e6;
  }
  void synchronizeEvent(void* event) const override {
    while (event != nullptr && !is_done(*static_cast<Event*>(event)))
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryStream(const c10::Stream& stream) const override { return of(stream).is_idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    count(kWaits);
    of(stream).wait();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    count(kWaits);
    for (Stream& stream : g_streams.at(static_cast<std::size_t>(std::max<int>(device, 0)))) stream.wait();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return g_set_up; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(t_device); }
  void setCurrentDevice(c10::DeviceIndex device) const override { t_device = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(std::exchange(t_device, device));
  }
};
const bool g_registered = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);

}  // namespace standin

// --- functions for tests, through ctypes -------------------------------------------------------------------------
extern "C" {
void standin_set_up() { standin::g_set_up = true; }
/// Queues a kernel of this length on the calling thread's current stream.
void standin_kernel(double ms) {
  standin::current().add([ms](std::int64_t& clock_ns) {
    clock_ns += static_cast<std::int64_t>(ms * 1e6);
    std::this_thread::sleep_until(std::chrono::system_clock::time_point(std::chrono::nanoseconds(clock_ns)));
  });
}
/// Blocks the current stream, or unblocks it.
void standin_hold(int on) { standin::current().hold(on != 0); }
void standin_capture(int on) { standin::g_capturing = on != 0; }
void standin_fail_records(int times) { standin::g_failing_records = times; }
void standin_fail_queries(int times) { standin::g_failing_queries = times; }
void standin_synchronize() { standin::Guard().synchronizeDevice(static_cast<c10::DeviceIndex>(standin::t_device)); }
int standin_current_device() { return standin::t_device; }
void standin_set_device(int device) { standin::t_device = device; }
long standin_count(int what) { return standin::g_counts.at(static_cast<std::size_t>(what)); }
}
