// Sums of gradients: over ranks, over micro-batches, and of squares (docs/numerics.md §7).
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "halfstep/core/bf16.h"
#include "halfstep/core/hash.h"
#include "halfstep/kernels/rounding_policy.h"
#include "halfstep/kernels/vector_ops.h"

namespace halfstep::kernels {
namespace {

NoiseRun gradient_noise(uint32_t micro_step) {
  return {.stream = {.seed = 1,
                     .name_hash = fnv1a("w"),
                     .step = 1,
                     .purpose = NoisePurpose::kGradient,
                     .micro_step = micro_step}};
}

// A chain of BF16 additions, as a ring reduce does it, gives 256 and stays there.
TEST(Reduction, OfManyRanksIsExactWhereBf16ChainsStall) {
  const std::vector<uint16_t> ones(64, bf16_nearest(1.0f));
  std::vector<const void*> ranks(384, ones.data());
  std::vector<float> sum(64);
  sum_ranks(sum.data(), ranks, Dtype::kBF16, 64);
  for (float s : sum) EXPECT_EQ(s, 384.0f);
  std::vector<uint16_t> chain = ones;
  for (int rank = 1; rank < 384; ++rank) {
    accumulate(chain.data(), Dtype::kBF16, ones.data(), Dtype::kBF16, 64, Rounding::kNearest, {});
  }
  for (uint16_t s : chain) EXPECT_EQ(bf16_decode(s), 256.0f);

  // 512 ranks with gradients already divided by 512: the mean is 1 where a chain gives .5.
  const std::vector<uint16_t> shares(64, bf16_nearest(1.0f / 512));
  ranks.assign(512, shares.data());
  sum_ranks(sum.data(), ranks, Dtype::kBF16, 64);
  for (float s : sum) EXPECT_EQ(s, 1.0f);
}

// Against FP64: DP − 1 additions of at most half an ulp of a partial sum each.
TEST(Reduction, ErrorIsThatOfFp32AdditionAtEverySize) {
  constexpr int64_t kN = 4096;
  std::mt19937 gen(3);
  std::normal_distribution<float> normal;
  for (size_t dp : {1, 2, 8, 96, 384}) {
    std::vector<std::vector<uint16_t>> gradients(dp, std::vector<uint16_t>(kN));
    std::vector<const void*> ranks;
    std::vector<double> exact(kN, 0), magnitude(kN, 0);
    for (auto& gradient : gradients) {
      for (size_t i = 0; i < kN; ++i) {
        gradient[i] = bf16_nearest(normal(gen));
        exact[i] += bf16_decode(gradient[i]);
        magnitude[i] += std::fabs(bf16_decode(gradient[i]));
      }
      ranks.push_back(gradient.data());
    }
    std::vector<float> sum(kN);
    sum_ranks(sum.data(), ranks, Dtype::kBF16, kN);
    for (size_t i = 0; i < kN; ++i) {
      ASSERT_LE(std::fabs(sum[i] - exact[i]), static_cast<double>(dp - 1) * 0x1p-24 * magnitude[i]);
    }
  }
}

// The mean of n elements after `count` contributions of x.
double accumulated(float x, int count, Dtype dtype, Rounding rounding, size_t n) {
  const std::vector<float> gradient(n, x);
  const int64_t size = static_cast<int64_t>(n);
  std::vector<float> storage(n);
  convert(storage.data(), dtype, gradient.data(), Dtype::kF32, size, rounding, gradient_noise(0));
  for (int k = 1; k < count; ++k) {
    accumulate(storage.data(), dtype, gradient.data(), Dtype::kF32, size, rounding,
               gradient_noise(static_cast<uint32_t>(k)));
  }
  std::vector<float> result(n);
  convert(result.data(), Dtype::kF32, storage.data(), dtype, size, Rounding::kNearest, {});
  double sum = 0;
  for (float value : result) sum += value;
  return sum / static_cast<double>(n);
}

TEST(Accumulation, NearestBf16StallsAndTheOthersDoNot) {
  EXPECT_EQ(accumulated(1.0f, 1000, Dtype::kBF16, Rounding::kNearest, 1), 256.0);
  EXPECT_EQ(accumulated(0.01f, 1000, Dtype::kBF16, Rounding::kNearest, 1), 4.0);
  EXPECT_EQ(accumulated(1.0f, 1000, Dtype::kF32, Rounding::kNearest, 1), 1000.0);
  // Half an ulp of at most 10 for each addition.
  EXPECT_NEAR(accumulated(0.01f, 1000, Dtype::kF32, Rounding::kNearest, 1), 10.0, 1000 * 0x1p-21);
  // Stochastic: variance ≤ Σ x · step, steps up to 2^-4 below 16 (2^2 below 1024); mean of 4096.
  EXPECT_NEAR(accumulated(0.01f, 1000, Dtype::kBF16, Rounding::kStochastic, 4096), 10.0,
              4 * std::sqrt(1000 * 0.01 * 0x1p-4 / 4096));
  EXPECT_NEAR(accumulated(1.0f, 1000, Dtype::kBF16, Rounding::kStochastic, 4096), 1000.0,
              4 * std::sqrt(1000 * 1.0 * 0x1p2 / 4096));
}

// The error that the start-up report announces is the one of independent gradients. The formula
// averages over all mantissas and counts K/2 instead of (K−1)/2·(K+2)/K roundings: 15 %.
TEST(Accumulation, ErrorIsTheOneAnnounced) {
  constexpr size_t kN = 16'384;
  for (Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    std::mt19937 gen(5);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> sum(kN), gradient(kN);
    std::vector<double> exact(kN, 0);
    for (int k = 1; k <= 128; ++k) {
      for (size_t i = 0; i < kN; ++i) {
        gradient[i] = bf16_nearest(normal(gen));
        exact[i] += bf16_decode(gradient[i]);
      }
      if (k == 1) {
        sum = gradient;
      } else {
        accumulate(sum.data(), Dtype::kBF16, gradient.data(), Dtype::kBF16, kN, rounding,
                   gradient_noise(static_cast<uint32_t>(k - 1)));
      }
      if (k != 8 && k != 32 && k != 128) continue;
      double error = 0, size = 0;
      for (size_t i = 0; i < kN; ++i) {
        error += std::pow(bf16_decode(sum[i]) - exact[i], 2);
        size += exact[i] * exact[i];
      }
      const double announced = expected_accumulation_error(Dtype::kBF16, k, rounding);
      EXPECT_NEAR(std::sqrt(error / size) / announced, 1, 0.15) << k << rounding_name(rounding);
    }
  }
}

// 2^24 elements of 1e-3, where a serial FP32 sum is far off, against the exact value.
TEST(SumSquares, KeepsFp64Accuracy) {
  constexpr int64_t kN = 1 << 24;
  const std::vector<float> x(kN, 1e-3f);
  const double exact = static_cast<double>(kN) * (double{1e-3f} * double{1e-3f});
  // 512 additions in a lane, 3 for the lanes, log2(2^24/4096) for the runs, each half an ulp.
  EXPECT_NEAR(sum_squares(x.data(), Dtype::kF32, kN), exact, exact * (512 + 3 + 12) * 0x1p-53);
  float serial = 0;
  for (float value : x) serial += value * value;
  EXPECT_GT(std::fabs(serial - exact), 0.01 * exact);  // what the order is good for
  // Two halves, as two ranks would have them, agree with the whole within the same bound.
  const double halves = sum_squares(x.data(), Dtype::kF32, kN / 2 + 1) +
                        sum_squares(x.data() + kN / 2 + 1, Dtype::kF32, kN / 2 - 1);
  EXPECT_NEAR(halves, exact, exact * (512 + 3 + 12) * 0x1p-53);
}

}  // namespace
}  // namespace halfstep::kernels
