#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "halfstep/core/error.h"
#include "halfstep/kernels/adamw.h"

namespace halfstep::kernels {
namespace {

TEST(AdamwScalars, FirstStepByHand) {
  const AdamwHyperparameters h{
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
  const AdamwScalars k = adamw_scalars(h, 1, 0.25);
  EXPECT_EQ(k.c1, static_cast<float>(1 - 0.9));
  EXPECT_EQ(k.b2, 0.999f);
  EXPECT_EQ(k.c2, static_cast<float>(1 - 0.999));
  EXPECT_EQ(k.q, static_cast<float>(1e-3 * 0.1));
  EXPECT_EQ(k.a, static_cast<float>(1e-3 / (1 - 0.9)));
  EXPECT_EQ(k.r, static_cast<float>(1 / std::sqrt(1 - 0.999)));
  EXPECT_EQ(k.eps, 1e-8f);
  EXPECT_EQ(k.s, 0.25f);
}

// β² as one multiplication and β³ = β·β², the lowest bit first: other orders round elsewhere.
TEST(AdamwScalars, PowersMultiplyTheLowestBitFirst) {
  const double b = 0.9;
  const double b2 = b * b, b4 = b2 * b2;
  EXPECT_EQ(adamw_scalars({.lr = 1, .beta1 = b}, 2, 1).a, static_cast<float>(1 / (1 - b2)));
  EXPECT_EQ(adamw_scalars({.lr = 1, .beta1 = b}, 7, 1).a,
            static_cast<float>(1 / (1 - b * b2 * b4)));
}

TEST(AdamwScalars, LargeStepsNeedNoBiasCorrection) {
  const AdamwScalars k = adamw_scalars({.lr = 0.5}, int64_t{1} << 40, 1);
  EXPECT_EQ(k.a, 0.5f);
  EXPECT_EQ(k.r, 1.0f);
}

// P18: 0.999 and 0.9999 are the same number in BF16.
TEST(AdamwScalars, NearbyBetasStayApart) {
  const AdamwScalars a = adamw_scalars({.beta2 = 0.999}, 2, 1);
  const AdamwScalars b = adamw_scalars({.beta2 = 0.9999}, 2, 1);
  EXPECT_NEAR(a.c2 / b.c2, 10, 1e-5);
  EXPECT_NEAR(b.r / a.r, std::sqrt(10), 1e-3);  // 1−β^2 ≈ 2(1−β), up to β2's 5e-4
  EXPECT_NE(a.b2, b.b2);
}

TEST(AdamwScalars, MaximizeNegatesTheGradientScaleAlone) {
  AdamwHyperparameters h;
  const AdamwScalars down = adamw_scalars(h, 3, 2);
  h.maximize = true;
  const AdamwScalars up = adamw_scalars(h, 3, 2);
  EXPECT_EQ(up.s, -down.s);
  EXPECT_EQ(up.a, down.a);
}

TEST(AdamwScalars, RefusesWhatIsNotFinite) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(adamw_scalars({.lr = kNaN}, 1, 1), UsageError);
  EXPECT_THROW(adamw_scalars({.lr = 1e39}, 1, 1), UsageError);  // no FP32
  EXPECT_THROW(adamw_scalars({.beta1 = 1}, 1, 1), UsageError);
  EXPECT_THROW(adamw_scalars({.beta2 = 1}, 1, 1), UsageError);
  EXPECT_THROW(adamw_scalars({}, 1, kNaN), UsageError);
  EXPECT_THROW(adamw_scalars({}, 0, 1), UsageError);
}

TEST(ClipCoefficient, ScalesDownOnlyAndOnlyIfAsked) {
  EXPECT_DOUBLE_EQ(clip_coefficient(5, 1), 1 / (5 + 1e-6));
  EXPECT_EQ(clip_coefficient(0.5, 1), 1);
  EXPECT_EQ(clip_coefficient(0, 1), 1);
  EXPECT_EQ(clip_coefficient(1e9, 0), 1);
}

}  // namespace
}  // namespace halfstep::kernels
