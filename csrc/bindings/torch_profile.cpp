// torch_profile.cpp: ends torch's profiler, and writes its trace, without the interpreter's lock.
#include <dlfcn.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "module.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

/// torch::autograd::profiler::ProfilerResult. It is only passed on, so its members are not needed.
class TorchResult;

/// The functions of libtorch behind `_disable_profiler` and `_ProfilerResult.save`. torch itself calls them with the
/// interpreter's lock (torch/csrc/autograd/init.cpp), which they need for the stacks of Python only. The mangled names
/// contain the types of the parameters, and so the ABI of std::string.
struct Libtorch {
  struct Nothing {
    void operator()(TorchResult*) const noexcept {}
  };
  // As any std::unique_ptr, the result is one pointer in memory that the caller provides.
  std::unique_ptr<TorchResult, Nothing> (*end)() = nullptr;
  void (*save)(TorchResult*, const std::string& path) = nullptr;
  void (*destroy)(TorchResult*) = nullptr;
};

template <class F>
bool find(void* library, F*& function, const char* name) noexcept {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

/// Empty if no libtorch is loaded, or one without these functions. The handle is never closed.
std::optional<Libtorch> loaded_libtorch() noexcept {
  void* const library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return std::nullopt;
  Libtorch libtorch;
  const bool has_all = find(library, libtorch.end, "_ZN5torch8autograd8profiler15disableProfilerEv") &&
                       find(library, libtorch.destroy, "_ZN5torch8autograd8profiler14ProfilerResultD1Ev") &&
                       find(library, libtorch.save,
                            "_ZN5torch8autograd8profiler14ProfilerResult4saveERK"
                            "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
  return has_all ? std::optional(libtorch) : std::nullopt;
}

/// Lets this file catch what libtorch throws. The C++ runtime is linked in, and with it an unwinder that fills a table
/// of the sizes of registers when it first throws itself. Without this table, it aborts the process where an exception
/// that another unwinder has thrown is caught.
void prepare_unwinder() noexcept {
  try {
    throw std::bad_alloc();
  } catch (const std::bad_alloc&) {
  }
}

/// Ends the profiler of the calling thread, and owns what it has recorded.
class TorchProfile {
 public:
  TorchProfile() {
    const auto libtorch = loaded_libtorch();
    if (!libtorch) throw std::runtime_error("this torch cannot end its profiler without the interpreter's lock");
    libtorch_ = *libtorch;
    prepare_unwinder();
    const py::gil_scoped_release unlocked;
    result_ = libtorch_.end().release();
  }
  ~TorchProfile() {
    const py::gil_scoped_release unlocked;
    libtorch_.destroy(result_);
    ::operator delete(result_);
  }
  TorchProfile(const TorchProfile&) = delete;
  TorchProfile& operator=(const TorchProfile&) = delete;

  void save(const std::string& path) const {
    const py::gil_scoped_release unlocked;
    libtorch_.save(result_, path);
  }

 private:
  Libtorch libtorch_;
  TorchResult* result_ = nullptr;
};

}  // namespace

void define_torch_profile(py::module_& module) {
  module.def("can_end_torch_profile", [] { return loaded_libtorch().has_value(); });
  py::class_<TorchProfile>(module, "TorchProfile").def(py::init<>()).def("save", &TorchProfile::save, py::arg("path"));
}

}  // namespace stagespan::python
