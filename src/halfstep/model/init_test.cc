#include "halfstep/model/init.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "halfstep/core/bf16.h"

namespace halfstep::model {
namespace {

using arch::ParameterKind;

std::vector<float> initialised(const arch::Parameter& parameter, uint64_t seed) {
  std::vector<float> weight(static_cast<size_t>(parameter.numel()), -7.0f);
  initialise_parameter(parameter, Dtype::kF32, weight.data(), seed);
  return weight;
}

TEST(Init, NormsAreOneAndBiasesZero) {
  EXPECT_EQ(initialised({"n", {9}, ParameterKind::kNorm, 0}, 1), std::vector<float>(9, 1.0f));
  EXPECT_EQ(initialised({"b", {9}, ParameterKind::kBias, 0}, 1), std::vector<float>(9, 0.0f));
  std::vector<uint16_t> norm(3);
  initialise_parameter({"n", {3}, ParameterKind::kNorm, 0}, Dtype::kBF16, norm.data(), 1);
  EXPECT_EQ(norm, std::vector<uint16_t>(3, bf16_nearest(1.0f)));
}

TEST(Init, MatricesDependOnSeedAndNameAlone) {
  const arch::Parameter p{
      "model.layers.0.mlp.up_proj.weight", {64, 64}, ParameterKind::kLinear, .02};
  arch::Parameter other = p;
  other.name = "model.layers.1.mlp.up_proj.weight";
  EXPECT_EQ(initialised(p, 42), initialised(p, 42));
  EXPECT_NE(initialised(p, 42), initialised(p, 43));
  EXPECT_NE(initialised(p, 42), initialised(other, 42));
  std::vector<uint16_t> bf16(4096);
  initialise_parameter(p, Dtype::kBF16, bf16.data(), 42);
  const std::vector<float> fp32 = initialised(p, 42);
  // Rounded once from FP64, so a tie of the FP32 value may go the other way: one code.
  for (size_t i = 0; i < bf16.size(); ++i) EXPECT_NEAR(bf16[i], bf16_nearest(fp32[i]), 1);
}

TEST(Init, StandardDeviation) {
  const arch::Parameter p{"w", {256, 256}, ParameterKind::kEmbedding, 0.02};
  double sum = 0, squares = 0;
  for (const float v : initialised(p, 7)) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const double n = 65536;
  // 4 σ: of the mean .02/√n, of the standard deviation .02/√(2n).
  EXPECT_NEAR(sum / n, 0, 4 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 4 * 0.02 / std::sqrt(2 * n));
}

}  // namespace
}  // namespace halfstep::model
