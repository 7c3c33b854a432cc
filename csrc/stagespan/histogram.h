// histogram.h: log-linear buckets for durations in ticks, at most 2.1 % wide to either side.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "layout.h"

namespace stagespan {

// Values below 32 have a bucket each. Above, every power of two is divided into 24 buckets: 16 in its lower half
// and 8, twice as wide, in its upper half. This keeps the relative half width at or below 1/48 (2.1 %) with
// 1016 counters of 4 bytes, which reach to 2^46 ticks: over 6 hours at 3 GHz. Longer spans fall into the last
// bucket; their count, sum, minimum and maximum stay exact.
//
//   32          40          48          56          64          80
//   |.|.|.|.|.|.|.|.|.|.|.|.|.|.|.|.|  .|  .|  .|...|.|.|
//   lower half: width 2^(e-5)        upper half: width 2^(e-4)

/// The longest duration that is distinguished from longer ones.
inline constexpr std::uint64_t kLongest_ticks = (std::uint64_t{1} << 46) - 1;

/// Index of the bucket that contains a duration. Has no branch, because durations follow no pattern that a branch
/// predictor could learn.
constexpr std::uint32_t bucket_of(std::uint64_t ticks) noexcept {
  const std::uint64_t clamped = ticks < kLongest_ticks ? ticks : kLongest_ticks;
  // Below 32 the shift is 0, and the bucket is the duration itself.
  const std::uint32_t shift = 58U - static_cast<std::uint32_t>(std::countl_zero(clamped | 32U));
  const auto mantissa = static_cast<std::uint32_t>(clamped >> shift);
  return shift * 24 + (mantissa < 48 ? mantissa : 24 + (mantissa >> 1));
}

/// The smallest duration in a bucket, in ticks.
constexpr std::uint64_t bucket_low(std::uint32_t bucket) noexcept {
  if (bucket < 32) return bucket;
  const std::uint32_t exponent = (bucket - 32) / 24;
  const std::uint32_t part = (bucket - 32) % 24;
  const std::uint64_t mantissa = part < 16 ? part : (part - 8) * 2;
  return (32 + mantissa) << exponent;
}

/// The first duration beyond a bucket, in ticks.
constexpr std::uint64_t bucket_high(std::uint32_t bucket) noexcept { return bucket_low(bucket + 1); }

/// The value that represents a bucket: its relative distance to both bounds is the same.
constexpr double bucket_value(std::uint32_t bucket) noexcept {
  const auto low = static_cast<double>(bucket_low(bucket));
  const auto high = static_cast<double>(bucket_high(bucket) - 1);
  return low + high > 0 ? 2 * low * high / (low + high) : 0;
}

// Amounts of work are numbers of any unit and size, so their buckets are the first bits of a double: 16 to a power of
// two, at most 3.1 % wide to either side. Unlike those of durations they contain their upper bound and not their lower
// one: whole numbers up to 32 have a bucket each, and "at most 8" is exact. The first one also contains 0.

inline constexpr int kLeastAmountExponent = -10;
inline constexpr int kMostAmountExponent = 52;
static_assert(kAmountBuckets == 2 + 16 * (kMostAmountExponent - kLeastAmountExponent));
inline constexpr std::uint64_t kFirstAmountBits = std::uint64_t{1023 + kLeastAmountExponent} << 4;

/// The largest amount in a bucket; infinite for the last one.
constexpr double amount_bucket_high(std::uint32_t bucket) noexcept {
  return bucket + 1 < kAmountBuckets ? std::bit_cast<double>((kFirstAmountBits + bucket) << 48)
                                     : std::numeric_limits<double>::infinity();
}

/// Index of the bucket that contains an amount, which is not negative.
constexpr std::uint32_t amount_bucket_of(double amount) noexcept {
  if (amount <= amount_bucket_high(0)) return 0;
  const std::uint64_t bucket = ((std::bit_cast<std::uint64_t>(amount) - 1) >> 48) - kFirstAmountBits + 1;
  return static_cast<std::uint32_t>(bucket < kAmountBuckets ? bucket : kAmountBuckets - 1);
}

}  // namespace stagespan
