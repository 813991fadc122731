// Logits, loss and gradients against `transformers`, in FP32.
//
// Tolerance. With u = 2⁻²⁴, one dot product of n random terms has an rms error of about u·√(n/6)
// relative to its own rms (partial sums grow as √k), less where the library sums in lanes: n ≤ 131
// here, so ≤ 4.7 u = 2.8e-7. A gradient near the input has passed 3 layers of 4 matmuls forward and
// 8 backward plus some 10 elementwise roundings each; as independent errors they add to
// √(3·12)·4.7 u + √(3·30)·u ≈ 38 u = 2.2e-6 relative to the tensor's norm. Both sides err,
// √2: 3.2e-6. Sums over tokens that cancel (a norm's or bias's gradient) lose up to another factor
// of 3: 1e-5.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "halfstep/model/kv_cache.h"
#include "reference_case.h"

namespace halfstep::model::testing {
namespace {

constexpr double kTolerance = 1e-5;

class Reference : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, Reference, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param; });

TEST_P(Reference, NamesAndShapesAreThoseOfTransformers) {
  const ReferenceCase c(GetParam());
  std::set<std::string> expected;
  for (const auto& [name, tensor] : c.reference) {
    if (name.starts_with("grad.")) expected.insert(name.substr(5));
  }
  std::set<std::string> got;
  for (const auto& p : c.parameters) {
    EXPECT_TRUE(got.insert(p.name).second) << p.name << " is listed twice";
    ASSERT_TRUE(expected.contains(p.name)) << p.name;
    EXPECT_EQ(c.reference.at("grad." + p.name).sizes(), at::IntArrayRef(p.shape)) << p.name;
  }
  EXPECT_EQ(got, expected);
}

TEST_P(Reference, LogitsLossAndEveryGradient) {
  const ReferenceCase c(GetParam());
  const std::vector<at::Tensor> leaves = load_leaves(c);
  Model model(c.config, leaves, {});
  EXPECT_LE(relative_error(model.logits(c.batch), c.reference.at("logits")), kTolerance);

  const at::Tensor loss = model.loss_sum(c.batch);
  EXPECT_LE(relative_error(loss, c.reference.at("loss")), kTolerance);
  loss.backward();
  double worst = 0;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const std::string& name = c.parameters[i].name;
    ASSERT_TRUE(leaves[i].grad().defined()) << name;
    const double error = relative_error(leaves[i].grad(), c.reference.at("grad." + name));
    EXPECT_LE(error, kTolerance) << name;
    worst = std::max(worst, error);
  }
  RecordProperty("worst_gradient_error", std::to_string(worst));
}

TEST_P(Reference, CachedGenerationGivesTheSameLogits) {
  const ReferenceCase c(GetParam());
  Model model(c.config, load_leaves(c), {});
  const at::Tensor tokens = c.batch.tokens[0];
  const at::Tensor expected = c.reference.at("logits")[0];
  KvCache cache(c.config, tokens.size(0), at::kFloat);
  constexpr int64_t kPrompt = 7;
  EXPECT_LE(
      relative_error(model.next_logits(tokens.narrow(0, 0, kPrompt), cache), expected[kPrompt - 1]),
      kTolerance);
  for (int64_t i = kPrompt; i < tokens.size(0); ++i) {
    EXPECT_LE(relative_error(model.next_logits(tokens.narrow(0, i, 1), cache), expected[i]),
              kTolerance)
        << "token " << i;
  }
  EXPECT_EQ(cache.num_tokens, tokens.size(0));
}

}  // namespace
}  // namespace halfstep::model::testing
