#include "halfstep/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace halfstep::train {
namespace {

// Each expected value is the closed form worked out by hand; one cos or pow and three operations in
// FP64 leave a few ulp.
constexpr double kRelative = 1e-15 * 8;

void expect_lr(const Schedule& schedule, int64_t iteration, double expected) {
  EXPECT_NEAR(schedule.at(iteration), expected, kRelative * schedule.lr)
      << "iteration " << iteration;
}

TEST(Schedule, WarmUpIsLinearFromZero) {
  const Schedule s{.lr = 3e-3, .style = DecayStyle::kConstant, .warmup_iters = 20};
  expect_lr(s, 0, 0);
  expect_lr(s, 5, 7.5e-4);
  expect_lr(s, 20, 3e-3);
  expect_lr(s, 21, 3e-3);
  expect_lr(s, 1'000'000, 3e-3);
}

TEST(Schedule, CosineFallsFromLrToMinLr) {
  const Schedule s{.lr = 1e-3,
                   .min_lr = 1e-4,
                   .style = DecayStyle::kCosine,
                   .warmup_iters = 10,
                   .decay_iters = 110};
  expect_lr(s, 10, 1e-3);
  expect_lr(s, 35, 1e-4 + 9e-4 * 0.5 * (1 + std::sqrt(0.5)));  // a quarter: cos(π/4)
  expect_lr(s, 60, 5.5e-4);                                    // half-way: the mean
  expect_lr(s, 110, 1e-4);
  expect_lr(s, 111, 1e-4);
}

TEST(Schedule, LinearFallsFromLrToMinLr) {
  const Schedule s{.lr = 1, .min_lr = 0.2, .style = DecayStyle::kLinear, .decay_iters = 8};
  expect_lr(s, 0, 1);
  expect_lr(s, 2, 0.8);
  expect_lr(s, 8, 0.2);
  expect_lr(s, 9, 0.2);
}

TEST(Schedule, WsdIsStableAndThenFallsInItsStyle) {
  Schedule s{.lr = 1,
             .min_lr = 0,
             .style = DecayStyle::kWsd,
             .warmup_iters = 4,
             .decay_iters = 100,
             .wsd_decay_iters = 40};
  const std::pair<WsdDecayStyle, double> half_way[] = {
      {WsdDecayStyle::kExponential, std::sqrt(2.0) - 1},
      {WsdDecayStyle::kLinear, 0.5},
      {WsdDecayStyle::kCosine, 0.5},
      {WsdDecayStyle::kMinusSqrt, 1 - std::sqrt(0.5)}};
  for (const auto& [style, expected] : half_way) {
    s.wsd_style = style;
    expect_lr(s, 4, 1);
    expect_lr(s, 60, 1);
    expect_lr(s, 80, expected);
    expect_lr(s, 100, 0);
    expect_lr(s, 101, 0);
  }
}

TEST(Schedule, TheReferenceScriptsFractionIsOfTheDecayIterations) {
  Options options;
  options.lr = 1.25e-6;
  options.min_lr = 1.25e-7;
  options.lr_decay_style = DecayStyle::kCosine;
  options.train_iters = 15;
  options.lr_warmup_fraction = 0.01;
  const Schedule s = make_schedule(options);
  EXPECT_DOUBLE_EQ(s.warmup_iters, 0.15);
  expect_lr(s, 0, 0);
  const double ratio = (7 - 0.15) / (15 - 0.15);
  expect_lr(s, 7, 1.25e-7 + 1.125e-6 * 0.5 * (1 + std::cos(M_PI * ratio)));
  expect_lr(s, 15, 1.25e-7);
}

}  // namespace
}  // namespace halfstep::train
