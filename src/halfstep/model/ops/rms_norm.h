// RMSNorm of the rows of a residual stream.
#pragma once

#include <ATen/core/Tensor.h>

namespace halfstep::model {

// x [T, hidden], weight [hidden] in any dtype.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Where the stream forks: `normed` feeds a block and `residual`, x itself, is what the block's
// output is added to. The two gradients meet in one pass instead of a separate addition.
struct Fork {
  at::Tensor residual, normed;
};
Fork rms_norm_fork(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace halfstep::model
