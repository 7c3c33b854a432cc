// test_device_million.cpp: a million spans on a device, without waiting for any of them.
#include "device_support.h"

namespace stagespan::test {
namespace {

class Million : public DeviceTest {};

TEST_F(Million, SpansAreResolvedExactlyWithoutOneSynchronisation) {
  attach("cuda");
  use_own_stream();
  const std::uint32_t stage = recorder().intern("million");
  const std::uint64_t spans = scaled(1'000'000, 12);  // under sanitizers too, the ring of results wraps
  ASSERT_GT(spans, kDeviceSpans);
  // The ring keeps the latest results: they are compared before they are overwritten.
  constexpr std::uint64_t kRound = 20'000;
  std::atomic<bool> stop{false};
  std::thread resolver([&] {
    while (!stop.load()) device::resolve_pass();
  });
  Random random(20);
  std::uint64_t exact = 0;
  std::unordered_map<std::uint64_t, std::int64_t> told;
  for (std::uint64_t i = 0; i < spans; ++i) {
    // A launch queue is bounded: when it is full, the program waits for it, and not for the spans.
    if ((i & 255) == 0) wait_until_pending(2000);
    const auto [id, duration] = run(stage, static_cast<double>(random.between(100, 3000)));
    told.emplace(id, duration);
    if (told.size() < kRound && i + 1 < spans) continue;
    wait_until_pending(0);
    for (const auto& [of, copy] : read_device_spans(arena())) {
      const auto found = told.find(of);
      if (found != told.end() && copy.elapsed_ns == found->second) ++exact;
    }
    told.clear();
  }
  stop.store(true);
  resolver.join();
  EXPECT_GE(static_cast<double>(exact), 0.999 * static_cast<double>(spans));
  EXPECT_EQ(figures_of(stage).host.count, spans);
  EXPECT_EQ(fake().counts().synchronisations, 0U);
  EXPECT_LE(fake().counts().events, 2U * device::kPairsPerThread + 16);
  RecordProperty("exact", static_cast<int>(exact));
}

}  // namespace
}  // namespace stagespan::test
