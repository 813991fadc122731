// From the fused q, k, v projection to attention's inputs: optional RMSNorm of each head of q and k
// (Qwen3), then the rotary embedding, in one pass each way.
#pragma once

#include <ATen/core/Tensor.h>

#include "halfstep/arch/model_config.h"

namespace halfstep::model {

// cos and sin of position · inverse frequency, [positions, head_dim / 2] in FP32.
struct RotaryTable {
  at::Tensor cos, sin;
};

// The inverse frequencies as FP32, computed as `transformers` does (Llama 3's scaling included):
// their rounding is part of what a model was trained with.
at::Tensor rotary_inverse_frequencies(const arch::ModelConfig& config);
RotaryTable rotary_table(const at::Tensor& inverse_frequencies, int64_t positions);

struct AttentionInputs {
  at::Tensor q;     // [T, heads, head_dim]
  at::Tensor k, v;  // [T, query groups, head_dim]
};
// qkv [T, (heads + 2 · groups) · head_dim]; positions [T]; q_norm and k_norm are undefined, or
// [head_dim] in any dtype.
AttentionInputs split_and_rotate(const at::Tensor& qkv, const at::Tensor& q_norm,
                                 const at::Tensor& k_norm, const at::Tensor& positions,
                                 const RotaryTable& table, const arch::ModelConfig& config);

}  // namespace halfstep::model
