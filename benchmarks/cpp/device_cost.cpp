// device_cost.cpp: what a C++ span with device time costs the host, compared with two bare records of its driver, on a
// fake driver that answers at once. Prints JSON, times in ns.
//
//   device_cost FOLDER COUNT TURNS      FOLDER holds the fake driver; COUNT spans at a time, all ways in turn
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../tests/fakes/fake_driver.h"
#include "device/driver_backend.h"
#include "device/layer.h"
#include "stagespan/scoped_timer.h"
#include "stagespan/snapshot.h"
#include "ways.h"

namespace {

using namespace stagespan;
using namespace stagespan::benchmark;

/// The library of a driver or of torch, loaded permanently.
void* load(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(2);
  }
  return library;
}

template <class F>
F* find(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

template <class Body>
void take_each(Way& way, std::uint64_t count, Body body) {
  take(way, count, [&] {
    for (std::uint64_t i = 0; i < count; ++i) body();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  // Fewer than a thread may have pending: nothing is resolved while it is measured.
  const std::uint64_t count = std::clamp(argc > 2 ? std::atol(argv[2]) : 1000L, 1L, 4000L);
  const int turns = argc > 3 ? std::atoi(argv[3]) : 101;
  pin_to_last_core();

  void* const driver = load(folder + "/libcuda.so.1");
  load(folder + "/libtorch_cuda.so");
  const auto create = find<int(void**, unsigned)>(driver, "cuEventCreate");
  const auto record = find<int(void*, void*)>(driver, "cuEventRecord");
  const auto get_counts = find<void(FakeCounts*)>(driver, "fake_get_counts");
  find<void(int)>(driver, "fake_use_device")(0);
  void* const stream = find<void*(int)>(driver, "fake_make_stream")(0);
  find<void(int, void*)>(driver, "fake_use_stream")(0, stream);
  void *first = nullptr, *second = nullptr;
  create(&first, 0);
  create(&second, 0);

  Recorder& recorder = Recorder::get();
  const std::uint32_t stage = recorder.intern("bench device");
  const std::uint32_t other = recorder.intern("bench host");
  const auto span = [](std::uint32_t of) {
    return [of] {
      ScopedTimer timer(of);
      asm volatile("" ::: "memory");
    };
  };
  Way bare{"cpp two records", {}}, none{"cpp no device", {}}, timed{"cpp device span", {}},
      untimed{"cpp device span, not in the sample", {}};
  std::string reason;
  auto backend = device::DriverBackend::find("cuda", reason);
  if (backend == nullptr) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return 2;
  }
  device::attach("cuda", std::move(backend));
  std::uint64_t spans = 0;
  for (int turn = -2; turn < turns; ++turn) {  // the first two make the events
    take_each(bare, count, [&] {
      record(first, stream);
      record(second, stream);
    });
    g_mode.fetch_and(~std::uint32_t{kModeDevice});
    take_each(none, count, span(other));
    g_mode.fetch_or(kModeDevice);
    device::set_every(0);
    take_each(untimed, count, span(other));
    device::set_every(1);
    take_each(timed, count, span(stage));
    spans += count;
    if (device::resolve(10) != 0) return 3;
    if (turn < 0)
      for (Way* const way : {&bare, &none, &timed, &untimed}) way->ticks.clear();
  }

  const ClockFit fit = recorder.clock_fit();
  const Snapshot snapshot = take_snapshot(recorder.arena(), fit);
  const std::uint64_t resolved = snapshot.stages.at(stage).device[kDeviceElapsed].count;
  FakeCounts counts{};
  get_counts(&counts);
  std::printf("{\"timed\": %llu, \"counted\": %llu, \"synchronisations\": %llu, ",
              static_cast<unsigned long long>(spans), static_cast<unsigned long long>(resolved),
              static_cast<unsigned long long>(counts.synchronisations));
  print_ns({&bare, &none, &timed, &untimed}, fit.ns_per_tick());
  std::printf("}\n");
  return resolved == spans && counts.synchronisations == 0 ? 0 : 1;
}
