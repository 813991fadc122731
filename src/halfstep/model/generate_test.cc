#include "halfstep/model/generate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "halfstep/core/error.h"

namespace halfstep::model {
namespace {

const std::vector<float> kLogits{0.0f, 2.0f, -1.0f, 1.0f};

std::map<int64_t, double> frequencies(const SamplingOptions& options, int64_t draws) {
  std::map<int64_t, double> share;
  for (int64_t i = 0; i < draws; ++i) share[sample_token(kLogits, options, i)] += 1.0 / draws;
  return share;
}

TEST(SampleToken, GreedyTakesTheLikeliest) {
  EXPECT_EQ(sample_token(kLogits, {.temperature = 0}, 0), 1);
  EXPECT_EQ(sample_token(kLogits, {.temperature = 5, .top_k = 1}, 3), 1);
}

TEST(SampleToken, FrequenciesAreThoseOfTheSoftmax) {
  constexpr int64_t kDraws = 20000;
  for (const double temperature : {0.7, 2.0}) {
    double total = 0;
    for (const float logit : kLogits) total += std::exp(logit / temperature);
    auto share = frequencies({.temperature = temperature, .seed = 3}, kDraws);
    for (int64_t id = 0; id < 4; ++id) {
      const double p = std::exp(kLogits[static_cast<size_t>(id)] / temperature) / total;
      EXPECT_NEAR(share[id], p, 4 * std::sqrt(p * (1 - p) / kDraws)) << id;  // 4 σ
    }
  }
}

TEST(SampleToken, TopKLeavesTheOthersOut) {
  const auto share = frequencies({.temperature = 10, .top_k = 2, .seed = 3}, 2000);
  EXPECT_EQ(share.size(), 2u);
  EXPECT_TRUE(share.contains(1) && share.contains(3));
}

TEST(SampleToken, RefusesBadOptions) {
  EXPECT_THROW(sample_token(kLogits, {.temperature = -1}, 0), UsageError);
  EXPECT_THROW(sample_token(kLogits, {.temperature = NAN}, 0), UsageError);
  EXPECT_THROW(sample_token(kLogits, {.top_k = -1}, 0), UsageError);
}

struct SmallModel {
  SmallModel() {
    for (const auto& p : arch::parameter_list(config)) parameters.push_back(at::randn(p.shape));
  }
  arch::ModelConfig config{.family = arch::Family::kLlama,
                           .num_layers = 2,
                           .hidden_size = 16,
                           .ffn_hidden_size = 24,
                           .num_attention_heads = 2,
                           .num_query_groups = 1,
                           .head_dim = 8,
                           .vocab_size = 11,
                           .max_position_embeddings = 64};
  std::vector<at::Tensor> parameters;
};

// Greedy generation with the cache equals taking the likeliest token of the whole pass each time.
TEST(Generate, GreedyEqualsTheWholePass) {
  SmallModel small;
  Model model(small.config, small.parameters, {});
  std::vector<int64_t> text{1, 5, 2}, streamed;
  const auto continuation = generate(model, text, {.max_new_tokens = 12},
                                     [&](int64_t token) { streamed.push_back(token); });
  EXPECT_EQ(continuation, streamed);
  ASSERT_EQ(continuation.size(), 12u);
  for (const int64_t token : continuation) {
    const auto n = static_cast<int64_t>(text.size());
    Batch batch;
    batch.tokens = at::tensor(text, at::kLong).unsqueeze(0);
    batch.targets = at::full({1, n}, -100, at::kLong);
    batch.positions = at::arange(n).unsqueeze(0);
    EXPECT_EQ(model.logits(batch)[0][n - 1].argmax().item<int64_t>(), token);
    text.push_back(token);
  }
}

TEST(Generate, StopsAfterTheStopToken) {
  SmallModel small;
  Model model(small.config, small.parameters, {});
  const std::vector<int64_t> prompt{1};
  const auto all = generate(model, prompt, {.max_new_tokens = 5});
  const auto stopped = generate(model, prompt, {.max_new_tokens = 5, .stop_token = all[0]});
  EXPECT_EQ(stopped, std::vector<int64_t>{all[0]});
}

TEST(Generate, NeedsAPrompt) {
  SmallModel small;
  Model model(small.config, small.parameters, {});
  EXPECT_THROW(generate(model, {}, {}), UsageError);
}

}  // namespace
}  // namespace halfstep::model
