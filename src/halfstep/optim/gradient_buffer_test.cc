#include "halfstep/optim/gradient_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "halfstep/optim/memory_counter.h"
#include "halfstep/optim/test_support.h"

namespace halfstep::optim {
namespace {

using layout::MemoryClass;
using ::testing::HasSubstr;
using testing::make_arenas;
using testing::parameter;
using testing::small_model;

// A gradient sum as FP64.
at::Tensor sum_of(const Arenas& arenas, int64_t p) {
  return arenas.view(MemoryClass::kGradient, p).to(at::kDouble).view(arenas.parameters()[p].shape);
}

bool all_within(const at::Tensor& difference, const at::Tensor& bound) {
  return difference.abs().le(bound).all().item<bool>();
}

// A step of `micro_batches` contributions to every parameter, against the same sum in FP64. Each
// addition is off by at most half an ulp of its result, 2^-(mantissa bits + 1) of it, and no
// partial sum exceeds Σ|g|; so does the rounding of the first contribution.
void expect_sum_within_bound(const layout::StorageFormat& format, int64_t micro_batches,
                             at::ScalarType type) {
  const auto arenas = make_arenas(small_model(), {.format = format});
  GradientBuffer gradients(*arenas, {.fusion = false, .micro_batches = micro_batches});
  const std::vector<int64_t> updates(arenas->parameters().size(), 0);
  for (const int64_t step : {0, 1}) {  // the second one must not see the first
    gradients.begin_step(updates);
    for (int64_t k = 0; k < micro_batches; ++k) {
      gradients.begin_micro_batch(k);
      for (int64_t p = 0; p < std::ssize(arenas->parameters()); ++p) {
        gradients.add(p, testing::gradient(*arenas, p, step * 100 + k).to(type));
      }
    }
    gradients.finish_step();
    const double half_ulp = format.gradient == Dtype::kF32 ? 0x1p-24 : 0x1p-8;
    for (int64_t p = 0; p < std::ssize(arenas->parameters()); ++p) {
      at::Tensor sum = at::zeros(arenas->parameters()[p].shape, at::kDouble),
                 magnitude = sum.clone();
      for (int64_t k = 0; k < micro_batches; ++k) {
        const at::Tensor g = testing::gradient(*arenas, p, step * 100 + k).to(type).to(at::kDouble);
        sum += g;
        magnitude += g.abs();
      }
      EXPECT_TRUE(all_within(sum_of(*arenas, p) - sum, magnitude * (half_ulp * micro_batches)));
    }
  }
}

TEST(GradientBuffer, SumsMicroBatchesLikeFp64) {
  for (const int64_t k : {1, 2, 8}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(k);
      expect_sum_within_bound(testing::kBaseline, k, type);
      expect_sum_within_bound(testing::kO2, k, type);
    }
  }
}

// The rms error of a sum of K = 8 random BF16 gradients, rounded to nearest (docs/numerics.md §7:
// .39 %). Addition k makes an error of variance between ulp²/12 (anything may be rounded off) and
// ulp²/8 (one bit is), where ulp² is 2⁻¹⁴·.46 of a partial sum's square (mantissas uniform in the
// logarithm) and that is k/8 of the sum's: Σ k = 35 for k = 2…8. So between .32 % and .39 %; an rms
// over n = 10⁵ elements is known to 4/√(2n) = 1 %.
TEST(GradientBuffer, Bf16AccumulationHasTheExpectedError) {
  const auto arenas = make_arenas({parameter("w", {100, 1000})}, {.format = testing::kO2});
  GradientBuffer gradients(*arenas, {.fusion = false, .micro_batches = 8});
  at::Tensor sum = at::zeros({100, 1000}, at::kDouble);
  for (int64_t k = 0; k < 8; ++k) {
    const at::Tensor g = testing::gradient(*arenas, 0, k).to(at::kBFloat16);
    gradients.add(0, g);
    sum += g.to(at::kDouble);
  }
  const double rms = (sum_of(*arenas, 0) - sum).square().mean().sqrt().item<double>();
  const double relative = rms / sum.square().mean().sqrt().item<double>();
  const double ulp_squared = 0x1p-14 * 0.462 * 35 / 8;
  EXPECT_GE(relative, 0.99 * std::sqrt(ulp_squared / 12));
  EXPECT_LE(relative, 1.01 * std::sqrt(ulp_squared / 8));
}

// 1000 contributions of .01 to 4096 elements: nearest stalls at 4; stochastic has no bias. One
// addition at a partial sum in [2^e, 2^(e+1)) has variance at most x·(ulp − x), ulp = 2^(e−7): over
// the way from 0 to 10 that is .17 + less below, so σ of an element is under .46.
TEST(GradientBuffer, StochasticAccumulationHasNoBiasAndFreshNoisePerMicroBatch) {
  constexpr int64_t kElements = 4096;
  const auto run = [](std::optional<Rounding> rounding) {
    const auto arenas = make_arenas({parameter("w", {1, kElements})}, {.format = testing::kO2});
    GradientBuffer gradients(*arenas,
                             {.fusion = false, .micro_batches = 1000, .rounding = rounding});
    const std::vector<int64_t> updates{41};
    gradients.begin_step(updates);
    const at::Tensor g = at::full({1, kElements}, 0.01, at::kBFloat16);
    for (int64_t k = 0; k < 1000; ++k) {
      gradients.begin_micro_batch(k);
      gradients.add(0, g);
    }
    return sum_of(*arenas, 0);
  };
  const double truth = 1000.0 * at::full({}, 0.01, at::kBFloat16).item<double>();
  EXPECT_TRUE(run(Rounding::kNearest).eq(4.0).all().item<bool>());
  const at::Tensor sums = run(std::nullopt);  // auto: above 32 contributions
  EXPECT_NEAR(sums.mean().item<double>(), truth, 4 * 0.46 / std::sqrt(kElements));
  // The same noise in each micro-batch would leave the mean, but some elements would take every
  // step up and others none.
  const double rms = (sums - truth).square().mean().sqrt().item<double>();
  EXPECT_LT(rms, 0.46 * (1 + 4 / std::sqrt(2.0 * kElements)));
  EXPECT_GT(rms, 0.1);
}

TEST(GradientBuffer, HooksTakeGradientsAndDropThem) {
  const auto arenas = make_arenas(small_model(), {.format = testing::kO2});
  init_weights(*arenas, 3);
  const at::Tensor& w = arenas->weights()[1];
  {
    GradientBuffer gradients(*arenas, {.fusion = false});
    const at::Tensor x = testing::gradient(*arenas, 1, 1).to(at::kBFloat16);
    (w * x).sum().backward();
    EXPECT_FALSE(w.grad().defined());
    EXPECT_TRUE(arenas->view(MemoryClass::kGradient, 1).view({32, 24}).equal(x));
    for (int64_t p = 0; p < std::ssize(arenas->parameters()); ++p) {
      EXPECT_EQ(gradients.contributed(p), p == 1);
    }
    gradients.begin_step(std::vector<int64_t>(arenas->parameters().size(), 0));
    EXPECT_FALSE(gradients.contributed(1));
  }
  // Without a buffer autograd works as ever.
  w.sum().backward();
  EXPECT_TRUE(w.grad().defined());
}

// Used in the last micro-batch only, and never: no error, and the sums are those of FP64.
TEST(GradientBuffer, ParametersMayMissMicroBatches) {
  for (const auto& format : {testing::kBaseline, testing::kO2}) {
    const auto arenas =
        make_arenas(small_model(), {.format = format, .keep_fp32 = testing::is_norm});
    GradientBuffer gradients(*arenas, {.fusion = false, .micro_batches = 4});
    const std::vector<int64_t> updates(arenas->parameters().size(), 0);
    // A step before leaves values everywhere.
    gradients.begin_step(updates);
    testing::add_gradients(*arenas, gradients, 0);
    gradients.begin_step(updates);
    for (int64_t k = 0; k < 4; ++k) {
      gradients.begin_micro_batch(k);
      arenas->weights()[0].mul(2).sum().backward();
      if (k == 3) arenas->weights()[1].mul(0.5).sum().backward();
    }
    gradients.finish_step();
    EXPECT_TRUE(sum_of(*arenas, 0).eq(8).all().item<bool>());
    EXPECT_TRUE(sum_of(*arenas, 1).eq(0.5).all().item<bool>());
    for (const int64_t p : {2, 3, 4, 5}) {
      EXPECT_FALSE(gradients.contributed(p));
      EXPECT_TRUE(sum_of(*arenas, p).eq(0).all().item<bool>());
    }
  }
}

// q, k and v of one matmul: two adjacent, then padding (a bias) between.
std::vector<arch::Parameter> stacked_model() {
  return {parameter("q", {16, 40}), parameter("k", {5, 40}), parameter("v", {7, 40})};
}

struct Factors {
  at::Tensor grad_output, input;
};

Factors factors(int64_t tokens, int64_t out, int64_t in, int64_t seed) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {at::randn({tokens, out}, generator), at::randn({tokens, in}, generator)};
}

// Sum over T tokens and K micro-batches in two orders: T·K additions and as many rounded products,
// each within 2⁻²⁴ of the sum of magnitudes; both sides are compared with FP64.
TEST(GradientBuffer, FusionOnlyChangesTheOrderOfTheSum) {
  constexpr int64_t kTokens = 50, kMicroBatches = 3;
  for (const bool fusion : {true, false}) {
    const auto arenas = make_arenas(stacked_model(), {.format = testing::kBaseline});
    GradientBuffer gradients(*arenas, {.fusion = fusion, .micro_batches = kMicroBatches});
    const std::vector<int64_t> updates(3, 0);
    for (const int64_t step : {0, 1}) {
      gradients.begin_step(updates);
      at::Tensor sum = at::zeros({28, 40}, at::kDouble), magnitude = sum.clone();
      for (int64_t k = 0; k < kMicroBatches; ++k) {
        const Factors f = factors(kTokens, 28, 40, 10 * step + k);
        // In the second micro-batch only `k` and `v`, so that the third overwrites none of them and
        // the parameters disagree on what comes first.
        const at::Tensor g = f.grad_output.to(at::kDouble), x = f.input.to(at::kDouble);
        if (k == 0) {
          EXPECT_TRUE(gradients.add_product(1, 2, f.grad_output.narrow(1, 16, 12), f.input));
          sum.narrow(0, 16, 12) += g.narrow(1, 16, 12).t().mm(x);
          magnitude.narrow(0, 16, 12) += g.narrow(1, 16, 12).abs().t().mm(x.abs());
        } else {
          EXPECT_TRUE(gradients.add_product(0, 3, f.grad_output, f.input));
          sum += g.t().mm(x);
          magnitude += g.abs().t().mm(x.abs());
        }
      }
      const at::Tensor bound = magnitude * (0x1p-24 * 2 * kTokens * kMicroBatches);
      int64_t row = 0;
      for (int64_t p = 0; p < 3; ++p) {
        const int64_t rows = arenas->parameters()[p].rows();
        EXPECT_TRUE(
            all_within(sum_of(*arenas, p) - sum.narrow(0, row, rows), bound.narrow(0, row, rows)));
        row += rows;
      }
      EXPECT_TRUE(sum_of(*arenas, 0).abs().max().item<double>() > 1);  // something was summed
    }
    // The padding between parameters stays zero.
    const layout::Arena& arena = arenas->layout().arenas[0];
    const at::Tensor flat = arenas->flat(MemoryClass::kGradient, 0);
    for (const layout::Placement& p : arena.placements) {
      const int64_t end = p.offset + p.numel;
      const int64_t next = (end + layout::kAlignment - 1) / layout::kAlignment * layout::kAlignment;
      EXPECT_TRUE(flat.narrow(0, end, next - end).eq(0).all().item<bool>());
    }
  }
}

// Without fusion the largest product exists as a tensor; with it, never.
TEST(GradientBuffer, FusionSavesTheTransientOfTheLargestWeight) {
  MemoryCounter& counter = MemoryCounter::instance();
  const auto transient = [&](bool fusion) {
    const auto arenas = make_arenas({parameter("small", {64, 32}), parameter("large", {512, 32})},
                                    {.format = testing::kBaseline});
    GradientBuffer gradients(*arenas, {.fusion = fusion});
    const Factors small = factors(16, 64, 32, 1), large = factors(16, 512, 32, 2);
    counter.begin_phase(Phase::kBackward);
    counter.reset_peaks();
    const int64_t live = counter.live_bytes();
    for (int k = 0; k < 2; ++k) {
      EXPECT_TRUE(gradients.add_product(0, 1, small.grad_output, small.input));
      EXPECT_TRUE(gradients.add_product(1, 1, large.grad_output, large.input));
    }
    return counter.peak_bytes(Phase::kBackward) - live;
  };
  EXPECT_EQ(transient(true), 0);
  EXPECT_EQ(transient(false), 4 * 512 * 32);
}

TEST(GradientBuffer, ProductsThatCannotActAreLeftToAutograd) {
  const Factors f = factors(4, 16, 40, 1);
  const auto baseline = make_arenas(stacked_model(), {.format = testing::kBaseline});
  GradientBuffer fused(*baseline, {});
  EXPECT_TRUE(fused.can_fuse(at::kFloat));
  EXPECT_FALSE(fused.can_fuse(at::kBFloat16));
  EXPECT_FALSE(fused.add_product(0, 1, f.grad_output.to(at::kBFloat16), f.input.to(at::kBFloat16)));
  const auto o2 = make_arenas(stacked_model(), {.format = testing::kO2});
  GradientBuffer unfused(*o2, {.fusion = false});
  EXPECT_FALSE(unfused.add_product(0, 1, f.grad_output, f.input));
  EXPECT_FALSE(fused.contributed(0) || unfused.contributed(0));
  EXPECT_THAT(testing::message_of<UsageError>([&] { GradientBuffer(*o2, {.fusion = true}); }),
              HasSubstr("bf16 | add --no-gradient-accumulation-fusion"));
}

// The head by its factors during backward, the embedding by the hook at its end: one sum.
TEST(GradientBuffer, ATiedEmbeddingCollectsBothUses) {
  const auto arenas = make_arenas({parameter("embed", {20, 8})}, {.format = testing::kAllFp32});
  init_weights(*arenas, 5);
  GradientBuffer gradients(*arenas, {});
  const at::Tensor tokens = at::arange(0, 20, 2);
  const Factors head = factors(10, 20, 8, 9);
  at::Tensor sum = at::zeros({20, 8}, at::kDouble);
  for (int k = 0; k < 2; ++k) {
    EXPECT_TRUE(gradients.add_product(0, 1, head.grad_output, head.input));
    at::embedding(arenas->weights()[0], tokens).mul(3).sum().backward();
    sum += head.grad_output.to(at::kDouble).t().mm(head.input.to(at::kDouble));
    sum.index_add_(0, tokens, at::full({10, 8}, 3.0, at::kDouble));
  }
  // 22 additions in FP32 of values whose magnitudes sum to less than 100.
  EXPECT_TRUE(all_within(sum_of(*arenas, 0) - sum, at::full_like(sum, 22 * 0x1p-24 * 100)));
}

TEST(GradientBuffer, MicroBatchesBeyondTheNoiseAddressAreRefused) {
  const auto o2 = make_arenas(small_model(), {.format = testing::kO2});
  GradientBuffer noisy(*o2, {.fusion = false, .micro_batches = 64});
  EXPECT_NO_THROW(noisy.begin_micro_batch(65535));
  EXPECT_THAT(testing::message_of<UsageError>([&] { noisy.begin_micro_batch(65536); }),
              HasSubstr("micro-batch 65536"));
  GradientBuffer nearest(*o2, {.fusion = false, .micro_batches = 8});
  EXPECT_NO_THROW(nearest.begin_micro_batch(65536));
}

}  // namespace
}  // namespace halfstep::optim
