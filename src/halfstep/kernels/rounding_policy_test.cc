#include "halfstep/kernels/rounding_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "halfstep/core/error.h"

namespace halfstep::kernels {
namespace {

using testing::HasSubstr;

Rounding automatic(Dtype dtype, double beta) {
  return choose_state_rounding(dtype, beta, std::nullopt, false, "exp_avg_sq").rounding;
}

TEST(RoundingPolicy, AutoIsNearestWhereItIsUnbiased) {
  EXPECT_EQ(automatic(Dtype::kBF16, 0.9), Rounding::kNearest);
  EXPECT_EQ(automatic(Dtype::kBF16, 0.96), Rounding::kNearest);
  EXPECT_EQ(automatic(Dtype::kBF16, 0.961), Rounding::kStochastic);
  EXPECT_EQ(automatic(Dtype::kBF16, 0.999), Rounding::kStochastic);
  EXPECT_EQ(automatic(Dtype::kUE6M10, 0.995), Rounding::kNearest);
  EXPECT_EQ(automatic(Dtype::kUE6M10, 0.9951), Rounding::kStochastic);
  EXPECT_EQ(automatic(Dtype::kF32, 0.9999), Rounding::kNearest);
}

TEST(RoundingPolicy, NearestByNameIsRefusedWhereItStalls) {
  const auto nearest = [](Dtype dtype, double beta, bool allow) {
    return choose_state_rounding(dtype, beta, Rounding::kNearest, allow, "exp_avg_sq");
  };
  EXPECT_EQ(nearest(Dtype::kBF16, 1 - 0x1p-8, false).rounding, Rounding::kNearest);
  EXPECT_EQ(nearest(Dtype::kUE6M10, 1 - 0x1p-11, false).rounding, Rounding::kNearest);
  EXPECT_THROW(nearest(Dtype::kBF16, 0.997, false), UsageError);
  EXPECT_THROW(nearest(Dtype::kUE6M10, 0.9996, false), UsageError);
  EXPECT_NO_THROW(nearest(Dtype::kF32, 0.9999, false));
  try {
    nearest(Dtype::kBF16, 0.999, false);
    FAIL() << "not refused";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), HasSubstr("exp_avg_sq rounded to nearest would stop moving"));
    EXPECT_THAT(e.hint(), HasSubstr("--allow-stalling-rounding"));
  }
  const RoundingChoice allowed = nearest(Dtype::kBF16, 0.999, true);
  EXPECT_EQ(allowed.rounding, Rounding::kNearest);
  EXPECT_THAT(allowed.reason, HasSubstr("stalls"));
}

TEST(RoundingPolicy, StochasticByNameIsTaken) {
  EXPECT_EQ(
      choose_state_rounding(Dtype::kBF16, 0.5, Rounding::kStochastic, false, "exp_avg").rounding,
      Rounding::kStochastic);
}

TEST(RoundingPolicy, AccumulationTurnsStochasticAbove32Contributions) {
  const auto choose = [](Dtype dtype, int64_t k) {
    return choose_accumulation_rounding(dtype, k, std::nullopt).rounding;
  };
  EXPECT_EQ(choose(Dtype::kBF16, 1), Rounding::kNearest);
  EXPECT_EQ(choose(Dtype::kBF16, 32), Rounding::kNearest);
  EXPECT_EQ(choose(Dtype::kBF16, 33), Rounding::kStochastic);
  EXPECT_EQ(choose(Dtype::kF32, 1000), Rounding::kNearest);
  EXPECT_EQ(choose_accumulation_rounding(Dtype::kBF16, 64, Rounding::kNearest).rounding,
            Rounding::kNearest);
  EXPECT_THAT(choose_accumulation_rounding(Dtype::kBF16, 8, std::nullopt).reason,
              HasSubstr("0.33 %"));
}

}  // namespace
}  // namespace halfstep::kernels
