#include "halfstep/model/layer.h"

#include <ATen/ATen.h>

#include "halfstep/model/ops/rms_norm.h"
#include "halfstep/model/ops/swiglu.h"

namespace halfstep::model {
namespace {

at::Tensor append_and_attend(const AttentionInputs& in, const LayerInputs& inputs,
                             LayerCache& cache) {
  const int64_t tokens = inputs.cached_tokens + in.k.size(0);
  cache.k.narrow(0, inputs.cached_tokens, in.k.size(0)).copy_(in.k);
  cache.v.narrow(0, inputs.cached_tokens, in.v.size(0)).copy_(in.v);
  return cached_attention(in.q, cache.k.narrow(0, 0, tokens), cache.v.narrow(0, 0, tokens));
}

}  // namespace

at::Tensor layer_forward(const at::Tensor& hidden, const LayerWeights& weights,
                         const LayerInputs& inputs, LayerCache* cache) {
  const double eps = inputs.config.norm_eps;
  const Fork before = rms_norm_fork(hidden, weights.input_norm, eps);
  const at::Tensor bias = weights.qkv_bias.empty() ? at::Tensor() : at::cat(weights.qkv_bias);
  const at::Tensor qkv = linear(before.normed, weights.qkv, bias, {}, inputs.sink);
  const AttentionInputs in = split_and_rotate(qkv, weights.q_norm, weights.k_norm, inputs.positions,
                                              inputs.rotary, inputs.config);
  const at::Tensor mixed =
      cache != nullptr ? append_and_attend(in, inputs, *cache) : attention(in, inputs.segments);
  const at::Tensor attended = linear(mixed, weights.output, {}, before.residual, inputs.sink);

  const Fork after = rms_norm_fork(attended, weights.post_attention_norm, eps);
  const at::Tensor activated = swiglu(linear(after.normed, weights.gate_up, {}, {}, inputs.sink));
  return linear(activated, weights.down, {}, after.residual, inputs.sink);
}

}  // namespace halfstep::model
