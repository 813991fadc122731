// The rounding noise as noise (docs/numerics.md §5): unbiased, and without correlation between
// neighbours, parameters, steps, purposes and micro-batches.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "halfstep/core/hash.h"
#include "halfstep/kernels/vector_ops.h"
#include "lab.h"

namespace halfstep::kernels {
namespace {

constexpr size_t kN = 1 << 20;

NoiseStream stream(std::string_view name = "model.layers.0.mlp.up_proj.weight") {
  return {.seed = 1234, .name_hash = fnv1a(name), .step = 17, .purpose = NoisePurpose::kExpAvgSq};
}

// Which of kN roundings of 1 + 2^-10 went up to 1 + 2^-7, as 1 or 0.
std::vector<double> rounded_up(const NoiseStream& noise) {
  const std::vector<float> x(kN, 1.0f + 0x1p-10f);
  std::vector<uint16_t> codes(kN);
  convert(codes.data(), Dtype::kBF16, x.data(), Dtype::kF32, kN, Rounding::kStochastic,
          {.stream = noise});
  std::vector<double> up(kN);
  for (size_t i = 0; i < kN; ++i) {
    EXPECT_TRUE(codes[i] == 0x3F80 || codes[i] == 0x3F81);
    up[i] = codes[i] == 0x3F81;
  }
  return up;
}

double mean(const std::vector<double>& x) {
  double sum = 0;
  for (double value : x) sum += value;
  return sum / static_cast<double>(x.size());
}

// Of x[i] with y[i + lag].
double correlation(const std::vector<double>& x, const std::vector<double>& y, size_t lag = 0) {
  const double mean_x = mean(x), mean_y = mean(y);
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i + lag < x.size(); ++i) {
    xy += (x[i] - mean_x) * (y[i + lag] - mean_y);
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    yy += (y[i + lag] - mean_y) * (y[i + lag] - mean_y);
  }
  return xy / std::sqrt(xx * yy);
}

// An estimated correlation of independent values has σ = 1/√2^20 = .00098; .005 is 5 σ.
constexpr double kUncorrelated = 0.005;

TEST(Noise, RoundsUpWithTheProbabilityOfTheFraction) {
  const double p = 0.125;
  const double sigma = std::sqrt(p * (1 - p) / kN);
  EXPECT_NEAR(mean(rounded_up(stream())), p, 4 * sigma);
}

// The whole 16 bits: mean, variance and the lowest fraction that can be seen.
TEST(Noise, Is16UniformBits) {
  double sum = 0, squares = 0;
  int64_t zeros = 0;
  for (size_t i = 0; i < kN; ++i) {
    const double r = stream().bits16(static_cast<int64_t>(i));
    sum += r;
    squares += r * r;
    zeros += r == 0;
  }
  const double variance = (65'536.0 * 65'536.0 - 1) / 12;
  const double m = sum / kN;
  EXPECT_NEAR(m, 32'767.5, 4 * std::sqrt(variance / kN));
  // The variance of a uniform sample's variance is (1.8 − 1)·variance²/n.
  EXPECT_NEAR(squares / kN - m * m, variance, 4 * variance * std::sqrt(0.8 / kN));
  EXPECT_NEAR(static_cast<double>(zeros), kN / 65'536.0, 4 * std::sqrt(kN / 65'536.0));
}

TEST(Noise, NeighboursAreUncorrelated) {
  const std::vector<double> up = rounded_up(stream());
  for (size_t lag : {1, 2, 3, 4, 7, 8, 9, 16, 64, 512, 4096}) {
    EXPECT_LT(std::fabs(correlation(up, up, lag)), kUncorrelated) << lag;
  }
}

TEST(Noise, StreamsAreUncorrelated) {
  const std::vector<double> base = rounded_up(stream());
  EXPECT_EQ(rounded_up(stream()), base);
  const auto expect_apart = [&](const NoiseStream& other, const char* what) {
    const std::vector<double> up = rounded_up(other);
    EXPECT_LT(std::fabs(correlation(base, up)), kUncorrelated) << what;
    EXPECT_LT(std::fabs(correlation(base, up, 1)), kUncorrelated) << what;
  };
  expect_apart(stream("model.layers.1.mlp.up_proj.weight"), "parameters");
  NoiseStream other = stream();
  other.step += 1;
  expect_apart(other, "steps");
  for (NoisePurpose purpose : {NoisePurpose::kExpAvg, NoisePurpose::kWeight,
                               NoisePurpose::kGradient, NoisePurpose::kInit}) {
    other = stream();
    other.purpose = purpose;
    expect_apart(other, "purposes");
  }
  other = stream();
  other.micro_step = 1;
  expect_apart(other, "micro-batches");
  other = stream();
  other.seed += 1;
  expect_apart(other, "seeds");
  other.seed = stream().seed + (uint64_t{1} << 32);
  expect_apart(other, "upper halves of seeds");
}

// The streams as the step uses them: exp_avg, exp_avg_sq and weight of two parameters with equal
// contents after one step, each rounded from one value.
TEST(Noise, StatesOfAStepAreUncorrelated) {
  constexpr size_t kElements = 1 << 18;
  const AdamwFormat format{.weight = Dtype::kBF16,
                           .master = MasterMode::kNone,
                           .exp_avg = Dtype::kBF16,
                           .exp_avg_sq = Dtype::kBF16,
                           .exp_avg_rounding = Rounding::kStochastic,
                           .exp_avg_sq_rounding = Rounding::kStochastic};
  Lab a(format, kElements, 1.0f, "a"), b(format, kElements, 1.0f, "b");
  std::vector<std::vector<double>> signals;
  const auto record = [&](Lab& lab) {
    for (int which = 0; which < 3; ++which) {
      std::vector<double> x(kElements);
      for (size_t i = 0; i < kElements; ++i) {
        x[i] = which == 0 ? lab.weight(i) : which == 1 ? lab.exp_avg()[i] : lab.exp_avg_sq()[i];
      }
      signals.push_back(std::move(x));
    }
  };
  for (Lab* lab : {&a, &b}) {
    lab->steps(1, 0.7f, {.lr = 1e-3});
    record(*lab);
  }
  // σ = 1/√2^18 = .00195; 15 pairs.
  for (size_t i = 0; i < signals.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_LT(std::fabs(correlation(signals[i], signals[j])), 4 * 0.00195) << i << " " << j;
    }
  }
}

// Initial weights: z has mean 0 and variance 1, an excess kurtosis of −1.2/8 (a sum of 8 uniform
// numbers), and no correlation between neighbours or parameters.
TEST(InitialWeights, AreNearlyNormalAndIndependent) {
  const auto draw = [](std::string_view name) {
    NoiseStream s = stream(name);
    s.step = 0;
    s.purpose = NoisePurpose::kInit;
    std::vector<float> z(kN);
    init_normal(z.data(), Dtype::kF32, kN, 1, {.stream = s});
    return std::vector<double>(z.begin(), z.end());
  };
  const std::vector<double> z = draw("a");
  double second = 0, fourth = 0, largest = 0;
  for (double value : z) {
    second += value * value;
    fourth += value * value * value * value;
    largest = std::max(largest, std::fabs(value));
  }
  EXPECT_NEAR(mean(z), 0, 4 / std::sqrt(kN));
  EXPECT_NEAR(second / kN, 1, 4 * std::sqrt(2.0 / kN));
  EXPECT_NEAR(fourth / kN, 3 - 1.2 / 8, 4 * std::sqrt(96.0 / kN));
  EXPECT_LT(largest, 4.9);
  EXPECT_LT(std::fabs(correlation(z, z, 1)), kUncorrelated);
  EXPECT_LT(std::fabs(correlation(z, draw("b"))), kUncorrelated);
}

}  // namespace
}  // namespace halfstep::kernels
