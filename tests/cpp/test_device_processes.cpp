// test_device_processes.cpp: forks, exits, and missing or incomplete drivers.
#include <sys/wait.h>
#include <unistd.h>

#include "device_support.h"

namespace stagespan::test {
namespace {

int run_child(int (*body)()) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class Processes : public DeviceTest {};

// First: nothing is loaded yet.
TEST_F(Processes, ADriverThatIsNotThereIsNamed) {
  std::string reason;
  EXPECT_EQ(device::DriverBackend::find("cuda", reason), nullptr);
  EXPECT_NE(reason.find("libcuda.so.1 is not loaded"), std::string::npos) << reason;
  EXPECT_EQ(device::DriverBackend::find("rocm", reason), nullptr);
  EXPECT_NE(reason.find("libamdhip64.so is not loaded"), std::string::npos) << reason;
}

TEST_F(Processes, ADriverWithoutASymbolIsNamed) {
  EXPECT_EQ(run_child([] {
              const std::string folder = STAGESPAN_FAKES;
              if (dlopen((folder + "/old/libcuda.so.1").c_str(), RTLD_NOW) == nullptr) return 10;
              std::string reason;
              if (device::DriverBackend::find("cuda", reason) != nullptr) return 11;
              if (reason.find("libtorch_cuda.so is not loaded") == std::string::npos) return 12;
              if (dlopen((folder + "/libtorch_cuda.so").c_str(), RTLD_NOW) == nullptr) return 13;
              if (device::DriverBackend::find("cuda", reason) != nullptr) return 14;
              return reason.find("has no cuEventQuery") != std::string::npos ? 0 : 15;
            }),
            0);
}

TEST_F(Processes, AChildDoesNotTouchTheParentsDriver) {
  attach("cuda");
  use_own_stream();
  static std::uint32_t stage;
  static Fake* parents;
  stage = recorder().intern("forked");
  parents = &fake();
  run(stage, 50e6);
  static OpenSpan open;
  open = open_span(stage);
  EXPECT_EQ(run_child([] {
              const FakeCounts before = parents->counts();
              stagespan::close_span(open, 0);
              for (int i = 0; i < 100; ++i) const ScopedTimer timer(stage);
              if (device::pending() != 0 || device::resolve(0.1) != 0) return 20;
              if (!device::is_forked() || mode_has(kModeDevice)) return 21;
              if (count_of(stage) != 100) return 22;
              const FakeCounts after = parents->counts();
              return after.records == before.records && after.queries == before.queries ? 0 : 23;
            }),
            0);
  close_span(open, 0);
  EXPECT_EQ(device::resolve(5), 0U);
  EXPECT_EQ(figures_of(stage).device[kDeviceElapsed].count, 2U);
}

TEST_F(Processes, AProcessEndsWithSpansPendingAndItsDriverGone) {
  EXPECT_EQ(run_child([] {
              // Not the parent's fork: a separate process, which ends through exit().
              execl("/proc/self/exe", "test", "--gtest_also_run_disabled_tests",
                    "--gtest_filter=Leaving.DISABLED_WithSpansPending", static_cast<char*>(nullptr));
              return 30;
            }),
            0);
}

class Leaving : public DeviceTest {};

TEST_F(Leaving, DISABLED_WithSpansPending) {
  attach("cuda");
  use_own_stream();
  const std::uint32_t stage = recorder().intern("at exit");
  for (int i = 0; i < 100; ++i) run(stage, 1e9);
  // A thread is resolving them while the driver shuts down.
  std::thread([] {
    for (;;) device::resolve_pass();
  }).detach();
  fake().set_fault(kFakeDeinitialised);
  std::exit(0);
}

}  // namespace
}  // namespace stagespan::test
