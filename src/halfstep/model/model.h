// A decoder-only transformer (Llama 2/3, Mistral, Qwen2.5, Qwen3 dense) over parameters that live
// elsewhere: the model owns no weights, it reads views that the caller gives it (the optimizer's
// arenas, or plain tensors in eval). It must outlive the backward passes of its losses. Not
// thread-safe; one instance per thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "halfstep/arch/model_config.h"

namespace halfstep::model {

struct KvCache;

// Takes the gradient of a linear weight as the two factors of its matmul, so that it can be added
// straight into a buffer (gradient accumulation fusion).
class WeightGradientSink {
 public:
  virtual ~WeightGradientSink() = default;
  // Adds grad_outputᵀ · input to the gradient of the `count` parameters that start at `parameter`
  // (adjacent in memory, stacked by rows). grad_output [T, out] (rows may be strided, columns are
  // dense), input [T, in], both FP32 or both BF16. Called during backward, several times for one
  // parameter if its product comes in parts (the loss in chunks). Returns false if it cannot; then
  // the model computes the gradient for autograd.
  virtual bool add_product(int64_t parameter, int64_t count, const at::Tensor& grad_output,
                           const at::Tensor& input) = 0;
};

struct ModelOptions {
  // Dtype of activations and matmuls. FP32 from BF16 weights is faster on CPUs without BF16 units.
  at::ScalarType compute = at::kFloat;
  WeightGradientSink* weight_gradients = nullptr;
  int64_t loss_chunk_tokens = 1024;  // logits exist for this many tokens at a time
  // Called before a forward reads parameters [begin, end) (indices in the list), layer by layer:
  // for weights that are still on their way here.
  std::function<void(int64_t begin, int64_t end)> before_weights = nullptr;
};

struct Batch {
  at::Tensor tokens;     // [batch, seq] int64
  at::Tensor targets;    // [batch, seq] int64, −100 = no loss
  at::Tensor positions;  // [batch, seq] int64
  // Cumulative lengths of attention segments over the flattened batch, from 0 to batch · seq;
  // empty: one per row.
  std::vector<int64_t> segment_starts;
};

class Model {
 public:
  // `parameters`: one tensor per arch::parameter_list(config) entry, of its shape, BF16 or FP32,
  // contiguous, leaves with requires_grad for training.
  Model(const arch::ModelConfig& config, std::vector<at::Tensor> parameters, ModelOptions options);
  ~Model();

  // Σ of token losses (nats) over all targets that are not −100: FP32 scalar, differentiable once.
  // Throws InputError for a token or target outside the vocabulary.
  at::Tensor loss_sum(const Batch& batch);
  // Logits [batch, seq, vocab] in FP32, for tests (no chunking).
  at::Tensor logits(const Batch& batch);
  // Generation: appends `tokens` [n] to the cache and returns the logits [vocab] that follow the
  // last of them. n > 1 only while the cache is empty.
  at::Tensor next_logits(const at::Tensor& tokens, KvCache& cache);

  const arch::ModelConfig& config() const;
  const ModelOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace halfstep::model
