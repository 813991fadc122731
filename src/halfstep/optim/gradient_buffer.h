// Accumulates the gradients of a step's micro-batches in the gradient arena, BF16 or FP32
// (docs/numerics.md §7). Gradients arrive in two ways: from a hook that takes each parameter's
// .grad as soon as autograd has it and drops it, and as the two factors of a matmul (gradient
// accumulation fusion), which never exist as a tensor of their own. A parameter's first
// contribution of a step overwrites, later ones add; both ways may feed the same parameter (a tied
// embedding: the head by its factors, the embedding by the hook).
//
// State: which parameters had a contribution this step, and the place of the current micro-batch in
// the noise's address. Used by the training loop; the hooks run on the thread that calls
// backward().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "halfstep/kernels/rounding_policy.h"
#include "halfstep/optim/arenas.h"

namespace halfstep::optim {

struct GradientBufferOptions {
  bool fusion = true;         // matmuls add straight into the buffer
  int64_t micro_batches = 1;  // K: contributions per step, chooses the rounding
  std::optional<Rounding> rounding = std::nullopt;  // --grad-accumulation-rounding; empty is auto
  uint64_t seed = 0;
};

// Is told when a parameter's gradient of a micro-batch is complete: after the last use of the
// parameter in a backward(), on the thread that calls it.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  virtual void gradient_complete(int64_t parameter) = 0;
};

class GradientBuffer {
 public:
  // Installs a hook on each of arenas.weights(). Throws UsageError if fusion is asked for with
  // gradients that are not FP32. `arenas` must outlive this object.
  GradientBuffer(Arenas& arenas, const GradientBufferOptions& options);
  // Removes the hooks.
  ~GradientBuffer();
  GradientBuffer(const GradientBuffer&) = delete;
  GradientBuffer& operator=(const GradientBuffer&) = delete;

  // Starts a step: no parameter has a contribution. `updates` is AdamW::updates(), the number of
  // updates that each parameter has had (an address of noise).
  void begin_step(std::span<const int64_t> updates);
  // Before each backward(): the index of its micro-batch in the global batch (dp_rank·K + k).
  void begin_micro_batch(int64_t global_index);
  // After the last one: zeroes the gradients of parameters without a contribution.
  void finish_step();
  // Null for none.
  void set_listener(GradientListener* listener) { listener_ = listener; }

  // What model::WeightGradientSink asks for, for `count` parameters with equal columns. Acts where
  // factors and buffers are FP32, else returns false: then the product reaches the hook, through
  // autograd and so rounded to the weight's dtype. With fusion the matmul writes into the buffer;
  // without, the product is a transient tensor, and differs only in the order of the sum.
  bool add_product(int64_t parameter, int64_t count, const at::Tensor& grad_output,
                   const at::Tensor& input);
  // Whether fusion acts for factors of this type (the start-up report says so once).
  bool can_fuse(at::ScalarType compute) const;
  // Adds a contribution of the parameter's numel elements, BF16 or FP32. What the hooks do.
  void add(int64_t parameter, const at::Tensor& gradient);

  bool contributed(int64_t parameter) const { return contributed_[parameter] != 0; }
  // The rounding in use in an arena, with its reason and expected error.
  const kernels::RoundingChoice& rounding(int64_t arena) const { return roundings_[arena]; }

 private:
  friend class TakeGradient;  // the hook
  void take(int64_t parameter, const at::Tensor& leaf);
  void add_fused(int64_t parameter, int64_t end, const at::Tensor& grad_output,
                 const at::Tensor& input);

  Arenas& arenas_;
  GradientBufferOptions options_;
  std::vector<kernels::RoundingChoice> roundings_;  // by arena
  std::vector<uint8_t> contributed_;                // by parameter
  std::vector<uint64_t> name_hashes_;
  std::vector<int64_t> updates_;
  uint32_t micro_step_ = 0;
  GradientListener* listener_ = nullptr;
};

}  // namespace halfstep::optim
