// test_histogram.cpp: every bucket's bounds, and the error of a bucket's value.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "stagespan/histogram.h"
#include "support.h"

namespace stagespan {
namespace {

using test::Random;

constexpr double kPromised = 0.03;
constexpr std::uint64_t kBeyond = std::uint64_t{1} << 46;  // first duration without a separate bucket

double relative_error(std::uint64_t ticks) {
  const double value = bucket_value(bucket_of(ticks));
  return std::abs(value - static_cast<double>(ticks)) / static_cast<double>(ticks);
}

TEST(Histogram, FitsInFourKilobytes) {
  EXPECT_LE(sizeof(StatsBlock::buckets), 4096U);
  EXPECT_EQ(sizeof(StatsBlock) % 64, 0U);
}

TEST(Histogram, EveryBucketHoldsItsBoundsAndTheNextBeginsWhereItEnds) {
  EXPECT_EQ(bucket_low(0), 0U);
  for (std::uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    SCOPED_TRACE(bucket);
    const std::uint64_t low = bucket_low(bucket);
    const std::uint64_t high = bucket_high(bucket);
    // WHEN buckets are computed for durations at both ends and around them
    // THEN those inside get this bucket, and those outside do not
    ASSERT_LT(low, high);
    EXPECT_EQ(bucket_of(low), bucket);
    EXPECT_EQ(bucket_of(high - 1), bucket);
    if (bucket > 0) {
      EXPECT_EQ(bucket_of(low - 1), bucket - 1);
    }
    if (bucket + 1 < kBuckets) {
      EXPECT_EQ(bucket_of(high), bucket + 1);
      EXPECT_EQ(high, bucket_low(bucket + 1));
    }
    // THEN its representative value is inside, at the same relative distance to both ends
    const double value = bucket_value(bucket);
    EXPECT_GE(value, static_cast<double>(low));
    EXPECT_LE(value, static_cast<double>(high - 1));
    if (low > 0) {
      const double to_low = value / static_cast<double>(low) - 1;
      const double to_high = 1 - value / static_cast<double>(high - 1);
      EXPECT_NEAR(to_low, to_high, 1e-9);
    }
  }
}

TEST(Histogram, LastBucketEndsWhereTheRangeDoes) { EXPECT_EQ(bucket_high(kBuckets - 1), kBeyond); }

TEST(Histogram, SmallDurationsAreExact) {
  for (std::uint64_t ticks = 0; ticks < 32; ++ticks) {
    // THEN the bucket contains no other duration
    EXPECT_EQ(bucket_of(ticks), ticks);
    EXPECT_EQ(bucket_value(bucket_of(ticks)), static_cast<double>(ticks));
  }
}

TEST(Histogram, RelativeErrorIsWithinThreePercentAtEveryExponent) {
  Random random(20240501);
  SCOPED_TRACE(random.trace());
  double worst = 0;
  for (int exponent = 0; exponent < 46; ++exponent) {
    const std::uint64_t power = std::uint64_t{1} << exponent;
    // GIVEN durations at the ends of a power of two, in its middle, and anywhere in it
    std::vector<std::uint64_t> durations = {power, 2 * power - 1, power + power / 2};
    for (int i = 0; i < 500; ++i) durations.push_back(random.between(power, 2 * power - 1));
    for (const std::uint64_t ticks : durations) {
      const double error = relative_error(ticks);
      // THEN it is off by 3 % at most
      ASSERT_LE(error, kPromised) << ticks;
      worst = std::max(worst, error);
    }
  }
  // THEN the bound is tight: some durations are close to the 1/48 of the layout
  EXPECT_GT(worst, 0.015);
  EXPECT_LE(worst, 1.0 / 47);
}

TEST(Histogram, LongerDurationsFallIntoTheLastBucket) {
  Random random(20240502);
  SCOPED_TRACE(random.trace());
  std::vector<std::uint64_t> durations = {kBeyond, kBeyond + 1, std::uint64_t{1} << 63,
                                          std::numeric_limits<std::uint64_t>::max()};
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t power = std::uint64_t{1} << random.between(46, 62);
    durations.push_back(random.between(power, 2 * power - 1));
  }
  for (const std::uint64_t ticks : durations) EXPECT_EQ(bucket_of(ticks), kBuckets - 1) << ticks;
}

TEST(Histogram, LongerDurationsNeverFallIntoLowerBuckets) {
  Random random(20240503);
  SCOPED_TRACE(random.trace());
  for (int i = 0; i < 100'000; ++i) {
    std::uint64_t a = random.engine()() >> random.below(64);
    std::uint64_t b = random.engine()() >> random.below(64);
    if (a > b) std::swap(a, b);
    ASSERT_LE(bucket_of(a), bucket_of(b)) << a << " " << b;
  }
}

TEST(AmountHistogram, EveryBucketHoldsItsUpperBoundAndTheNextBeginsBehindIt) {
  EXPECT_EQ(amount_bucket_of(0), 0U);
  for (std::uint32_t bucket = 0; bucket + 1 < kAmountBuckets; ++bucket) {
    const double high = amount_bucket_high(bucket);
    EXPECT_EQ(amount_bucket_of(high), bucket) << high;
    EXPECT_EQ(amount_bucket_of(std::nextafter(high, 2 * high)), bucket + 1) << high;
    if (bucket != 0 && bucket + 2 < kAmountBuckets) {
      EXPECT_LE(amount_bucket_high(bucket + 1) / high, 17.0 / 16);
    }
  }
  for (const double huge : {0x1.00001p52, 1e300, std::numeric_limits<double>::max()})
    EXPECT_EQ(amount_bucket_of(huge), kAmountBuckets - 1);
  for (const double tiny : {0x1p-10, 1e-300, std::numeric_limits<double>::denorm_min()})
    EXPECT_EQ(amount_bucket_of(tiny), 0U);
}

TEST(AmountHistogram, WholeNumbersUpTo32AndPowersOfTwoAreUpperBounds) {
  for (int whole = 1; whole <= 32; ++whole) EXPECT_EQ(amount_bucket_high(amount_bucket_of(whole)), whole);
  for (double power = 0x1p-10; power <= 0x1p52; power *= 2)
    EXPECT_EQ(amount_bucket_high(amount_bucket_of(power)), power);
}

}  // namespace
}  // namespace stagespan
