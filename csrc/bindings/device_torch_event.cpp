// device_torch_event.cpp: records and queries events through torch.Event; on an NPU, reads times through its runtime.
#include "device_torch_event.h"

#include <Python.h>
#include <dlfcn.h>

#include <atomic>
#include <map>
#include <utility>

#include "object.h"

namespace stagespan::python {

namespace {

using device::Event;
using device::EventState;
using device::StreamRef;
using device::StreamState;

/// The functions of Ascend's runtime. torch's own elapsed_time would wait until all queues are empty.
struct AscendApi {
  int (*elapsed)(float* ms, void* begin, void* end) = nullptr;
  int (*timestamp)(void* event, std::uint64_t* us) = nullptr;
};

// A longer time in float milliseconds has an error of more than a microsecond.
constexpr double kLongForFloat_ns = 4e9;

PyObject* as_object(Event event) noexcept { return static_cast<PyObject*>(event); }

class TorchEventBackend final : public device::EventBackend {
 public:
  static std::unique_ptr<TorchEventBackend> find(const std::string& kind, std::string& reason);

  const char* name() const noexcept override { return "torch.Event"; }

  StreamState current_stream(StreamRef& current) noexcept override {
    // Code that runs without the interpreter's lock cannot call torch.
    if (PyGILState_Check() == 0) return StreamState::kNone;
    return guarded([&] { return find_stream(current); }, StreamState::kFailed);
  }

  StreamState state_of(const StreamRef&) noexcept override {
    if (PyGILState_Check() == 0) return StreamState::kNone;
    return guarded([&] { return is_capturing() ? StreamState::kCapturing : StreamState::kOk; }, StreamState::kFailed);
  }

  Event create_event(const StreamRef& where) noexcept override {
    return guarded(
        [&]() -> Event {
          const std::string device = kind_ + ":" + std::to_string(where.device);
          const Ref args(Py_BuildValue("(s)", device.c_str()));
          const Ref kwargs(Py_BuildValue("{s:O}", "enable_timing", Py_True));
          return args && kwargs ? PyObject_Call(event_type_, args.get(), kwargs.get()) : nullptr;
        },
        Event{nullptr});
  }

  void destroy_event(Event event) noexcept override { Py_XDECREF(as_object(event)); }

  bool record(Event event, const StreamRef& where) noexcept override {
    if (PyGILState_Check() == 0) return false;
    return guarded([&] { return record_on(event, streams_[{where.device, where.stream}]); }, false);
  }

  bool begin_resolving() noexcept override {
    if (Py_IsInitialized() == 0) return false;
    gil_ = PyGILState_Ensure();
    return true;
  }
  void end_resolving() noexcept override { PyGILState_Release(gil_); }
  std::uint32_t batch() const noexcept override { return 256; }

  EventState query(Event event, const StreamRef&) noexcept override {
    return guarded(
        [&] {
          const Ref done(PyObject_CallMethodNoArgs(as_object(event), query_));
          if (!done) return EventState::kFailed;
          return PyObject_IsTrue(done.get()) == 1 ? EventState::kDone : EventState::kNotReady;
        },
        EventState::kFailed);
  }

  bool elapsed_ns(Event begin, Event end, const StreamRef&, double& ns) noexcept override {
    return guarded([&] { return has_ascend_ ? ascend_elapsed(begin, end, ns) : torch_elapsed(begin, end, ns); }, false);
  }

  bool record_base(Event event, const StreamRef& where) noexcept override {
    return guarded(
        [&] {
          PyObject*& stream = base_streams_[where.device];
          if (stream == nullptr) {
            const std::string device = kind_ + ":" + std::to_string(where.device);
            stream = PyObject_CallFunction(stream_type_, "s", device.c_str());
          }
          return stream != nullptr && record_on(event, stream);
        },
        false);
  }

  std::map<std::string, bool> symbols() const override { return symbols_; }
  int last_error() const noexcept override { return last_error_.load(std::memory_order_relaxed); }

 private:
  explicit TorchEventBackend(std::string kind) : kind_(std::move(kind)) {}

  // This runs Python code: a pending exception stays pending, and the caller counts new exceptions.
  template <class Body, class Value>
  Value guarded(Body&& body, Value failed) noexcept {
    const ErrorAside pending;
    Value value = body();
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      last_error_.store(-1, std::memory_order_relaxed);
      return failed;
    }
    return value;
  }

  bool is_capturing() {
    if (capturing_ == nullptr) return false;
    const Ref answer(PyObject_CallNoArgs(capturing_));
    if (!answer) return false;
    return PyObject_IsTrue(answer.get()) == 1;
  }

  StreamState find_stream(StreamRef& current) {
    const Ref index(PyObject_CallNoArgs(current_device_));
    if (!index) return StreamState::kFailed;
    const Ref stream(PyObject_CallOneArg(current_stream_, index.get()));
    if (!stream) return StreamState::kFailed;
    const Ref id(PyObject_GetAttr(stream.get(), stream_id_));
    if (!id) return StreamState::kFailed;
    current.device = static_cast<std::int32_t>(PyLong_AsLong(index.get()));
    current.stream = reinterpret_cast<void*>(static_cast<std::intptr_t>(PyLong_AsLongLong(id.get())));
    current.context = reinterpret_cast<void*>(std::intptr_t{current.device} + 1);
    if (PyErr_Occurred() != nullptr) return StreamState::kFailed;
    // Never freed, because there are only as many as torch has streams.
    PyObject*& kept = streams_[{current.device, current.stream}];
    if (kept == nullptr) kept = Py_NewRef(stream.get());
    return is_capturing() ? StreamState::kCapturing : StreamState::kOk;
  }

  bool record_on(Event event, PyObject* stream) {
    if (stream == nullptr) return false;
    const Ref done(PyObject_CallMethodOneArg(as_object(event), record_, stream));
    return static_cast<bool>(done);
  }

  bool torch_elapsed(Event begin, Event end, double& ns) {
    const Ref ms(PyObject_CallMethodOneArg(as_object(begin), elapsed_time_, as_object(end)));
    if (!ms) return false;
    ns = PyFloat_AsDouble(ms.get()) * 1e6;
    return PyErr_Occurred() == nullptr;
  }

  void* raw(Event event) {
    const Ref id(PyObject_GetAttr(as_object(event), event_id_));
    return id ? PyLong_AsVoidPtr(id.get()) : nullptr;
  }

  bool ascend_elapsed(Event begin, Event end, double& ns) {
    void* const from = raw(begin);
    void* const to = raw(end);
    if (from == nullptr || to == nullptr) return false;
    std::uint64_t from_us = 0, to_us = 0;
    const bool has_times =
        ascend_.timestamp != nullptr && ascend_.timestamp(from, &from_us) == 0 && ascend_.timestamp(to, &to_us) == 0;
    if (has_times) {
      ns = static_cast<double>(static_cast<std::int64_t>(to_us - from_us)) * 1e3;
      if (ns < 0 || ns > kLongForFloat_ns || ascend_.elapsed == nullptr) return true;
    }
    float ms = 0;
    if (ascend_.elapsed != nullptr && ascend_.elapsed(&ms, from, to) == 0) {
      ns = static_cast<double>(ms) * 1e6;
      return true;
    }
    return has_times;
  }

  std::string kind_;
  std::map<std::string, bool> symbols_;
  std::atomic<int> last_error_{0};
  AscendApi ascend_;
  bool has_ascend_ = false;
  PyGILState_STATE gil_{};
  // The Python objects are never released, because the backend lives as long as the process. Guarded by the
  // interpreter's lock.
  PyObject* event_type_ = nullptr;
  PyObject* stream_type_ = nullptr;
  PyObject* current_device_ = nullptr;
  PyObject* current_stream_ = nullptr;
  PyObject* capturing_ = nullptr;
  PyObject* record_ = PyUnicode_InternFromString("record");
  PyObject* query_ = PyUnicode_InternFromString("query");
  PyObject* elapsed_time_ = PyUnicode_InternFromString("elapsed_time");
  PyObject* event_id_ = PyUnicode_InternFromString("event_id");
  PyObject* stream_id_ = PyUnicode_InternFromString("stream_id");
  std::map<std::pair<std::int32_t, void*>, PyObject*> streams_;
  std::map<std::int32_t, PyObject*> base_streams_;
};

std::unique_ptr<TorchEventBackend> TorchEventBackend::find(const std::string& kind, std::string& reason) {
  PyObject* const torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (torch == nullptr) {
    reason = "torch is not imported: import it and use the device before it is timed";
    return nullptr;
  }
  std::unique_ptr<TorchEventBackend> made(new TorchEventBackend(kind));
  made->event_type_ = attribute(torch, "Event").release();
  made->stream_type_ = attribute(torch, "Stream").release();
  const Ref compiled = attribute(torch, "_C");
  made->current_device_ = attribute(compiled.get(), "_accelerator_getDeviceIndex").release();
  made->current_stream_ = attribute(compiled.get(), "_accelerator_getStream").release();
  if (made->current_device_ == nullptr || made->current_stream_ == nullptr) {
    const Ref accelerator = attribute(torch, "accelerator");
    made->current_device_ = attribute(accelerator.get(), "current_device_index").release();
    made->current_stream_ = attribute(accelerator.get(), "current_stream").release();
  }
  made->symbols_["torch.Event"] = made->event_type_ != nullptr;
  made->symbols_["torch.Stream"] = made->stream_type_ != nullptr;
  made->symbols_["torch.accelerator"] = made->current_device_ != nullptr && made->current_stream_ != nullptr;
  for (const auto& [name, is_found] : made->symbols_) {
    if (is_found) continue;
    reason = "this torch has no " + name + ": timing " + kind + " needs torch 2.6 or later";
    return nullptr;
  }
  const Ref module = attribute(torch, kind.c_str());
  made->capturing_ = attribute(module.get(), "is_current_stream_capturing").release();
  if (kind == "npu") {
    void* const library = dlopen("libascendcl.so", RTLD_NOLOAD | RTLD_LAZY);
    if (library != nullptr) {
      made->ascend_.elapsed = reinterpret_cast<decltype(AscendApi::elapsed)>(dlsym(library, "aclrtEventElapsedTime"));
      made->ascend_.timestamp =
          reinterpret_cast<decltype(AscendApi::timestamp)>(dlsym(library, "aclrtEventGetTimestamp"));
    }
    made->symbols_["aclrtEventElapsedTime"] = made->ascend_.elapsed != nullptr;
    made->symbols_["aclrtEventGetTimestamp"] = made->ascend_.timestamp != nullptr;
    made->has_ascend_ = made->ascend_.elapsed != nullptr || made->ascend_.timestamp != nullptr;
    if (!made->has_ascend_ && PyDict_GetItemString(PyImport_GetModuleDict(), "torch_npu") != nullptr) {
      reason = "libascendcl.so is not loaded or too old: an NPU's events cannot be read without waiting";
      return nullptr;
    }
  }
  // This fails for accelerators without timing events, such as SYCL before 2025.0.
  StreamRef where;
  if (made->current_stream(where) == StreamState::kFailed) {
    reason = "torch does not know the current stream of " + kind + ": use the device before you time it";
    return nullptr;
  }
  const Event event = made->create_event(where);
  if (event == nullptr) {
    reason = "torch cannot create timing events on " + kind;
    return nullptr;
  }
  made->destroy_event(event);
  return made;
}

}  // namespace

std::unique_ptr<device::EventBackend> make_torch_event_backend(const std::string& kind, std::string& reason) {
  return TorchEventBackend::find(kind, reason);
}

}  // namespace stagespan::python
