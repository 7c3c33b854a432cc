// test_device_table.cpp: more stages than the table of device figures has entries.
#include "device_support.h"

namespace stagespan::test {
namespace {

class Table : public DeviceTest {};

TEST_F(Table, StagesBeyondItHaveNoFiguresRatherThanOthers) {
  attach("cuda");
  use_own_stream();
  std::vector<std::pair<std::uint32_t, std::int64_t>> stages;
  for (std::uint32_t i = 0; i < kMaxDeviceStages + 50; ++i) {
    const std::uint32_t stage = recorder().intern("of many " + std::to_string(i));
    stages.emplace_back(stage, run(stage, 100 + i).second);
    if (i % 512 == 0) device::resolve(5);
  }
  ASSERT_EQ(device::resolve(5), 0U);
  const Snapshot all = snapshot();
  std::uint32_t known = 0;
  for (const auto& [stage, told] : stages) {
    const StageFigures figures = figures_of(all, stage);
    EXPECT_EQ(figures.host.count, 1U);
    if (figures.device[kDeviceElapsed].count == 0) continue;
    EXPECT_EQ(figures.device[kDeviceElapsed].sum_ticks, static_cast<std::uint64_t>(told));
    ++known;
  }
  // AND those that are not in the table are counted
  EXPECT_EQ(lost(kLostDeviceStages), stages.size() - known);
  EXPECT_LT(known, kMaxDeviceStages);
  EXPECT_GT(known, kMaxDeviceStages / 2);
}

}  // namespace
}  // namespace stagespan::test
