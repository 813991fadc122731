#include "halfstep/optim/adamw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "halfstep/kernels/implementation.h"
#include "halfstep/optim/test_support.h"

namespace halfstep::optim {
namespace {

using layout::MemoryClass;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::make_arenas;
using testing::parameter;
using testing::small_model;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Arenas, gradient buffer and optimizer of one run.
struct Trainer {
  Trainer(std::vector<arch::Parameter> parameters, const layout::LayoutOptions& layout_options,
          const AdamWOptions& options = {})
      : arenas(make_arenas(std::move(parameters), layout_options)),
        gradients(*arenas, {.fusion = false}),
        adamw(*arenas, options) {
    init_weights(*arenas, 11);
  }

  void begin() { gradients.begin_step(adamw.updates()); }

  // A whole step on testing::gradient's numbers.
  StepResult step(int64_t number, const StepOptions& options = {.lr = 1e-3}) {
    begin();
    testing::add_gradients(*arenas, gradients, number);
    return adamw.step(gradients, options);
  }

  std::unique_ptr<Arenas> arenas;
  GradientBuffer gradients;
  AdamW adamw;
};

// √Σ g² over parameters, of what is stored in the gradient buffers, in FP64.
double stored_norm(const Arenas& arenas) {
  double sum = 0;
  for (int64_t p = 0; p < std::ssize(arenas.parameters()); ++p) {
    const at::Tensor g = arenas.view(MemoryClass::kGradient, p).to(at::kDouble);
    sum += g.square().sum().item<double>();
  }
  return std::sqrt(sum);
}

// With beta1 = 0, exp_avg is the gradient that was applied. g = (3, 4), bound 1: (.6, .8); the
// 1e-6 in the clip factor takes off 2e-7, FP32 another 2⁻²⁴ for each of three operations.
TEST(AdamW, ClippingReachesTheAppliedGradientInEveryFormat) {
  for (const Dtype grad : {Dtype::kF32, Dtype::kBF16}) {
    for (const MasterMode master : {MasterMode::kFp32, MasterMode::kSplit, MasterMode::kNone}) {
      for (const double weight : {1.0, 8.0}) {
        Trainer run({parameter("w", {1, 2})}, {.format = {.gradient = grad, .master = master}},
                    {.beta1 = 0, .clip_grad = 1});
        run.begin();
        run.gradients.add(0, at::tensor({3.0f, 4.0f}).view({1, 2}) * weight);
        const StepResult result =
            run.adamw.step(run.gradients, {.lr = 1e-3, .loss_weight = weight});
        EXPECT_DOUBLE_EQ(result.grad_norm, 5);
        EXPECT_DOUBLE_EQ(result.clip_coefficient, 1 / (5 + 1e-6));
        const at::Tensor applied = run.arenas->view(MemoryClass::kExpAvg, 0);
        EXPECT_NEAR(applied[0].item<float>(), 0.6, 3e-7);
        EXPECT_NEAR(applied[1].item<float>(), 0.8, 4e-7);
        EXPECT_LE(applied.to(at::kDouble).norm().item<double>(), 1 + 1e-3);
        // The stored gradient itself is not rewritten.
        EXPECT_EQ(run.arenas->view(MemoryClass::kGradient, 0)[0].item<float>(), 3 * weight);
      }
    }
  }
}

TEST(AdamW, ClippingCanBeSwitchedOffAndTheNormIsStillMeasured) {
  Trainer clipped(small_model(), {.format = testing::kO2}, {.clip_grad = 0.1});
  Trainer free(small_model(), {.format = testing::kO2}, {.clip_grad = 0});
  const StepResult a = clipped.step(1), b = free.step(1);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
  EXPECT_GT(b.grad_norm, 0.1);
  EXPECT_LT(a.clip_coefficient, 1);
  EXPECT_EQ(b.clip_coefficient, 1);
  EXPECT_NE(testing::fingerprint(*clipped.arenas), testing::fingerprint(*free.arenas));
}

// FP32 and BF16 gradients side by side: same norm as FP64, up to the order of n additions.
TEST(AdamW, NormCountsEveryElementOfEveryFormatOnce) {
  Trainer run(small_model(), {.format = testing::kO2, .keep_fp32 = testing::is_norm});
  const StepResult result = run.step(1);
  const double expected = stored_norm(*run.arenas);
  EXPECT_NEAR(result.grad_norm, expected, 9000 * 0x1p-53 * expected);
  double sum = 0;
  for (const double s : run.adamw.gradient_sum_squares()) sum += s;
  EXPECT_DOUBLE_EQ(std::sqrt(sum), result.grad_norm);
}

// Micro-batch A: 1 token with loss 4; B: 3 tokens with mean loss 1. The mean is 1.75; the mean of
// the means would be 2.5. Here the "loss" is its own gradient.
TEST(AdamW, TheGradientIsAMeanOverTokensHoweverTheyAreCut) {
  const auto norm = [](const std::vector<std::vector<float>>& micro_batches) {
    Trainer run({parameter("w", {1, 1})}, {.format = testing::kBaseline}, {.clip_grad = 1});
    run.begin();
    for (const auto& losses : micro_batches) {
      float sum = 0;
      for (const float loss : losses) sum += loss;
      run.gradients.add(0, at::full({1, 1}, sum));
    }
    return run.adamw.step(run.gradients, {.lr = 1e-3, .loss_weight = 4}).grad_norm;
  };
  EXPECT_DOUBLE_EQ(norm({{4}, {1, 1, 1}}), 1.75);
  EXPECT_DOUBLE_EQ(norm({{4, 1}, {1, 1}}), 1.75);
  EXPECT_DOUBLE_EQ(norm({{4, 1, 1, 1}}), 1.75);
}

TEST(AdamW, NonFiniteGradientsChangeNothingAtAll) {
  for (const double bad : {kNan, kInf, -kInf}) {
    Trainer run(small_model(), {.format = testing::kO2Split, .keep_fp32 = testing::is_norm});
    run.step(1);
    const uint64_t before = testing::fingerprint(*run.arenas);
    run.begin();
    testing::add_gradients(*run.arenas, run.gradients, 2);
    run.arenas->view(MemoryClass::kGradient, 3)[6].fill_(bad);   // the FP32 norm
    run.arenas->view(MemoryClass::kGradient, 4)[77].fill_(bad);  // a BF16 weight
    const StepResult result = run.adamw.step(run.gradients, {.lr = 1e-3});
    EXPECT_TRUE(result.skipped);
    EXPECT_EQ(result.bad_parameter, 3);
    EXPECT_FALSE(std::isfinite(result.grad_norm));
    EXPECT_EQ(testing::fingerprint(*run.arenas), before);
    EXPECT_EQ(run.adamw.update_counts(), (UpdateCounts{.common = 1}));
    // The next step is what it would have been.
    Trainer other(small_model(), {.format = testing::kO2Split, .keep_fp32 = testing::is_norm});
    other.step(1);
    EXPECT_FALSE(run.step(3).skipped);
    other.step(3);
    EXPECT_EQ(testing::fingerprint(*run.arenas), testing::fingerprint(*other.arenas));
  }
}

// A norm of 0 is no error: the step runs, and matrices decay by lr·wd of themselves.
TEST(AdamW, AZeroGradientDecaysAndAMissingOneDoesNot) {
  Trainer run(small_model(), {.format = testing::kAllFp32}, {.weight_decay = 0.5});
  std::vector<at::Tensor> before;
  for (const at::Tensor& w : run.arenas->weights()) before.push_back(w.detach().clone());
  for (int step = 0; step < 10; ++step) {
    run.begin();
    for (const int64_t p : {0, 3}) {
      run.gradients.add(p, at::zeros(run.arenas->parameters()[p].shape));
    }
    const StepResult result = run.adamw.step(run.gradients, {.lr = 0.1});
    EXPECT_EQ(result.grad_norm, 0);
    EXPECT_FALSE(result.skipped);
  }
  const auto& after = run.arenas->weights();
  // Ten times w −= q·w in FP32 against w·.95¹⁰: two roundings each.
  const at::Tensor expected = before[0].to(at::kDouble) * std::pow(0.95, 10);
  EXPECT_TRUE((after[0].detach().to(at::kDouble) - expected)
                  .abs()
                  .le(expected.abs() * (20 * 0x1p-23))
                  .all()
                  .item<bool>());
  EXPECT_TRUE(after[3].equal(before[3]));  // a norm is not decayed
  for (const int64_t p : {1, 2, 4, 5}) EXPECT_TRUE(after[p].equal(before[p]));
  EXPECT_THAT(std::vector<int64_t>(run.adamw.updates().begin(), run.adamw.updates().end()),
              ElementsAre(10, 0, 0, 10, 0, 0));
}

TEST(AdamW, OnlyMatricesAreDecayed) {
  const Trainer run(small_model(), {}, {.weight_decay = 0.1});
  const auto& groups = run.adamw.decay_groups();
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].name, "decay");
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_THAT(groups[0].parameters, ElementsAre(0, 1, 4));
  EXPECT_EQ(groups[0].num_elements, 131 * 24 + 32 * 24 + 200 * 24);
  EXPECT_EQ(groups[1].name, "no decay");
  EXPECT_EQ(groups[1].weight_decay, 0);
  EXPECT_THAT(groups[1].parameters, ElementsAre(2, 3, 5));
  EXPECT_EQ(groups[1].num_elements, 32 + 7 + 24);
}

// Stochastic rounding everywhere, weights included; also a skip and a parameter with another t.
uint64_t noisy_run() {
  Trainer run(small_model(), {.format = testing::kO2NoMaster, .keep_fp32 = testing::is_norm},
              {.beta1 = 0.99, .beta2 = 0.999, .seed = 5});
  EXPECT_EQ(run.adamw.formats()[0].format.exp_avg_rounding, Rounding::kStochastic);
  run.adamw.set_update_counts({.common = 7, .exceptions = {{"model.norm.weight", 2}}});
  for (int64_t step = 0; step < 5; ++step) run.step(step, {.lr = 1e-2, .loss_weight = 3});
  return testing::fingerprint(*run.arenas);
}

TEST(AdamW, BitsDoNotDependOnKernelsOrThreads) {
  const std::string chosen(kernels::chosen_implementation());
  const int threads = ThreadPool::global().num_threads();
  const uint64_t expected = noisy_run();
  int ran = 0;
  for (const auto& implementation : kernels::implementations()) {
    if (!implementation.supported) continue;
    kernels::force_implementation(implementation.name);
    for (const int n : {1, 2, 3}) {
      ThreadPool::set_global_threads(n);
      EXPECT_EQ(noisy_run(), expected) << implementation.name << ", threads: " << n;
      ++ran;
    }
  }
  kernels::force_implementation(chosen);
  ThreadPool::set_global_threads(threads);
  EXPECT_GE(ran, 3);  // the reference at least
}

TEST(AdamW, NoiseDependsOnTheSeed) {
  const auto run = [](uint64_t seed) {
    Trainer made(small_model(), {.format = testing::kO2}, {.seed = seed});
    made.step(1);
    return testing::fingerprint(*made.arenas, {MemoryClass::kExpAvgSq});
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

// Ten steps, then the counts go into a new optimizer over a copy of the state: step 11 is the same.
TEST(AdamW, ResumesFromStateAndCounts) {
  Trainer whole(small_model(), {.format = testing::kO2Split});
  Trainer resumed(small_model(), {.format = testing::kO2Split});
  for (int64_t step = 0; step < 10; ++step) {
    whole.begin();
    for (int64_t p = step % 2; p < std::ssize(whole.arenas->parameters()); ++p) {
      whole.gradients.add(p, testing::gradient(*whole.arenas, p, step));
    }
    whole.adamw.step(whole.gradients, {.lr = 1e-3});
  }
  const UpdateCounts counts = whole.adamw.update_counts();
  EXPECT_EQ(counts.common, 10);
  EXPECT_THAT(counts.exceptions,
              ElementsAre(std::pair<const std::string, int64_t>("model.embed_tokens.weight", 5)));
  for (const MemoryClass c : layout::kMemoryClasses) {
    if (whole.arenas->flat(c, 0).defined()) {
      resumed.arenas->flat(c, 0).copy_(whole.arenas->flat(c, 0));
    }
  }
  resumed.adamw.set_update_counts(counts);
  EXPECT_EQ(resumed.adamw.update_counts(), counts);
  whole.step(10);
  resumed.step(10);
  EXPECT_EQ(testing::fingerprint(*resumed.arenas), testing::fingerprint(*whole.arenas));
  // Counting from 0 again would show.
  resumed.adamw.set_update_counts({});
  whole.step(11);
  resumed.step(11);
  EXPECT_NE(testing::fingerprint(*resumed.arenas), testing::fingerprint(*whole.arenas));
}

TEST(AdamW, CountsOfAnotherModelAreRefused) {
  Trainer run(small_model(), {});
  EXPECT_THAT(testing::message_of<InputError>([&] {
                run.adamw.set_update_counts({.common = 3, .exceptions = {{"lm_head.weight", 2}}});
              }),
              HasSubstr("'lm_head.weight'"));
  EXPECT_THAT(testing::message_of<InputError>([&] { run.adamw.set_update_counts({.common = -1}); }),
              HasSubstr("is -1"));
  EXPECT_EQ(run.adamw.update_counts(), UpdateCounts{});
}

TEST(AdamW, HealthReadsAndDoesNotWrite) {
  Trainer with(small_model(), {.format = testing::kO2, .keep_fp32 = testing::is_norm});
  Trainer without(small_model(), {.format = testing::kO2, .keep_fp32 = testing::is_norm});
  for (int64_t step = 0; step < 3; ++step) {
    const StepResult result = with.step(step, {.lr = 1e-3, .health = true});
    ASSERT_TRUE(result.health.has_value());
    EXPECT_GT(result.health->sampled, 0);
    EXPECT_FALSE(without.step(step).health.has_value());
  }
  EXPECT_EQ(testing::fingerprint(*with.arenas), testing::fingerprint(*without.arenas));
}

// The whole of the step but the sign of the gradient, so bit for bit in every format.
TEST(AdamW, MaximizingIsMinimizingTheNegative) {
  for (const layout::StorageFormat& format :
       {testing::kAllFp32, testing::kO2, testing::kO2Split, testing::kO2NoMaster}) {
    Trainer up(small_model(), {.format = format}, {.maximize = true});
    Trainer down(small_model(), {.format = format});
    Trainer same_sign(small_model(), {.format = format});
    for (int64_t step = 0; step < 5; ++step) {
      up.step(step);
      same_sign.step(step);
      down.begin();
      for (int64_t p = 0; p < std::ssize(down.arenas->parameters()); ++p) {
        down.gradients.add(p, -testing::gradient(*down.arenas, p, step));
      }
      down.adamw.step(down.gradients, {.lr = 1e-3});
    }
    EXPECT_EQ(testing::fingerprint(*up.arenas), testing::fingerprint(*down.arenas));
    EXPECT_NE(testing::fingerprint(*up.arenas), testing::fingerprint(*same_sign.arenas));
  }
}

// One large gradient, then small ones: the maximum stays where exp_avg_sq falls, in FP32 and in the
// 16-bit formats, and steps stay as small as it says.
TEST(AdamW, AmsgradKeepsTheLargestSecondMoment) {
  for (layout::StorageFormat format : {testing::kAllFp32, testing::kO2NoMaster}) {
    format.amsgrad = true;
    // A half of 1 squared has no bits to round, so the maximum (to nearest) and exp_avg_sq start
    // equal.
    const AdamWOptions options{.beta2 = 0.5, .weight_decay = 0, .clip_grad = 0};
    Trainer run({parameter("w", {4, 64})}, {.format = format}, options);
    format.amsgrad = false;
    Trainer plain({parameter("w", {4, 64})}, {.format = format}, options);
    const auto moved_by = [](Trainer& trainer, double g) {
      const at::Tensor before = trainer.arenas->weights()[0].detach().to(at::kDouble);
      trainer.begin();
      trainer.gradients.add(0, at::full({4, 64}, g));
      trainer.adamw.step(trainer.gradients, {.lr = 1e-1});
      return (trainer.arenas->weights()[0].detach().to(at::kDouble) - before)
          .abs()
          .mean()
          .item<double>();
    };
    moved_by(run, 1);
    moved_by(plain, 1);
    const at::Tensor largest = run.arenas->view(MemoryClass::kMaxExpAvgSq, 0).clone();
    EXPECT_TRUE(largest.equal(run.arenas->view(MemoryClass::kExpAvgSq, 0)));
    double with = 0, without = 0;
    for (int step = 0; step < 20; ++step) {
      with = moved_by(run, 1e-2);
      without = moved_by(plain, 1e-2);
    }
    EXPECT_TRUE(run.arenas->view(MemoryClass::kMaxExpAvgSq, 0).equal(largest));
    // exp_avg_sq has fallen from .5 to 1e-4, and what the update divides by to .014 of what it was.
    EXPECT_TRUE(run.arenas->view(MemoryClass::kExpAvgSq, 0).lt(1e-3).all().item<bool>());
    EXPECT_LT(with, 0.1 * without);
    moved_by(run, 2);
    EXPECT_TRUE(run.arenas->view(MemoryClass::kMaxExpAvgSq, 0).gt(largest).all().item<bool>());
  }
}

// v = .05·g² of g = 1000 is far above ue6m10's 2046: every element of every parameter but the kept
// ones saturates, once each.
TEST(AdamW, SaturatedElementsAreCounted) {
  Trainer run(small_model(), {.format = testing::kO2Split, .keep_fp32 = testing::is_norm},
              {.beta2 = 0.95, .clip_grad = 0});
  run.begin();
  for (int64_t p = 0; p < std::ssize(run.arenas->parameters()); ++p) {
    run.gradients.add(p, at::full(run.arenas->parameters()[p].shape, 1000.0f));
  }
  const StepResult result = run.adamw.step(run.gradients, {.lr = 1e-3});
  EXPECT_EQ(result.saturated, 131 * 24 + 32 * 24 + 32 + 200 * 24);
  EXPECT_GT(result.milliseconds, 0);
}

TEST(AdamW, OptionsThatCannotWorkAreRefused) {
  const auto arenas = make_arenas(small_model(), {.format = testing::kO2});
  const auto ue6m10 = make_arenas(small_model(), {.format = testing::kO2Split});
  const auto error = [&](const AdamWOptions& options, Arenas& a) {
    return testing::message_of<UsageError>([&] { AdamW(a, options); });
  };
  EXPECT_THAT(error({.beta1 = 1}, *arenas), HasSubstr("--adam-beta1 is 1"));
  EXPECT_THAT(error({.beta2 = -0.1}, *arenas), HasSubstr("--adam-beta2 is -0.1"));
  EXPECT_THAT(error({.eps = kNan}, *arenas), HasSubstr("--adam-eps"));
  EXPECT_THAT(error({.weight_decay = -1}, *arenas), HasSubstr("--weight-decay"));
  EXPECT_THAT(error({.clip_grad = -1}, *arenas), HasSubstr("--clip-grad"));
  EXPECT_THAT(error({.eps = 1e-9}, *ue6m10), HasSubstr("at least 1e-8"));
  EXPECT_THAT(error({.beta2 = 0.9999, .state_rounding = Rounding::kNearest}, *arenas),
              HasSubstr("--allow-stalling-rounding"));
  EXPECT_EQ(AdamW(*arenas, {.beta2 = 0.9999,
                            .state_rounding = Rounding::kNearest,
                            .allow_stalling_rounding = true})
                .formats()[0]
                .format.exp_avg_sq_rounding,
            Rounding::kNearest);
  EXPECT_THAT(AdamW(*ue6m10, {.clip_grad = 0}).warnings(), ElementsAre(HasSubstr("ue6m10")));
  EXPECT_TRUE(AdamW(*ue6m10, {}).warnings().empty());

  Trainer run(small_model(), {});
  const uint64_t before = testing::fingerprint(*run.arenas);
  for (const StepOptions& options : {StepOptions{.lr = kNan}, StepOptions{.lr = -1},
                                     StepOptions{.lr = 1e-3, .loss_weight = 0}}) {
    EXPECT_THROW(run.step(1, options), UsageError);
    EXPECT_EQ(testing::fingerprint(*run.arenas), before);
  }
}

}  // namespace
}  // namespace halfstep::optim
