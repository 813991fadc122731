// The same gradients whatever the way to them: fused or separate matmuls, the sink or autograd,
// any chunk of the loss, packed or separate documents, BF16 storage.
//
// Tolerance: two orders of the same additions differ by rounding alone, so half of what two
// independent implementations may differ by (reference_test.cc): 5e-6 of a tensor's norm.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "halfstep/core/error.h"
#include "reference_case.h"

namespace halfstep::model::testing {
namespace {

constexpr double kReordered = 5e-6;

struct Result {
  double loss = 0;
  std::vector<at::Tensor> grads;
};

Result run(const ReferenceCase& c, const std::vector<at::Tensor>& leaves, const Batch& batch,
           const ModelOptions& options = {}) {
  Model model(c.config, leaves, options);
  const at::Tensor loss = model.loss_sum(batch);
  loss.backward();
  Result result{.loss = loss.item<double>(), .grads = {}};
  for (const at::Tensor& leaf : leaves) {
    result.grads.push_back(leaf.grad().defined() ? leaf.grad().clone() : at::zeros_like(leaf));
    leaf.mutable_grad().reset();
  }
  return result;
}

void expect_close(const ReferenceCase& c, const Result& a, const Result& b,
                  double tolerance = kReordered) {
  EXPECT_NEAR(a.loss, b.loss, tolerance * std::abs(b.loss));
  for (size_t i = 0; i < a.grads.size(); ++i) {
    EXPECT_LE(relative_error(a.grads[i], b.grads[i]), tolerance) << c.parameters[i].name;
  }
}

// Adds products into FP32 buffers, as the optimizer's does; optionally refuses some parameters.
class BufferSink : public WeightGradientSink {
 public:
  explicit BufferSink(const std::vector<arch::Parameter>& parameters) : parameters_(parameters) {
    for (const auto& p : parameters) buffers.push_back(at::zeros(p.shape));
  }
  bool add_product(int64_t parameter, int64_t count, const at::Tensor& grad_output,
                   const at::Tensor& input) override {
    largest_count = std::max(largest_count, count);
    if (refused == parameter) return false;
    ++taken;
    int64_t column = 0;
    for (int64_t i = parameter; i < parameter + count; ++i) {
      const int64_t rows = parameters_[static_cast<size_t>(i)].rows();
      buffers[static_cast<size_t>(i)].addmm_(grad_output.narrow(1, column, rows).t(), input);
      column += rows;
    }
    EXPECT_EQ(column, grad_output.size(1));
    return true;
  }

  std::vector<at::Tensor> buffers;
  int64_t largest_count = 0, taken = 0, refused = -1;

 private:
  const std::vector<arch::Parameter>& parameters_;
};

class Equivalence : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, Equivalence, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param; });

TEST_P(Equivalence, AdjacentAndSeparateWeights) {
  const ReferenceCase c(GetParam());
  BufferSink fused_sink(c.parameters), separate_sink(c.parameters);
  run(c, load_leaves(c, at::kFloat, 1), c.batch, {.weight_gradients = &fused_sink});
  run(c, load_leaves(c, at::kFloat, 0), c.batch, {.weight_gradients = &separate_sink});
  EXPECT_EQ(fused_sink.largest_count, 3) << "adjacent q, k, v were not multiplied as one";
  EXPECT_EQ(separate_sink.largest_count, 1);
  expect_close(c, run(c, load_leaves(c, at::kFloat, 1), c.batch),
               run(c, load_leaves(c, at::kFloat, 0), c.batch));
}

TEST_P(Equivalence, SinkAndAutograd) {
  const ReferenceCase c(GetParam());
  const Result expected = run(c, load_leaves(c), c.batch);
  for (const int64_t alignment : {1, 0}) {
    BufferSink sink(c.parameters);
    Result got =
        run(c, load_leaves(c, at::kFloat, alignment), c.batch, {.weight_gradients = &sink});
    for (size_t i = 0; i < got.grads.size(); ++i) {
      const bool linear = c.parameters[i].kind == arch::ParameterKind::kLinear;
      if (linear) {
        EXPECT_EQ(got.grads[i].abs().max().item<float>(), 0) << c.parameters[i].name;
      }
      got.grads[i] += sink.buffers[i];  // a tied embedding has a share in both
    }
    expect_close(c, got, expected);
  }
}

TEST_P(Equivalence, RefusedProductsGoToAutograd) {
  const ReferenceCase c(GetParam());
  const Result expected = run(c, load_leaves(c), c.batch);
  for (size_t refused = 0; refused < c.parameters.size(); ++refused) {
    // One layer stands for all; the embedding's index is the tied head's.
    if (c.parameters[refused].name.starts_with("model.layers.1") ||
        c.parameters[refused].name.starts_with("model.layers.2") ||
        c.parameters[refused].shape.size() == 1) {
      continue;
    }
    BufferSink sink(c.parameters);
    sink.refused = static_cast<int64_t>(refused);
    Result got = run(c, load_leaves(c), c.batch, {.weight_gradients = &sink});
    for (size_t i = 0; i < got.grads.size(); ++i) got.grads[i] += sink.buffers[i];
    expect_close(c, got, expected);
  }
}

TEST_P(Equivalence, ChunksOfTheLoss) {
  const ReferenceCase c(GetParam());
  const int64_t tokens = c.batch.tokens.numel();
  const Result expected = run(c, load_leaves(c), c.batch, {.loss_chunk_tokens = tokens});
  for (const int64_t chunk : {int64_t{7}, tokens - 1, tokens + 1}) {
    expect_close(c, run(c, load_leaves(c), c.batch, {.loss_chunk_tokens = chunk}), expected);
    BufferSink sink(c.parameters);
    Result got =
        run(c, load_leaves(c), c.batch, {.weight_gradients = &sink, .loss_chunk_tokens = chunk});
    for (size_t i = 0; i < got.grads.size(); ++i) got.grads[i] += sink.buffers[i];
    expect_close(c, got, expected);
  }
}

// Documents of these lengths, once packed into rows with their own segments and positions, once
// each as a batch of its own.
TEST_P(Equivalence, PackedAndSeparateDocuments) {
  const ReferenceCase c(GetParam());
  const std::vector<int64_t> lengths{5, 5, 30, 1, 38, 1, 40};  // three rows of 40
  Batch packed = c.batch;
  packed.positions = at::empty_like(c.batch.tokens);
  packed.segment_starts = {0};
  Result separate;
  const std::vector<at::Tensor> leaves = load_leaves(c);
  for (const int64_t length : lengths) {
    const int64_t start = packed.segment_starts.back();
    packed.segment_starts.push_back(start + length);
    const at::Tensor positions = at::arange(length);
    packed.positions.view(-1).narrow(0, start, length).copy_(positions);
    const auto part = [&](const at::Tensor& x) {
      return x.reshape(-1).narrow(0, start, length).unsqueeze(0);
    };
    const Result one =
        run(c, leaves, {part(c.batch.tokens), part(c.batch.targets), positions.unsqueeze(0), {}});
    separate.loss += one.loss;
    for (size_t i = 0; i < one.grads.size(); ++i) {
      if (separate.grads.size() <= i) separate.grads.push_back(at::zeros_like(one.grads[i]));
      separate.grads[i] += one.grads[i];
    }
  }
  ASSERT_EQ(packed.segment_starts.back(), c.batch.tokens.numel());
  expect_close(c, run(c, leaves, packed), separate);
}

// FP32 compute from BF16 weights is FP32 compute from the same values, with gradients rounded once
// to BF16: half an ulp, at most 2⁻⁸ of each element, bounds the difference of the norms.
TEST_P(Equivalence, BF16StorageWithFP32Compute) {
  const ReferenceCase c(GetParam());
  const std::vector<at::Tensor> bf16 = load_leaves(c, at::kBFloat16);
  const std::vector<at::Tensor> fp32 = make_leaves(c.parameters, at::kFloat, 1);
  for (size_t i = 0; i < fp32.size(); ++i) fp32[i].detach().copy_(bf16[i].detach());
  const Result got = run(c, bf16, c.batch), expected = run(c, fp32, c.batch);
  EXPECT_EQ(got.loss, expected.loss);
  for (const at::Tensor& grad : got.grads) EXPECT_EQ(grad.scalar_type(), at::kBFloat16);
  // A tied embedding's two shares are rounded apart and their sum again.
  for (size_t i = 0; i < fp32.size(); ++i) {
    const double roundings = c.config.tie_embeddings && i == 0 ? 2 : 1;
    EXPECT_LE(relative_error(got.grads[i], expected.grads[i]), roundings * 0x1p-8 + kReordered)
        << c.parameters[i].name;
  }
}

// BF16 compute rounds every activation to 8 bits, an rms error of about 2⁻⁹: with the error count
// of reference_test.cc (38 roundings' worth) gradients agree within 38·2⁻⁹ ≈ 7 % of their norm, and
// not better than 2⁻¹⁰.
TEST_P(Equivalence, BF16Compute) {
  const ReferenceCase c(GetParam());
  const Result expected = run(c, load_leaves(c, at::kBFloat16), c.batch);
  const Result got = run(c, load_leaves(c, at::kBFloat16), c.batch, {.compute = at::kBFloat16});
  EXPECT_NEAR(got.loss, expected.loss, 0.01 * expected.loss);
  double worst = 0;
  for (size_t i = 0; i < got.grads.size(); ++i) {
    worst = std::max(worst, relative_error(got.grads[i], expected.grads[i]));
    EXPECT_LE(relative_error(got.grads[i], expected.grads[i]), 38 * 0x1p-9) << c.parameters[i].name;
  }
  EXPECT_GT(worst, 0x1p-10) << "the compute dtype had no effect";
}

TEST(Model, RefusesTokensAndTargetsOutsideTheVocabulary) {
  const ReferenceCase c("llama_untied");
  Model model(c.config, load_leaves(c), {});
  for (const int64_t bad : {int64_t{-1}, c.config.vocab_size}) {
    Batch batch = c.batch;
    batch.tokens = c.batch.tokens.clone();
    batch.tokens[1][3].fill_(bad);
    EXPECT_THROW(model.loss_sum(batch), InputError);
    batch = c.batch;
    batch.targets = c.batch.targets.clone();
    batch.targets[1][3].fill_(bad);
    EXPECT_THROW(model.loss_sum(batch), InputError);
  }
}

TEST(Model, WithoutTargetsLossAndGradientsAreZero) {
  const ReferenceCase c("qwen3");
  Batch batch = c.batch;
  batch.targets = at::full_like(c.batch.targets, -100);
  const Result got = run(c, load_leaves(c), batch);
  EXPECT_EQ(got.loss, 0);
  for (const at::Tensor& grad : got.grads) EXPECT_EQ(grad.abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace halfstep::model::testing
