// test_request_counts.cpp: the figures of requests that have ended, by pipeline and status.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <numeric>
#include <thread>
#include <vector>

#include "recording_support.h"
#include "stagespan/snapshot.h"

namespace stagespan {
namespace {

class RequestCounts : public test::Recordings {
 protected:
  Distribution of(const Snapshot& snapshot, const std::string& pipeline, StageKind kind) {
    for (const auto& [stage, figures] : snapshot.stages)
      if (figures.kind == kind && recorder().name_of(stage) == pipeline) return figures.host;
    return {};
  }
  Distribution of(const std::string& pipeline, StageKind kind = kRequestOk) {
    return of(take_snapshot(recorder().arena(), recorder().clock_fit()), pipeline, kind);
  }
  static std::uint64_t in_buckets(const Distribution& of) {
    return std::accumulate(of.buckets.begin(), of.buckets.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const auto& bucket) { return sum + bucket.second; });
  }
};

TEST_F(RequestCounts, EachStatusOfAPipelineHasItsFigures) {
  const std::uint32_t pipeline = recorder().intern_pipeline("each", kRequestOk);
  for (std::uint8_t status = kStatusOk; status <= kStatusAbandoned; ++status) {
    for (std::uint64_t ticks = 1; ticks <= status; ++ticks) {
      CountedRequest counted;
      recorder().count_request(counted, pipeline, static_cast<SegmentStatus>(status), ticks * 1000);
      EXPECT_NE(counted.stage, 0U);
    }
  }
  for (std::uint8_t status = kStatusOk; status <= kStatusAbandoned; ++status) {
    const Distribution found = of("each", static_cast<StageKind>(kRequestOk + status - kStatusOk));
    EXPECT_EQ(found.count, status);
    EXPECT_EQ(found.sum_ticks, 500U * status * (status + 1U));
    EXPECT_EQ(found.min_ticks, 1000U);
    EXPECT_EQ(found.max_ticks, 1000U * status);
    EXPECT_EQ(in_buckets(found), found.count);
  }
  // THEN what has no such status is not counted
  CountedRequest counted;
  recorder().count_request(counted, pipeline, kStatusOpen, 1);
  recorder().count_request(counted, pipeline, kStatusUnused, 1);
  EXPECT_EQ(counted.stage, 0U);
}

TEST_F(RequestCounts, ARequestThatGoesOnIsCountedOnce) {
  const std::uint32_t pipeline = recorder().intern_pipeline("goes on", kRequestOk);
  CountedRequest counted;
  recorder().count_request(counted, pipeline, kStatusOk, 1000);
  recorder().count_request(counted, pipeline, kStatusOk, 1'000'000);
  Distribution found = of("goes on");
  EXPECT_EQ(found.count, 1U);
  EXPECT_EQ(found.sum_ticks, 1'000'000U);
  ASSERT_EQ(found.buckets.size(), 1U);
  EXPECT_EQ(found.buckets[0].first, bucket_of(1'000'000));
  recorder().count_request(counted, pipeline, kStatusError, 1'000'000);
  EXPECT_EQ(of("goes on").count, 0U);
  EXPECT_EQ(of("goes on", kRequestError).count, 1U);
  // WHEN the figures were reset THEN those of others stay
  recorder().reset();
  CountedRequest other;
  recorder().count_request(other, pipeline, kStatusError, 5);
  recorder().count_request(counted, pipeline, kStatusOk, 2'000'000);
  EXPECT_EQ(of("goes on", kRequestError).count, 1U);
  EXPECT_EQ(of("goes on").sum_ticks, 2'000'000U);
}

TEST_F(RequestCounts, ManyThreadsLoseNone) {
  constexpr std::uint64_t kThreads = 4, kEach = 20'000;
  const std::uint32_t pipeline = recorder().intern_pipeline("many", kRequestOk);
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (std::uint64_t ticks = 1; ticks <= kEach; ++ticks) {
        CountedRequest counted;
        recorder().count_request(counted, pipeline, kStatusOk, ticks);
      }
    });
  for (std::thread& thread : threads) thread.join();
  const Distribution found = of("many");
  EXPECT_EQ(found.count, kThreads * kEach);
  EXPECT_EQ(found.sum_ticks, kThreads * kEach * (kEach + 1) / 2);
  EXPECT_EQ(in_buckets(found), found.count);
}

TEST_F(RequestCounts, PipelinesBeyondTheLimitShareOne) {
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < 2 * kMostPipelines; ++i)
    last = recorder().intern_pipeline("p" + std::to_string(i), kRequestOk);
  EXPECT_EQ(recorder().name_of(last), kForeignName);
  EXPECT_EQ(recorder().name_of(recorder().intern_pipeline("p0", kPartFirstChunk)), "p0");
  EXPECT_EQ(recorder().name_of(recorder().intern_pipeline("p399", kPartFirstChunk)), kForeignName);
  // THEN a stage that is not a pipeline counts no request
  CountedRequest counted;
  recorder().count_request(counted, recorder().intern("an execution"), kStatusOk, 1);
  EXPECT_EQ(counted.stage, 0U);
}

TEST_F(RequestCounts, AProcessKilledWhileItCountsLeavesFiguresThatFitTogether) {
  const ScopedTimer begins_the_recording(recorder().intern("killed"));
  for (int turn = 0; turn < 10; ++turn) {
    const pid_t child = fork();
    if (child == 0) {
      const ScopedTimer begins_its_recording(recorder().intern("killed"));
      const std::uint32_t pipeline = recorder().intern_pipeline("killed", kRequestOk);
      for (std::uint64_t ticks = 1;; ++ticks) {
        CountedRequest counted;
        recorder().count_request(counted, pipeline, kStatusOk, ticks % 50'000);
      }
    }
    usleep(3'000 + turn * 700);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    const std::string path = file_of(child);
    if (path.empty()) continue;  // it was killed before its recording began
    RecordingCopy copy;
    ASSERT_EQ(read(path, copy), "");
    EXPECT_EQ(copy.damaged, 0U);
    const Distribution found = of(take_snapshot(copy.arena, copy.fit), "killed", kRequestOk);
    EXPECT_LE(found.count - in_buckets(found), 1U);
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace stagespan
