// exp_avg_sq and the weight's path against FP64 over 10^4 steps (docs/numerics.md §9.4): β2 × kind
// of gradient × format × rounding.
//
// The bounds. One rounding of a stored v to a grid of spacing `step` makes an error of mean 0 and
// variance (x − below)(above − x) if stochastic: at most step²/4, and at most step·|x − stored|,
// since the value before the update lies on the grid. Nearest behaves like noise of variance
// step²/12 where the average moves by several steps at a time; that is the condition under which
// `auto` takes it. (Where no gradient comes for long, nearest is a fixed map of codes: it makes the
// same errors in every octave that v falls through, so those of L octaves add up to L times one
// octave's, not √L times; L² = Σ (1 + 2·octaves fallen so far).) A rounding error is remembered
// with weight β2 per step, so with V the variance of the error of v, V ← β2²·V + (variance of this
// rounding). The tests carry V along the FP64 path, for every element; `predicted` below is
// √mean(V/v²), the rms error of v relative to v. Then
//   rms  ≤ 1.25 · predicted   the slack: steps are those of the FP64 v, not of the noisy one
//   bias ≤ 4 · predicted / √elements + kBias
//   path ≤ 1.25 · (predicted/2 at its largest + that of exp_avg)   since Δw ∝ 1/√v
// each with FP32's own arithmetic on top: β2 and 1−β2 rounded to FP32 and four operations, at most
// 2^-24 each, over the 1/(1−β2) steps that are remembered.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>

#include "halfstep/kernels/rounding_policy.h"
#include "lab.h"

namespace halfstep::kernels {
namespace {

constexpr size_t kElements = 256;
constexpr int64_t kSteps = 10'000;
constexpr double kBeta1 = 0.9;
// What a user would not notice: half of it in the step size.
constexpr double kBias = 0.005;
// Below this, formats give up precision by design (ue6m10), so elements there are not compared.
constexpr double kCompared = kUe6m10FullPrecision;

enum class Gradients { kSteady, kDrop, kSpike, kSparse };

const char* gradients_name(Gradients g) {
  constexpr const char* kNames[] = {"steady", "drop", "spike", "sparse"};
  return kNames[static_cast<int>(g)];
}

struct Stored {
  Dtype dtype;
  Rounding rounding;
};

// Spacing of a format's grid at x > 0.
double grid_step(Dtype dtype, double x) {
  int exponent;
  std::frexp(x, &exponent);  // x in [2^(exponent−1), 2^exponent)
  return std::ldexp(1.0, exponent - 1 - mantissa_bits(dtype));
}

double stochastic_variance(double step, double before, double after) {
  return std::min(step * step / 4, step * std::fabs(after - before));
}

double nearest_variance(double step, double octaves_fallen) {
  return step * step / 12 * (1 + 2 * octaves_fallen);
}

struct Errors {
  double bias = 0, rms = 0, predicted = 0;  // of v, relative; the worst checkpoint of each
  double bias_over_bound = 0;               // the worst |bias| / its bound
  double path = 0;                          // rms error of w − w0 over rms of w − w0
};

// One stored format that follows the FP64 path.
class Follower {
 public:
  Follower(Stored stored, double beta2)
      : stored_(stored),
        beta2_(beta2),
        arithmetic_(6 * 0x1p-24 / (1 - beta2)),
        lab_({.exp_avg = stored.dtype == Dtype::kF32 ? Dtype::kF32 : Dtype::kBF16,
              .exp_avg_sq = stored.dtype,
              .exp_avg_sq_rounding = stored.rounding},
             kElements),
        variance_(kElements, 0),
        fall_from_(kElements, 0) {}

  void step(const std::vector<float>& grad, const AdamwHyperparameters& hyper,
            const std::vector<double>& v_before, const std::vector<double>& v) {
    lab_.step(grad, hyper);
    for (size_t i = 0; i < kElements; ++i) {
      if (v[i] == 0) continue;
      const double grid = grid_step(stored_.dtype, v[i]);
      const double gained = v[i] - beta2_ * v_before[i];
      if (gained > grid) fall_from_[i] = v[i];
      const double added =
          stored_.rounding == Rounding::kStochastic
              ? stochastic_variance(grid, v_before[i], v[i])
              : nearest_variance(grid, std::max(0.0, std::log2(fall_from_[i] / v[i])));
      variance_[i] = beta2_ * beta2_ * variance_[i] + added;
    }
  }

  void checkpoint(const std::vector<double>& v) {
    double bias = 0, squares = 0, predicted = 0;
    int64_t compared = 0;
    for (size_t i = 0; i < kElements; ++i) {
      if (v[i] < kCompared) continue;
      const double error = lab_.exp_avg_sq()[i] / v[i] - 1;
      bias += error;
      squares += error * error;
      predicted += variance_[i] / (v[i] * v[i]);
      ++compared;
    }
    const double n = static_cast<double>(compared);
    ASSERT_GT(compared, static_cast<int64_t>(kElements / 4));
    predicted = std::sqrt(predicted / n);
    const double bound = 4 * predicted / std::sqrt(n) + kBias + arithmetic_;
    errors_.bias_over_bound = std::max(errors_.bias_over_bound, std::fabs(bias / n) / bound);
    errors_.bias = std::max(errors_.bias, std::fabs(bias / n));
    errors_.rms = std::max(errors_.rms, std::sqrt(squares / n));
    errors_.predicted = std::max(errors_.predicted, predicted);
  }

  Errors finish(const std::vector<double>& w) {
    double error = 0, size = 0;
    for (size_t i = 0; i < kElements; ++i) {
      error += std::pow(lab_.weight(i) - w[i], 2);
      size += w[i] * w[i];
    }
    errors_.path = std::sqrt(error / size);
    return errors_;
  }

  double rms_bound() const { return 1.25 * errors_.predicted + arithmetic_; }
  double path_bound() const {
    // exp_avg, nearest in bf16: an error of rms 2^-8/√12·|m| at worst (mantissa just above a power
    // of two: 2^-7/√12), remembered for 1/(1−β1) steps; Σ m² per Σ g² is (1−β1)/(1+β1), and the
    // path of Σ m is that of Σ g.
    const double exp_avg =
        stored_.dtype == Dtype::kF32
            ? 0
            : 0x1p-7 / std::sqrt(12) / (1 - kBeta1) * std::sqrt((1 - kBeta1) / (1 + kBeta1));
    return 1.25 * (errors_.predicted / 2 + exp_avg) + arithmetic_;
  }
  const Stored& stored() const { return stored_; }

 private:
  Stored stored_;
  double beta2_, arithmetic_;
  Lab lab_;
  std::vector<double> variance_;
  std::vector<double> fall_from_;  // v when a gradient last moved it by a step of the grid or more
  Errors errors_;
};

// Runs the FP64 path and all followers beside it.
void run(Gradients kind, double beta2, std::vector<Follower*> followers, std::vector<double>& w) {
  const AdamwHyperparameters hyper{.lr = 1e-3, .beta1 = kBeta1, .beta2 = beta2, .weight_decay = 0};
  std::mt19937 gen(42);
  std::normal_distribution<float> normal;
  std::bernoulli_distribution rare(0.01);
  std::vector<float> grad(kElements);
  std::vector<double> m(kElements, 0), v(kElements, 0), v_before;
  w.assign(kElements, 0);
  double beta1_power = 1, beta2_power = 1;
  for (int64_t t = 1; t <= kSteps; ++t) {
    for (float& g : grad) {
      g = 0.01f * normal(gen);
      if (kind == Gradients::kDrop && t > kSteps / 2) g *= 0.1f;
      if (kind == Gradients::kSpike && t == kSteps / 2) g *= 1000;
      if (kind == Gradients::kSparse && !rare(gen)) g = 0;
    }
    v_before = v;
    beta1_power *= kBeta1;
    beta2_power *= beta2;
    for (size_t i = 0; i < kElements; ++i) {
      const double g = grad[i];
      m[i] = kBeta1 * m[i] + (1 - kBeta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      w[i] -=
          hyper.lr * (m[i] / (1 - beta1_power)) / (std::sqrt(v[i] / (1 - beta2_power)) + hyper.eps);
    }
    for (Follower* follower : followers) {
      follower->step(grad, hyper, v_before, v);
      // Around the change in the middle, and at the end.
      if (t % 2500 == 0 || t == kSteps / 2 + 100 || t == kSteps / 2 + 1000) {
        follower->checkpoint(v);
      }
    }
  }
}

class StateBias : public testing::TestWithParam<std::tuple<double, Gradients>> {};

TEST_P(StateBias, StaysWithinTheDerivedBounds) {
  const auto [beta2, kind] = GetParam();
  std::vector<std::unique_ptr<Follower>> followers;
  followers.push_back(std::make_unique<Follower>(Stored{Dtype::kF32, Rounding::kNearest}, beta2));
  for (Dtype dtype : {Dtype::kBF16, Dtype::kUE6M10}) {
    followers.push_back(std::make_unique<Follower>(Stored{dtype, Rounding::kStochastic}, beta2));
    followers.push_back(std::make_unique<Follower>(Stored{dtype, Rounding::kNearest}, beta2));
  }
  std::vector<Follower*> pointers;
  for (const auto& follower : followers) pointers.push_back(follower.get());
  std::vector<double> w;
  run(kind, beta2, pointers, w);

  for (const auto& follower : followers) {
    const Stored& stored = follower->stored();
    const Errors e = follower->finish(w);
    const bool automatic =
        choose_state_rounding(stored.dtype, beta2, std::nullopt, false, "exp_avg_sq").rounding ==
        stored.rounding;
    std::printf(
        "%-6s %.4f %-6s %-10s bias %8.5f (%.2f of bound) rms %8.5f (bound %8.5f) path %8.5f "
        "(bound %8.5f)%s\n",
        gradients_name(kind), beta2, dtype_name(stored.dtype).data(),
        rounding_name(stored.rounding).data(), e.bias, e.bias_over_bound, e.rms,
        follower->rms_bound(), e.path, follower->path_bound(), automatic ? "" : " not auto");
    SCOPED_TRACE(dtype_name(stored.dtype));
    SCOPED_TRACE(rounding_name(stored.rounding));
    if (automatic || stored.rounding == Rounding::kStochastic) {
      EXPECT_LT(e.bias_over_bound, 1);
      EXPECT_LT(e.rms, follower->rms_bound());
      EXPECT_LT(e.path, follower->path_bound());
    }
    // The test can see the fault: bf16 to nearest at .999 fails all three.
    if (stored.dtype == Dtype::kBF16 && stored.rounding == Rounding::kNearest && beta2 == 0.999) {
      EXPECT_GT(e.bias_over_bound, 1);
      EXPECT_GT(e.rms, follower->rms_bound());
      EXPECT_GT(e.path, follower->path_bound());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StateBias,
                         testing::Combine(testing::Values(0.95, 0.99, 0.999, 0.9999),
                                          testing::Values(Gradients::kSteady, Gradients::kDrop,
                                                          Gradients::kSpike, Gradients::kSparse)),
                         [](const auto& info) {
                           return std::string(gradients_name(std::get<1>(info.param))) + "_" +
                                  std::to_string(
                                      static_cast<int>(std::get<0>(info.param) * 10'000));
                         });

}  // namespace
}  // namespace halfstep::kernels
