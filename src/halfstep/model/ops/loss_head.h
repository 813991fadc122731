// The output projection and the cross entropy together, in chunks of tokens, so that FP32 logits
// exist for one chunk at a time.
//
// Backward needs the logits again. Keeping the gradient of the head from the forward pass instead
// would cost an FP32 matrix of vocab × hidden at the moment of highest memory (all activations are
// alive); so the logits of a chunk are computed again, except those of the last chunk, which are
// kept: backward begins with it right after forward, so this raises no peak. The price is one more
// matmul of the head per chunk beyond the first, none for a micro-batch of one chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halfstep::model {

class WeightGradientSink;

struct LossHead {
  at::Tensor weight;      // [vocab, hidden], a leaf: lm_head, or the tied embedding
  int64_t parameter = 0;  // its index
  WeightGradientSink* sink = nullptr;
  int64_t chunk_tokens = 0;
};

// hidden [T, hidden], targets [T] int64 in [0, vocab) or negative for no loss.
// Returns Σ of token losses, an FP32 scalar.
at::Tensor cross_entropy_sum(const at::Tensor& hidden, const LossHead& head,
                             const at::Tensor& targets);

}  // namespace halfstep::model
