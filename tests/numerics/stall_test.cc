// What 16-bit storage can lose for good: small updates, the decay, and a moving average's own
// motion (docs/numerics.md §2, §4, §9.8).
#include <gtest/gtest.h>

#include <random>

#include "lab.h"

namespace halfstep::kernels {
namespace {

constexpr AdamwFormat kFp32Weights{.weight = Dtype::kF32, .master = MasterMode::kNone};
constexpr AdamwFormat kFp32Master{.weight = Dtype::kBF16, .master = MasterMode::kFp32};
constexpr AdamwFormat kSplitMaster{.weight = Dtype::kBF16, .master = MasterMode::kSplit};
constexpr AdamwFormat kNoMaster{.weight = Dtype::kBF16, .master = MasterMode::kNone};

// With β1 = 0 and a constant gradient every update is lr exactly (up to eps and FP32). 1000 updates
// of 1e-3 take a weight from 1 to 0; stored by nearest BF16 it would stay at 1 for ever.
TEST(Stall, SmallUpdatesReachTheWeightInEveryMasterMode) {
  const AdamwHyperparameters hyper{.lr = 1e-3, .beta1 = 0, .weight_decay = 0};
  for (const AdamwFormat& format : {kFp32Weights, kFp32Master, kSplitMaster}) {
    Lab lab(format, 8, 1.0f);
    lab.steps(1000, 1.0f, hyper);
    // Each of the 1000 updates of .001 is off by at most 2 ulp (1.2e-10 each), each subtraction by
    // half an ulp of 1 (3e-8).
    for (size_t i = 0; i < lab.size(); ++i) EXPECT_NEAR(lab.weight(i), 0, 1000 * 3.1e-8);
  }
  // Without a master each rounding has the variance (x − below)(above − x) ≤ update · step, with
  // steps of 2^-8 below 1: in sum at most 1000 · 1e-3 · 2^-8 = .0039, so σ of the mean of 4096
  // elements is 9.8e-4.
  Lab lab(kNoMaster, 4096, 1.0f);
  lab.steps(1000, 1.0f, hyper);
  EXPECT_NEAR(lab.mean_weight(), 0, 4 * 9.8e-4);
  // Why nearest cannot do it: half a BF16 step below 1 is 2^-9 > 1e-3.
  EXPECT_EQ(bf16_nearest(1.0f - 1e-3f), bf16_nearest(1.0f));
}

// Zero gradient, lr 1e-4, weight decay .1, 10 000 steps: 1.5 · (1 − 1e-5)^10000 = 1.35725….
TEST(Decay, ArrivesWithAZeroGradient) {
  const AdamwHyperparameters hyper{.lr = 1e-4, .weight_decay = 0.1};
  const double expected = 1.5 * std::pow(1 - 1e-5, 10'000);
  EXPECT_NEAR(expected, 1.35726, 1e-5);
  for (const AdamwFormat& format : {kFp32Weights, kFp32Master, kSplitMaster}) {
    Lab lab(format, 8, 1.5f);
    lab.steps(10'000, 0, hyper);
    // Half an ulp of a weight in [1, 2) for each step, 2^-24, and (split) an ulp for 2^-17 of them.
    for (size_t i = 0; i < lab.size(); ++i) {
      EXPECT_NEAR(lab.weight(i), expected, 10'000 * (0x1p-24 + 0x1p-40));
    }
  }
  // Without a master: variance per step ≤ decay · step = 1.5e-5 · 2^-7, 10 000 steps: .0012; σ of
  // the mean of 4096 elements 5.4e-4.
  Lab lab(kNoMaster, 4096, 1.5f);
  lab.steps(10'000, 0, hyper);
  EXPECT_NEAR(lab.mean_weight(), expected, 4 * 5.4e-4);
}

// lr · weight_decay = 1.25e-8 is below FP32's grid at 1, so w·(1 − lr·wd) would decay nothing,
// ever. Here each decay step is a seventh to a quarter of an ulp of the weight, and arrives because
// random updates of many ulps come with it. Compared with the same run without decay, over 2000
// steps: at least 99 %. (Near 1 the updates of this learning rate are below an ulp themselves, and
// no form of the update could save them in an FP32 master.)
TEST(Decay, ArrivesBelowTheGridOfFp32) {
  constexpr size_t kN = 4096;
  constexpr int kSteps = 2000;
  AdamwHyperparameters with{.lr = 1.25e-7, .weight_decay = 0.1};
  AdamwHyperparameters without = with;
  without.weight_decay = 0;
  ASSERT_EQ(static_cast<float>(1 - with.lr * with.weight_decay), 1.0f);
  for (const AdamwFormat& format : {kFp32Master, kSplitMaster}) {
    Lab decayed(format, kN), plain(format, kN);
    double initial = 0;
    for (size_t i = 0; i < kN; ++i) {
      const float w = 0.01f + 0.02f * static_cast<float>(i) / kN;
      decayed.set_weight(i, w);
      plain.set_weight(i, w);
      initial += w;
    }
    std::mt19937 gen(7);
    std::normal_distribution<float> normal;
    std::vector<float> grad(kN);
    for (int t = 0; t < kSteps; ++t) {
      for (float& g : grad) g = normal(gen);
      decayed.step(grad, with);
      plain.step(grad, without);
    }
    const double arrived = (plain.mean_weight() - decayed.mean_weight()) * kN;
    const double expected = initial * (1 - std::pow(1 - 1.25e-8, kSteps));
    // Rounding noise of the mean: 2 runs · 2000 steps of ulp/√12 ≤ 5.4e-10 each, over √4096
    // elements: 5.3e-10 of 5e-7, .11 %; so 1 % is 9 σ.
    EXPECT_GT(arrived / expected, 0.99) << master_name(format.master);
    EXPECT_LT(arrived / expected, 1.01) << master_name(format.master);
  }
}

// How many of BF16's 128 mantissas does one step of pure decay leave where they are?
int frozen_mantissas(Dtype dtype, double beta2) {
  const AdamwFormat format{.exp_avg_sq = dtype};
  const size_t n = dtype == Dtype::kBF16 ? 128 : 1024;
  Lab lab(format, n);
  for (size_t i = 0; i < n; ++i) {
    lab.exp_avg_sq().set(i, 1.0f + static_cast<float>(i) / static_cast<float>(n));
  }
  const std::vector<std::byte> before = lab.exp_avg_sq().bytes();
  lab.steps(1, 0, {.beta2 = beta2});
  int frozen = 0;
  for (size_t i = 0; i < n; ++i) {
    frozen += before[2 * i] == lab.exp_avg_sq().bytes()[2 * i] &&
              before[2 * i + 1] == lab.exp_avg_sq().bytes()[2 * i + 1];
  }
  return frozen;
}

TEST(NearestDecay, FreezesWhereThePolicySaysSo) {
  EXPECT_EQ(frozen_mantissas(Dtype::kBF16, 0.95), 0);
  EXPECT_EQ(frozen_mantissas(Dtype::kBF16, 0.996), 0);
  EXPECT_EQ(frozen_mantissas(Dtype::kBF16, 0.997), 38);
  EXPECT_EQ(frozen_mantissas(Dtype::kBF16, 0.998), 122);
  EXPECT_EQ(frozen_mantissas(Dtype::kBF16, 0.999), 128);
  EXPECT_EQ(frozen_mantissas(Dtype::kUE6M10, 0.999), 0);
  EXPECT_GT(frozen_mantissas(Dtype::kUE6M10, 1 - 0x1p-12), 900);
}

// v after 20 000 steps of g = 1 should be 1. By nearest it stops where a step of (1−β2)(1 − v) is
// below half a BF16 step.
TEST(ConstantGradient, NearestStopsShortAndStochasticDoesNot) {
  struct Case {
    double beta2;
    double nearest;  // where v stops
  };
  for (const Case& c : {Case{0.95, 0.96}, Case{0.99, 0.80}, Case{0.999, 0.25}}) {
    const AdamwHyperparameters hyper{.beta2 = c.beta2};
    AdamwFormat format{.exp_avg_sq = Dtype::kBF16};
    Lab nearest(format, 1);
    nearest.steps(20'000, 1.0f, hyper);
    EXPECT_NEAR(nearest.mean_exp_avg_sq(), c.nearest, 0.006) << c.beta2;  // quoted to two digits

    constexpr size_t kN = 512;
    format.exp_avg_sq_rounding = Rounding::kStochastic;
    Lab stochastic(format, kN);
    // For v to forget its start: 8 time constants leave e^-8 = .03 %.
    stochastic.steps(static_cast<int64_t>(8 / (1 - c.beta2)), 1.0f, hyper);
    // Noise of v: rounding variance ≤ step²/4 = 2^-16 at v near 1 per rounding, over 1 − β2² for
    // those that are remembered; then the mean of 512.
    const double sigma = std::sqrt(0x1p-16 / (1 - c.beta2 * c.beta2) / kN);
    EXPECT_NEAR(stochastic.mean_exp_avg_sq(), 1.0, 4 * sigma + 4e-4) << c.beta2;
  }
}

// β2 is never rounded to BF16, where .999 and .9999 are one number.
TEST(Betas, AreNotStoredIn16Bits) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kUE6M10}) {
    std::vector<std::byte> bits[2];
    for (int i = 0; i < 2; ++i) {
      Lab lab({.exp_avg_sq = dtype}, 1);
      lab.steps(2, 1.0f, {.beta2 = i == 0 ? 0.999 : 0.9999});
      // v = (1−β2)(1+β2): within BF16's step.
      EXPECT_NEAR(lab.mean_exp_avg_sq(), i == 0 ? 1.999e-3 : 1.9999e-4,
                  (i == 0 ? 2e-3 : 2e-4) / 128);
      bits[i] = lab.exp_avg_sq().bytes();
    }
    EXPECT_NE(bits[0], bits[1]);
  }
}

}  // namespace
}  // namespace halfstep::kernels
