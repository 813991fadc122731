#include "halfstep/kernels/vector_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "halfstep/core/bf16.h"
#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/core/split_weight.h"
#include "halfstep/core/ue6m10.h"
#include "halfstep/kernels/kernel_table.h"

namespace halfstep::kernels {
namespace {

// Sizes around tiles, runs and chunks.
constexpr int64_t kSizes[] = {0, 1, 7, 8, 511, 513, 4095, 4096, 4097, 65'537, 300'001};

std::vector<float> normal_values(int64_t n, uint32_t seed = 1) {
  std::mt19937 gen(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(gen);
  return x;
}

NoiseRun noise_at(int64_t first, NoisePurpose purpose = NoisePurpose::kGradient) {
  return {.stream =
              {.seed = 3, .name_hash = fnv1a("w"), .step = 9, .purpose = purpose, .micro_step = 2},
          .first = first};
}

TEST(Convert, RoundsEveryElementWithItsOwnNoise) {
  for (int64_t n : kSizes) {
    std::vector<float> x = normal_values(n);
    for (float& value : x) value = std::fabs(value);
    const NoiseRun noise = noise_at(13);
    std::vector<uint16_t> codes(x.size());
    for (Dtype dtype : {Dtype::kBF16, Dtype::kUE6M10}) {
      const bool bf16 = dtype == Dtype::kBF16;
      convert(codes.data(), dtype, x.data(), Dtype::kF32, n, Rounding::kStochastic, noise);
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t r = noise.stream.bits16(13 + i);
        const size_t at = static_cast<size_t>(i);
        ASSERT_EQ(codes[at], bf16 ? bf16_stochastic(x[at], r) : ue6m10_stochastic(x[at], r)) << i;
      }
      convert(codes.data(), dtype, x.data(), Dtype::kF32, n, Rounding::kNearest, noise);
      std::vector<float> back(x.size());
      convert(back.data(), Dtype::kF32, codes.data(), dtype, n, Rounding::kNearest, {});
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(codes[i], bf16 ? bf16_nearest(x[i]) : ue6m10_nearest(x[i]));
        ASSERT_EQ(back[i], bf16 ? bf16_decode(codes[i]) : ue6m10_decode(codes[i]));
      }
    }
  }
}

TEST(Convert, BetweenEqualTypesIsACopy) {
  const std::vector<uint16_t> x = {0,      0x7F80, 0x7F81,
                                   0xFFFF, 1,      0x8000};  // NaNs and subnormals too
  std::vector<uint16_t> y(x.size());
  for (Dtype dtype : {Dtype::kBF16, Dtype::kUE6M10}) {
    convert(y.data(), dtype, x.data(), dtype, 6, Rounding::kStochastic, noise_at(0));
    EXPECT_EQ(y, x);
  }
}

TEST(Convert, RefusesPairsThatDoNotExist) {
  uint16_t a = 0, b = 0;
  EXPECT_THROW(convert(&a, Dtype::kUE6M10, &b, Dtype::kBF16, 1, Rounding::kNearest, {}),
               InternalError);
  EXPECT_THROW(convert(&a, Dtype::kBF16, &b, Dtype::kBF16, 1, Rounding::kStochastic,
                       noise_at(int64_t{8} << 48)),
               UsageError);
  NoiseRun noise = noise_at(0);
  noise.stream.micro_step = 65'536;
  EXPECT_THROW(convert(&a, Dtype::kBF16, &b, Dtype::kBF16, 1, Rounding::kStochastic, noise),
               UsageError);
}

TEST(Accumulate, AddsInFp32AndRoundsOnce) {
  for (int64_t n : kSizes) {
    const std::vector<float> start = normal_values(n, 1), x = normal_values(n, 2);
    const NoiseRun noise = noise_at(3);
    std::vector<uint16_t> sum(start.size()), x16(start.size());
    for (size_t i = 0; i < start.size(); ++i) {
      sum[i] = bf16_nearest(start[i]);
      x16[i] = bf16_nearest(x[i]);
    }
    std::vector<uint16_t> expected = sum;
    for (size_t i = 0; i < start.size(); ++i) {
      const float once = bf16_decode(expected[i]) + bf16_decode(x16[i]);
      expected[i] = bf16_stochastic(once, noise.stream.bits16(3 + static_cast<int64_t>(i)));
      expected[i] = bf16_nearest(bf16_decode(expected[i]) + x[i]);
    }
    accumulate(sum.data(), Dtype::kBF16, x16.data(), Dtype::kBF16, n, Rounding::kStochastic, noise);
    accumulate(sum.data(), Dtype::kBF16, x.data(), Dtype::kF32, n, Rounding::kNearest, {});
    EXPECT_EQ(sum, expected);
  }
}

// The order of docs/numerics.md §7, written recursively.
double tree_sum(const std::vector<float>& x, size_t begin, size_t end) {
  const size_t runs = (end - begin + 4095) / 4096;
  if (runs <= 1) {
    double lane[8] = {};
    for (size_t i = begin; i < end; ++i) lane[(i - begin) % 8] += double{x[i]} * double{x[i]};
    const double s0 = lane[0] + lane[4], s1 = lane[1] + lane[5], s2 = lane[2] + lane[6],
                 s3 = lane[3] + lane[7];
    return (s0 + s2) + (s1 + s3);
  }
  size_t left = 1;
  while (left * 2 < runs) left *= 2;
  const size_t middle = begin + left * 4096;
  return tree_sum(x, begin, middle) + tree_sum(x, middle, end);
}

TEST(SumSquares, FollowsTheTreeForAnyNumberOfThreads) {
  ThreadPool one(1), three(3);
  for (int64_t n :
       {0, 1, 9, 4095, 4096, 4097, 3 * 4096 + 5, 64 * 4096, 64 * 4096 + 1, 70 * 4096, 1'000'003}) {
    const std::vector<float> x = normal_values(n);
    const double expected = tree_sum(x, 0, x.size());
    EXPECT_EQ(sum_squares(x.data(), Dtype::kF32, n, one), expected) << n;
    EXPECT_EQ(sum_squares(x.data(), Dtype::kF32, n, three), expected) << n;
  }
  // Another order within a run changes the last bit of about every other one.
  for (uint32_t seed = 2; seed < 32; ++seed) {
    const std::vector<float> x = normal_values(4096, seed);
    EXPECT_EQ(sum_squares(x.data(), Dtype::kF32, 4096, one), tree_sum(x, 0, x.size())) << seed;
  }
}

TEST(SumSquares, IsNonFiniteIfAnyElementIs) {
  for (float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> x(10'000, 1.0f);
    x[9'999] = bad;
    EXPECT_FALSE(std::isfinite(sum_squares(x.data(), Dtype::kF32, 10'000)));
    std::vector<uint16_t> x16(10'000, 0x3F80);
    x16[5] = bf16_nearest(bad);
    EXPECT_FALSE(std::isfinite(sum_squares(x16.data(), Dtype::kBF16, 10'000)));
  }
  const std::vector<float> large(4, 3e38f);  // its square is beyond FP32
  EXPECT_DOUBLE_EQ(sum_squares(large.data(), Dtype::kF32, 4), 4 * double{3e38f} * double{3e38f});
}

TEST(SumRanks, AddsInRankOrderFromRankZero) {
  constexpr int64_t kN = 70'001;
  // In rank order the twos are lost in 2^25, one after the other; reversed, exactly or in pairs
  // they are not.
  std::vector<float> a(kN, 0x1p25f), b(kN, 2.0f), c(kN, 2.0f), d(kN, -0x1p25f);
  const void* ranks[] = {a.data(), b.data(), c.data(), d.data()};
  std::vector<float> sum(kN);
  sum_ranks(sum.data(), ranks, Dtype::kF32, kN);
  for (float s : sum) ASSERT_EQ(s, 0.0f);
  sum_ranks(c.data(), ranks, Dtype::kF32, kN);  // over one of the contributions
  EXPECT_EQ(c, sum);
  EXPECT_THROW(sum_ranks(sum.data(), {}, Dtype::kF32, kN), InternalError);
}

TEST(SplitMaster, CountsTiesAndJoins) {
  std::vector<float> x = normal_values(200'000);
  for (size_t i = 0; i < x.size(); i += 1000) {
    x[i] = std::bit_cast<float>(0x3F808000u + static_cast<uint32_t>(i / 1000) * 0x20000);
  }
  const int64_t n = static_cast<int64_t>(x.size());
  int64_t ties = 0;
  for (float value : x) ties += split_f32(value).lost_ulp;
  std::vector<uint16_t> weight(x.size());
  std::vector<int16_t> remainder(x.size());
  EXPECT_EQ(split_master(weight.data(), remainder.data(), x.data(), n), ties);
  EXPECT_GE(ties, 200);
  std::vector<float> joined(x.size());
  join_master(joined.data(), weight.data(), remainder.data(), n);
  int64_t changed = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(weight[i], bf16_nearest(x[i]));
    if (joined[i] != x[i]) {
      ++changed;
      ASSERT_EQ(std::bit_cast<uint32_t>(joined[i]), std::bit_cast<uint32_t>(x[i]) - 1);
    }
  }
  EXPECT_EQ(changed, ties);
}

TEST(InitNormal, IsAFunctionOfTheElementAlone) {
  NoiseRun noise = noise_at(0, NoisePurpose::kInit);
  noise.stream.step = 0;
  noise.stream.micro_step = 0;
  constexpr int64_t kN = 100'000;
  std::vector<float> whole(kN);
  init_normal(whole.data(), Dtype::kF32, kN, 0.02, noise);
  // Of element 0: the sum of the eight halves, in FP64, by hand.
  double sum = -262'140;
  for (uint32_t word : philox4x32_10(noise.stream.counter(0), noise.stream.key())) {
    sum += (word >> 16) + (word & 0xFFFF);
  }
  EXPECT_EQ(whole[0], static_cast<float>(0.02 * (sum / 53'509.9)));
  // A cut gives the same values, and BF16 is the same value rounded from FP64.
  noise.first = 33'333;
  std::vector<float> part(100);
  init_normal(part.data(), Dtype::kF32, 100, 0.02, noise);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 33'333));
  std::vector<uint16_t> part16(100);
  init_normal(part16.data(), Dtype::kBF16, 100, 0.02, noise);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_LE(std::fabs(bf16_decode(part16[i]) - part[i]), std::fabs(part[i]) * 0x1p-8f);
  }
  EXPECT_THROW(init_normal(part.data(), Dtype::kF32, 1, 0.02, noise_at(0)), InternalError);
  EXPECT_THROW(init_normal(part.data(), Dtype::kF32, 1, NAN, noise), UsageError);
  noise.first = int64_t{1} << 48;
  EXPECT_THROW(init_normal(part.data(), Dtype::kF32, 1, 0.02, noise), UsageError);
}

}  // namespace
}  // namespace halfstep::kernels
