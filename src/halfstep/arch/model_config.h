// The architecture of a model: read from a Hugging Face config.json or Megatron's dimension flags,
// written back as config.json, and turned into its list of parameters. Pure data, no tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "halfstep/arch/parameter.h"

namespace halfstep::arch {

enum class Family : uint8_t { kLlama, kMistral, kQwen2, kQwen3 };

// Llama 3's piecewise scaling of the rotary frequencies ("rope_type": "llama3").
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
  friend bool operator==(const Llama3RopeScaling&, const Llama3RopeScaling&) = default;
};

struct ModelConfig {
  Family family = Family::kQwen3;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;  // key/value heads
  int64_t head_dim = 0;          // independent of hidden_size / num_attention_heads
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = 10000;
  std::optional<Llama3RopeScaling> rope_scaling = std::nullopt;
  double norm_eps = 1e-6;
  bool qk_norm = false;   // Qwen3: RMSNorm of each head's q and k
  bool qkv_bias = false;  // Qwen2
  bool tie_embeddings = false;
  double init_std = 0.02;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
  // Throws UsageError naming the field: what, got, expected.
  void validate() const;
};

// Throws InputError for an architecture, activation, RoPE type or sliding window that we do not
// implement, naming the key.
ModelConfig load_hf_config(const std::filesystem::path& config_json);
// The same from the text of a config.json; `file` is where it comes from, for messages.
ModelConfig parse_hf_config(std::string_view text, const std::string& file);
std::string to_hf_config(const ModelConfig& config);

// All parameters, each once (a tied embedding is only model.embed_tokens.weight), in the order of
// the forward pass; q, k, v and gate, up of a layer stand next to each other, so that where their
// sizes allow it one matmul can serve them (layout).
std::vector<Parameter> parameter_list(const ModelConfig& config);

}  // namespace halfstep::arch
