// Linear layers over one input: y = x · [W₀; W₁; …]ᵀ + bias + residual, as one autograd function.
// Weights that lie next to each other in memory (q, k, v; gate, up) are multiplied as one matrix.
// The weight's gradient goes to the WeightGradientSink where that takes it; then autograd sees an
// undefined gradient, and no hook of the weight runs for this use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace halfstep::model {

class WeightGradientSink;

struct LinearWeights {
  // `weights` are the parameters first_parameter, first_parameter + 1, … with equal columns.
  LinearWeights(std::vector<at::Tensor> weights, int64_t first_parameter);

  std::vector<at::Tensor> weights;  // leaves
  int64_t first_parameter = 0;
  int64_t out_features = 0;  // of all together
  at::Tensor stacked;        // all of them as one matrix, undefined if they are not adjacent
};

// x [T, in] in the compute dtype; bias [out] in any dtype; residual [T, out] in the compute dtype.
// bias and residual may be undefined, not both be given. Weights of another dtype than x are
// converted for the use and dropped.
at::Tensor linear(const at::Tensor& x, const LinearWeights& weights, const at::Tensor& bias,
                  const at::Tensor& residual, WeightGradientSink* sink);

}  // namespace halfstep::model
