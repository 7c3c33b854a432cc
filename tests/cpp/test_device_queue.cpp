// test_device_queue.cpp: the queue of a thread's events.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "device/layer.h"
#include "support.h"

namespace stagespan::device {
namespace {

/// Creates events without a use, and counts them.
class Counting : public EventBackend {
 public:
  const char* name() const noexcept override { return "counting"; }
  StreamState current_stream(StreamRef&) noexcept override { return StreamState::kNone; }
  StreamState state_of(const StreamRef&) noexcept override { return StreamState::kNone; }
  Event create_event(const StreamRef&) noexcept override { return ++events, this; }
  void destroy_event(Event) noexcept override { --events; }
  bool record(Event, const StreamRef&) noexcept override { return true; }
  bool begin_resolving() noexcept override { return true; }
  void end_resolving() noexcept override {}
  EventState query(Event, const StreamRef&) noexcept override { return EventState::kDone; }
  bool elapsed_ns(Event, Event, const StreamRef&, double&) noexcept override { return false; }
  bool record_base(Event, const StreamRef&) noexcept override { return false; }
  int last_error() const noexcept override { return 0; }

  int events = 0;
};

class DeviceQueueTest : public test::RecorderTest {
 protected:
  StreamRef in_context(std::size_t number) { return {nullptr, &contexts_[number], 0}; }

  static constexpr std::size_t kContexts = 40;
  char contexts_[kContexts] = {};
  Results results_;
  Layer layer_{"counting", std::make_unique<Counting>(), results_};
  std::unique_ptr<DeviceQueue> queue_ = std::make_unique<DeviceQueue>(layer_);
  std::atomic<std::uint32_t> in_process_{0};
};

TEST_F(DeviceQueueTest, EventsOfMoreContextsThanItKeepsApartAreNotLost) {
  std::vector<EventPair*> made;
  for (std::size_t i = 0; i < kContexts; ++i) {
    made.push_back(queue_->make(in_context(i), layer_.backend(), in_process_));
    ASSERT_NE(made.back(), nullptr);
  }
  for (std::size_t i = 0; i < kContexts; ++i) {
    if (i % 2 == 0)
      queue_->put_back(*made[i]);
    else
      queue_->give_back(*made[i]);
  }
  EventPair* const one = queue_->give_up_one();
  ASSERT_NE(one, nullptr);
  std::size_t found = 0;
  for (EventPair* pair = queue_->release_free(); pair != nullptr; ++found) delete std::exchange(pair, pair->next);
  EXPECT_EQ(found, kContexts - 1);
  delete one;
  EXPECT_EQ(queue_->give_up_one(), nullptr);
}

TEST(DeviceRing, ItsSizeIsNeverBelowNone) {
  const auto ring = std::make_unique<Ring<int, 16>>();
  // GIVEN a ring that one thread fills and empties all the time
  std::atomic<bool> running{true};
  std::jthread busy([&] {
    for (std::uint64_t i = 0; i < test::scaled(20'000'000, 100); ++i) {
      int item = 0;
      ring->push(1);
      ring->pop(item);
    }
    running.store(false);
  });
  std::uint32_t largest = 0;
  while (running.load(std::memory_order_relaxed)) largest = std::max(largest, ring->size());
  // THEN no item is subtracted twice
  EXPECT_LT(largest, 1U << 31);
}

}  // namespace
}  // namespace stagespan::device
