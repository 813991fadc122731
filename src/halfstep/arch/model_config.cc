#include "halfstep/arch/model_config.h"

#include <fmt/format.h>

#include <cmath>

#include "halfstep/arch/limits.h"
#include "halfstep/core/error.h"

namespace halfstep::arch {
namespace {

void require(bool holds, std::string_view field, const std::string& got,
             std::string_view expected) {
  if (!holds) {
    throw UsageError(fmt::format("model config: {} is {}, expected {}", field, got, expected));
  }
}

void require_positive(int64_t value, std::string_view field) {
  // Sizes far above any model would overflow products of two of them, so they are typing errors.
  require(value >= 1 && value < (int64_t{1} << 31), field, std::to_string(value),
          "a number from 1 to 2^31 - 1");
}

void require_finite_positive(double value, std::string_view field) {
  require(std::isfinite(value) && value > 0, field, fmt::format("{}", value),
          "a finite number above 0");
}

}  // namespace

void ModelConfig::validate() const {
  require(num_layers >= 1 && num_layers <= kMaxLayers, "num_layers", std::to_string(num_layers),
          fmt::format("a number from 1 to {}", kMaxLayers));
  require_positive(hidden_size, "hidden_size");
  require_positive(ffn_hidden_size, "ffn_hidden_size");
  require_positive(num_attention_heads, "num_attention_heads");
  require_positive(num_query_groups, "num_query_groups");
  require_positive(head_dim, "head_dim");
  require_positive(vocab_size, "vocab_size");
  require_positive(max_position_embeddings, "max_position_embeddings");
  require(num_attention_heads % num_query_groups == 0, "num_query_groups",
          std::to_string(num_query_groups),
          fmt::format("a divisor of num_attention_heads ({})", num_attention_heads));
  require(head_dim % 2 == 0, "head_dim", std::to_string(head_dim),
          "an even number (rotary embedding turns pairs)");
  require(num_attention_heads * head_dim < (int64_t{1} << 31), "num_attention_heads * head_dim",
          std::to_string(num_attention_heads * head_dim), "less than 2^31");
  require_finite_positive(rope_theta, "rope_theta");
  require(std::isfinite(norm_eps) && norm_eps >= 0, "norm_eps", fmt::format("{}", norm_eps),
          "a finite number, 0 or above");
  require(std::isfinite(init_std) && init_std >= 0, "init_std", fmt::format("{}", init_std),
          "a finite number, 0 or above");
  if (rope_scaling) {
    require_finite_positive(rope_scaling->factor, "rope_scaling.factor");
    require_finite_positive(rope_scaling->low_freq_factor, "rope_scaling.low_freq_factor");
    require(std::isfinite(rope_scaling->high_freq_factor) &&
                rope_scaling->high_freq_factor > rope_scaling->low_freq_factor,
            "rope_scaling.high_freq_factor", fmt::format("{}", rope_scaling->high_freq_factor),
            fmt::format("more than low_freq_factor ({})", rope_scaling->low_freq_factor));
    require_positive(rope_scaling->original_max_position_embeddings,
                     "rope_scaling.original_max_position_embeddings");
  }
  // The family is what config.json will say, so it must not promise another function.
  require(qk_norm == (family == Family::kQwen3), "qk_norm", qk_norm ? "true" : "false",
          "true for the family qwen3 and false for the others");
  require(qkv_bias == (family == Family::kQwen2), "qkv_bias", qkv_bias ? "true" : "false",
          "true for the family qwen2 and false for the others");
}

}  // namespace halfstep::arch
