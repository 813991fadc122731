// One transformer layer as a unit: residual stream in, residual stream out. Everything it keeps for
// backward hangs off its output, so a layer can be run again or placed elsewhere as a whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "halfstep/arch/model_config.h"
#include "halfstep/model/ops/attention.h"
#include "halfstep/model/ops/linear.h"
#include "halfstep/model/ops/rotary.h"

namespace halfstep::model {

struct LayerWeights {
  at::Tensor input_norm, post_attention_norm;  // [hidden]
  std::vector<at::Tensor> qkv_bias;            // none, or of q, k, v
  at::Tensor q_norm, k_norm;                   // undefined without QK-norm
  LinearWeights qkv, output, gate_up, down;
};

// The keys and values of one layer's earlier tokens, [capacity, groups, head_dim].
struct LayerCache {
  at::Tensor k, v;
};

// What all layers of a forward pass share.
struct LayerInputs {
  const arch::ModelConfig& config;
  at::Tensor positions;  // [T] int64
  RotaryTable rotary;
  std::vector<SegmentRun> segments;
  WeightGradientSink* sink = nullptr;
  // Generation: the new tokens' keys and values go behind the first `cached_tokens` of the cache.
  int64_t cached_tokens = 0;
};

// hidden [T, hidden] → [T, hidden]. `cache` is null in training; with it no gradient flows.
at::Tensor layer_forward(const at::Tensor& hidden, const LayerWeights& weights,
                         const LayerInputs& inputs, LayerCache* cache);

}  // namespace halfstep::model
