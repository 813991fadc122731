#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "halfstep/arch/model_config.h"
#include "halfstep/core/error.h"

namespace halfstep::arch {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json llama() {
  return {{"model_type", "llama"},         {"architectures", {"LlamaForCausalLM"}},
          {"num_hidden_layers", 2},        {"hidden_size", 64},
          {"intermediate_size", 128},      {"num_attention_heads", 4},
          {"num_key_value_heads", 2},      {"vocab_size", 100},
          {"max_position_embeddings", 64}, {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"}};
}
json qwen3() {
  json config = llama();
  config.merge_patch({{"model_type", "qwen3"}, {"architectures", {"Qwen3ForCausalLM"}}});
  return config;
}
json mistral() {
  json config = llama();
  config.merge_patch({{"model_type", "mistral"}, {"architectures", {"MistralForCausalLM"}}});
  config["sliding_window"] = nullptr;
  return config;
}

ModelConfig parse(const json& config) { return parse_hf_config(config.dump(), "config.json"); }

// The config with `key` set to `value` must be refused, and the message must name the key.
void expect_refused(json config, const std::string& key, const json& value) {
  config[key] = value;
  try {
    parse(config);
    ADD_FAILURE() << key << " = " << value << " was accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(key)) << value;
    EXPECT_THAT(error.what(), HasSubstr("config.json"));
    EXPECT_FALSE(error.hint().empty());
  }
}

TEST(HfConfig, ReadsEveryField) {
  json config = llama();
  config.merge_patch({{"head_dim", 24},
                      {"rope_theta", 5e5},
                      {"tie_word_embeddings", true},
                      {"initializer_range", 0.01}});
  const ModelConfig expected{.family = Family::kLlama,
                             .num_layers = 2,
                             .hidden_size = 64,
                             .ffn_hidden_size = 128,
                             .num_attention_heads = 4,
                             .num_query_groups = 2,
                             .head_dim = 24,
                             .vocab_size = 100,
                             .max_position_embeddings = 64,
                             .rope_theta = 5e5,
                             .norm_eps = 1e-5,
                             .tie_embeddings = true,
                             .init_std = 0.01};
  EXPECT_EQ(parse(config), expected);
}

TEST(HfConfig, MissingKeysMeanWhatTransformersTakesForThem) {
  json config = llama();
  config.erase("num_key_value_heads");
  EXPECT_EQ(parse(config).num_query_groups, 4);
  EXPECT_EQ(parse(config).head_dim, 16);
  EXPECT_EQ(parse(config).rope_theta, 10000);
  EXPECT_FALSE(parse(config).tie_embeddings);
  EXPECT_EQ(parse(qwen3()).head_dim, 128);
}

// transformers 4 writes rope_theta and rope_scaling, 5 writes rope_parameters.
TEST(HfConfig, BothSpellingsOfTheRotaryEmbedding) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  json old_style = llama();
  old_style.merge_patch({{"rope_theta", 5e5}, {"rope_scaling", llama3}});
  json new_style = llama();
  new_style["rope_parameters"] = llama3;
  new_style["rope_parameters"]["rope_theta"] = 5e5;
  EXPECT_EQ(parse(old_style), parse(new_style));
  EXPECT_EQ(parse(new_style).rope_theta, 5e5);
  EXPECT_EQ(parse(new_style).rope_scaling->factor, 32);

  json plain = llama();
  plain["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(parse(plain).rope_theta, 1e6);
  EXPECT_FALSE(parse(plain).rope_scaling);
  plain = llama();
  plain["rope_scaling"] = nullptr;
  EXPECT_FALSE(parse(plain).rope_scaling);
}

TEST(HfConfig, RefusesWhatChangesTheFunction) {
  for (const char* type : {"gpt2", "qwen3_moe", "gemma"}) {
    expect_refused(llama(), "model_type", type);
  }
  expect_refused(llama(), "architectures", {"LlamaForSequenceClassification"});
  expect_refused(llama(), "hidden_act", "gelu");
  expect_refused(llama(), "attention_bias", true);
  expect_refused(llama(), "mlp_bias", true);
  expect_refused(llama(), "attention_dropout", 0.1);
  expect_refused(llama(), "quantization_config", {{"bits", 4}});
  expect_refused(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}});
  expect_refused(llama(), "rope_parameters", {{"rope_type", "yarn"}, {"factor", 2.0}});
  expect_refused(llama(), "partial_rotary_factor", 0.5);
  expect_refused(qwen3(), "use_sliding_window", true);
  expect_refused(qwen3(), "layer_types", {"full_attention", "sliding_attention"});
  expect_refused(mistral(), "sliding_window", 4096);
  json without = mistral();  // its class would take 4096
  without.erase("sliding_window");
  EXPECT_THROW(parse(without), InputError);
}

TEST(HfConfig, RefusesWrongTypesMissingKeysAndImpossibleSizes) {
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size",
                          "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    for (const json& bad : {json("64"), json(1.5), json(nullptr), json(0), json(-4)}) {
      json config = llama();
      config[key] = bad;
      EXPECT_THROW(parse(config), InputError) << key << " = " << bad;
    }
  }
  json negative = llama();
  negative["rms_norm_eps"] = -1.0;
  EXPECT_THROW(parse(negative), InputError);
  expect_refused(llama(), "tie_word_embeddings", "yes");
  expect_refused(llama(), "head_dim", 15);
  for (const char* text : {"", "[]", "{", "not json"}) {
    EXPECT_THROW(parse_hf_config(text, "config.json"), InputError) << text;
  }
  EXPECT_THROW(load_hf_config("/nonexistent/config.json"), InputError);
}

TEST(HfConfig, RoundTrip) {
  json config = llama();
  config["rope_parameters"] = {{"rope_type", "llama3"},   {"rope_theta", 5e5},
                               {"factor", 8.0},           {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 32}};
  json qwen2 = llama();
  qwen2.merge_patch({{"model_type", "qwen2"}, {"architectures", {"Qwen2ForCausalLM"}}});
  for (const json& c : {llama(), config, qwen2, qwen3(), mistral()}) {
    const ModelConfig model = parse(c);
    EXPECT_EQ(parse_hf_config(to_hf_config(model), "config.json"), model) << c;
  }
}

}  // namespace
}  // namespace halfstep::arch
