// Twenty steps against torch's own fused AdamW (FP32 weights, FP32 state, the same gradients): an
// independent implementation of the same formulas, also with amsgrad and maximize.
#include <ATen/ATen.h>
#include <ATen/ops/_fused_adamw.h>
#include <gtest/gtest.h>

#include <cmath>

#include "halfstep/optim/adamw.h"
#include "halfstep/optim/test_support.h"

namespace halfstep::optim {
namespace {

using layout::MemoryClass;

constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kWeightDecay = 0.1, kLr = 1e-3;
constexpr int64_t kSteps = 20;

struct Variant {
  bool amsgrad = false;
  bool maximize = false;
};

// torch's side: copies of all weights, and state that starts at zero.
struct TorchAdamW {
  explicit TorchAdamW(const Arenas& arenas) {
    for (const at::Tensor& w : arenas.weights()) {
      weights.push_back(w.detach().clone());
      exp_avg.push_back(at::zeros_like(weights.back()));
      exp_avg_sq.push_back(at::zeros_like(weights.back()));
      max_exp_avg_sq.push_back(at::zeros_like(weights.back()));
      steps.push_back(at::zeros({}, at::kFloat));
    }
  }

  void step(const Arenas& arenas, const std::vector<at::Tensor>& gradients,
            const Variant& variant) {
    for (size_t p = 0; p < weights.size(); ++p) {
      steps[p].add_(1);  // torch's kernel expects the count of the step that it takes
      const double decay = arenas.parameters()[p].decayed() ? kWeightDecay : 0;
      std::vector<at::Tensor> largest;
      if (variant.amsgrad) largest.push_back(max_exp_avg_sq[p]);
      at::_fused_adamw_({weights[p]}, {gradients[p]}, {exp_avg[p]}, {exp_avg_sq[p]}, largest,
                        {steps[p]}, kLr, kBeta1, kBeta2, decay, kEps, variant.amsgrad,
                        variant.maximize);
    }
  }

  // What the update divides by.
  const at::Tensor& denominator(size_t p, const Variant& variant) const {
    return variant.amsgrad ? max_exp_avg_sq[p] : exp_avg_sq[p];
  }

  std::vector<at::Tensor> weights, exp_avg, exp_avg_sq, max_exp_avg_sq, steps;
};

at::Tensor ulp(const at::Tensor& x) {
  return at::exp2(at::floor(at::log2(x.abs().clamp_min(0x1p-126))) - 23);
}

// docs/numerics.md §2: |Δw| ≤ 4 ulp(update) + 2 ulp(w) + |w|·2⁻²⁵ in one step from equal states:
// the decayed weight and the new one are rounded on both sides, half an ulp each, and torch rounds
// 1 − lr·wd. An update's ulp is that of its terms, before m and
// g cancel: lr · max(|m|, |g|) / d.
struct Tolerance {
  at::Tensor update, weight;
};

Tolerance tolerance_of_step(const at::Tensor& w, const at::Tensor& g, const at::Tensor& m,
                            const at::Tensor& v, int64_t t) {
  const at::Tensor d = (v / (1 - std::pow(kBeta2, t))).sqrt() + kEps;
  const at::Tensor update = kLr / (1 - std::pow(kBeta1, t)) * at::maximum(m.abs(), g.abs()) / d;
  return {.update = 4 * ulp(update), .weight = 2 * ulp(w) + w.abs() * 0x1p-25};
}

struct Comparison {
  double worst = 0;   // largest share of the tolerance that a difference took
  double moved = 0;   // largest |w − w at start|: that something happened at all
  bool held = false;  // amsgrad: some exp_avg_sq fell below its maximum, which then counted
};

// `restart`: each step starts torch from our state; else both run freely, and errors of one step
// live on in m and v, at most undiminished: after t steps an update is off by at most t times, in
// ulps of the largest gradient so far.
Comparison compare(bool restart, const Variant& variant = {}) {
  layout::StorageFormat format = testing::kAllFp32;
  format.amsgrad = variant.amsgrad;
  const auto arenas = testing::make_arenas(testing::small_model(), {.format = format});
  init_weights(*arenas, 3);
  GradientBuffer gradients(*arenas, {});
  AdamW adamw(*arenas, {.beta1 = kBeta1,
                        .beta2 = kBeta2,
                        .eps = kEps,
                        .weight_decay = kWeightDecay,
                        .maximize = variant.maximize,
                        .clip_grad = 0});
  TorchAdamW torch(*arenas);
  const TorchAdamW start(*arenas);
  std::vector<at::Tensor> allowed, largest;
  for (const at::Tensor& w : torch.weights) {
    allowed.push_back(at::zeros_like(w, at::kDouble));
    largest.push_back(at::zeros_like(w));
  }

  Comparison result;
  for (int64_t t = 1; t <= kSteps; ++t) {
    std::vector<at::Tensor> g;
    gradients.begin_step(adamw.updates());
    for (int64_t p = 0; p < std::ssize(arenas->parameters()); ++p) {
      g.push_back(testing::gradient(*arenas, p, t));
      gradients.add(p, g.back());
      const auto ours = [&](MemoryClass c) { return arenas->view(c, p).view(g[p].sizes()); };
      if (restart) {
        torch.weights[p].copy_(ours(MemoryClass::kWeight));
        torch.exp_avg[p].copy_(ours(MemoryClass::kExpAvg));
        torch.exp_avg_sq[p].copy_(ours(MemoryClass::kExpAvgSq));
        if (variant.amsgrad) torch.max_exp_avg_sq[p].copy_(ours(MemoryClass::kMaxExpAvgSq));
        allowed[p].zero_();
        largest[p].zero_();
      }
      largest[p] = at::maximum(largest[p], g[p].abs());
    }
    adamw.step(gradients, {.lr = kLr});
    std::vector<at::Tensor> before;
    for (const at::Tensor& w : torch.weights) before.push_back(w.clone());
    torch.step(*arenas, g, variant);
    for (size_t p = 0; p < g.size(); ++p) {
      const auto f64 = [](const at::Tensor& x) { return x.detach().to(at::kDouble); };
      const at::Tensor size = f64(at::maximum(before[p].abs(), torch.weights[p].abs()));
      const Tolerance step = tolerance_of_step(size, f64(largest[p]), f64(torch.exp_avg[p]),
                                               f64(torch.denominator(p, variant)), t);
      allowed[p] += step.update * (restart ? 1.0 : static_cast<double>(t)) + step.weight;
      const at::Tensor difference = (f64(arenas->weights()[p]) - f64(torch.weights[p])).abs();
      result.worst = std::max(result.worst, (difference / allowed[p]).max().item<double>());
      if (variant.amsgrad) {
        result.held =
            result.held || torch.max_exp_avg_sq[p].gt(torch.exp_avg_sq[p]).any().item<bool>();
      }
      const at::Tensor moved = (f64(torch.weights[p]) - f64(start.weights[p])).abs();
      result.moved = std::max(result.moved, moved.max().item<double>());
    }
  }
  return result;
}

TEST(AdamWAgainstTorch, EachStepFromEqualStatesAgrees) {
  const Comparison result = compare(/*restart=*/true);
  EXPECT_LE(result.worst, 1);
  EXPECT_GT(result.moved, 5 * kLr);
  RecordProperty("share_of_tolerance", std::to_string(result.worst));
}

TEST(AdamWAgainstTorch, TwentyStepsAgree) {
  const Comparison result = compare(/*restart=*/false);
  EXPECT_LE(result.worst, 1);
  EXPECT_GT(result.moved, 5 * kLr);
  RecordProperty("share_of_tolerance", std::to_string(result.worst));
}

TEST(AdamWAgainstTorch, AmsgradAndMaximizeAgree) {
  for (const Variant& variant : {Variant{.amsgrad = true}, Variant{.maximize = true},
                                 Variant{.amsgrad = true, .maximize = true}}) {
    for (const bool restart : {true, false}) {
      const Comparison result = compare(restart, variant);
      EXPECT_LE(result.worst, 1) << variant.amsgrad << variant.maximize << restart;
      EXPECT_GT(result.moved, 5 * kLr);
      EXPECT_EQ(result.held, variant.amsgrad);
    }
  }
}

}  // namespace
}  // namespace halfstep::optim
