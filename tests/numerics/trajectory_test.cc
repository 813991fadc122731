// The weight's path under constant gradients against FP32 state (docs/numerics.md §9.5): what a
// biased exp_avg_sq does to training.
#include <gtest/gtest.h>

#include "halfstep/kernels/rounding_policy.h"
#include "lab.h"

namespace halfstep::kernels {
namespace {

AdamwHyperparameters hyper(double beta2) {
  return {.lr = 1e-3, .beta1 = 0.9, .beta2 = beta2, .weight_decay = 0};
}

AdamwFormat automatic(Dtype exp_avg_sq, double beta2) {
  return {.exp_avg = Dtype::kBF16,
          .exp_avg_sq = exp_avg_sq,
          .exp_avg_rounding =
              choose_state_rounding(Dtype::kBF16, 0.9, std::nullopt, false, "exp_avg").rounding,
          .exp_avg_sq_rounding =
              choose_state_rounding(exp_avg_sq, beta2, std::nullopt, false, "exp_avg_sq").rounding};
}

constexpr AdamwFormat kFp32;
constexpr AdamwFormat kNearestBf16{.exp_avg = Dtype::kBF16, .exp_avg_sq = Dtype::kBF16};

using Path = void (*)(Lab&, const AdamwHyperparameters&);
void constant(Lab& lab, const AdamwHyperparameters& h) { lab.steps(5000, 1.0f, h); }
void drop(Lab& lab, const AdamwHyperparameters& h) {
  lab.steps(500, 1.0f, h);
  lab.steps(5500, 0.1f, h);
}

double end_of(const AdamwFormat& format, double beta2, Path path, size_t n) {
  Lab lab(format, n);
  path(lab, hyper(beta2));
  return lab.mean_weight();
}

struct Figures {
  double beta2, fp32, nearest;  // to two digits after the point
};

// One element suffices where nothing is random.
void check_known_figures(Path path, const Figures& f) {
  EXPECT_NEAR(end_of(kFp32, f.beta2, path, 1), f.fp32, 0.006) << f.beta2;
  EXPECT_NEAR(end_of(kNearestBf16, f.beta2, path, 1), f.nearest, 0.006) << f.beta2;
}

// The share of the path by which format's automatic rounding is off, mean of 256 elements. The mean
// matters: an element's own noise is 2 % (half of v's 4.3 %), of the mean of 256, .13 %.
double automatic_error(Path path, Dtype exp_avg_sq, const Figures& f) {
  return end_of(automatic(exp_avg_sq, f.beta2), f.beta2, path, 256) / f.fp32 - 1;
}

TEST(Trajectory, ConstantGradient) {
  for (const Figures& f :
       {Figures{0.95, -5.00, -5.02}, Figures{0.99, -5.00, -5.46}, Figures{0.999, -5.00, -8.73}}) {
    check_known_figures(constant, f);
    EXPECT_LT(std::fabs(automatic_error(constant, Dtype::kBF16, f)), 0.03) << f.beta2;
    EXPECT_LT(std::fabs(automatic_error(constant, Dtype::kUE6M10, f)), 0.03) << f.beta2;
  }
}

TEST(Trajectory, GradientDropsTenfold) {
  for (const Figures& f :
       {Figures{0.95, -5.94, -5.91}, Figures{0.99, -5.67, -4.76}, Figures{0.999, -3.41, -1.58}}) {
    check_known_figures(drop, f);
    EXPECT_LT(std::fabs(automatic_error(drop, Dtype::kBF16, f)), 0.03) << f.beta2;
    EXPECT_LT(std::fabs(automatic_error(drop, Dtype::kUE6M10, f)), 0.03) << f.beta2;
  }
}

}  // namespace
}  // namespace halfstep::kernels
