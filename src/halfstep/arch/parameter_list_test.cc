#include <gtest/gtest.h>

#include <algorithm>

#include "halfstep/arch/model_config.h"
#include "halfstep/core/error.h"

namespace halfstep::arch {
namespace {

ModelConfig small() {
  return {.family = Family::kLlama,
          .num_layers = 2,
          .hidden_size = 8,
          .ffn_hidden_size = 12,
          .num_attention_heads = 4,
          .num_query_groups = 2,
          .head_dim = 6,
          .vocab_size = 10,
          .max_position_embeddings = 16};
}

std::vector<std::string> names(const ModelConfig& config) {
  std::vector<std::string> result;
  for (const Parameter& p : parameter_list(config)) result.push_back(p.name);
  return result;
}

// The names of a layer without its prefix, in order.
std::vector<std::string> layer_names(const ModelConfig& config, const std::string& prefix) {
  std::vector<std::string> result;
  for (const std::string& name : names(config)) {
    if (name.starts_with(prefix)) result.push_back(name.substr(prefix.size()));
  }
  return result;
}

// That the sets equal those of `transformers` is checked in tests/model; here: the order.
TEST(ParameterList, QueryKeyValueAndGateUpAreNeighbours) {
  ModelConfig config = small();
  const std::vector<std::string> expected{
      "input_layernorm.weight",  "self_attn.q_proj.weight", "self_attn.k_proj.weight",
      "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
      "mlp.gate_proj.weight",    "mlp.up_proj.weight",      "mlp.down_proj.weight"};
  EXPECT_EQ(layer_names(config, "model.layers.1."), expected);
  EXPECT_EQ(names(config).front(), "model.embed_tokens.weight");
  EXPECT_EQ(names(config).back(), "lm_head.weight");

  config.family = Family::kQwen2;
  config.qkv_bias = true;
  const std::vector<std::string> biases{"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                        "self_attn.v_proj.bias"};
  const auto with_bias = layer_names(config, "model.layers.0.");
  EXPECT_TRUE(std::equal(biases.begin(), biases.end(), with_bias.begin() + 4));
}

TEST(ParameterList, ShapesFollowHeadDim) {
  for (const Parameter& p : parameter_list(small())) {
    if (p.name.ends_with("q_proj.weight")) {
      EXPECT_EQ(p.shape, (std::vector<int64_t>{24, 8}));
    }
    if (p.name.ends_with("v_proj.weight")) {
      EXPECT_EQ(p.shape, (std::vector<int64_t>{12, 8}));
    }
    if (p.name.ends_with("o_proj.weight")) {
      EXPECT_EQ(p.shape, (std::vector<int64_t>{8, 24}));
    }
  }
}

TEST(ParameterList, TiedEmbeddingIsListedOnce) {
  ModelConfig config = small();
  const size_t untied = parameter_list(config).size();
  config.tie_embeddings = true;
  EXPECT_EQ(parameter_list(config).size(), untied - 1);
  EXPECT_EQ(names(config).back(), "model.norm.weight");
}

TEST(ParameterList, OnlyMatricesAreDecayed) {
  ModelConfig config = small();
  config.family = Family::kQwen3;
  config.qk_norm = true;
  for (const Parameter& p : parameter_list(config)) {
    EXPECT_EQ(p.decayed(), p.name.find("norm") == std::string::npos) << p.name;
  }
}

TEST(ModelConfig, ValidateNamesTheField) {
  const auto error_of = [](auto change) {
    ModelConfig config = small();
    change(config);
    try {
      config.validate();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto npos = std::string::npos;
  EXPECT_EQ(error_of([](ModelConfig&) {}), "accepted");
  EXPECT_NE(error_of([](auto& c) { c.num_query_groups = 3; }).find("num_query_groups"), npos);
  EXPECT_NE(error_of([](auto& c) { c.head_dim = 5; }).find("head_dim"), npos);
  EXPECT_NE(error_of([](auto& c) { c.vocab_size = 0; }).find("vocab_size"), npos);
  EXPECT_NE(error_of([](auto& c) { c.hidden_size = int64_t{1} << 31; }).find("hidden_size"), npos);
  EXPECT_NE(error_of([](auto& c) { c.norm_eps = -1; }).find("norm_eps"), npos);
  EXPECT_NE(error_of([](auto& c) { c.rope_theta = 0; }).find("rope_theta"), npos);
  EXPECT_NE(error_of([](auto& c) { c.qk_norm = true; }).find("qk_norm"), npos);
  EXPECT_NE(error_of([](auto& c) { c.rope_scaling = {.low_freq_factor = 4}; }).find("rope_scaling"),
            npos);
}

}  // namespace
}  // namespace halfstep::arch
