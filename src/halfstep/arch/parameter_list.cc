#include <string>
#include <vector>

#include "halfstep/arch/model_config.h"

namespace halfstep::arch {

std::vector<Parameter> parameter_list(const ModelConfig& config) {
  config.validate();
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = config.num_attention_heads * config.head_dim;
  const int64_t kv_size = config.num_query_groups * config.head_dim;
  std::vector<Parameter> list;

  const auto matrix = [&](std::string name, int64_t out, int64_t in,
                          ParameterKind kind = ParameterKind::kLinear) {
    list.push_back({.name = std::move(name),
                    .shape = {out, in},
                    .kind = kind,
                    .init_std = config.init_std});
  };
  const auto vector = [&](std::string name, int64_t size, ParameterKind kind) {
    list.push_back({.name = std::move(name), .shape = {size}, .kind = kind});
  };

  const auto stacked = [&](std::string name, int64_t out, int64_t in) {
    matrix(std::move(name), out, in);
    list.back().stacked_on_previous = true;
  };

  matrix("model.embed_tokens.weight", config.vocab_size, hidden, ParameterKind::kEmbedding);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const std::string attention = layer + "self_attn.";
    vector(layer + "input_layernorm.weight", hidden, ParameterKind::kNorm);
    matrix(attention + "q_proj.weight", q_size, hidden);
    stacked(attention + "k_proj.weight", kv_size, hidden);
    stacked(attention + "v_proj.weight", kv_size, hidden);
    if (config.qkv_bias) {
      vector(attention + "q_proj.bias", q_size, ParameterKind::kBias);
      vector(attention + "k_proj.bias", kv_size, ParameterKind::kBias);
      vector(attention + "v_proj.bias", kv_size, ParameterKind::kBias);
    }
    if (config.qk_norm) {
      vector(attention + "q_norm.weight", config.head_dim, ParameterKind::kNorm);
      vector(attention + "k_norm.weight", config.head_dim, ParameterKind::kNorm);
    }
    matrix(attention + "o_proj.weight", hidden, q_size);
    vector(layer + "post_attention_layernorm.weight", hidden, ParameterKind::kNorm);
    matrix(layer + "mlp.gate_proj.weight", config.ffn_hidden_size, hidden);
    stacked(layer + "mlp.up_proj.weight", config.ffn_hidden_size, hidden);
    matrix(layer + "mlp.down_proj.weight", hidden, config.ffn_hidden_size);
  }
  vector("model.norm.weight", hidden, ParameterKind::kNorm);
  if (!config.tie_embeddings) matrix("lm_head.weight", config.vocab_size, hidden);
  return list;
}

}  // namespace halfstep::arch
