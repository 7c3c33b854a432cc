// fake_torch_npu.h: an interpreter with a torch that has an NPU, with only its events and streams. They use the fake of
// Ascend's runtime, with which the product reads events.
#pragma once

#include <string>

#ifdef STAGESPAN_TEST_PYTHON

#include <Python.h>

namespace stagespan::test {

/// Holds the interpreter's lock while it exists, if `is_needed`.
class Interpreter {
 public:
  explicit Interpreter(bool is_needed) : is_needed_(is_needed) {
    if (is_needed_) state_ = PyGILState_Ensure();
  }
  ~Interpreter() {
    if (is_needed_) PyGILState_Release(state_);
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

 private:
  bool is_needed_;
  PyGILState_STATE state_{};
};

inline constexpr const char* kFakeTorch = R"(
import ctypes, sys, types

lib = ctypes.PyDLL(PATH)
for name in ("fake_event", "fake_torch_stream", "fake_torch_new_stream"):
    getattr(lib, name).restype = ctypes.c_void_p
address = ctypes.c_void_p

def checked(status):
    if status < 0:
        raise RuntimeError("the fake driver refuses")
    return status

class Event:
    def __init__(self, device, *, enable_timing):
        self.event_id = lib.fake_event(int(device.split(":")[1]))
        if not enable_timing or self.event_id is None:
            raise RuntimeError("no such event")
    def record(self, stream):
        checked(lib.fake_event_record(address(self.event_id), address(stream.stream_id)))
    def query(self):
        return checked(lib.fake_event_query(address(self.event_id))) == 1
    def elapsed_time(self, end):
        lib.fake_synchronise()
        return 0.0
    def __del__(self):
        if self.event_id is not None:
            lib.fake_event_destroy(address(self.event_id))

class Stream:
    def __init__(self, device):
        self.stream_id = lib.fake_torch_new_stream(int(device.split(":")[1]))

class CurrentStream:
    def __init__(self, device):
        found = ctypes.c_int(0)
        self.stream_id = lib.fake_torch_stream(device, ctypes.byref(found)) or 0
        checked(found.value)

torch = types.ModuleType("torch")
torch.Event, torch.Stream = Event, Stream
torch._C = types.SimpleNamespace(
    _accelerator_getDeviceIndex=lambda: checked(lib.fake_torch_device()),
    _accelerator_getStream=CurrentStream,
)
torch.npu = types.SimpleNamespace(
    is_current_stream_capturing=lambda: checked(lib.fake_torch_is_capturing()) == 1
)
sys.modules["torch"] = torch
)";

/// Starts the interpreter once and permanently, and releases its lock. Returns whether the fake torch is there.
inline bool start_fake_torch(const std::string& library) {
  static const bool is_there = [&] {
    PyConfig config;
    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    const bool failed = PyStatus_Exception(Py_InitializeFromConfig(&config)) != 0;
    PyConfig_Clear(&config);
    if (failed) return false;
    const std::string program = "PATH = r'''" + library + "'''\n" + kFakeTorch;
    const bool runs = PyRun_SimpleString(program.c_str()) == 0;
    PyEval_SaveThread();
    return runs;
  }();
  return is_there;
}

}  // namespace stagespan::test

#else

namespace stagespan::test {

class Interpreter {
 public:
  explicit Interpreter(bool) {}
  ~Interpreter() {}
};

}  // namespace stagespan::test

#endif
