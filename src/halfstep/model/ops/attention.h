// Causal attention through libtorch's scaled_dot_product_attention, per segment.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "halfstep/model/ops/rotary.h"

namespace halfstep::model {

// A run of `count` segments of `length` tokens each, which share one call.
struct SegmentRun {
  int64_t count = 0, length = 0;
};
// From cumulative lengths that start with 0 and end with the number of tokens.
std::vector<SegmentRun> segment_runs(const std::vector<int64_t>& segment_starts);

// Returns [T, heads · head_dim]. Tokens see the tokens of their own segment up to themselves.
at::Tensor attention(const AttentionInputs& in, const std::vector<SegmentRun>& segments);

// Attention of new tokens to everything in a cache, the new tokens included (k, v
// [cached tokens, groups, head_dim]). More than one new token only if the cache holds no others.
at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace halfstep::model
